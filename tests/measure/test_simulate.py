"""Planted worlds do what their scenario says."""

from dataclasses import replace

import numpy as np
import pytest

import cs_heads as cs
from cs_heads import masks
from cs_heads.heads import HeadGrid
from cs_heads.measure.protocol import ExperimentLike, responding
from cs_heads.measure.scenarios import SCENARIOS, Scenario
from cs_heads.measure.simulate import PlantedExperiment, planted_world

GRID = HeadGrid(8, 16)
CLEAN = Scenario(weak=(), universal=1, pairs=(), flips=0.0, diffuse=0.0, spread=0.0, uneven=0.0)


def scores(experiment, *groups):
    return experiment(masks.explicit(experiment.grid, groups)).mean(axis=1)


def test_a_margin_falls_by_the_damage_of_the_heads_that_are_off():
    """Worked out by hand: four examples, three heads, a pair that takes more than its parts."""
    margins = np.array([1.0, 2.0, 3.0, -1.0])
    damage = np.array([[0.5, 2.5, 0, 0], [0.6, 0, 1, 0], [0, 0, 0, -2]], dtype=float)
    experiment = PlantedExperiment(HeadGrid(1, 3), margins, damage, pairs=[(0, 1, np.array([0, 0, 2.5, 0]))])
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
    off = masks.bernoulli(GRID, n_masks=200, density=0.05, seed=0)
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


def test_every_planted_head_costs_its_single_drop():
    made = planted_world(CLEAN, GRID, n_unseen=20_000, seed=3)
    intact, *alone = scores(made.unseen, [], *([head] for head in made.planted))
    assert intact == pytest.approx(0.9, abs=0.01)
    assert intact - np.array(alone) == pytest.approx(CLEAN.drops, abs=0.01)


@pytest.mark.parametrize("name", ["main", "noisy"])
def test_what_any_head_does_is_not_added_to_a_planted_head_however_small_the_grid(name):
    made = planted_world(name, GRID, n_unseen=20_000, seed=4)
    intact, *alone = scores(made.unseen, [], *([head] for head in made.planted))
    assert intact == pytest.approx(made.scenario.baseline, abs=0.01)
    assert intact - np.array(alone) == pytest.approx(made.scenario.drops, abs=0.01)


@pytest.mark.parametrize("shape", [(9, 16), (32, 32)])
def test_without_structure_the_five_worst_heads_do_little_more_than_any_five(shape):
    """.07 of 1,024 heads is what so many draws come to; a small grid has no more."""
    grid = HeadGrid(*shape)
    beyond = []
    for seed in range(4):
        made = planted_world("no_structure", grid, n_unseen=2000, seed=seed)
        alone = made.unseen(masks.single(grid)).mean(axis=1)
        ordinary = np.setdiff1d(np.argsort(alone), [grid.index(head) for head in made.universal], assume_unique=True)
        worst = [grid.head(int(index)) for index in ordinary[:5]]
        some = [grid.head(int(index)) for index in ordinary[5::2][:50]]
        groups = [some[at : at + 5] for at in range(0, 50, 5)]
        left = scores(planted_world("no_structure", grid, n_unseen=2001, seed=seed).unseen, worst, *groups)
        beyond.append(left[1:].mean() - left[0])
    assert np.mean(beyond) <= 0.1


def test_drops_are_points_of_score_where_guessing_helps_too():
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


def test_two_heads_that_stand_in_for_each_other_cost_nothing_alone():
    made = planted_world(replace(CLEAN, drops=(), hidden=(0.3,)), GRID, n_unseen=20_000, seed=0)
    a, b = made.planted
    intact, first, second, both = scores(made.unseen, [], [a], [b], [a, b])
    assert first == second == intact
    assert intact - both == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(("weight", "sign"), [(1.0, 1), (-1.0, -1)])
def test_pairs_cost_more_or_less_than_their_parts(weight, sign):
    alone = replace(CLEAN, drops=(0.2, 0.2))
    paired = replace(alone, pairs=((0, 1, weight),))
    both = [
        scores(made.unseen, made.planted)[0]
        for made in (planted_world(scenario, GRID, n_unseen=5000, seed=0) for scenario in (alone, paired))
    ]
    assert sign * (both[0] - both[1]) > 0.03


def test_damage_grows_with_density():
    made = planted_world("no_structure", GRID, seed=0)
    without = ~made.grid.mask(made.universal)
    levels = [
        (made.task(masks.stratified(GRID, 100, density, seed=1) & without)).mean() for density in (0.02, 0.1, 0.3)
    ]
    assert sorted(levels, reverse=True) == levels
    assert levels[0] > levels[2] + 0.3


@pytest.mark.parametrize("scenario", ["main", "noisy", "chance25"])
def test_the_same_mask_and_example_give_the_same_score(scenario):
    made, again = (planted_world(scenario, GRID, seed=5) for _ in range(2))
    off = masks.bernoulli(GRID, 30, 0.05, seed=0)
    everything = made.task(off)
    assert (again.task(off) == everything).all()
    order = np.random.default_rng(0).permutation(30)
    examples = np.random.default_rng(1).integers(0, 100, (30, 4))
    part = made.task(off[order], examples)
    assert (part == np.take_along_axis(everything[order], examples, axis=1)).all()


def test_noise_differs_between_masks_and_between_examples():
    quiet = PlantedExperiment(GRID, np.zeros(4000), np.zeros((GRID.size, 4000)), noise=1.0)
    rows = quiet(masks.single(GRID)[:20])
    assert rows.mean() == pytest.approx(0.5, abs=0.01)
    assert np.abs(np.corrcoef(rows) - np.eye(20)).max() < 0.1


def test_seeds_plant_other_heads_and_draw_other_examples():
    first, second = (planted_world("main", GRID, seed=seed) for seed in (0, 1))
    assert first.planted != second.planted
    assert not np.array_equal(first.task.margins, second.task.margins)
    assert not np.array_equal(first.task.margins, first.unseen.margins)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_an_experiment_with_the_score_it_says(name):
    made = planted_world(name, HeadGrid(16, 16), n_examples=2000, seed=0)
    assert isinstance(made.task, ExperimentLike)
    assert scores(made.task, [])[0] == pytest.approx(made.scenario.baseline, abs=0.04)
    assert len(set(made.planted)) == len(made.scenario.drops) + 2 * len(made.scenario.hidden)
    assert not set(made.planted) & set(made.universal)


def test_a_grid_of_128_000_heads_answers():
    made = planted_world("main", HeadGrid(1000, 128), n_examples=20, seed=0)
    assert scores(made.task, [], made.planted).tolist() == sorted(scores(made.task, [], made.planted), reverse=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scenario": "maine"}, "scenario must be one of main, ceiling, .* got 'maine'"),
        ({"grid": HeadGrid(2, 4)}, r"grid must have 25 heads or more for this scenario, got 8"),
        ({"n_examples": 0}, "n_examples must be an integer of 1 or more, got 0"),
        ({"n_unseen": 0}, "n_unseen must be an integer of 1 or more, got 0"),
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
        ({"drops": (0.95,)}, r"drops must lie between -0\.1 and 0\.9, .* got 0\.95"),
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


def test_what_a_world_of_ones_own_needs_is_exported():
    made = cs.planted_world(cs.Scenario(drops=(0.3,), pairs=()), cs.HeadGrid(8, 8))
    assert isinstance(made, cs.World)
    assert isinstance(made.task, cs.PlantedExperiment)
    assert "main" in cs.SCENARIOS


def test_damage_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"damage must be \[flat, example\] = \(128, 3\), got \(64, 3\)"):
        PlantedExperiment(GRID, np.zeros(3), np.zeros((64, 3)))
