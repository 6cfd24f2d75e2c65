"""Models in GGUF files: the same numbers as de-quantized weights in plain transformers, or one clear line."""

import numpy as np
import pytest
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

import cs_heads as cs
from cs_heads.lens import describe, fingerprint, load, load_model, settings_of
from cs_heads.lens.model import dtype_of
from cs_heads.lens.tokens import encode_prompt
from cs_heads.tasks.chat import chat_prompt
from tests.lens.test_weights import refusal

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")

LETTERS = ["<s>", "</s>", "ab", *sorted(pre_tokenizers.ByteLevel.alphabet())]
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
SIZES |= {"intermediate_size": 64, "vocab_size": len(LETTERS), "max_position_embeddings": 128, "initializer_range": 0.3}


def make(architecture, **config):
    torch.manual_seed(0)
    made = getattr(transformers, f"{architecture}Config")(**SIZES, **config)
    return getattr(transformers, f"{architecture}ForCausalLM")(made).eval()


def permuted(values, n_heads):
    """Rows of a query or key matrix in llama.cpp's order, which pairs neighbors where Llama pairs halves."""
    return values.reshape(n_heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def write(model, file, add_bos=False, change=lambda tensors: None, **fields):
    """A GGUF file of a model: matrices of its layers in 8 bits, which the model itself is rounded to."""
    config, architecture = model.config, model.config.model_type
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    tensors = {}
    for name, parameter in model.state_dict().items():
        values = parameter.numpy()
        stored = f"{names.get_name(name.rsplit('.', 1)[0])}.{name.rsplit('.', 1)[1]}"
        kind = gguf.GGMLQuantizationType.F32
        if values.ndim == 2 and ".layers." in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            parameter.copy_(torch.tensor(gguf.dequantize(gguf.quantize(values, kind), kind)))
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            values = permuted(values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        tensors[stored] = (gguf.quantize(values, kind), kind)
    change(tensors)
    writer = gguf.GGUFWriter(file, architecture)
    said = {"block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings}
    said |= {"embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size}
    said |= {"head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads}
    said |= {"layer_norm_rms_eps": config.rms_norm_eps, "rope_freq_base": config.rope_parameters["rope_theta"]}
    said |= {"tokenizer_model": "gpt2", "tokenizer_pre": "default", "token_list": LETTERS, "token_merges": ["a b"]}
    said |= {"token_types": [3, 3, *[1] * (len(LETTERS) - 2)], "bos_token_id": 0, "eos_token_id": 1}
    said |= {} if add_bos is None else {"add_bos_token": add_bos}
    for key, value in (said | fields).items():
        getattr(writer, f"add_{key}")(value)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def same_logits(model, plain):
    tokens = torch.arange(2, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), plain(tokens).logits, atol=2e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def plain():
    return make("Llama")


@pytest.fixture(scope="module")
def file(plain, tmp_path_factory):
    return write(plain, tmp_path_factory.mktemp("one") / "model.gguf")


def test_a_file_loads_de_quantized_with_its_tokenizer(file, plain, backend):
    model = load_model(str(file), device="cpu", backend=backend)
    same_logits(model, plain)
    assert cs.Grid.from_model(model) == cs.Grid(2, 4)
    assert describe(model)["name"] == str(file)
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert list(encode_prompt(model.tokenizer, "a cat")) == theirs("a cat")["input_ids"]
    assert model.tokenizer.eos_token == "</s>"
    # So a store that was begun with it goes on.
    again = load_model(str(file), device="cpu", backend=backend)
    assert (fingerprint(again), settings_of(again)) == (fingerprint(model), settings_of(model))
    assert "quantization_config" not in settings_of(model).get("config", {})
    assert dtype_of(load_model(file, device="cpu", dtype="bfloat16")) == torch.bfloat16


def test_value_biases_and_tied_embeddings_are_read(tmp_path):
    plain = make("Qwen2", tie_word_embeddings=True)
    for layer in plain.model.layers:
        layer.self_attn.v_proj.bias.data.normal_()
    file = write(plain, tmp_path / "tied.gguf", change=lambda tensors: tensors.pop("output.weight"))
    same_logits(load_model(file, device="cpu"), plain)


CHAT = "{{ bos_token }}{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


@pytest.mark.parametrize("add_bos", [True, None])
def test_the_beginning_of_sequence_token_that_a_file_names_is_the_model_s(plain, tmp_path, add_bos):
    """Whether it is prepended by itself or not, and where the file does not say."""
    file = write(plain, tmp_path / "m.gguf", add_bos=add_bos, chat_template=CHAT)
    tokenizer = load_model(file, device="cpu").tokenizer
    own = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert list(encode_prompt(tokenizer, "cat")) == own("cat")["input_ids"]
    assert encode_prompt(tokenizer, "cat", prepend_bos=True)[0] == own.bos_token_id == 0
    chat = chat_prompt(tokenizer, "cat")
    assert chat == own.apply_chat_template([{"role": "user", "content": "cat"}], tokenize=False) == "<s>[cat]"
    for prepend_bos in (None, True):
        assert list(encode_prompt(tokenizer, chat, prepend_bos)) == own(chat, add_special_tokens=False)["input_ids"]


def floats(*shape):
    return np.ones(shape, dtype=np.float32), gguf.GGMLQuantizationType.F32


def take_out_a_layer(tensors):
    for name in [name for name in tensors if name.startswith("blk.1.")]:
        del tensors[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (take_out_a_layer, r"9 weights are missing \(model\.layers\.1\.input_layernorm\.weight"),
        (lambda tensors: tensors.update({"blk.1.attn_q_norm.weight": floats(8)}), "8 numbers that transformers leaves"),
        (lambda tensors: tensors.update({"rope_freqs.weight": floats(3)}), None),
        (
            lambda tensors: tensors.update({"rope_freqs.weight": (floats(4)[0] * 3, floats(4)[1])}),
            r"4 numbers that transformers leaves unread: weights, or scales of rotary positions",
        ),
    ],
)
def test_what_is_not_read_is_refused(tmp_path, change, said):
    file = write(make("Llama"), tmp_path / "m.gguf", change=change)
    if said is None:  # a table of ones scales nothing
        load_model(file, device="cpu")
    else:
        refusal(file, of=said)


def test_rotary_scales_of_llama_3_are_read_back_from_their_table(tmp_path):
    """Such a file has them as a table alone, of what each frequency is divided by."""
    scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    rotary = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, **scaling}
    plain = make("Llama", rope_parameters=rotary)
    frequencies = 500_000.0 ** -(np.arange(4) / 4)
    table = (frequencies / plain.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert table[0] == 1
    assert table[-1] == pytest.approx(8)
    file = write(plain, tmp_path / "m.gguf", change=lambda t: t.update({"rope_freqs.weight": (table, floats(4)[1])}))
    same_logits(load_model(file, device="cpu"), plain)


def test_scaling_that_transformers_does_not_read_is_refused(plain, tmp_path):
    file = write(plain, tmp_path / "m.gguf", rope_scaling_type=gguf.RopeScalingType.YARN)
    assert "scales rotary positions (yarn)" in refusal(file)


def test_a_file_of_no_model_of_heads_or_no_gguf_or_none_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    refusal(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_bytes(b"junk" * 100)
    refusal(tmp_path / "m.gguf")
    refusal(tmp_path / "other.gguf", of=r"model file '.*other\.gguf' does not exist")


def test_a_missing_package_is_named_with_what_installs_it(file, monkeypatch):
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    assert "install the extra cs-heads[gguf]" in refusal(file)


def test_of_several_files_in_a_folder_one_must_be_named(file, tmp_path, plain):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(file.read_bytes())
    refusal(tmp_path, of=r"has 2 GGUF files \(a\.gguf, b\.gguf\): name one of them")
    same_logits(load_model(tmp_path / "b.gguf", device="cpu"), plain)


def test_a_file_is_held_against_plain_transformers(file):
    lines = {line.name: line for line in cs.check_model(file, device="cpu")}
    assert lines["weights"].found.endswith("none missing and none left over")
    assert {lines[name].status for name in ("weights", "hook_z", "logits", "BOS", "heads")} == {"ok"}
    assert "plain Hugging Face" in lines["logits"].found
    assert "plain Hugging Face" in lines["hook_z"].found
