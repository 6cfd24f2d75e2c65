"""What ``cs-heads doctor`` says of models as they should be, and of models made wrong on purpose."""

import json
import re
import shutil
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors

import cs_heads as cs
from cs_heads.analysis import doctor
from cs_heads.cli import main
from cs_heads.lens import checks
from cs_heads.lens.checks import Check
from tests.lens.test_abilities import forget_what_is_stored
from tests.tiny import load_tokenizer, make_tokenizer, skip_unless_loaded

NAMES = ["weights", "hook_z", "logits", "BOS", "later tokens", "padding", "batch", "dtype", "folded biases"]
NAMES += ["fused attention", "shortcuts", "heads", "context length", "speed"]


@pytest.fixture
def model(folders, backend):
    """A model of a user's own, to be made wrong."""
    return cs.load_model(folders("llama"), device="cpu", backend=backend)


@pytest.fixture
def examine(model, folders):
    """Lines by name about the model, held against its folder."""
    return lambda: by_name(cs.check_model(model, reference=folders("llama")))


@pytest.fixture
def broken(folders, tmp_path):
    """Makes a folder whose tensors or configuration are changed."""

    def make(tensors=lambda tensors: None, **config):
        folder = shutil.copytree(folders("llama"), tmp_path / "broken")
        kept = load_file(folder / "model.safetensors")
        tensors(kept)
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | config))
        return folder

    return make


def by_name(checks):
    assert all(isinstance(check, Check) for check in checks)
    return {check.name: check for check in checks}


def wrong(lines):
    return {name for name, line in lines.items() if line.status == "fail"}


# Models as they should be


@pytest.mark.parametrize(
    "architecture", ["gpt2", "gemma2", *(pytest.param(a, marks=pytest.mark.slow) for a in ("llama", "qwen2"))]
)
def test_an_intact_model_passes_every_line(folders, backend, architecture):
    skip_unless_loaded(architecture, backend)
    lines = by_name(cs.check_model(folders(architecture), device="cpu", backend=backend))
    assert list(lines) == NAMES
    # No fused attention where there are soft caps, or on HookedTransformer.
    slow = {"fused attention"} if backend == "hooked" or architecture == "gemma2" else set()
    assert {name for name, line in lines.items() if line.status != "ok"} == slow
    assert lines["heads"].found == f"3 layers × 4 heads, {4 if architecture == 'gpt2' else 2} key/value heads"
    assert lines["context length"].found == "64 tokens"
    assert "a default search, 8,000 example-evaluations, takes about" in lines["speed"].found


def test_of_a_model_in_memory_is_checked_what_can_be_and_the_rest_is_said(load, backend):
    lines = by_name(cs.check_model(load("llama", backend)))
    assert list(lines) == NAMES
    assert not wrong(lines)
    assert lines["hook_z"].status == "ok"
    assert "W_O" in lines["hook_z"].found
    assert (lines["logits"].status, lines["logits"].found) == ("warn", "not held against plain Hugging Face")
    assert "reference=" in lines["logits"].remedy


# Files that are wrong


def drop(tensors):
    del tensors["model.layers.2.self_attn.q_proj.weight"]


def cut(tensors):
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:5].clone()


def spoil(tensors):
    tensors["model.layers.1.self_attn.o_proj.weight"][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("change", "config", "said"),
    [
        (drop, {}, "1 weight is missing (model.layers.2.self_attn.q_proj.weight)"),
        (cut, {}, "1 weight is of another shape (model.norm.weight "),
        (spoil, {}, "NaN or infinite values in model.layers.1.self_attn.o_proj.weight"),
        (lambda tensors: None, {"num_hidden_layers": 4}, "missing (model.layers.3.input_layernorm.weight"),
        (lambda tensors: None, {"num_hidden_layers": 2}, "unexpected (model.layers.2.input_layernorm.weight"),
    ],
)
def test_weights_that_are_not_those_of_the_model_fail_by_name(broken, change, config, said):
    lines = by_name(cs.check_model(broken(change, **config), device="cpu"))
    assert lines["weights"].status == "fail"
    assert said in lines["weights"].found
    assert "fetch the model's files again" in lines["weights"].remedy


def test_files_that_cannot_be_read_are_a_line_and_no_traceback(broken):
    folder = broken()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    lines = by_name(cs.check_model(folder, device="cpu"))
    assert wrong(lines) == {"weights"} == {*lines}
    assert "cannot read" in lines["weights"].found


# Models that are wrong


def test_folded_value_biases_fail_as_such_and_where_a_head_is_taken_out(folders, backend):
    """The intact model says what plain Hugging Face says: without a head off nothing is seen."""
    from tests.lens.test_model import folded_bridge, hooked_with

    folder = folders("gpt2")
    folded = folded_bridge(folder) if backend == "bridge" else hooked_with(folder, fold_value_biases=True)
    lines = by_name(cs.check_model(folded, reference=folder))
    assert wrong(lines) == {"hook_z", "folded biases"}
    assert "fold_value_biases=False" in lines["folded biases"].remedy
    assert "L0H0, L1H1, L2H2 off" in lines["hook_z"].found


@pytest.fixture
def put_hooks(model, monkeypatch):
    """Gives the model other hook points; a property on a bridge, an attribute on a HookedTransformer."""

    def put(points):
        if "hook_dict" in vars(model):
            monkeypatch.setattr(model, "hook_dict", points)
        else:
            monkeypatch.setattr(type(model), "hook_dict", property(lambda self: points))

    return put


def without_a_hook_point(model, put_hooks, _):
    put_hooks({name: point for name, point in model.hook_dict.items() if name != "blocks.1.attn.hook_z"})


def with_a_hook_that_does_not_fire(model, put_hooks, _):
    put_hooks({**model.hook_dict, "blocks.1.attn.hook_z": type(model.hook_dict["blocks.1.attn.hook_z"])()})


def with_an_infinite_weight(model, *_):
    next(model.parameters()).data[0, 0] = torch.inf


def with_two_dtypes(model, *_):
    last = list(model.parameters())[-1]
    last.data = last.data.to(torch.bfloat16)


def with_a_tokenizer_that_prepends_no_bos(model, _, folder):
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.save_pretrained(folder)
    model.tokenizer = load_tokenizer(folder)


def with_context(n_tokens):
    return lambda model, *_: setattr(model.cfg, "n_ctx", n_tokens)


NO_NUMBERS = "head by head: at blocks.1.attn.hook_z are no numbers a token, for 4 heads"


@pytest.mark.parametrize(
    ("change", "name", "status", "said"),
    [
        (without_a_hook_point, "hook_z", "fail", "blocks.1.attn.hook_z"),
        (with_a_hook_that_does_not_fire, "hook_z", "fail", NO_NUMBERS),
        (with_an_infinite_weight, "weights", "fail", "NaN or infinite values in "),
        (with_two_dtypes, "dtype", "warn", "weights of float32, bfloat16"),
        (with_a_tokenizer_that_prepends_no_bos, "BOS", "fail", "set model.tokenizer to the tokenizer of the model's"),
        (with_context(128), "context length", "fail", "128 tokens, in config.json 64"),
        (with_context(32), "context length", "warn", "32 tokens, in config.json 64"),
        (with_context(None), "context length", "warn", "unknown: no prompt is refused as too long"),
    ],
)
def test_what_is_wrong_with_a_model_is_told_in_its_line(
    model, examine, put_hooks, tmp_path, change, name, status, said
):
    change(model, put_hooks, tmp_path)
    line = examine()[name]
    assert line.status == status
    assert said in str(line)


GATES = {"another head is off": lambda gate: gate.roll(1, dims=2), "no head is ever off": torch.ones_like}


@pytest.fixture
def exchange_gates(monkeypatch):
    """Puts other gates in place of those that are asked for."""
    from cs_heads.lens import abilities, forward, gates

    def exchange(other):
        def gated(model, gate, *replacement):
            return gates.gated(model, None if gate is None else other(gate), *replacement)

        for module in (abilities, forward):
            monkeypatch.setattr(module, "gated", gated)

    return exchange


# Each in `make test` once; every combination in the long run.
DIAGONAL = {("another head is off", "float32", True), ("no head is ever off", "bfloat16", False)}


@pytest.mark.parametrize(
    ("other", "dtype", "held_against"),
    [
        each if each in DIAGONAL else pytest.param(*each, marks=pytest.mark.slow)
        for each in product(GATES, ["float32", "bfloat16"], [True, False])
    ],
)
def test_gates_that_take_out_another_head_or_none_fail(folders, backend, exchange_gates, other, dtype, held_against):
    """With a reference by its logits, without one by the model's own W_O; whatever rounding does."""
    model = cs.load_model(folders("gpt2"), device="cpu", dtype=dtype, backend=backend)
    exchange_gates(GATES[other])
    lines = by_name(cs.check_model(model, reference=folders("gpt2") if held_against else None))
    assert wrong(lines) == {"hook_z"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_of_other_weights_fail(folders, backend, dtype):
    """What a head does cannot be told then, for the model without it is that far from plain Hugging Face."""
    model = cs.load_model(folders("gpt2"), device="cpu", dtype=dtype, backend=backend)
    with torch.no_grad():
        for parameter in model.blocks[1].mlp.parameters():
            parameter.mul_(1.5)
    lines = by_name(cs.check_model(model, reference=folders("gpt2")))
    assert wrong(lines) == {"logits"}
    assert "do not measure it" in lines["logits"].remedy
    assert (lines["hook_z"].status, lines["hook_z"].found.split(" of ")[0]) == ("warn", "cannot be told")


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_an_intact_model_of_half_precision_is_held_against_float32_and_left_as_it_was(folders, backend, dtype):
    model = cs.load_model(folders("gpt2"), device="cpu", dtype=dtype, backend=backend)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = model.hook_dict["blocks.0.attn.hook_z"].fwd_hooks
    drawn, state = torch.get_rng_state(), (model.training, len(hooks))
    lines = by_name(cs.check_model(model, reference=folders("gpt2")))
    assert {name for name, line in lines.items() if line.status != "ok"} - {"fused attention"} == {"dtype"}
    assert "of plain Hugging Face in float32; " + dtype in lines["logits"].found
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype
        assert value.equal(before[name])
    assert torch.get_rng_state().equal(drawn)
    assert (model.training, len(hooks)) == state


def test_a_large_model_in_a_dtype_that_the_device_has_no_units_for_is_slow(folders, backend, monkeypatch):
    model = cs.load_model(folders("gpt2"), device="cpu", dtype="bfloat16", backend=backend)
    rates = {torch.float32: 50e9, torch.bfloat16: 0.5e9}
    monkeypatch.setattr(checks, "matrix_rate", lambda device, dtype: rates[dtype])
    assert by_name(cs.check_model(model))["dtype"].status == "ok"
    monkeypatch.setattr(checks, "LARGE", 0)
    line = by_name(cs.check_model(model))["dtype"]
    assert (line.status, line.found) == (
        "warn",
        "bfloat16, in which this cpu multiplies 100 times slower than in float32",
    )
    assert line.remedy == "load the model with dtype='float32' (--dtype float32)"
    rates[torch.bfloat16] = 100e9
    assert by_name(cs.check_model(model))["dtype"].status == "ok"


def test_the_demo_model_in_half_precision_passes():
    """Its rounding is as large as what some of its heads do."""
    lines = by_name(cs.check_model("demo", device="cpu", dtype="bfloat16"))
    assert {name for name, line in lines.items() if line.status != "ok"} == {"dtype"}


@pytest.mark.slow
@pytest.mark.real
def test_a_real_model_in_half_precision_passes_and_fails_with_other_weights_or_gates(real, exchange_gates):
    folder = real / "models" / "stories260K"
    model = cs.load_model(folder, device="cpu", dtype="bfloat16")
    assert not wrong(by_name(cs.check_model(model, reference=folder)))
    with torch.no_grad():
        for parameter in model.blocks[1].mlp.parameters():
            parameter.mul_(1.05)
    assert wrong(by_name(cs.check_model(model, reference=folder))) == {"logits"}
    exchange_gates(torch.ones_like)
    model = cs.load_model(folder, device="cpu", dtype="bfloat16")
    assert wrong(by_name(cs.check_model(model, reference=folder))) == {"hook_z"}


@pytest.mark.parametrize("wrongness", [1e-3, 1.0])
def test_what_is_less_than_rounding_cannot_be_told_in_half_precision(folders, wrongness):
    """Where weights cannot be run in float32, as those of 8 bits, which share the model with others."""
    model = cs.load_model(folders("gpt2"), device="cpu", dtype="bfloat16")
    codes = torch.nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
    model.original_model.register_parameter("codes", codes)
    with torch.no_grad():
        for parameter in model.blocks[1].mlp.parameters():
            parameter.mul_(1 + wrongness)
    line = by_name(cs.check_model(model, reference=folders("gpt2")))["logits"]
    assert line.status == ("fail" if wrongness == 1 else "warn")
    assert line.found.startswith("cannot be told in bfloat16") == (wrongness < 1)


def test_rounding_beyond_that_of_plain_hugging_face_fails(folders, backend):
    model = cs.load_model(folders("gpt2"), device="cpu", dtype="bfloat16", backend=backend)

    def coarse(x, hook):
        return x if x.dtype == torch.float32 else (x * 4).round() / 4

    model.hook_dict["blocks.1.hook_resid_pre"].add_hook(coarse)
    assert "logits" in wrong(by_name(cs.check_model(model, reference=folders("gpt2"))))


@pytest.mark.parametrize(
    ("dtype", "axis", "failed"), [("float32", 1, {"later tokens", "padding"}), ("bfloat16", 0, {"padding", "batch"})]
)
def test_scores_that_depend_on_padding_or_on_the_batch_fail(folders, backend, dtype, axis, failed):
    """A layer that takes a little of a mean over positions, or over the texts of a batch."""
    model = cs.load_model(folders("llama"), device="cpu", dtype=dtype, backend=backend)
    model.hook_dict["blocks.0.hook_resid_pre"].add_hook(lambda x, hook: x + 0.01 * x.mean(axis, keepdim=True))
    lines = by_name(cs.check_model(model))
    assert wrong(lines) - {"hook_z", "fused attention", "shortcuts"} == failed


def test_fused_attention_that_a_hook_forbids_is_warned_of(model, backend):
    model.hook_dict["blocks.0.attn.hook_pattern"].add_hook(lambda pattern, hook: pattern)
    line = by_name(cs.check_model(model))["fused attention"]
    reason = "a hook listens inside attention" if backend == "bridge" else "the model is no bridge"
    assert (line.status, line.found) == ("warn", f"not usable: {reason}")


def test_a_bridge_that_stores_no_keys_and_values_is_warned_of(load, monkeypatch):
    forget_what_is_stored(monkeypatch)
    line = by_name(cs.check_model(load("llama")))["shortcuts"]
    assert line.status == "warn"
    assert line.found.startswith("gradients through stored keys and values not used: not every layer stores")
    assert "transformers" in line.remedy


def test_heads_that_are_not_those_of_the_configuration_fail(folders):
    model = cs.load_model(folders("llama"), device="cpu", backend="bridge")
    model.cfg.n_key_value_heads = 4
    line = by_name(cs.check_model(model))["heads"]
    assert line.status == "fail"
    assert line.found.endswith("layer 0 has 2 key/value heads, and its configuration says 4")


def test_a_search_that_takes_days_is_warned_of(load, monkeypatch):
    monkeypatch.setattr(doctor, "tokens_per_second", lambda model, fused: 0.5)
    line = by_name(cs.check_model(load("llama")))["speed"]
    assert line.status == "warn"
    assert "takes about 5.9 d with examples of 32 tokens" in line.found


def test_a_model_that_does_not_run_is_told_in_one_line(model, examine):
    def fail(module, arguments):
        raise RuntimeError("out\nof order")

    model.unembed.register_forward_pre_hook(fail)
    lines = examine()
    assert list(lines) == ["hook_z"]
    assert re.search(r"TransformerLens cannot run its \w+ \(RuntimeError: out\b", lines["hook_z"].found)
    assert "\n" not in str(lines["hook_z"])


def test_too_little_memory_for_the_plain_model_is_said(load, folders, monkeypatch):
    monkeypatch.setattr(doctor, "free_memory", lambda device: 1000)
    lines = by_name(cs.check_model(load("llama"), reference=folders("llama")))
    assert list(lines) == ["reference", *NAMES]
    assert "GB are free" in lines["reference"].found
    assert lines["logits"].status == "warn"


# What is asked of it


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": 3}, "model must be a TransformerLens HookedTransformer or TransformerBridge, got int"),
        ({"model": "no-such/model"}, "model 'no-such/model' could not be loaded"),
        ({"dtype": "float8"}, "dtype must be one of float32, bfloat16, float16, got 'float8'"),
        ({"reference": "no-such/model"}, "transformers cannot read 'no-such/model'"),
    ],
)
def test_wrong_arguments_get_one_clear_line(load, folders, given, said):
    model = load("llama") if "reference" in given else folders("llama")
    with pytest.raises(ValueError, match=said) as error:
        cs.check_model(**{"model": model, **given})
    assert "\n" not in str(error.value)


def test_from_a_shell_it_prints_lines_and_tells_by_its_status(folders, broken, capsys):
    assert main(["doctor", str(folders("llama")), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line[6:22].strip() for line in out.splitlines()[:-2]] == NAMES
    assert out.splitlines()[-1] == f"model {folders('llama')}: 14 ok, 0 warn, 0 fail"
    assert main(["doctor", str(broken(drop)), "--device", "cpu", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    assert {"name", "status", "found", "remedy"} == {*said["checks"][0]}
    assert said["checks"][0]["status"] == "fail"
    assert main(["doctor", "no-such/model"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
