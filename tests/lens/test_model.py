"""What is refused of a model, and how models are loaded."""

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from cs_heads import check_model
from cs_heads.lens import FoldedValueBiasesError, check_ablatable, describe, load, load_model
from cs_heads.lens.model import context_length, dtype_of
from tests.on_model import target_logprobs
from tests.plain import plain_score
from tests.tiny import N_HEADS, N_LAYERS, make_hf_model, saved

LIKE_LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
LIKE_LLAMA |= {"head_dim": 8, "intermediate_size": 48, "vocab_size": 23, "max_position_embeddings": 64}


def folded_bridge(folder, **options):
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(str(folder), device="cpu")
    model.enable_compatibility_mode(disable_warnings=True, **options)
    return model


def hooked_with(folder, **options):
    """A HookedTransformer made from the weights of a loaded one, processed as a user might."""
    model = load_model(folder, device="cpu", backend="hooked")
    model.load_and_process_state_dict(model.state_dict(), fold_ln=False, **options)
    return model


@pytest.mark.parametrize("architecture", ["gpt2", "qwen2"])
def test_folded_value_biases_are_refused_with_the_remedy(folders, backend, architecture):
    if backend == "bridge":
        model = folded_bridge(folders(architecture))
    else:
        model = hooked_with(folders(architecture), fold_value_biases=True)
    with pytest.raises(FoldedValueBiasesError, match=r"cs_heads\.load_model.*fold_value_biases=False"):
        load_model(model)


def test_value_biases_that_came_from_folded_norms_are_refused_too(folders):
    """GPT-Neo has no value bias; folding its norms makes one, and that is folded into b_O in turn."""
    with pytest.raises(FoldedValueBiasesError):
        check_ablatable(folded_bridge(folders("neo")))


@pytest.fixture(scope="module")
def zero_folder(tmp_path_factory):
    """GPT-2 whose value biases are zero by themselves, and whose output biases are not."""
    folder = tmp_path_factory.mktemp("zero")
    model = make_hf_model("gpt2")
    for block in model.transformer.h:
        block.attn.c_attn.bias.data[64:] = 0
        # The norms add nothing either, so that folding them moves nothing into the value biases.
        block.ln_1.bias.data[:] = 0
        assert block.attn.c_proj.bias.any()
    return saved(model, folder)


def test_zero_value_biases_of_a_folder_are_not_taken_for_folded_ones(zero_folder, backend):
    model = load_model(zero_folder, device="cpu", backend=backend)
    assert load_model(model) is model
    plain = AutoModelForCausalLM.from_pretrained(zero_folder).eval()
    gates = torch.ones(1, N_LAYERS, N_HEADS)
    gates[0, 1, 2] = 0
    ours = target_logprobs(model, [[1, 4, 5]], [[6, 7]], gates).logprob
    assert ours == pytest.approx(plain_score(plain, (1, 4, 5), (6, 7), gates[0].numpy() == 0)[0], abs=1e-4)


def test_what_is_folded_after_loading_is_still_refused(tmp_path, zero_folder, backend):
    """Only the output biases that it was loaded with are its own."""
    plain = AutoModelForCausalLM.from_pretrained(zero_folder)
    for block in plain.transformer.h:
        block.ln_1.bias.data.normal_()
    saved(plain, tmp_path)
    model = load_model(tmp_path, device="cpu", backend=backend)
    # A folded norm gives the value biases something to fold.
    if backend == "bridge":
        model.enable_compatibility_mode(disable_warnings=True)
    else:
        model.load_and_process_state_dict(model.state_dict(), fold_ln=True, fold_value_biases=True)
    with pytest.raises(FoldedValueBiasesError):
        load_model(model)


def test_of_one_s_own_model_one_must_say_that_its_value_biases_are_zero_by_themselves(zero_folder, backend):
    if backend == "bridge":
        from transformer_lens.model_bridge import TransformerBridge

        model = TransformerBridge.boot_transformers(str(zero_folder), device="cpu")
    else:
        model = load_model(zero_folder, device="cpu", backend="hooked")
        model.blocks[0].attn.b_O.data[:] += 1
    with pytest.raises(FoldedValueBiasesError, match=r"cs_heads\.load_model\(model, unfolded=True\)"):
        load_model(model)
    assert load_model(model, unfolded=True) is model
    # Cast they stay the same, changed they do not.
    for dtype in (torch.float16, torch.float32, torch.bfloat16, torch.float32):
        assert load_model(model.to(dtype)) is model
    model.blocks[1].attn.b_O.data[0] += 1e-3
    with pytest.raises(FoldedValueBiasesError):
        load_model(model)


@pytest.mark.parametrize("architecture", ["Mistral", "Qwen3"])
def test_a_context_is_no_longer_than_that_of_the_folder(tmp_path, backend, architecture):
    config = getattr(transformers, f"{architecture}Config")(**LIKE_LLAMA)
    saved(getattr(transformers, f"{architecture}ForCausalLM")(config), tmp_path)
    assert context_length(load_model(tmp_path, device="cpu", backend=backend)) == 64


ROPES = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 16, "long_factor": [8.0] * 4}
    | {"short_factor": [1.0] * 4},
}


@pytest.mark.parametrize("kind", ROPES)
def test_rotary_angles_are_scaled_as_in_the_folder_or_the_model_is_refused(tmp_path, backend, kind):
    rope = {"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]}
    config = transformers.LlamaConfig(**LIKE_LLAMA, initializer_range=0.3, rope_parameters=rope)
    torch.manual_seed(0)
    hf = transformers.LlamaForCausalLM(config).eval()
    saved(hf, tmp_path)
    if backend == "hooked":
        with pytest.raises(ValueError, match=f"leaves out its rotary scaling '{kind}': load a bridge"):
            load_model(tmp_path, device="cpu", backend=backend)
        return
    model, prompt = load_model(tmp_path, device="cpu", backend=backend), [3, 9, 4, 7, 20, 21, 8, 14]
    gates = torch.ones(1, 2, N_HEADS)
    [scored] = target_logprobs(model, [prompt], [[5]], gates).logprob
    assert scored == pytest.approx(plain_score(hf, prompt, [5], np.zeros((2, N_HEADS), dtype=bool))[0], abs=1e-4)
    # Beside a long text others would be angles of a long one, too.
    assert context_length(model) == (16 if kind == "longrope" else 64)


@pytest.mark.parametrize("architecture", ["gpt2", "qwen2"])
def test_a_processed_model_with_value_biases_left_alone_is_right(folders, load, backend, architecture):
    """Centred and otherwise processed, but not folded: the same ablated log-probabilities."""
    if backend == "bridge":
        model = folded_bridge(folders(architecture), fold_value_biases=False)
    else:
        model = hooked_with(folders(architecture), fold_value_biases=False)
    check_ablatable(model)
    gates = torch.ones(1, N_LAYERS, N_HEADS)
    gates[0, 0] = 0
    mine = target_logprobs(model, [[1, 4, 5]], [[6, 7]], gates).logprob
    raw = target_logprobs(load(architecture, backend), [[1, 4, 5]], [[6, 7]], gates).logprob
    assert mine == pytest.approx(raw, abs=1e-4)


def test_a_model_of_another_class_is_refused():
    with pytest.raises(ValueError, match="HookedTransformer or TransformerBridge, got LlamaForCausalLM"):
        load_model(make_hf_model("llama"))


def test_a_missing_hook_point_is_named(load, monkeypatch):
    """Bridge 3.9 ignores a wrong hook name in silence; a model without it is refused."""
    model = load("llama")
    kept = {name: point for name, point in model.hook_dict.items() if name != "blocks.1.attn.hook_z"}
    monkeypatch.setattr(type(model), "hook_dict", property(lambda self: kept))
    with pytest.raises(ValueError, match=r"no hook point blocks\.1\.attn\.hook_z"):
        check_ablatable(model)


def test_train_mode_is_put_back_and_dropout_stays_off(folders, backend):
    model = load_model(folders("gpt2"), device="cpu", backend=backend)
    in_eval = target_logprobs(model, [[1, 4, 5]], [[6]]).logprob
    model.train()
    in_train = [target_logprobs(model, [[1, 4, 5]], [[6]]).logprob for _ in range(3)]
    assert all((scores == in_eval).all() for scores in in_train)
    assert model.training
    assert all(module.training for module in model.modules())


def test_dtype_and_provenance_come_from_the_weights(folders, backend):
    model = load_model(folders("llama"), device="cpu", dtype="bfloat16", backend=backend)
    assert dtype_of(model) == torch.bfloat16
    about = describe(model)
    assert about["dtype"] == "bfloat16"
    assert about["class"] == {"bridge": "TransformerBridge", "hooked": "HookedTransformer"}[backend]
    assert about["name"] == str(folders("llama"))
    assert set(about["versions"]) == {"transformer-lens", "transformers", "torch"}
    assert about["key_value_heads"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name_or_path": "no-such/model"}, "model 'no-such/model' could not be loaded: it is no folder here"),
        ({"backend": "junk"}, "backend must be one of auto, bridge, hooked, got 'junk'"),
        ({"dtype": "float8"}, "dtype must be one of float32, bfloat16, float16, got 'float8'"),
        ({"device": "meta"}, "device 'meta' cannot be used here"),
    ],
)
def test_wrong_arguments_get_one_clear_line(folders, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        load_model(**{"name_or_path": folders("llama"), **arguments})
    assert "\n" not in str(error.value)


def test_an_error_of_a_loader_says_of_which_architecture_the_model_is(folders, monkeypatch):
    monkeypatch.setattr(load, "_load_bridge", lambda *_, **__: {}["d_model"])
    with pytest.raises(ValueError, match="could not be loaded: LlamaForCausalLM: KeyError: 'd_model'"):
        load_model(folders("llama"))


def test_a_model_that_reads_both_ways_is_refused(tmp_path):
    """BERT would be scored as if its words to come were unknown to it."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    saved(transformers.BertForMaskedLM(transformers.BertConfig(**sizes, vocab_size=23)), tmp_path)
    with pytest.raises(ValueError, match="causal language model"):
        load_model(tmp_path, device="cpu")


# Latent attention, and a bridge that TransformerLens leaves without the last norm.
LATENT = LIKE_LLAMA | {"num_key_value_heads": 4, "head_dim": 4, "kv_lora_rank": 8, "q_lora_rank": 16, "v_head_dim": 8}
LATENT |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "first_k_dense_replace": 2}
WITHOUT_NORM = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "ffn_dim": 48, "vocab_size": 23}


@pytest.mark.parametrize(
    ("architecture", "sizes", "said"),
    [
        ("DeepseekV3", LATENT, r"show z of its DeepseekV3\w+ \(multi-head latent attention\) head by head: .* 4 heads"),
        ("OPT", WITHOUT_NORM | {"do_layer_norm_before": False, "word_embed_proj_dim": 32}, r"cannot run its OPT"),
    ],
)
def test_a_bridge_that_cannot_be_run_or_gated_is_refused_in_one_line(architecture, sizes, said, tmp_path):
    config = getattr(transformers, f"{architecture}Config")(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    getattr(transformers, f"{architecture}ForCausalLM")(config).save_pretrained(tmp_path)
    for refused in (load_model, check_model):
        with pytest.raises(ValueError, match=rf"^model .* is not supported: TransformerLens .*{said}.*$") as error:
            refused(tmp_path)
        assert "\n" not in str(error.value)
