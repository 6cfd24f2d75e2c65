"""Many tasks searched jointly on planted truths: what is found, what is kept out, what it costs."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.methods.annealing import annealed_jointly
from cs_heads.methods.annealing.sensing import per_task
from cs_heads.simulate import planted_world
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(16, 16)
A, B, C = Head(1, 1), Head(5, 8), Head(12, 3)


@cache
def searched(scenario, seed=0, n_controls=4):
    """A world and what a joint search of all its skills finds."""
    made = planted_world(scenario, GRID, n_controls=n_controls, seed=seed)
    return made, annealed_jointly([made.task, *made.controls], seed=seed, n_bootstraps=0)


def planted_of(made):
    """The planted heads of every skill of a world."""
    first, n = made.scenario.universal, len(made.scenario.drops) + 2 * len(made.scenario.hidden)
    return [{GRID.unit(int(index)) for index in roles[first : first + n]} for roles in (made.own, *made.others)]


def tops(found, k=5):
    return [ranking.top(k) for ranking in found.rankings]


def one_head_each(*heads, drop=0.3, **more):
    """A task for each head, which rests on it alone."""
    return [Planted(GRID, {head: drop}, **more) for head in heads]


class Loud(Planted):
    """Fails when it is asked anything."""

    def __call__(self, masks, examples=None):
        raise AssertionError("nothing was to be measured")


# What it finds


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_planted_heads_of_every_skill_are_found_and_universal_ones_are_not(seed):
    """Measured: .77 of the planted heads, with half of what annealed sensing of each skill takes by default."""
    made, found = searched("main", seed)
    recalls = [len(planted & {*top}) / 5 for planted, top in zip(planted_of(made), tops(found), strict=True)]
    assert np.mean(recalls) >= 0.6
    assert min(recalls) >= 0.2
    for planted, top in zip(planted_of(made), tops(found), strict=True):
        of_others = set().union(*planted_of(made)) - planted
        assert not {*top} & {*made.universal}
        assert len({*top} & of_others) <= 1


@pytest.mark.slow
def test_heads_of_universal_groups_are_not_among_the_first():
    """Three neighbors of which each alone is harmless."""
    made, found = searched("universal_groups")
    grouped = set().union(*made.groups)
    assert sum(len({*top} & grouped) for top in tops(found)) <= 1
    recalls = [len(planted & {*top}) / 5 for planted, top in zip(planted_of(made), tops(found), strict=True)]
    assert np.mean(recalls) >= 0.55


def test_tasks_of_the_same_heads_find_them_where_they_are_told_to_be_kin_and_lose_them_where_they_are_not():
    """Untold, what one of two tasks loses is taken from the other: the head is called shared."""
    tasks = one_head_each(A, A, noise=True)
    others = one_head_each(B, C, noise=True)
    told = annealed_jointly([*tasks, *others], kin=[(1, 0)], budget=9000, n_bootstraps=0)
    assert [len(ranking.provenance["controls"]) for ranking in told.rankings] == [2, 2, 3, 3]
    assert [ranking.top(1) for ranking in told.rankings] == [[A], [A], [B], [C]]
    assert told.rankings[0].control_importance[1, 1] == pytest.approx(0, abs=0.05)
    assert all(A not in ranking.shared for ranking in told.rankings[:2])
    untold = annealed_jointly(tasks, budget=4500, n_bootstraps=0)
    assert all(A in ranking.shared for ranking in untold.rankings)
    assert all(A not in ranking.top(5) for ranking in untold.rankings)


def test_a_task_whose_others_are_all_its_kin_is_left_out_and_ends_no_search():
    found = annealed_jointly(one_head_each(A, B, C), kin=[(0, 1), (0, 2)], budget=5000, n_bootstraps=0)
    assert found.left_out == {0: "no other task that the model can do is a control of it"}
    assert [ranking and ranking.top(1) for ranking in found.rankings] == [None, [B], [C]]


def test_losses_are_what_heads_take_as_shares_of_the_score_above_chance():
    found = annealed_jointly(one_head_each(A, B, C, baseline=0.6), budget=12_000, n_bootstraps=0)
    for place, head in enumerate((A, B, C)):
        others = np.delete(found.losses[:, head.layer, head.head], place)
        assert found.losses[place, head.layer, head.head] == pytest.approx(0.5, abs=0.2)
        assert others == pytest.approx(0, abs=0.15)
        assert found.rankings[place].importance[head.layer, head.head] == pytest.approx(0.3, abs=0.1)
        # What the controls lose is the mean over the others.
        theirs = np.delete(found.losses, place, axis=0).mean(axis=0)
        assert found.rankings[place].control_importance == pytest.approx(theirs)
    assert (found.errors > 0).all()


def test_what_a_shared_head_takes_is_told_by_rows_with_nothing_else_off():
    """Of kin it is not what the other loses."""
    tasks = [Planted(GRID, {own: 0.2, B: drop}, baseline=1.0) for own, drop in ((A, 0.4), (C, 0.5), (Head(7, 2), 0.3))]
    found = annealed_jointly(tasks, kin=[(0, 2)], n_bootstraps=0)
    told = [next(each for each in ranking.shared_effects if each["head"] == "L5H8") for ranking in found.rankings]
    assert [each["task"] for each in told] == pytest.approx([0.4, 0.5, 0.3], abs=0.2)
    assert [each["controls"] for each in told] == pytest.approx([0.5, 0.35, 0.5], abs=0.2)
    assert all(each["task_interval"][0] < each["task"] < each["task_interval"][1] for each in told)


def test_what_losses_of_the_controls_count_decides_between_a_strong_head_and_a_specific_one():
    """B takes more of the first task than A does, and something of another."""
    tasks = [Planted(GRID, {A: 0.35, B: 0.5}), Planted(GRID, {C: 0.4, B: 0.3}), *one_head_each(Head(7, 2))]
    first = {
        weight: annealed_jointly(tasks, k=1, control_weight=weight, budget=7000, n_bootstraps=0).rankings[0].top(1)
        for weight in (0.0, 3.0)
    }
    assert first == {0.0: [B], 3.0: [A]}


def test_a_universal_head_is_kept_where_it_takes_more_than_twice_the_weight_times_what_others_lose():
    """Of the first task it takes .5, of the others .2 each: these lose .2 in the mean, those beside another task .3."""
    others = (C, Head(7, 2), Head(9, 9))
    tasks = [Planted(GRID, {A: 0.2, B: 0.5}), *(Planted(GRID, {head: 0.3, B: 0.2}) for head in others)]
    found = annealed_jointly(tasks, k=2, control_weight=0.9, n_bootstraps=0).rankings
    kept = [True, False, False, False]
    assert [B in ranking.top(2) for ranking in found] == kept
    assert [B not in ranking.shared for ranking in found] == kept


# What is left out


def test_a_task_that_the_model_cannot_do_is_left_out_at_its_place_with_the_reason():
    first, last = one_head_each(A, B)
    hopeless = Planted(GRID, {C: 0.1}, baseline=0.1)
    found = annealed_jointly([first, hopeless, last], budget=6000, n_bootstraps=0)
    assert found.left_out == {1: "the intact model answers 10 of 100 examples right, fewer than 20"}
    assert found.rankings[1] is None
    assert [ranking.top(1) for ranking in (found.rankings[0], found.rankings[2])] == [[A], [B]]
    assert len(found.losses) == 2
    assert hopeless.spent == 100


def test_fewer_than_two_tasks_that_the_model_can_do_are_refused_after_the_intact_runs():
    hopeless, able = [Planted(GRID, {}, baseline=0.1) for _ in range(2)], one_head_each(A)
    with pytest.raises(BaselineTooLowError, match=r"can do fewer than two of the tasks .*10 of 100 examples right"):
        annealed_jointly([*hopeless, *able])
    assert [task.spent for task in (*hopeless, *able)] == [100] * 3


# What it costs


def test_by_default_each_task_has_its_share_beside_the_intact_runs():
    tasks = one_head_each(A, B)
    found = annealed_jointly(tasks, n_bootstraps=0)
    most = 200 + 2 * per_task(GRID.size)
    assert 0.9 * most < found.spent <= most
    assert found.spent == sum(task.spent for task in tasks)
    assert {ranking.spent for ranking in found.rankings} == {found.spent}


@settings(max_examples=3)
@given(sizes=st.lists(st.sampled_from([20, 45, 100]), min_size=2, max_size=3), more=st.integers(0, 1500))
def test_no_more_is_ever_spent_than_given_and_spent_is_what_was_asked(sizes, more):
    budget, grid = sum(sizes) + 14 * 4 * 8 * len(sizes) + more, Grid(6, 8)
    tasks = [
        Planted(grid, {grid.unit(5 * place): 0.3}, n_examples=size, baseline=1.0, noise=True)
        for place, size in enumerate(sizes)
    ]
    found = annealed_jointly(tasks, budget=budget, seed=more, n_bootstraps=0)
    assert found.spent == sum(task.spent for task in tasks) <= budget


def test_the_same_seed_gives_the_same_result_bit_for_bit():
    made = planted_world("main", GRID, n_controls=1, seed=3)
    first, again = (annealed_jointly([made.task, *made.controls], budget=2000, seed=5, n_bootstraps=1) for _ in "ab")
    assert first.losses.tobytes() == again.losses.tobytes()
    assert first.errors.tobytes() == again.errors.tobytes()
    assert first.spent == again.spent
    for one, two in zip(first.rankings, again.rankings, strict=True):
        assert one.to_dict() == two.to_dict()


# Small worlds


@pytest.mark.parametrize(("shape", "n_tasks"), [((2, 2), 2), pytest.param((3, 3), 3, marks=pytest.mark.slow)], ids=str)
def test_small_grids_and_tasks_of_twenty_examples_are_searched(shape, n_tasks):
    grid = Grid(*shape)
    tasks = [Planted(grid, {grid.unit(place): 0.5}, n_examples=20, baseline=1.0) for place in range(n_tasks)]
    found = annealed_jointly(tasks, n_bootstraps=0)
    assert [ranking.top(1) for ranking in found.rankings] == [[grid.unit(place)] for place in range(n_tasks)]
    least = 20 * n_tasks + 14 * 4 * 8 * n_tasks
    assert annealed_jointly(tasks, budget=least, n_bootstraps=0).spent <= least


# What is refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": 100}, r"budget must be 1,096 or more .*14 batches of 4 rows, after the intact runs\), got 100"),
        ({"control_weight": -1.0}, r"control_weight must be a finite number of 0 or more, got -1\.0"),
        ({"control_weight": float("nan")}, r"control_weight must be a finite number of 0 or more, got nan"),
        ({"kin": [(0, 2)]}, r"kin must be pairs of two different places in 0\.\.1, got \(0, 2\)"),
        ({"kin": [(0, 0)]}, r"kin must be pairs of two different places in 0\.\.1, got \(0, 0\)"),
        ({"experiments": [Loud(GRID, {})]}, "experiments must be two tasks or more, got 1"),
        ({"experiments": [Loud(GRID, {}), Loud(Grid(4, 4), {})]}, "grid"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused_before_anything_is_measured(wrong, message):
    with pytest.raises(ValueError, match=message):
        annealed_jointly(**{"experiments": [Loud(GRID, {}), Loud(GRID, {})]} | wrong)
