"""Grids of a few heads: defaults that fit them, and random sets that do not use up a layer."""

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

import cs_heads as cs
from cs_heads.analysis.confirm import prove
from cs_heads.analysis.random_heads import drawn_notes, like_note, random_sets, used_up
from cs_heads.analysis.sparsity import SparsityCurve, sparsity_curve
from cs_heads.experiment.baseline import fitting_k
from cs_heads.lens import load_model
from cs_heads.methods.compressed_sensing import tune
from cs_heads.methods.greedy import greedy
from cs_heads.tasks import Task
from cs_heads.units import Grid, Head
from tests.known_heads import own_answers
from tests.methods.planted import Planted
from tests.tiny import make_tokenizer

QUICK = {"css": {}, "csb": {}, "one-shot": {}, "greedy": {}, "gradient": {}, "chg": {"steps": 20, "batch_size": 4}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of two heads, with weights by lot."""
    import torch

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, **sizes)
    folder = tmp_path_factory.mktemp("small")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(folder)


@pytest.fixture(scope="module")
def task(model):
    return Task.from_records(own_answers(model, 50), "own answers").split(25)[0]


def half(model) -> int:
    return Grid.from_model(model).size // 2


# Defaults


@pytest.mark.parametrize("method", QUICK)
def test_every_default_of_a_search_fits_a_grid_of_two_heads_and_up(model, task, method):
    found = cs.find_heads(model, task, method=method, controls=None, progress=False, **QUICK[method])
    assert found.k == half(model)
    assert any(note.startswith(f"k is {half(model)}, half of the") for note in found.notes)
    assert any(note.startswith("density is") for note in found.notes) == (method in ("css", "csb"))
    proof = cs.confirm(model, task, found.top(found.k), n=20, controls=None, progress=False)
    assert len((*proof.heads, *proof.passengers)) == half(model)


def test_a_comparison_by_default_fits_the_grid_and_says_so(model, task):
    compared = cs.compare(model, task, methods=["css", "gradient"], n=20, n_random=2, controls=None, progress=False)
    assert compared.k == compared.random_drops.shape[1] == half(model)
    for name, default in (("max_heads", 10), ("k", 5)):
        assert any(note.startswith(f"{name} is ") and f"not {default}" in note for note in compared.notes)


def test_a_sparsity_curve_by_default_fits_the_grid_and_says_so(model, task):
    found = cs.find_heads(model, task, method="gradient", controls=None, progress=False)
    curve = sparsity_curve(model, task, found, n=20, n_random=2, progress=False)
    assert len(curve.heads) == half(model)
    assert curve.notes[0].startswith(f"max_heads is {half(model)}, half of the")
    assert SparsityCurve.from_dict(curve.to_dict()).notes == curve.notes
    assert curve.notes[0] in curve._repr_html_()


def test_analyses_of_a_ranking_by_default_take_what_fits_the_grid(model, task):
    found = cs.find_heads(model, task, method="gradient", controls=None, progress=False)
    quiet = {"n": 20, "progress": False}
    drops = cs.specificity(model, task, found, **quiet)
    matrix = cs.specificity(model, [task], {task.name: found}, **quiet)
    written = cs.failures(model, task, found, max_new_tokens=2, **quiet)
    both = cs.head_overlap({"one": found, "again": found}, n_permutations=9)
    for heads in (drops.heads, matrix.heads, written.heads, both.heads):
        assert {len(each) for each in heads.values()} == {half(model)}


def test_searches_on_an_experiment_by_default_take_what_fits_the_grid_and_say_so(model, task):
    experiment = cs.Experiment(model, task, progress=False)
    for found in (greedy(experiment), tune(experiment, n_masks=[10], densities=[0.5])):
        assert any(note.startswith(f"k is {half(model)}, half of the") for note in found.notes)


def test_nothing_is_said_of_defaults_that_fit():
    assert fitting_k(None, Grid(2, 5), 5) == (5, ())


# Random sets


def drawn(grid: Grid, heads: list[Head], exclude: list[Head] | None = None) -> list[np.ndarray]:
    return random_sets(grid, grid.mask(heads), grid.mask(exclude or []), 8, 0)


def test_heads_that_are_half_of_a_layer_are_held_against_heads_of_other_layers():
    """The rest of their layer would be every random set."""
    grid, heads = Grid(3, 4), [Head(1, 0), Head(1, 2)]
    assert used_up(grid.mask(heads), grid.mask([])) == [1]
    for mask in drawn(grid, heads):
        assert mask.sum() == 2
        assert not mask[1].any()


def said(grid: Grid, heads: list[Head], exclude: list[Head] | None = None) -> list[str]:
    found, without = grid.mask(heads), grid.mask(exclude or [])
    return list(drawn_notes(grid, found, without, random_sets(grid, found, without, 8, 0)))


def test_random_sets_are_different_and_come_from_any_layer_where_their_own_have_no_more():
    """A head in a layer of four has three others there, and eight in the other layers."""
    grid, heads = Grid(3, 4), [Head(1, 0)]
    sets = random_sets(grid, grid.mask(heads), grid.mask([]), 125, 0)
    assert len(np.unique(sets, axis=0)) == len(sets) == 11
    assert [bool(mask[1].any()) for mask in sets] == [True] * 3 + [False] * 8
    assert like_note(grid.mask(heads), sets) == ""
    assert like_note(grid.mask(heads), sets[:3]) == " of the same layers"
    assert said(grid, heads)[0].startswith("5 of 8 random sets have heads of other layers")


def test_random_sets_with_heads_kept_apart_name_them():
    notes = said(Grid(1, 9), [Head(0, i) for i in range(4)], exclude=[Head(0, 5), Head(0, 6)])
    assert notes[0] == "random sets have heads that were kept apart, for want of others: L0H5, L0H6"


def test_a_proof_says_that_random_sets_are_of_other_layers():
    task = Planted(Grid(3, 4), {Head(1, 0): 0.4, Head(1, 1): 0.3})
    proof = prove(task, [Head(1, 0), Head(1, 1)])
    assert len([note for note in proof.notes if "other layers" in note]) == 1
    assert not any("of the same layers" in reason for reason in proof.reasons)
    beside = prove(task, [Head(1, 0)], n_random=3)
    assert not any("other layers" in note for note in beside.notes)
    assert "with random heads of the same layers" in beside.reasons[0]
