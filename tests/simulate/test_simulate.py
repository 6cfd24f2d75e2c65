"""Planted worlds do what their scenario says."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from cs_heads import designs
from cs_heads.experiment.protocol import ExperimentLike, responding
from cs_heads.simulate import SCENARIOS, PlantedExperiment, Scenario, planted_world
from cs_heads.units import Grid

GRID = Grid(8, 16)
CLEAN = Scenario(weak=(), universal=1, pairs=(), flips=0.0, diffuse=0.0, spread=0.0, uneven=0.0)


def scores(experiment, *groups):
    return experiment(designs.explicit(experiment.grid, groups)).mean(axis=1)


def test_a_margin_falls_by_the_damage_of_the_heads_that_are_off():
    """Worked out by hand: four examples, three heads, a pair that takes more than its parts."""
    margins = np.array([1.0, 2.0, 3.0, -1.0])
    damage = np.array([[0.5, 2.5, 0, 0], [0.6, 0, 1, 0], [0, 0, 0, -2]], dtype=float)
    experiment = PlantedExperiment(Grid(1, 3), margins, damage, groups=[((0, 1), np.array([0, 0, 2.5, 0]))])
    off = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=bool)[:, None]
    expected = [[1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert experiment(off).tolist() == expected
    assert experiment(off[[1, 4]], np.array([[2, 1], [3, 3]])).tolist() == [[1, 0], [1, 1]]
    assert experiment.spent == 20 + 4
    assert experiment.respond(off[[0, 3]], response="margin") == pytest.approx(
        np.array([[1, 2, 3, -1], [-0.1, -0.5, -0.5, -1]])
    )


@pytest.mark.parametrize("name", ["main", "noisy", "chance50"])
def test_a_planted_experiment_responds_as_it_scores(name):
    """A score of 1 is a margin above zero and a probability above one half, noise and guesses included."""
    made = planted_world(name, GRID, seed=5)
    off = designs.bernoulli(GRID, n_masks=200, density=0.05, seed=0)
    scores, margins = made.task(off), made.task.respond(off, response="margin")
    probabilities = made.task.respond(off)
    assert 0.05 < scores.mean() < 0.95
    np.testing.assert_array_equal(margins > 0, scores == 1)
    np.testing.assert_array_equal(probabilities > 0.5, scores == 1)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    assert len(np.unique(probabilities)) > 1000
    np.testing.assert_array_equal(made.task.respond(off, response="score"), scores)
    np.testing.assert_array_equal(responding(made.task, "margin")(off, None), margins)
    with pytest.raises(ValueError, match="response must be one of 'score', 'probability', 'margin', got 'logit'"):
        made.task.respond(off, response="logit")


@pytest.mark.parametrize("scenario", [CLEAN, "main", "noisy"], ids=["clean", "main", "noisy"])
def test_every_planted_head_costs_its_single_drop_and_not_what_any_head_does_on_top(scenario):
    made = planted_world(scenario, GRID, n_unseen=20_000, seed=4)
    intact, *alone = scores(made.unseen, [], *([head] for head in made.planted))
    assert intact == pytest.approx(made.scenario.baseline, abs=0.01)
    assert intact - np.array(alone) == pytest.approx(made.scenario.drops, abs=0.01)


@pytest.mark.parametrize("shape", [(9, 16), (32, 32)])
def test_without_structure_the_five_worst_heads_do_little_more_than_any_five(shape):
    """.07 of 1,024 heads is what so many draws come to; a small grid has no more."""
    grid = Grid(*shape)
    beyond = []
    for seed in range(4):
        made = planted_world("no_structure", grid, n_unseen=2000, seed=seed)
        alone = made.unseen(designs.single(grid)).mean(axis=1)
        ordinary = np.setdiff1d(np.argsort(alone), [grid.index(head) for head in made.universal], assume_unique=True)
        worst = [grid.unit(int(index)) for index in ordinary[:5]]
        some = [grid.unit(int(index)) for index in ordinary[5::2][:50]]
        groups = [some[at : at + 5] for at in range(0, 50, 5)]
        left = scores(planted_world("no_structure", grid, n_unseen=2001, seed=seed).unseen, worst, *groups)
        beyond.append(left[1:].mean() - left[0])
    assert np.mean(beyond) <= 0.1


def test_drops_are_score_lost_where_guessing_helps_too():
    guessed = replace(CLEAN, baseline=0.8, chance=0.25, drops=(0.2, 0.1, -0.05))
    made = planted_world(guessed, GRID, n_unseen=40_000, seed=1)
    intact, *alone = scores(made.unseen, [], *([head] for head in made.planted))
    assert intact == pytest.approx(0.8, abs=0.01)
    assert intact - np.array(alone) == pytest.approx(guessed.drops, abs=0.015)
    assert scores(made.unseen, made.universal)[0] == pytest.approx(0.25, abs=0.01)


def test_universal_heads_break_the_task_and_the_control_and_planted_ones_the_task_alone():
    made = planted_world("main", GRID, n_examples=400, seed=2)
    for head in made.universal:
        assert scores(made.task, [head]) < 0.1
        assert scores(made.control, [head]) < 0.1
    assert scores(made.control, [made.planted[0]]) > 0.8
    assert scores(made.task, [made.planted[0]]) < 0.75


def test_with_one_head_of_a_redundant_pair_off_its_partner_becomes_a_head_of_the_task():
    """What sensing again finds with the found heads off: the partner costs what the pair does."""
    drops = (0.4, 0.3)
    made = planted_world(replace(CLEAN, drops=(0.1,), hidden=drops), GRID, n_examples=20_000, seed=6)
    kept, *hidden = made.planted
    gone, partners = hidden[::2], hidden[1::2]
    intact, *first = scores(made.task, [], *([head] for head in partners))
    assert first == [intact, intact]
    base, *again, own = scores(made.task, gone, *([*gone, head] for head in (*partners, kept)))
    assert base == intact
    assert base - np.array(again) == pytest.approx(drops, abs=0.01)
    assert base - own == pytest.approx(0.1, abs=0.01)


# Universal groups


@pytest.mark.parametrize("name", ["universal_groups", "universal_groups_small"])
def test_a_universal_group_is_harmless_head_by_head_and_lethal_to_every_task_together(name):
    made = planted_world(name, Grid(12, 12), n_examples=2000, n_unseen=2000, n_controls=2, seed=0)
    baseline, costs = made.scenario.baseline, made.scenario.two_of_three
    for task in (made.task, made.unseen, *made.controls):
        for group in made.groups:
            intact, *alone = scores(task, [], *([head] for head in group))
            assert intact - np.array(alone) == pytest.approx(0, abs=0.06)
            two = scores(task, *combinations(group, 2))
            # Beside what any two heads of so few do.
            assert (intact - two) / intact == pytest.approx(costs, abs=0.1)
            assert scores(task, group)[0] <= 0.02 * baseline


@pytest.mark.parametrize("shape", [(30, 9), (12, 12), (32, 32), (40, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_groups_are_three_neighbors_of_a_layer_that_have_no_other_part(shape, seed):
    made = planted_world(replace(SCENARIOS["universal_groups"], groups=8), Grid(*shape), n_controls=3, seed=seed)
    for first, second, third in made.groups:
        assert first.layer == second.layer == third.layer
        assert (first.head % 3, second.head, third.head) == (0, first.head + 1, first.head + 2)
    members = {head for group in made.groups for head in group}
    assert len(members) == 24
    single = [made.grid.unit(int(index)) for roles in (made.own, *made.others) for index in roles]
    assert not members & {*single, *made.planted, *made.universal}


# Several controls


def test_controls_have_planted_heads_of_their_own_and_share_universal_heads_and_groups():
    made = planted_world("universal_groups", GRID, n_examples=400, n_controls=3, seed=2)
    n = len(made.universal)
    parts = [made.own, *made.others]
    assert len({int(index) for roles in parts for index in roles[n:]}) == sum(len(roles[n:]) for roles in parts)
    for control, roles in zip(made.controls, made.others, strict=True):
        strongest = made.grid.unit(int(roles[n]))
        assert scores(control, [strongest]) < 0.75
        assert all(scores(other, [strongest]) > 0.8 for other in (made.task, *made.controls) if other is not control)
        assert scores(control, [made.planted[0]]) > 0.8
        assert scores(control, *([head] for head in made.universal), *made.groups).max() < 0.1


def test_the_same_heads_do_more_damage_than_others_to_the_task_and_to_every_control():
    made = planted_world("no_structure", GRID, n_examples=4000, n_controls=2, seed=0)
    ordinary = ~made.grid.mask(made.universal).ravel()
    means = [np.median(task.damage, axis=1)[ordinary] for task in (made.task, *made.controls)]
    assert np.corrcoef(means).min() > 0.8


def test_more_controls_change_nothing_of_the_task_and_of_those_before():
    few, many = (planted_world("noisy", GRID, n_controls=n, seed=4) for n in (1, 4))
    assert (many.planted, many.universal) == (few.planted, few.universal)
    off = designs.bernoulli(GRID, 20, 0.05, seed=0)
    for one, same in ((few.task, many.task), (few.unseen, many.unseen), (few.control, many.controls[0])):
        assert np.array_equal(one.damage, same.damage)
        assert np.array_equal(one(off), same(off))
    first, *others = (control(off) for control in many.controls)
    assert many.control is many.controls[0]
    assert all(not np.array_equal(first, other) for other in others)


def test_damage_grows_with_density():
    made = planted_world("no_structure", GRID, seed=0)
    without = ~made.grid.mask(made.universal)
    levels = [
        (made.task(designs.stratified(GRID, 100, density, seed=1) & without)).mean() for density in (0.02, 0.1, 0.3)
    ]
    assert sorted(levels, reverse=True) == levels
    assert levels[0] > levels[2] + 0.3


@pytest.mark.parametrize("scenario", ["main", "noisy", "chance25"])
def test_the_same_mask_and_example_give_the_same_score(scenario):
    made, again = (planted_world(scenario, GRID, seed=5) for _ in range(2))
    off = designs.bernoulli(GRID, 30, 0.05, seed=0)
    everything = made.task(off)
    assert (again.task(off) == everything).all()
    order = np.random.default_rng(0).permutation(30)
    examples = np.random.default_rng(1).integers(0, 100, (30, 4))
    part = made.task(off[order], examples)
    assert (part == np.take_along_axis(everything[order], examples, axis=1)).all()


def test_noise_differs_between_masks_and_between_examples():
    quiet = PlantedExperiment(GRID, np.zeros(4000), np.zeros((GRID.size, 4000)), noise=1.0)
    rows = quiet(designs.single(GRID)[:20])
    assert rows.mean() == pytest.approx(0.5, abs=0.01)
    assert np.abs(np.corrcoef(rows) - np.eye(20)).max() < 0.1


def test_seeds_plant_other_heads_and_draw_other_examples():
    first, second = (planted_world("main", GRID, seed=seed) for seed in (0, 1))
    assert first.planted != second.planted
    assert not np.array_equal(first.task.margins, second.task.margins)
    assert not np.array_equal(first.task.margins, first.unseen.margins)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_an_experiment_with_the_score_it_says(name):
    made = planted_world(name, Grid(16, 16), n_examples=2000, seed=0)
    assert isinstance(made.task, ExperimentLike)
    assert scores(made.task, [])[0] == pytest.approx(made.scenario.baseline, abs=0.04)
    assert len(set(made.planted)) == len(made.scenario.drops) + 2 * len(made.scenario.hidden)
    assert not set(made.planted) & set(made.universal)
    assert len(made.groups) == made.scenario.groups


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scenario": "maine"}, "scenario must be a Scenario or one of main, ceiling, .* got 'maine'"),
        ({"grid": Grid(2, 4)}, r"grid must have 25 heads or more for this scenario, got 8"),
        ({"grid": Grid(8, 8), "n_controls": 5}, r"grid must have 69 heads or more for this scenario, got 64"),
        ({"grid": Grid(8, 4), "scenario": "universal_groups"}, "grid must have 34 heads or more .* got 32"),
        (
            {"grid": Grid(100, 2), "scenario": "universal_groups"},
            "grid must hold 3 groups of 3 neighbors in one layer .* got 100 × 2 heads, which hold 0",
        ),
        ({"n_controls": 0}, "n_controls must be an integer of 1 or more, got 0"),
        ({"seed": -1}, "seed must be an integer of 0 or more, got -1"),
    ],
)
def test_a_world_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        planted_world(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"baseline": 0.2, "chance": 0.25}, "baseline must lie between chance and 1, got baseline=0.2, chance=0.25"),
        ({"drops": (0.95,)}, r"drops must lie between -0\.099 and 0\.891, .* got 0\.95"),
        ({"groups": -1}, "groups must be an integer of 0 or more, got -1"),
        ({"two_of_three": 1.0}, r"two_of_three must be in 0\.\.0\.99, a share of the score; got 1\.0"),
        ({"flips": -1.0}, r"flips must be 0 or more, got -1\.0"),
        ({"pairs": ((0, 9, 1.0),)}, "pairs must name two of 5 planted heads by place, got 0 and 9"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Scenario(**wrong)


@pytest.mark.parametrize("examples", [[[-1]], [[100]], [[0], [1]]])
def test_examples_outside_the_world_are_refused(examples):
    task = planted_world().task
    with pytest.raises(ValueError, match="examples must be"):
        task(np.zeros((1, 32, 32), dtype=bool), np.array(examples))
    assert task.spent == 0
