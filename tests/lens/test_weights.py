"""Every weight of a model comes from its files, has the right shape and is finite; what is not so is named."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from cs_heads import check_model
from cs_heads.lens import fingerprint, load_model
from tests.tiny import make_hf_model

TOKENS = torch.tensor([[1, 4, 5, 6]])


@pytest.fixture
def written(folders, tmp_path):
    """Writes a tiny model into a folder of its own, its tensors and its configuration changed."""

    def write(architecture="llama", change=lambda tensors: None, **config):
        folder = tmp_path / architecture
        shutil.copytree(folders(architecture), folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
        return folder

    return write


def without(part):
    def change(tensors):
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return change


def with_value(name, value):
    def change(tensors):
        tensors[name].view(-1)[7] = value

    return change


def refusal(model, backend="bridge", of="could not be loaded: "):
    with pytest.raises(ValueError, match=of) as error:
        load_model(model, device="cpu", backend=backend)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "config", "said"),
    [
        (without("layers.1."), {}, "9 weights are missing (model.layers.1.input_layernorm.weight, "),
        (without("lm_head"), {}, "1 weight is missing (lm_head.weight)"),
        (lambda tensors: None, {"num_hidden_layers": 2}, "9 weights are unexpected (model.layers.2.input_layernorm"),
        (
            lambda tensors: tensors.update({"model.layers.2.mlp.down_proj.weight": torch.ones(32, 40)}),
            {},
            "1 weight is of another shape (model.layers.2.mlp.down_proj.weight (32, 40) for (32, 48))",
        ),
        (with_value("model.layers.1.mlp.up_proj.weight", torch.nan), {}, "values in model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(written, backend, change, config, said):
    assert said in refusal(written(change=change, **config), backend)


def test_weights_too_large_for_a_dtype_are_refused(written):
    folder = written(change=with_value("model.norm.weight", 1e6))
    load_model(folder, device="cpu", dtype="bfloat16")
    with pytest.raises(ValueError, match=r"values in model\.norm\.weight"):
        load_model(folder, device="cpu", dtype="float16")


def test_shards_are_read_whole_and_a_weight_missing_from_one_is_named(written, backend):
    folder = written()
    expected = fingerprint(load_model(folder, device="cpu", backend=backend))
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    assert fingerprint(load_model(folder, device="cpu", backend=backend)) == expected
    shards = {shard: load_file(shard) for shard in folder.glob("model-*.safetensors")}
    [holder] = [shard for shard, tensors in shards.items() if "model.layers.1.mlp.up_proj.weight" in tensors]
    assert len(shards) > 1
    del shards[holder]["model.layers.1.mlp.up_proj.weight"]
    save_file(shards[holder], holder, metadata={"format": "pt"})
    assert "1 weight is missing (model.layers.1.mlp.up_proj.weight)" in refusal(folder, backend)


def add_old_rotary_tables(tensors):
    tensors.update({f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(4) for layer in range(3)})


def add_old_causal_masks(tensors):
    for layer in range(3):
        tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64)
        tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)


def drop_prefixes(tensors):
    """As the file of gpt2 on the hub is: of the model without its head."""
    for name in [*tensors]:
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)


@pytest.mark.parametrize(
    ("architecture", "change", "config"),
    [
        ("llama", without("lm_head"), {"tie_word_embeddings": True}),
        ("llama", add_old_rotary_tables, {}),
        ("gpt2", add_old_causal_masks, {}),
        ("gpt2", drop_prefixes, {}),
    ],
)
def test_tied_embeddings_and_old_buffers_are_no_fault(written, backend, architecture, change, config):
    folder = written(architecture, change, **config)
    model, plain = load_model(folder, device="cpu", backend=backend), AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        ours, theirs = model(TOKENS).log_softmax(-1), plain(TOKENS).logits.log_softmax(-1)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_a_model_in_memory_that_is_not_finite_is_refused_by_name(folders, backend):
    model = load_model(folders("llama"), device="cpu", backend=backend)
    weights = dict(model.named_parameters())
    name = {"hooked": "blocks.1.mlp.W_out"}.get(backend, "model.layers.1.mlp.down_proj.weight")
    [full] = [key for key in weights if key.replace("_original_component.", "") == name]
    weights[full].data[3, 4] = torch.inf
    with pytest.raises(ValueError, match=rf"NaN or infinite values in {name}"):
        load_model(model)


def test_eight_bit_floats_are_checked_too():
    from cs_heads.lens.weights import check_finite

    model = make_hf_model("llama").to(torch.float8_e4m3fn)
    check_finite(model)
    model.model.norm.weight.data[3] = torch.nan
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        check_finite(model)


ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "someone/base", "r": 2, "target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    "files",
    [{"adapter_config.json": json.dumps(ADAPTER), "adapter_model.safetensors": ""}, {"style-lora.safetensors": ""}],
    ids=",".join,
)
def test_an_adapter_is_refused_by_name_and_not_left_out(written, files):
    folder = written()
    for name, text in files.items():
        (folder / name).write_text(text)
    said, line = refusal(folder), check_model(folder)[0]
    assert f"it has an adapter ({', '.join(sorted(files))}), which would be left out. Merge it" in said
    # The doctor says the same in one line.
    assert (line.name, line.status) == ("weights", "fail")
    assert f"could not be loaded: {line.found}. {line.remedy}" in said


def test_a_hub_name_with_an_adapter_is_refused_where_transformers_finds_it(tmp_path, monkeypatch):
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps(ADAPTER))
    monkeypatch.setattr("transformers.utils.peft_utils.find_adapter_config_file", lambda *of, **how: str(config))
    with pytest.raises(
        ValueError, match=r"it has an adapter \(adapter_config.json\), which would be left out. Merge it"
    ):
        load_model("someone/adapted", device="cpu", revision="main")


def test_files_that_only_sound_like_an_adapter_change_nothing(written):
    folder = written()
    for name in ("explorator.bin.txt", "adapter.md", "lora.txt", "modules.json", "florabel.pt"):
        (folder / name).write_text("")
    load_model(folder, device="cpu")


def test_code_of_its_own_that_is_not_run_is_warned_of(written):
    folder = written(auto_map={"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"})
    line = check_model(folder)[0]
    assert (line.name, line.status) == ("weights", "warn")
    assert "the model's own code (modeling_mine.MineForCausalLM) is not run" in line.found
