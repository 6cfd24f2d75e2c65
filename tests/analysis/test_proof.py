"""The proof on planted truths: the same statistics as `confirm`, on any experiment."""

import json
from dataclasses import replace

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.analysis.confirm import confirm, prove
from cs_heads.simulate import planted_world
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(16, 16)


@pytest.mark.parametrize("seed", range(2))
def test_planted_heads_are_specific_and_heads_of_a_world_without_any_are_not_localized(seed):
    made = planted_world("main", GRID, seed=seed)
    given = {"exclude": made.universal, "controls": [made.control]}
    proof = prove(made.unseen, made.planted, **given)
    assert (proof.verdict, proof.localized, proof.specificity.shared_with) == ("specific", True, ())
    assert proof.specificity.difference.low > 0.1
    assert proof.controls[0].loss < 0.2 < proof.result.loss
    nothing = planted_world("no_structure_fragile", GRID, seed=seed)
    assert prove(nothing.unseen, list(GRID)[seed : seed + 5]).verdict == "not localized"


def test_a_task_at_chance_has_a_baseline_too_low():
    task = Planted(GRID, {}, baseline=0.5)
    assert prove(task, [Head(0, 0)]).verdict != "baseline too low"
    task.chance = 0.5
    low = prove(task, [Head(0, 0)])
    assert low.verdict == "baseline too low"
    assert str(low).count("model that can do the task") == 1


def test_chance_is_what_the_experiment_says():
    made = planted_world("chance25", GRID, seed=0)
    proof = prove(made.unseen, made.planted, controls=[made.control])
    assert proof.result.chance == proof.controls[0].chance == 0.25
    made.unseen.chance = 0.5
    assert prove(made.unseen, made.planted).result.chance == 0.5


def test_the_cost_is_every_pair_of_mask_and_example_and_what_ten_masks_took():
    task, control = Planted(GRID, {Head(0, 0): 0.5}), Planted(GRID, {}, n_examples=30)
    proof = prove(task, [Head(0, 0), Head(5, 5)], controls=[control])
    assert proof.spent == task.spent + control.spent < 1.4 * 10 * 100 + 2 * 30


def test_sets_that_are_measured_for_a_smaller_set_in_vain_are_part_of_the_cost():
    made = planted_world("noisy", Grid(16, 16), seed=6)
    fillers = [head for head in made.grid if head not in (*made.planted, *made.universal)]
    chosen = [*made.planted[:2], *(fillers[i] for i in np.random.default_rng(6).permutation(len(fillers))[:3])]
    assert prove(made.unseen, chosen, seed=6).spent == made.unseen.spent


def test_a_control_on_another_grid_is_refused():
    with pytest.raises(ValueError, match="tasks must all be measured on one grid"):
        prove(Planted(GRID, {}), [Head(0, 0)], controls=[Planted(Grid(40, 40), {})])


def test_a_control_that_is_only_named_is_refused():
    with pytest.raises(ValueError, match="controls must be a list of experiments, got 'everyday/past'"):
        cs.confirm(None, Planted(GRID, {}), [Head(0, 0)], controls="everyday/past")


def test_random_sets_have_no_universal_heads_where_these_are_told():
    """Of a small grid they would be in most sets, and these would take as much as the heads."""
    made = planted_world("many_universal", Grid(12, 12), seed=3)
    beside, without = (prove(made.unseen, made.planted, exclude=apart) for apart in ((), made.universal))
    assert without.random.drop < 0.5 * beside.random.drop
    assert without.verdict == "localized"
    assert without.provenance["apart"] == [str(head) for head in made.universal]


def test_heads_told_apart_serve_where_no_others_are_left():
    task = Planted(Grid(1, 4), {Head(0, 0): 0.4})
    proof = prove(task, [Head(0, 0), Head(0, 1)], exclude=[Head(0, 2)])
    assert proof.random.drops == (0.0,)


def test_where_there_is_one_other_set_it_is_asked_once_and_p_says_how_little_that_tells():
    """A layer of two heads has one other to take."""
    task = Planted(Grid(1, 2), {Head(0, 0): 0.4})
    proof = prove(task, [Head(0, 0)])
    assert proof.spent == task.spent == 3 * 100
    assert (len(proof.random.drops), proof.random.p_sets, proof.p, proof.verdict) == (1, 0.5, 0.5, "localized")
    assert (
        "the smallest that so few allow: the random set seems to do less harm; of all such sets at most 95.0 % do"
        in proof.reasons[1]
    )


def test_the_record_has_every_interval_of_the_task_and_of_each_control():
    made = planted_world("main", GRID, seed=0)
    proof = prove(made.unseen, made.planted, controls=[made.control])
    record = json.loads(json.dumps(proof.to_dict()))
    for row, drop in zip((record["result"], *record["controls"]), (proof.result, *proof.controls), strict=True):
        assert (row["low"], row["high"]) == drop.interval
        assert row.items() >= drop.to_dict().items()
    frame = proof.to_frame().set_index("role")
    assert (frame.loc["task", "loss_low"], frame.loc["task", "loss_high"]) == proof.result.loss_interval


@pytest.mark.parametrize(
    ("heads", "more", "message"),
    [
        (["L0H0"], {"exclude": [(0, 0), (1, 1)]}, "exclude must have none of heads, got L0H0"),
        (["L0H0"], {"controls": [Planted(GRID, {})] * 2}, "different names, got two or more of 'control'"),
    ],
)
def test_wrong_heads_are_refused_before_anything_is_measured(heads, more, message):
    task = Planted(GRID, {})
    with pytest.raises(ValueError, match=message):
        confirm(None, task, heads, **more)
    assert task.spent == 0


@pytest.mark.slow
def test_specific_heads_are_found_and_called_specific_in_nine_worlds_of_ten():
    """Where the planted heads themselves are, search and proof by default say so of what they find."""
    said = []
    for scenario in ("main", "even", "redundant", "serial", "chance25"):
        for seed in range(6):
            made = planted_world(scenario, GRID, seed=seed)
            fresh = replace(made, n_examples=made.n_examples + 1, n_unseen=100)
            given = {"exclude": made.universal, "controls": fresh.controls}
            if prove(fresh.unseen, made.planted, **given).verdict == "specific":
                found = cs.methods.annealed(made.task, controls=list(made.controls), k=5, seed=seed)
                proof = prove(fresh.unseen, found.top(5), exclude=found.shared, controls=fresh.controls)
                said.append(proof.verdict == "specific")
    assert len(said) >= 25
    assert np.mean(said) >= 0.9
