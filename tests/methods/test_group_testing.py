"""Group testing: heads that do nothing alone, found by what breaks a task and not its controls."""

from dataclasses import replace

import numpy as np
import pytest

from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.methods.group_testing import group_testing
from cs_heads.simulate import SCENARIOS, planted_world
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(12, 12)


def groups_of(ranking):
    return [{*group["heads"]} for group in ranking.provenance["groups"]]


def hidden_of(world):
    """The names of the pairs that are fully redundant."""
    hidden = [str(head) for head in world.planted[len(world.scenario.drops) :]]
    return [{*hidden[at : at + 2]} for at in range(0, len(hidden), 2)]


def test_a_pair_of_which_either_head_is_enough_is_found_and_nothing_else():
    """By hand: .9 of the examples are right until both are off, and then .2 are; the controls lose none."""
    pair = (Head(2, 3), Head(7, 1))
    task, control = Planted(GRID, {}, groups={pair: 0.7}), Planted(GRID, {}, groups={})
    found = group_testing(task, controls=[control], budget=8000)
    assert groups_of(found) == [{"L2H3", "L7H1"}]
    assert {*found.chosen} == {*found.claims} == {*pair} == {*found.top(2)}
    group = found.provenance["groups"][0]
    assert group["task"] == pytest.approx(0.7 / 0.9, abs=3 * group["task_error"])
    assert group["controls"] == 0
    assert group["alone"] == [0, 0]
    assert any(note.startswith("L2H3 and L7H1 are redundant: together they take 0.") for note in found.notes)
    assert np.abs(np.delete(found.importance, [GRID.index(head) for head in pair])).max() < 0.2
    assert found.importance[2, 3] == found.importance[7, 1] == pytest.approx(group["task"] * 0.9), "score lost"


def test_what_breaks_the_controls_too_is_shared_and_not_chosen():
    task = Planted(GRID, {Head(1, 1): 0.9, Head(4, 4): 0.6})
    control = Planted(GRID, {Head(1, 1): 0.9})
    found = group_testing(task, controls=[control], budget=8000)
    assert found.chosen == (Head(4, 4),)
    assert found.shared == (Head(1, 1),)
    assert found.order[-1] == Head(1, 1)
    assert found.control_importance[1, 1] == pytest.approx(1, abs=0.05)


def test_what_the_controls_alone_need_is_not_said_to_be_shared():
    task, control = Planted(GRID, {Head(4, 4): 0.6}), Planted(GRID, {Head(1, 1): 0.9})
    found = group_testing(task, controls=[control], budget=8000)
    assert (found.chosen, found.shared, found.shared_effects) == ((Head(4, 4),), (), ())


def test_a_pair_that_the_controls_need_too_is_shared_named_and_last():
    """As the heads of one key/value head that every skill of a model needs: each alone is harmless."""
    pair = (Head(2, 3), Head(7, 1))
    task = Planted(GRID, {Head(4, 4): 0.6}, groups={pair: 0.8})
    control = Planted(GRID, {}, groups={pair: 0.5})
    found = group_testing(task, controls=[control], budget=8000)
    assert found.chosen == (Head(4, 4),)
    assert {*found.shared} == {*pair} == {*found.order[-2:]}
    assert any(note.startswith("L2H3 and L7H1 are shared: together they take") for note in found.notes)
    assert found.importance[2, 3] < 1e-5


def test_heads_that_were_not_found_have_no_importance_to_speak_of():
    """Nothing is said of them, not even a sign: the issue's four heads on a small grid, and harmless ones."""
    grid = Grid(2, 3)
    task = Planted(grid, {Head(0, 0): 0.85, Head(0, 1): 0.6, Head(0, 2): 0.2})
    for world in (task, Planted(grid, {})):
        found = group_testing(world, controls=[Planted(grid, {})])
        others = [head for head in grid if head not in found.chosen]
        assert all(abs(found.importance[head.layer, head.head]) < 1e-5 for head in others)
        assert all(found.importance[head.layer, head.head] > 0.1 for head in found.chosen)
        assert found.z is None


def test_a_pair_stands_only_where_both_take_more_than_one():
    """Single heads of a quarter, in worlds in which chance makes a pair of one and a harmless head now and then."""
    for seed in range(3):
        heads = {Head(3, 3): 0.3, Head(6, 6): 0.25}
        found = group_testing(
            Planted(GRID, heads, noise=True), controls=[Planted(GRID, {}, noise=True)], budget=6000, seed=seed
        )
        assert {*found.chosen} <= {*heads}


def test_without_controls_heads_of_every_task_are_found_as_well_and_that_is_said():
    found = group_testing(Planted(GRID, {Head(1, 1): 0.9}), controls=(), budget=8000)
    assert found.chosen == (Head(1, 1),)
    assert found.control_importance is None
    assert any(note.startswith("no controls") for note in found.notes)


@pytest.mark.slow
def test_redundant_pairs_are_found_in_planted_worlds_with_all_that_stands_in_the_way():
    """Two pairs in each world, beside single heads, universal ones, noise and ever weaker masks."""
    pairs, wrong = 0, []
    for seed in range(50, 54):
        made = planted_world("hidden_pairs", Grid(16, 16), seed=seed)
        found = group_testing(made.task, controls=[made.control], seed=seed)
        pairs += sum(pair in groups_of(found) for pair in hidden_of(made))
        planted = {str(head) for head in made.planted}
        wrong += [group for group in groups_of(found) if not group <= planted]
        assert not {*found.chosen} & {*made.universal}
    assert pairs >= 7
    assert len(wrong) <= 1


@pytest.mark.parametrize("n_worlds", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_sensing_again_with_the_found_heads_off_finds_the_pairs(n_worlds):
    pairs = 0
    for seed in range(60, 60 + n_worlds):
        made = planted_world("hidden_pairs", Grid(16, 16), seed=seed)
        off = made.planted[:3]
        again = group_testing(WithHeadsOff(made.task, off), controls=[WithHeadsOff(made.control, off)], seed=seed)
        pairs += sum(pair in groups_of(again) for pair in hidden_of(made))
        assert {*again.off} == {*off}
        assert not {*again.chosen} & {*off}
        assert {*again.order[-3:]} == {*off}
    assert pairs >= 1.5 * n_worlds


def test_a_task_with_two_choices_keeps_half_when_it_is_broken():
    """A pair takes all that is above chance: its loss is 1, and not the half that answers lose."""
    scenario = replace(SCENARIOS["chance50"], drops=(), weak=(), pairs=(), hidden=(0.33,))
    made = planted_world(scenario, Grid(16, 16), n_examples=200, seed=3)
    found = group_testing(made.task, controls=[made.control], budget=20_000)
    assert groups_of(found) == hidden_of(made)
    group = found.provenance["groups"][0]
    assert group["task"] == pytest.approx(0.33 / 0.35, abs=0.25)


def named_on_a_small_grid(hidden: float, seeds) -> int:
    """In how many worlds of 8 × 8 heads the hidden pair is named, and among the first five."""
    named, scenario = 0, replace(SCENARIOS["hidden_pair"], hidden=(hidden,))
    for seed in seeds:
        made = planted_world(scenario, Grid(8, 8), n_controls=2, seed=seed)
        found = group_testing(made.task, controls=made.controls, seed=seed)
        (pair,) = hidden_of(made)
        assert (pair in groups_of(found)) == (pair <= {*map(str, found.top(5))})
        named += pair in groups_of(found)
    return named


def test_on_a_small_grid_a_pair_that_takes_enough_is_among_the_first_five():
    assert named_on_a_small_grid(0.6, range(1)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "least", "most"), [(0.2, 2, 10), (0.3, 14, 20), (0.4, 16, 20)])
def test_on_a_small_grid_the_effect_decides_whether_a_pair_is_found(hidden, least, most):
    """Of 20: that a pair of .2 is missed is no chance, and pairs of .3 are found."""
    assert least <= named_on_a_small_grid(hidden, range(20)) <= most
