"""Heads off, weighed or taken out in the user's own model: the numbers of plain Hugging Face changed by hand."""

import copy
import inspect
import json
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
import torch
import transformers

import cs_heads as cs
from cs_heads.lens import describe
from cs_heads.lens.forward import logits_at
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, Head, Unit
from tests.plain import output_projections, units_replaced
from tests.tiny import N_HEADS, N_LAYERS, completion_records, make_hf_model

ARCHITECTURES = ("gpt2", "llama", "qwen2", "gemma2", "neo")
# Those that differ most; the others are baked and weighed in the long run.
FEW = [
    architecture if architecture in ("gpt2", "gemma2") else pytest.param(architecture, marks=pytest.mark.slow)
    for architecture in ARCHITECTURES
]
TOKENS = torch.tensor([[1, 4, 5, 6, 7], [3, 8, 9, 10, 11]])
OFF = [Head(0, 1), Head(0, 2), Head(2, 3)]
GRID = cs.Grid(N_LAYERS, N_HEADS)
# Names of a unit of each kind that a dense model has.
KINDS = {"heads": "L1H2", "kv": "L1KV1", "attn": "L1ATTN", "mlp": "L0MLP", "neurons": "L2N5"}

pytestmark = pytest.mark.lens

# Without the checks of types that tests make.
untyped = inspect.unwrap


def hooks_of(model):
    return {name: list(point.fwd_hooks) for name, point in model.hook_dict.items() if point.fwd_hooks}


def run(model):
    with torch.no_grad():
        return model(TOKENS)


def plain(architecture, mask, units="heads"):
    """Logits of plain Hugging Face with units zeroed by hand, row by row."""
    model = make_hf_model(architecture)
    with units_replaced(model, units, mask), torch.no_grad():
        return torch.cat([model(row[None], use_cache=False).logits for row in TOKENS])


def a_ranking(**fields):
    importance = np.zeros(GRID.shape)
    importance[0, 1], importance[2, 3], importance[0, 2] = 0.5, 0.4, 0.3
    return HeadRanking("css", importance, spent=8, **fields)


# Off


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ablated_is_plain_hugging_face_with_the_heads_zeroed(load, architecture, backend):
    model = load(architecture, backend)
    intact = run(model)
    with cs.ablated(model, OFF) as same:
        assert same is model
        off = run(model)
    np.testing.assert_allclose(off, plain(architecture, GRID.mask(OFF)), atol=1e-4)
    assert (off - intact).abs().max() > 0.1
    assert torch.equal(run(model), intact)
    assert not hooks_of(model)


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_units_of_every_kind_are_off(load, name, backend):
    model, unit = load("llama", backend), Unit.parse(name)
    grid = Grid.from_model(model, next(kind for kind, each in KINDS.items() if each == name))
    with cs.ablated(model, name):
        off = run(model)
    mask = grid.mask([unit])
    np.testing.assert_allclose(off, plain("llama", mask, grid.kind), atol=1e-4)
    gates = torch.from_numpy(1 - mask.astype(np.float32)).expand(2, -1, -1)
    with torch.no_grad():
        engine = logits_at(model, TOKENS, torch.ones_like(TOKENS), gates=gates, units=grid.kind)
    np.testing.assert_allclose(off.reshape(engine.shape), engine, atol=1e-5)


@pytest.mark.parametrize("use_past_kv_cache", [True, False])
def test_text_is_generated_with_the_heads_off(load, use_past_kv_cache, backend):
    """Token by token what the ablated forward says; the intact model writes another text."""
    model = load("llama", backend)
    options = {"max_new_tokens": 8, "do_sample": False, "stop_at_eos": False, "verbose": False}
    options |= {"use_past_kv_cache": use_past_kv_cache, "return_type": "tokens"}
    with cs.ablated(model, OFF):
        written = model.generate(TOKENS[:1], **options)
        text = TOKENS[:1]
        for _ in range(8):
            with torch.no_grad():
                text = torch.cat([text, model(text)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(written, text)
    assert not torch.equal(written, model.generate(TOKENS[:1], **options))


def test_hooks_of_a_ranking_are_for_run_with_hooks(load, backend):
    model, found = load("gpt2", backend), a_ranking()
    with cs.ablated(model, found, k=3):
        off = run(model)
    with torch.no_grad():
        assert torch.equal(model.run_with_hooks(TOKENS, fwd_hooks=found.hooks(3)), off)
        assert not torch.equal(model.run_with_hooks(TOKENS, fwd_hooks=found.hooks(1)), off)
    assert [name for name, _ in found.hooks(2)] == ["blocks.0.attn.hook_z", "blocks.2.attn.hook_z"]
    assert not hooks_of(model)
    with pytest.raises(ValueError, match=r"k must be an integer in 1\.\.12, the heads of the grid; got 13"):
        found.hooks(13)


@pytest.mark.parametrize(
    "heads",
    [["L1H2"], [(1, 2)], "L1H2", Head(1, 2), (1, 2), HeadRanking("css", np.eye(12)[6].reshape(3, 4), 8, k=1)],
    ids=lambda heads: type(heads).__name__,
)
def test_heads_may_be_written_in_every_way(load, heads):
    model = load("llama")
    with cs.ablated(model, heads):
        off = run(model)
    assert np.allclose(off, plain("llama", GRID.mask([Head(1, 2)])), atol=1e-4)


# Afterwards


def test_blocks_nest_and_each_takes_its_own_hooks_away(load, backend):
    model = load("llama", backend)
    intact = run(model)
    with cs.ablated(model, ["L0H1"]):
        one = run(model)
        with cs.ablated(model, ["L2H3"]), cs.scale(model, {"L0H2": 0.0}):
            both = run(model)
        assert torch.equal(run(model), one)
    np.testing.assert_allclose(both, plain("llama", GRID.mask(OFF)), atol=1e-4)
    assert torch.equal(run(model), intact)
    assert not hooks_of(model)


def test_after_an_exception_the_model_is_as_before(load, backend):
    model = load("gpt2", backend)
    intact = run(model)
    for block in (cs.ablated(model, OFF), cs.scale(model, {"L1H1": 2})):
        with pytest.raises(ZeroDivisionError), block:
            1 / 0  # noqa: B018 - any error inside the block
    assert not hooks_of(model)
    assert torch.equal(run(model), intact)


def test_hooks_that_are_reset_inside_are_no_error(load, backend):
    model = load("llama", backend)
    with cs.ablated(model, ["L1H2"]):
        model.reset_hooks()
    assert not hooks_of(model)


# Weighed


@pytest.mark.parametrize("architecture", FEW)
def test_scale_multiplies_z_by_a_number(load, architecture, backend):
    model, hf = load(architecture, backend), make_hf_model(architecture)
    width = output_projections(hf)[1].weight.shape[0 if architecture == "gpt2" else 1] // N_HEADS

    def weigh(module, arguments):
        z = arguments[0].clone()
        z[..., 2 * width : 3 * width] *= 0.3
        z[..., :width] *= -2.0
        return z, *arguments[1:]

    handle = output_projections(hf)[1].register_forward_pre_hook(weigh)
    with torch.no_grad():
        expected = hf(TOKENS, use_cache=False).logits
    handle.remove()
    with cs.scale(model, {"L1H2": 0.3, Head(1, 0): -2}):
        np.testing.assert_allclose(run(model), expected, atol=1e-4)
    assert not hooks_of(model)


# What is put in a head's place


@pytest.mark.parametrize("ablation", ["mean", pytest.param("optimal", marks=pytest.mark.slow)])
def test_mean_and_optimal_come_from_a_task_and_are_those_of_an_experiment(load, ablation, backend):
    model = load("llama", backend)
    task = cs.Task.from_records(completion_records(np.random.default_rng(0), 6))
    experiment = cs.Experiment(model, task, ablation=ablation, batch_tokens=512)
    expected = experiment.logprob(GRID.mask(OFF)[None])[0]
    with cs.ablated(model, OFF, ablation, task=task):
        for example, wanted in zip(experiment.encoded, expected, strict=True):
            prompt, target = example.prompt, example.continuations[0]
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *target]]))[0]
            own = logits.log_softmax(-1)[range(len(prompt) - 1, len(prompt) + len(target) - 1), list(target)]
            assert float(own.mean()) == pytest.approx(wanted, abs=1e-4)
    assert not hooks_of(model)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([], r"heads must be one head or more, none twice; got none"),
        (["L1H1", "L1H1"], r"heads must be one head or more, none twice; got L1H1, L1H1"),
        (["L3H0"], r"head L3H0 is not in the grid: layers 0\.\.2, heads 0\.\.3"),
        (["L1H1", "L1MLP"], r"MLP layer L1MLP is not in the grid, which is of heads, as L0H0"),
        (["L1E1"], r"units must not be 'experts' for model .*: it has no hook point"),
        (5, r"heads must be a list of heads, as ranking\.top\(5\) gives, got 5"),
        ("nothing", r"text 'nothing' is no unit|text 'nothing' is no head"),
    ],
)
def test_what_cannot_be_off_is_refused_by_name(load, heads, message):
    model = load("llama")
    for act in (contextmanager(untyped(cs.ablated)), untyped(cs.bake)):
        with pytest.raises(ValueError, match=message), act(model, heads):
            pass
    assert not hooks_of(model)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e39, -1e39, 10**400, "half", None, True])
def test_a_factor_is_a_finite_number(load, factor):
    scale = contextmanager(untyped(cs.scale))
    with pytest.raises(ValueError, match="factors must be finite numbers, got"), scale(load("llama"), {"L0H0": factor}):
        pass
    with pytest.raises(ValueError, match="factors must be a mapping, a number by head"), scale(load("llama"), ["L0H0"]):
        pass
    twice = {"L0H0": 0.5, Head(0, 0): 0.3}
    with pytest.raises(ValueError, match=r"factors must be .* none twice; got L0H0, L0H0"), scale(load("llama"), twice):
        pass


# Taken out


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        *(("gpt2", kind) for kind in KINDS),
        ("gemma2", "heads"),
        *(
            pytest.param(architecture, kind, marks=pytest.mark.slow)
            for architecture, kind in [*product(("llama",), KINDS), ("qwen2", "heads"), ("neo", "heads")]
        ),
    ],
)
def test_a_baked_model_is_the_ablated_one_without_hooks(load, architecture, kind, backend):
    model, name = load(architecture, backend), KINDS[kind]
    intact = run(model)
    baked = cs.bake(model, name)
    with cs.ablated(model, name):
        off = run(model)
    assert torch.equal(run(baked), off)
    assert not torch.equal(off, intact)
    assert torch.equal(run(model), intact)
    assert not hooks_of(baked)
    assert describe(baked)["without"] == [name]
    assert "without" not in describe(model)


@pytest.mark.parametrize("architecture", FEW)
def test_a_folder_ships_the_model_without_the_heads(load, architecture, tmp_path):
    """Read again, by cs-heads and by plain Hugging Face, it runs as with the heads off."""
    model = load(architecture)
    cs.bake(model, OFF, tmp_path / "out")
    loaded = cs.load_model(tmp_path / "out", device="cpu")
    with cs.ablated(model, OFF):
        off = run(model)
    assert torch.equal(run(loaded), off)
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        np.testing.assert_allclose(hf(TOKENS).logits, plain(architecture, GRID.mask(OFF)), atol=1e-4)
    assert describe(loaded)["without"] == ["L0H1", "L0H2", "L2H3"]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["cs_heads_without"] == ["L0H1", "L0H2", "L2H3"]
    assert cs.lens.prepended(loaded.tokenizer, None) == cs.lens.prepended(model.tokenizer, None)
    # Beside a Qwen2 model transformers turns any tokenizer into Qwen2's own class.
    if architecture != "qwen2":
        assert loaded.tokenizer("the cat")["input_ids"] == model.tokenizer("the cat")["input_ids"]


def test_an_experiment_on_a_baked_model_measures_what_the_mask_does(load, backend):
    model = load("qwen2", backend)
    baked, task = cs.bake(model, ["L1H2"]), cs.Task.from_records([{"prompt": [1, 4, 5], "target": [6, 7]}])
    masks = np.stack([GRID.mask([]), GRID.mask(["L0H0", "L2H1"])])
    with_it = masks | GRID.mask(["L1H2"])
    before, after = cs.Experiment(model, task), cs.Experiment(baked, task)
    np.testing.assert_allclose(after.logprob(masks), before.logprob(with_it), atol=1e-6)
    assert after.provenance()["model"]["without"] == ["L1H2"]
    assert cs.lens.fingerprint(model) != cs.lens.fingerprint(baked)


def test_without_a_copy_the_model_itself_changes(load, backend):
    model = copy.deepcopy(load("llama", backend))
    with cs.ablated(model, OFF):
        off = run(model)
    assert cs.bake(model, OFF, copy=False) is model
    assert torch.equal(run(model), off)


def test_hooks_are_not_baked_in(load, backend):
    model = load("llama", backend)
    with (
        cs.ablated(model, "L0H0"),
        pytest.raises(
            ValueError, match=r"L1H2 cannot be taken out .*: hooks stand on it \(.*\); leave their with block"
        ),
    ):
        cs.bake(model, "L1H2")


def test_a_permanent_hook_works_on_the_copy_alone(load, backend):
    """It belongs to the model, and what it calls of the model is the copy's own there."""
    model = copy.deepcopy(load("llama", backend))
    other = model.hook_dict["blocks.2.hook_mlp_out"]
    model.hook_dict["blocks.0.attn.hook_z"].add_hook(lambda z, hook: 2 * other(z), is_permanent=True)
    with cs.ablated(model, OFF):
        off = run(model)
    baked = cs.bake(model, OFF)
    assert torch.equal(run(baked), off)
    called = []
    other.register_forward_hook(lambda *arguments: called.append(arguments))
    run(baked)
    assert not called


FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 23}
OPT = FALCON | {"ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 32}


@pytest.mark.parametrize(("name", "sizes"), [("Falcon", FALCON), ("OPT", OPT)])
def test_models_with_hooks_and_linear_maps_of_their_libraries_are_baked(name, sizes, tmp_path):
    """TransformerLens puts hooks on MLPs of OPT; transformers has a linear map of its own for Falcon."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    hf = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    hf.save_pretrained(tmp_path)
    model = cs.load_model(tmp_path, "cpu")
    tokens = torch.tensor([[1, 5, 7, 9, 4]])
    intact = model(tokens)
    baked = cs.bake(model, ["L0H1", "L1H3"])
    assert torch.equal(model(tokens), intact)
    ends = ("self_attn.out_proj", "self_attention.dense")
    projections = [module for path, module in hf.named_modules() if path.endswith(ends)]
    for projection, head in zip(projections, (1, 3), strict=True):
        kept = torch.arange(32) // 8 != head
        projection.register_forward_pre_hook(lambda _, given, kept=kept: (given[0] * kept,))
    with torch.no_grad():
        off = hf(tokens).logits
        torch.testing.assert_close(baked(tokens), off, rtol=0, atol=1e-5)
    assert (intact - off).abs().max() > 0.1


def test_a_model_that_would_run_otherwise_is_refused_and_left_as_it_was(load):
    """A norm between z and W_O: what is left of z depends on the head that is off."""
    model = copy.deepcopy(load("llama"))
    model.blocks[1].attn.o.original_component.register_forward_pre_hook(
        lambda module, arguments: (arguments[0] / arguments[0].norm(dim=-1, keepdim=True),)
    )
    intact, weights = run(model), model.blocks[1].attn.o.original_component.weight.clone()
    with pytest.raises(ValueError, match=r"L1H2 cannot be taken out .*: without these weights it does not run as with"):
        cs.bake(model, "L1H2", copy=False)
    assert torch.equal(model.blocks[1].attn.o.original_component.weight, weights)
    assert torch.equal(run(model), intact)
    assert "without" not in describe(model)


def test_weights_that_are_no_plain_matrix_are_refused(load):
    class Packed(torch.nn.Module):
        """What a library of packed weights puts in a linear map's place."""

    model = copy.deepcopy(load("llama"))
    model.blocks[1].attn.o.original_component.__class__ = Packed
    with pytest.raises(
        ValueError, match=r"L1H2 cannot be taken out .*: the output weights of layer 1 are no plain matrix"
    ):
        cs.bake(model, "L1H2")


@pytest.mark.parametrize("existing", ["config.json", "file"])
def test_a_folder_with_a_model_is_not_written_over(load, existing, tmp_path):
    path = tmp_path if existing == "config.json" else tmp_path / "file"
    (tmp_path / existing).write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="path must be a new folder, or one without a model, got"):
        cs.bake(load("llama"), "L1H2", path)
    assert (tmp_path / existing).read_text(encoding="utf-8") == "{}"


def test_what_has_no_hugging_face_form_is_not_written(load, tmp_path, backend):
    model = copy.deepcopy(load("llama", backend))
    if backend == "bridge":
        model.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    message = "its weights were processed" if backend == "bridge" else "a HookedTransformer has no Hugging Face model"
    with pytest.raises(ValueError, match=f"path must be left out for model .*: {message}"):
        cs.bake(model, "L1H2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_else_changed_is_measured_on_the_baked_model():
    """The demo model without the heads of capitals: capitals are lost, rhymes are not, and results say so."""
    model, task, other = cs.load_model("demo"), cs.load_task("demo/capitals", n=40), cs.load_task("demo/rhyme", n=40)
    found = cs.find_heads(model, task, k=3, budget=2000, controls=None, progress=False)
    baked = cs.bake(model, found)
    scores = [cs.Experiment(baked, each, progress=False).baseline().mean() for each in (task, other)]
    assert scores[0] < 0.3
    assert scores[1] > 0.9
    drops = cs.specificity(baked, other, ["L0H0"], n=20, progress=False)
    assert drops.provenance["model"]["without"] == sorted(map(str, found))
