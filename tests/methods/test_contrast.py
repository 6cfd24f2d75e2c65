"""Losses of a task and its controls under the same masks."""

from __future__ import annotations

import numpy as np
import pytest

from cs_heads.heads import HeadGrid
from cs_heads.measure.simulate import PlantedExperiment
from cs_heads.methods.contrast import LEAST_ASKED, MOST_ASKED, N_ASKED, TOGETHER, Controls

GRID = HeadGrid(4, 4)
INTACT = np.zeros((1, 4, 4), dtype=bool)


class Named(PlantedExperiment):
    """A planted experiment with a name."""

    def __init__(self, name: str, n: int, needs: int | None = None, right: float = 1.0, **more: float) -> None:
        margins = np.where(np.arange(n) < round(right * n), 1.0, -1.0)
        damage = np.zeros((GRID.size, n))
        if needs is not None:
            damage[needs] = 9.0
        super().__init__(GRID, margins, damage, **more)
        self.name = name


def controls(*experiments: Named) -> Controls:
    """Controls drawn with one seed."""
    return Controls(experiments, np.random.default_rng(0))


def test_a_control_loses_all_of_its_score_above_chance_with_the_head_that_it_needs_off() -> None:
    found = controls(Named("a", 50, needs=3), Named("b", 50, needs=5))
    drawn = found.draw(1, 40)
    losses = found(GRID.mask(["L0H3"])[None], drawn)
    assert set(losses[found.of(drawn) == 0]) == {1.0}
    assert set(losses[found.of(drawn) == 1]) == {0.0}


def test_guessing_is_a_loss_of_one_on_average() -> None:
    found = controls(Named("a", 100, needs=3, chance=0.5))
    drawn = np.arange(found.n_examples)[None]
    assert found(GRID.mask(["L0H3"])[None], drawn).mean() == pytest.approx(1.0, abs=0.35)
    assert found(INTACT, drawn).mean() == pytest.approx(0.0)


def test_every_control_gives_as_many_examples_and_no_row_has_one_twice() -> None:
    found = controls(Named("a", 50), Named("b", 30), Named("c", 90))
    drawn = found.draw(40, 8)
    assert np.ptp(np.bincount(found.of(drawn).ravel())) <= TOGETHER
    assert all(len(set(row)) == 8 for row in drawn.tolist())
    within = np.bincount(drawn.ravel(), minlength=found.n_examples)
    assert all(np.ptp(within[found.of(np.arange(found.n_examples)) == task]) <= 1 for task in range(3))


def test_a_control_that_the_model_cannot_do_is_left_out_and_named() -> None:
    found = controls(Named("hard", 50, right=0.1), Named("easy", 50, right=0.9))
    assert found.names == ["easy"]
    assert "hard" in found.left_out
    assert set(found(INTACT, found.draw(1, 20)).ravel()) == {0.0}


def test_the_intact_runs_cost_what_was_said_before() -> None:
    experiments = [Named(str(number), 60) for number in range(5)]
    found = controls(*experiments)
    assert sum(experiment.spent for experiment in experiments) == Controls.cost(experiments) == N_ASKED
    assert len(found.names) == 5
    assert Controls.cost([Named("one", 400)]) == MOST_ASKED
    assert Controls.cost([Named(str(number), 400) for number in range(20)]) == 20 * LEAST_ASKED
