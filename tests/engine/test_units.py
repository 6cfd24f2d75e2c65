"""Units of every kind under masks are those of plain Hugging Face with the same tensors changed by hand."""

from itertools import product

import numpy as np
import pytest
import torch
import transformers

from cs_heads import Experiment, Task
from cs_heads.engine import ablation as ablations
from cs_heads.engine import forwards
from cs_heads.engine.ablation import Ablation
from cs_heads.lens import load_model
from cs_heads.lens.abilities import PLAIN, Abilities
from cs_heads.settings import ABLATIONS
from cs_heads.units import POSITIONS, UNITS, Grid
from tests.plain import experts_removed, plain_logprob, plain_text, units_given, units_replaced
from tests.tiny import choice_records, completion_records, make_hf_model, saved

# Kinds of unit of a model without a mixture of experts.
DENSE = tuple(kind for kind in UNITS if kind != "experts")
SHORTCUTS = [PLAIN, Abilities(resume=False), Abilities(extend=False), Abilities(fused=False)]


def a_task(n=4, shared=6):
    """Completions of different lengths, after the same first words: prefixes are shared."""
    rng = np.random.default_rng(1)
    beginning = " ".join(rng.choice(["the", "cat", "sees", "a", "dog"], size=shared))
    records = [{**record, "prompt": f"{beginning} {record['prompt']}"} for record in completion_records(rng, n)]
    return Task.from_records(records)


def some_masks(grid, seed=0):
    """Each of a few units by itself, random groups, all, and none."""
    rng = np.random.default_rng(seed)
    n = min(3, grid.size)
    single = np.zeros((n, grid.size), dtype=bool)
    single[range(n), rng.choice(grid.size, n, replace=False)] = True
    groups = rng.random((3, grid.size)) < [[0.1], [0.3], [0.6]]
    late = np.zeros((1, *grid.shape), dtype=bool)
    late[0, -1] = rng.random(grid.n_units) < 0.7
    ends = np.stack([np.zeros(grid.size, dtype=bool), np.ones(grid.size, dtype=bool)])
    return np.concatenate([np.concatenate([single, groups, ends]).reshape(-1, *grid.shape), late])


def replaced_by(experiment, hf):
    """What units give where they are off, for each example: ``[layer][unit]`` of ``[width]`` or ``[pos, width]``.

    Positions are counted from the end of the prompt; where there is none of that number, the nearest there is.
    """
    ablation, encoded = experiment.settings.ablation, experiment.encoded
    if ablation == "zero":
        return [None] * len(encoded)
    if ablation == "optimal":
        return [experiment._engine.ablation.constants] * len(encoded)
    units, n_units = experiment.settings.units, experiment.grid.n_units
    given = [
        units_given(hf, units, e.inputs_of(a), n_units) for e, a in zip(encoded, answers_of(experiment), strict=True)
    ]
    if ablation == "mean":
        return [torch.cat(given, dim=1).mean(dim=1)] * len(encoded)
    # As far as any continuation goes.
    at = [np.arange(len(e.prompt) + 4) - len(e.prompt) for e in encoded]
    if ablation == "resample":
        partner = Ablation("resample", [0] * len(encoded)).partner
        there = [(places + len(encoded[other].prompt)) for places, other in zip(at, partner, strict=True)]
        return [
            given[other][:, places.clip(0, given[other].shape[1] - 1)].transpose(1, 2)
            for other, places in zip(partner, there, strict=True)
        ]
    by_place = {}
    for example, each in zip(encoded, given, strict=True):
        for place in range(each.shape[1]):
            by_place.setdefault(place - len(example.prompt), []).append(each[:, place])
    means = {place: torch.stack(found).mean(0) for place, found in by_place.items()}
    return [torch.stack([means[int(place)] for place in places.clip(min(means), max(means))], dim=2) for places in at]


def answers_of(experiment):
    return [example.answer for example in experiment.task.examples]


def check_against_plain(experiment, hf, masks):
    units, positions = experiment.settings.units, experiment.settings.positions
    found, values = experiment.logprob(masks), replaced_by(experiment, hf)
    for i, (example, answer) in enumerate(zip(experiment.encoded, answers_of(experiment), strict=True)):
        n, target = len(example.prompt), example.continuations[answer]
        where = {"all": None, "last": [n - 1], "prompt": range(n)}[positions]
        for mask, row in zip(masks, found, strict=True):
            with units_replaced(hf, units, mask, values=values[i], where=where):
                assert row[i] == pytest.approx(plain_logprob(hf, example.prompt, target), abs=1e-4)


# Each ablation, kind of unit, place and architecture; all of them together are slow.
FEW = [
    *(("llama", "zero", "all", "heads"), ("llama", "mean", "last", "kv"), ("llama", "position_mean", "prompt", "mlp")),
    *(("llama", "resample", "all", "neurons"), ("llama", "optimal", "last", "attn"), ("gpt2", "zero", "all", "mlp")),
    *(("qwen2", "resample", "prompt", "attn"), ("gemma2", "zero", "all", "attn"), ("gemma2", "mean", "all", "mlp")),
]
REST = [way for way in product(["llama"], ABLATIONS, POSITIONS, DENSE) if way not in FEW]
WAYS = [*FEW, *(pytest.param(*way, marks=pytest.mark.slow) for way in REST)]


@pytest.mark.parametrize(("architecture", "ablation", "positions", "units"), WAYS)
def test_units_off_are_those_of_plain_hugging_face(
    load, backend, architecture, ablation, positions, units, monkeypatch
):
    # Constants that are little learned are as good to put in place of a unit.
    monkeypatch.setattr(ablations, "_STEPS", 10)
    settings = {"units": units, "ablation": ablation, "positions": positions}
    experiment = Experiment(load(architecture, backend), a_task(), **settings)
    assert experiment.grid.kind == units
    check_against_plain(experiment, make_hf_model(architecture), some_masks(experiment.grid))


@pytest.mark.parametrize("ablation", ["mean", "resample"])
def test_of_choices_a_head_is_set_to_what_it_gives_with_the_right_ones(load, backend, ablation):
    task = Task.from_records(choice_records(np.random.default_rng(1), 5))
    experiment = Experiment(load("llama", backend), task, ablation=ablation)
    check_against_plain(experiment, make_hf_model("llama"), some_masks(experiment.grid))


# Of heads at all tokens whose z becomes zero, ``test_engine`` tries all of them.
@pytest.mark.parametrize("able", SHORTCUTS, ids=str)
@pytest.mark.parametrize("way", [("mlp", "zero", "all"), ("heads", "resample", "last")], ids=str)
def test_units_off_are_the_same_with_every_shortcut_on_and_off(load, able, way, monkeypatch):
    units, ablation, positions = way
    tried = forwards.abilities
    monkeypatch.setattr(forwards, "abilities", lambda model, ideas: tried(model, able))
    experiment = Experiment(load("llama"), a_task(), units=units, ablation=ablation, positions=positions)
    check_against_plain(experiment, make_hf_model("llama"), some_masks(experiment.grid))


def test_a_key_value_group_off_is_all_its_query_heads_off(load, backend):
    model, task = load("llama", backend), a_task()
    groups, heads = Experiment(model, task, units="kv"), Experiment(model, task)
    assert (groups.grid.shape, heads.grid.shape) == ((3, 2), (3, 4))
    masks = some_masks(groups.grid)
    np.testing.assert_array_equal(groups.logprob(masks), heads.logprob(masks.repeat(2, axis=2)))


@pytest.mark.parametrize("units", ["kv", "mlp", "neurons"])
def test_gradients_in_gates_of_units_are_the_slopes_of_the_log_probability(load, backend, units):
    experiment = Experiment(load("llama", backend), a_task(), units=units)
    rng, grid = np.random.default_rng(0), experiment.grid
    gates = rng.uniform(0.3, 0.7, (2, *grid.shape))
    _, gradients = experiment.gradients(gates, np.array([0, 1]))
    for at in [grid.index(unit) for unit in rng.choice(np.array(list(map(str, grid))), 2, replace=False)]:
        step = np.zeros(grid.size)
        step[at] = 4e-3
        sides = [experiment.logprob(gates + sign * step.reshape(grid.shape))[[0, 1], [0, 1]] for sign in (1, -1)]
        slope = -(sides[0] - sides[1]) / 8e-3
        np.testing.assert_allclose(gradients.reshape(2, -1)[:, at], slope, rtol=0.02, atol=2e-3)


def test_one_run_of_what_comes_before_the_last_token_serves_all_masks(load, monkeypatch):
    """Each mask more runs the last token of every prompt, and what follows it."""
    tried, run, counted = forwards.abilities, forwards.token_logprobs, []
    monkeypatch.setattr(forwards, "abilities", lambda model, ideas: tried(model, Abilities(resume=False)))

    def counting(model, tokens, attention_mask, *arguments, **options):
        counted.append(int(attention_mask.sum()))
        return run(model, tokens, attention_mask, *arguments, **options)

    monkeypatch.setattr(forwards, "token_logprobs", counting)
    tokens = {}
    for n_masks in (2, 7):
        counted.clear()
        experiment = Experiment(load("llama"), a_task(), positions="last")
        experiment.logprob(np.random.default_rng(0).random((n_masks, *experiment.grid.shape)) < 0.3)
        tokens[n_masks] = sum(counted)
    encoded = experiment.encoded
    n_own = sum(len(e.inputs_of(0)) - len(e.prompt) + 1 for e in encoded)
    assert tokens[7] - tokens[2] == 5 * n_own
    assert tokens[2] - 2 * n_own < sum(len(e.prompt) - 1 for e in encoded)


@pytest.mark.parametrize("units", ["heads", *(pytest.param(kind, marks=pytest.mark.slow) for kind in DENSE[1:])])
def test_right_answers_are_likelier_with_optimal_constants_than_with_means_or_zeros(load, units, monkeypatch):
    monkeypatch.setattr(ablations, "_STEPS", 50)
    model, task = load("llama"), a_task(6)
    by = {kind: Experiment(model, task, units=units, ablation=kind) for kind in ("zero", "mean", "optimal")}
    masks = np.random.default_rng(7).random((20, *by["zero"].grid.shape)) < 0.3
    mean = {kind: experiment.logprob(masks).mean() for kind, experiment in by.items()}
    assert mean["optimal"] > max(mean["zero"], mean["mean"]) + 0.1
    # What they are learned with counts.
    assert by["optimal"].preparation == 6 + 2 * 50 * 6
    different = len({mask.tobytes() for mask in masks})
    assert by["optimal"].spent == by["optimal"].ran == by["optimal"].preparation + different * 6


def on_a_bridge(folder, name, config):
    """A model of a class of Hugging Face on a bridge, and by itself."""
    torch.manual_seed(0)
    hf = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        # As drawn, what a layer adds is next to nothing.
        for parameter in hf.parameters():
            parameter.mul_(8 if parameter.ndim > 1 else 1)
    return load_model(saved(hf, folder), device="cpu"), hf


SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "vocab_size": 23}
MIXTURES = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "GptOss": {"num_local_experts": 4, "head_dim": 8},
}


def mixture_of(folder, name, **experts):
    """A mixture of which two experts are chosen."""
    sizes = {"num_hidden_layers": 2, "intermediate_size": 32, "num_experts_per_tok": 2, "eos_token_id": 2}
    return on_a_bridge(folder, name, getattr(transformers, f"{name}Config")(**SHAPE, **sizes, **experts))


@pytest.fixture(params=["Mixtral", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Qwen2Moe", "GptOss"))])
def mixture(request, tmp_path):
    return mixture_of(tmp_path, request.param, **MIXTURES[request.param])


def gemma4(folder, **changes):
    """A tiny Gemma 4 whose layers with full attention may be of another shape."""
    sizes = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "head_dim": 8}
    sizes |= {"intermediate_size": 48, "num_kv_shared_layers": 0, "global_head_dim": 8}
    sizes |= {"vocab_size_per_layer_input": 23, "hidden_size_per_layer_input": 8}
    sizes |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    return on_a_bridge(folder, "Gemma4", transformers.Gemma4TextConfig(**SHAPE, **sizes | changes))


def test_units_of_gemma_4_off_are_those_of_plain_hugging_face(tmp_path):
    """The last two layers use the keys and values of those before; full attention has wider heads."""
    model, hf = gemma4(tmp_path, num_kv_shared_layers=2, global_head_dim=16)
    for units in ("heads", "attn", "neurons"):
        experiment = Experiment(model, a_task(), units=units)
        check_against_plain(experiment, hf, some_masks(experiment.grid))


def test_key_value_groups_of_layers_with_other_numbers_of_them_are_refused(tmp_path):
    model, _ = gemma4(tmp_path, num_global_key_value_heads=1, attention_k_eq_v=True)
    message = "units must not be 'kv' for model .*: layer 1 has 1 key/value heads, and its configuration says 2"
    with pytest.raises(ValueError, match=message):
        Experiment(model, a_task(), units="kv")
    assert Experiment(model, a_task()).grid.shape == (4, 4)


def test_neurons_of_layers_with_other_numbers_of_them_are_refused(tmp_path):
    model, _ = gemma4(tmp_path, use_double_wide_mlp=True, num_kv_shared_layers=2)
    experiment = Experiment(model, a_task(), units="neurons", progress=False)
    with pytest.raises(ValueError, match="48 neurons in a layer, and this one has 96"):
        experiment(np.ones((1, *experiment.grid.shape), dtype=bool))


def test_the_neurons_of_a_mixture_of_experts_are_refused_and_its_layers_are_not(mixture):
    """The bridge has a hook point of that name there, which is of the router."""
    (model, hf), task = mixture, a_task()
    with pytest.raises(ValueError, match=r"units must not be 'neurons' for model .* layer 0 has no neurons of its own"):
        Experiment(model, task, units="neurons")
    for units in ("kv", "attn", "mlp"):
        experiment = Experiment(model, task, units=units)
        check_against_plain(experiment, hf, some_masks(experiment.grid))


def test_an_expert_off_adds_nothing_and_the_others_keep_their_weights(mixture):
    """Also where it would have been chosen: no other takes its place."""
    model, hf = mixture
    if "blocks.0.mlp.hook_expert_weights" not in model.hook_dict:
        with pytest.raises(ValueError, match=r"units must not be 'experts' for model .*: it has no hook point"):
            Experiment(model, a_task(), units="experts")
        return
    for positions in POSITIONS:
        experiment = Experiment(model, a_task(), units="experts", positions=positions)
        assert experiment.grid == Grid(2, 4, "experts")
        masks = some_masks(experiment.grid)
        found = experiment.logprob(masks)
        assert np.ptp(found, axis=0).min() > 0.01
        for i, example in enumerate(experiment.encoded):
            n = len(example.prompt)
            where = {"all": None, "last": [n - 1], "prompt": range(n)}[positions]
            for mask, row in zip(masks, found, strict=True):
                with experts_removed(hf, mask, where):
                    plain = plain_logprob(hf, example.prompt, example.continuations[0])
                assert row[i] == pytest.approx(plain, abs=1e-4)


def test_experts_that_are_all_chosen_for_every_token_are_refused(tmp_path):
    """Their weights come in the order of their size."""
    model, _ = mixture_of(tmp_path, "Mixtral", num_local_experts=2)
    with pytest.raises(ValueError, match=r"units must not be 'experts' for model .*: (all of its 2|it has no hook)"):
        Experiment(model, a_task(), units="experts")


@pytest.mark.parametrize(("units", "positions"), [("heads", "prompt"), ("kv", "last"), ("mlp", "all")])
def test_texts_under_masks_of_units_are_those_of_plain_greedy_decoding(load, backend, units, positions):
    experiment = Experiment(load("llama", backend), a_task(), units=units, positions=positions)
    hf, masks = make_hf_model("llama"), some_masks(experiment.grid)
    texts = experiment.generate(masks, max_new_tokens=4)
    tokenizer = experiment.model.tokenizer

    def finished(text):
        return len(text) >= 4 or text[-1:] == [tokenizer.eos_token_id]

    for i, example in enumerate(experiment.encoded):
        n = len(example.prompt)
        where = {"all": None, "last": [n - 1], "prompt": range(n)}[positions]
        for mask, row in zip(masks, texts, strict=True):
            with units_replaced(hf, units, mask, where=where):
                said = plain_text(hf, example.prompt, finished)
            assert row[i] == tokenizer.decode(said, skip_special_tokens=True)
