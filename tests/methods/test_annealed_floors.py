"""What annealed sensing must find at which cost, over many planted worlds on seeds of their own.

A test is the same on every run; another machine may round differently, which comes to drawing some worlds anew.
"""

import resource

import numpy as np
import pytest

from cs_heads import designs
from cs_heads.analysis.confirm import prove
from cs_heads.methods.annealing import annealed
from cs_heads.simulate import planted_world
from cs_heads.units import Grid


def searched(seed, scenario="main", n_unseen=100):
    """A planted world of 32 × 32 heads, and its ranking within 10,000 example-evaluations."""
    made = planted_world(scenario, n_unseen=n_unseen, seed=seed)
    found = annealed(made.task, controls=[made.control], budget=10_000, seed=seed, n_bootstraps=0)
    assert found.spent <= 10_000
    return made, found


def recall(made, found):
    return len({*found.top(5)} & {*made.planted}) / 5


def covering(made, found):
    """Of each planted head with an interval, whether that holds what the head takes alone."""
    intact, *alone = made.unseen(designs.explicit(made.grid, [[], *([head] for head in made.planted)])).mean(axis=1)
    bounds = [found.interval[head.layer, head.head] for head in made.planted]
    known = [(low, intact - score, high) for (low, high), score in zip(bounds, alone, strict=True) if np.isfinite(low)]
    return [bool(low <= taken <= high) for low, taken, high in known]


@pytest.mark.parametrize("n_seeds", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_worlds_without_structure_are_neither_specific_nor_localized(n_seeds):
    """Measured beside their control: none of 120, four shared. Without a control about one in twenty is localized."""
    called = 0
    for seed in range(33_000, 33_000 + n_seeds):
        for scenario in ("no_structure", "no_structure_fragile", "no_structure_chance50")[: 1 if n_seeds == 1 else 3]:
            made, found = searched(seed, scenario=scenario)
            # One example more draws all anew, and the heads stay.
            fresh = planted_world(scenario, made.grid, n_examples=made.n_examples + 1, seed=seed)
            proof = prove(fresh.unseen, found.top(5), exclude=found.shared, controls=[fresh.control])
            called += proof.verdict in ("specific", "localized")
    assert called <= 1


@pytest.mark.parametrize(
    ("n_seeds", "n_unseen", "floors"),
    [(2, 1000, (0.8, 0.75)), pytest.param(60, 3000, (0.9, 0.88), marks=pytest.mark.slow)],
)
def test_recall_coverage_and_verdicts_at_a_hundred_evaluations(n_seeds, n_unseen, floors):
    """Measured: recall .943, sd .097 a world; coverage .923 of 287 intervals. A few worlds are searched as well."""
    recalls, held, localized = [], [], 0
    for seed in range(30_000, 30_000 + n_seeds):
        made, found = searched(seed, n_unseen=n_unseen)
        recalls.append(recall(made, found))
        held += covering(made, found)
        assert set(found.shared) >= set(made.universal) or n_seeds > 2
        fresh = planted_world("main", seed=seed).unseen
        localized += prove(fresh, found.top(5), exclude=found.shared).verdict == "localized"
    # Three standard errors, of .013, above the floor; .025 above it, where the standard error of 300 intervals is .018.
    assert np.mean(recalls) >= floors[0]
    assert np.mean(held) >= floors[1]
    assert len(held) >= 4 * n_seeds
    assert localized >= 0.95 * n_seeds


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
    """What contrast is for. Measured in eight worlds: 24 of 40 first places without controls, 2 with one."""
    made = planted_world("universal_groups", seed=32_001)
    everything = {*made.universal, *(head for group in made.groups for head in group)}
    without, beside = (
        annealed(made.task, controls=controls, budget=10_000, seed=32_001, n_bootstraps=0)
        for controls in ([], [made.control])
    )
    assert len({*without.top(5)} & everything) >= 2
    assert beside.top(5) == [*beside.chosen]
    assert not {*beside.chosen} & everything


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["universal_groups", "universal_groups_small"])
def test_members_of_universal_groups_are_not_called_heads_of_the_task(scenario):
    """Measured: recall .92 and .92 of 20 worlds each, standard error .03; 5 of 120 first places are of groups."""
    recalls, taken = [], 0
    for seed in range(32_000, 32_024):
        made, found = searched(seed, scenario=scenario)
        recalls.append(recall(made, found))
        taken += len({*found.top(5)} & {head for group in made.groups for head in group})
    assert np.mean(recalls) >= 0.83
    assert taken <= 0.25 * len(recalls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "seeds", "budget", "floor"),
    [(Grid(128, 128), range(3), 20_000, 0.9), (Grid(30, 1536, "neurons"), [0] * 10, 30_000, 0.95)],
    ids=["16384 heads", "46080 neurons"],
)
def test_five_of_many_thousands_are_found_within_the_budget_and_memory(grid, seeds, budget, floor):
    """In grids as large as the heads of the largest models, and as the MLPs of SmolLM2-135M."""
    recalls = []
    for world, seed in enumerate(seeds):
        made = planted_world("main", grid, seed=world)
        found = annealed(made.task, controls=[made.control], budget=budget, seed=seed, n_bootstraps=0)
        assert made.task.spent + made.control.spent == found.spent <= budget
        recalls.append(recall(made, found))
    assert np.mean(recalls) >= floor
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20  # kB
