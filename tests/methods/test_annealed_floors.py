"""What annealed sensing must find at which cost, over many planted worlds on seeds of their own.

A test is the same on every run; another machine may round differently, which comes to drawing some worlds anew.
"""

import resource

import numpy as np
import pytest

from cs_heads import designs
from cs_heads.analysis.confirm import prove
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.annealing import annealed
from cs_heads.methods.greedy import greedy
from cs_heads.simulate import planted_world
from cs_heads.units import Grid, HeadGrid

GRIDS = {512: HeadGrid(16, 32), 1024: HeadGrid(32, 32)}


def searched(seed, n_heads=1024, evaluations=100, scenario="main", n_unseen=100):
    """A planted world, and its ranking within so many times 100 example-evaluations."""
    made = planted_world(scenario, GRIDS[n_heads], n_unseen=n_unseen, seed=seed)
    found = annealed(made.task, controls=[made.control], budget=100 * evaluations, seed=seed, n_bootstraps=0)
    assert found.spent <= 100 * evaluations
    return made, found


def recall(made, found):
    return len({*found.top(5)} & {*made.planted}) / 5


def covering(made, found):
    """Of each planted head with an interval, whether that holds what the head takes alone."""
    intact, *alone = made.unseen(designs.explicit(made.grid, [[], *([head] for head in made.planted)])).mean(axis=1)
    bounds = [found.interval[head.layer, head.head] for head in made.planted]
    known = [(low, intact - score, high) for (low, high), score in zip(bounds, alone, strict=True) if np.isfinite(low)]
    return [bool(low <= taken <= high) for low, taken, high in known]


def drop(made, heads):
    intact, off = made.unseen(designs.explicit(made.grid, [[], heads])).mean(axis=1)
    return intact - off


def test_a_few_worlds_are_searched_as_well_as_many():
    """Of twelve worlds; the floors themselves are held over many more below."""
    recalls, covered, known = [], 0, 0
    for seed in range(30_000, 30_012):
        made, found = searched(seed, n_unseen=1000)
        recalls.append(recall(made, found))
        held = covering(made, found)
        known, covered = known + len(held), covered + sum(held)
        assert set(found.shared) >= set(made.universal)
        assert prove(made.unseen, found.top(5), exclude=found.shared).verdict == "localized"
    # .96 of thirty worlds, sd .09 a world, and intervals that cover .94: two and three standard errors below.
    assert np.mean(recalls) >= 0.9
    assert known >= 50
    assert covered / known >= 0.84


def test_a_few_worlds_without_structure_are_neither_specific_nor_localized():
    """Measured beside their control: none of 120, four shared. Without a control about one in twenty is localized."""
    called = 0
    for seed in range(33_000, 33_010):
        for scenario in ("no_structure", "no_structure_fragile", "no_structure_chance50"):
            made, found = searched(seed, scenario=scenario)
            # One example more draws all anew, and the heads stay.
            fresh = planted_world(scenario, made.grid, n_examples=made.n_examples + 1, seed=seed)
            proof = prove(fresh.unseen, found.top(5), exclude=found.shared, controls=[fresh.control])
            called += proof.verdict in ("specific", "localized")
    assert called <= 1


@pytest.mark.slow
def test_recall_coverage_and_verdicts_at_a_hundred_evaluations():
    """Measured: recall .943, sd .097 a world; coverage .923 of 287 intervals."""
    recalls, covered, known, localized = [], 0, 0, 0
    for seed in range(30_000, 30_060):
        made, found = searched(seed, n_unseen=3000)
        recalls.append(recall(made, found))
        held = covering(made, found)
        known, covered = known + len(held), covered + sum(held)
        fresh = planted_world("main", seed=seed).unseen
        localized += prove(fresh, found.top(5), exclude=found.shared).verdict == "localized"
    # Three standard errors, of .013, above the floor.
    assert np.mean(recalls) >= 0.9
    # .025 above the floor, where the standard error of 300 intervals is .018.
    assert covered / known >= 0.88
    assert localized >= 0.95 * 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "floor"),
    [("main", 0.93), ("ceiling", 0.9), ("noisy", 0.9), ("fragile", 0.9), ("universal_groups", 0.9)],
)
def test_intervals_cover_the_single_drops_of_planted_heads(scenario, floor):
    held: list[bool] = []
    for seed in range(32_000, 32_030):
        held += covering(*searched(seed, scenario=scenario, n_unseen=3000))
    # Two standard errors: of some 90 to 150 intervals, those of a world alike in part.
    assert np.mean(held) >= floor - 0.06


def test_without_controls_universal_groups_are_taken_for_heads_of_the_task():
    """What contrast is for. Measured in eight worlds: 24 of 40 first places without controls, 1 with one."""
    taken = {"without": 0, "with": 0}
    for seed in range(32_000, 32_003):
        made = planted_world("universal_groups", seed=seed)
        everything = {*made.universal, *(head for group in made.groups for head in group)}
        for name, controls in (("without", []), ("with", [made.control])):
            found = annealed(made.task, controls=controls, budget=10_000, seed=seed, n_bootstraps=0)
            taken[name] += len({*found.top(5)} & everything)
    assert taken["without"] >= 6
    assert taken["with"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["universal_groups", "universal_groups_small"])
def test_members_of_universal_groups_are_not_called_heads_of_the_task(scenario):
    """Measured: recall .92 and .92 of 20 worlds each, standard error .03; 5 of 120 first places are of groups."""
    recalls, taken = [], 0
    for seed in range(32_000, 32_024):
        made = planted_world(scenario, GRIDS[1024] if scenario == "universal_groups" else None, seed=seed)
        found = annealed(made.task, controls=[made.control], budget=10_000, seed=seed, n_bootstraps=0)
        recalls.append(recall(made, found))
        taken += len({*found.top(5)} & {head for group in made.groups for head in group})
    assert np.mean(recalls) >= 0.83
    assert taken <= 0.25 * len(recalls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_heads", "evaluations", "floor"),
    [
        # Measured: .913, sd .106; three standard errors of .014 above .87.
        (1024, 80, 0.87),
        # Measured: .897, sd .118; three standard errors of .015 above .85.
        (512, 80, 0.85),
    ],
)
def test_recall_at_eighty_evaluations(n_heads, evaluations, floor):
    worlds = (searched(seed, n_heads, evaluations) for seed in range(31_000, 31_060))
    assert np.mean([recall(*world) for world in worlds]) >= floor


class Told(ExperimentLike):
    """An experiment whose universal heads never go off: they look idle, and greedy search leaves them alone."""

    def __init__(self, made):
        self.made, self.grid, self.n_examples = made, made.grid, made.n_examples

    def __call__(self, off, examples=None):
        return self.made.task(off & ~self.grid.mask(self.made.universal), examples)


@pytest.mark.slow
def test_the_drop_at_sixty_evaluations_is_greedys_within_a_twentieth():
    """Greedy spends 5,110, and is told the universal heads; measured on 40 worlds: .97 of its drop, sd .06 a world."""
    ours, theirs = [], []
    for seed in range(32_000, 32_040):
        made, found = searched(seed, evaluations=60, n_unseen=2000)
        ours.append(drop(made, found.top(5)))
        theirs.append(drop(made, greedy(Told(made), k=5).top(5)))
    assert np.mean(ours) >= 0.95 * np.mean(theirs)


@pytest.mark.slow
def test_worlds_without_structure_are_called_localized_in_one_of_a_hundred_at_most():
    """Measured on 200 other worlds: 1. At that rate two or more come in 9 of 100 draws of a hundred."""
    called = 0
    for seed in range(33_000, 33_050):
        for scenario in ("no_structure", "no_structure_fragile", "no_structure_chance50"):
            made, found = searched(seed, scenario=scenario)
            # One example more draws all anew, and the heads stay.
            fresh = planted_world(scenario, made.grid, n_examples=made.n_examples + 1, seed=seed)
            proof = prove(fresh.unseen, found.top(5), exclude=found.shared, controls=[fresh.control])
            called += proof.verdict in ("specific", "localized")
    assert called <= 1


@pytest.mark.slow
def test_five_neurons_of_46080_are_found_within_300_evaluations():
    """Of ten worlds as large as the MLPs of SmolLM2-135M."""
    grid, recalls = Grid(30, 1536, "neurons"), []
    for seed in range(10):
        made = planted_world("main", grid, seed=seed)
        found = annealed(made.task, controls=[made.control], budget=30_000, seed=0, n_bootstraps=0)
        assert found.spent <= 30_000
        recalls.append(recall(made, found))
    assert np.mean(recalls) >= 0.95
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20  # kB
