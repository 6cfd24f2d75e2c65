"""A screen of all heads at once: gradients in gates, between the intact model and one with random heads off.

A row of heads off tells one number. A gradient tells one of every head, for a forward and a backward pass. Each is
taken on the way from all gates open to those of a random mask shut. For a head of the mask that is an integrated
gradient (Sundararajan et al., *Axiomatic Attribution for Deep Networks*, arXiv 1703.01365): over the mask they sum up
to what the mask takes, on average, and of redundant heads in one mask they see what these take together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.arguments import check_one_of
from cs_heads.experiment.protocol import ExperimentLike, GradientExperiment, responding
from cs_heads.methods.annealing.contrast_fit import ContrastFit, combined
from cs_heads.methods.annealing.regression import Fit, standard_error
from cs_heads.methods.controls import BalancedDraws
from cs_heads.methods.losses import TaskLoss
from cs_heads.settings import SCREENS

SAVED = 4
"""What gradients of all heads save of the budget for masks by default: it is divided by so much."""
_SMALL = 2 / 3, 200
"""``"auto"`` takes gradients below this share of the usual budget, on so many heads or more. With a larger budget, and
on fewer heads, masks find as much, and tell better what is shared. Tasks searched together take gradients at any
budget: what these save goes into sets."""
# Rows of the task, and of each control; examples of each; share of the heads in the mask of each. As many examples tell
# more in many rows, each with another mask.
_ROWS, _CONTROL_ROWS, _PER_ROW, _DENSITY = 64, 10, 2, 0.12
# What a row counts for a head of its mask, beside a head that is open.
_INSIDE = 10.0
# Share of the score by which gradients may miss what a head takes, one standard deviation.
_MISS = 0.01
# What is added to that for the order of heads by z.
_ORDER = 0.05
# Of a budget, the share that gradients take at most; the rows of the task, and of each control, below which they tell
# too little.
_SHARE, _FEWEST, _FEWEST_OF_CONTROL = 0.3, 24, 4


def has_gradients(*experiments: ExperimentLike) -> bool:
    """Whether experiments have gradients of probabilities in gates (``Experiment.has_gradients``)."""
    return all(isinstance(each, GradientExperiment) and each.has_gradients for each in experiments)


@dataclass(frozen=True)
class Screening:
    """How many rows of gradients are measured.

    Attributes:
        rows: Of the task.
        control_rows: Of each control.
        per_row: Examples of a row.
    """

    rows: int
    control_rows: int
    per_row: int

    @classmethod
    def of(cls, budget: int | None, n_controls: int, per_row: int) -> Screening | None:
        """As much as a budget has room for; None where that is too little.

        Args:
            budget: What is left for gradients and masks (None: enough).
            n_controls: Controls.
            per_row: Examples of a task under one mask.

        >>> Screening.of(None, 8, 8), Screening.of(1_500, 2, 8), Screening.of(500, 8, 8)
        (Screening(rows=64, control_rows=10, per_row=2), Screening(rows=64, control_rows=10, per_row=2), None)
        """
        screen = cls(_ROWS, _CONTROL_ROWS, min(per_row, _PER_ROW))
        if budget is None:
            return screen
        most = int(_SHARE * budget) // (2 * screen.per_row)
        if screen.cost(n_controls) > 2 * screen.per_row * most:
            share = most / (_ROWS + _CONTROL_ROWS * n_controls)
            control_rows = max(_FEWEST_OF_CONTROL, int(share * _CONTROL_ROWS))
            screen = replace(screen, rows=min(_ROWS, most - control_rows * n_controls), control_rows=control_rows)
        return screen if screen.rows >= _FEWEST else None

    def cost(self, n_controls: int) -> int:
        """Example-evaluations, a backward pass being one more."""
        return 2 * self.per_row * (self.rows + self.control_rows * n_controls)


def screening_of(
    screen: str,
    experiments: Sequence[ExperimentLike],
    budget: int | None,
    per_row: int,
    *,
    usual: int | None,
    with_controls: bool = True,
) -> Screening | None:
    """The screening of a search by gradients; None where it is by masks.

    Args:
        screen: "gradients", "masks", or "auto" for gradients where the budget is small but has room for them, and
            experiments have some.
        experiments: The task, and its controls.
        budget: What is left for gradients and masks (None: the usual).
        per_row: Examples of a task under one mask.
        usual: What a search by masks takes by default (None: any budget is small).
        with_controls: Whether the controls' gradients are paid by the task.

    Raises:
        ValueError: Another screen, or gradients that an experiment does not have or a budget has no room for.
    """
    check_one_of("screen", screen, SCREENS)
    without = [experiment.name for experiment in experiments if not has_gradients(experiment)]
    if screen == "gradients" and without:
        raise ValueError(
            f"screen must be 'auto' or 'masks' for {without[0]!r}, which has no gradients (they need a model in this "
            "process, zero ablation, and answers that no scorer judges); got 'gradients'"
        )
    share, heads = _SMALL
    small = usual is None or (budget is not None and budget < share * usual)
    if screen == "masks" or without or (screen == "auto" and not (small and experiments[0].grid.size >= heads)):
        return None
    found = Screening.of(budget, len(experiments) - 1 if with_controls else 0, per_row)
    if found is None and screen == "gradients":
        raise ValueError(
            f"screen must be 'auto' or 'masks' where a budget leaves {budget:,} example-evaluations for gradients and "
            "masks; got 'gradients'"
        )
    return found


@dataclass(frozen=True, eq=False)
class RowSlopes:
    """What each head takes from a task by the gradients of rows, as a share of the probability of the answers.

    Attributes:
        taken: One number for each row and head.
        inside: Whether the head is in the row's mask.
    """

    taken: Float[np.ndarray, "row flat"]
    inside: Bool[np.ndarray, "row flat"]

    @classmethod
    def of(
        cls, task: TaskLoss, n_rows: int, per_row: int, rng: np.random.Generator, *, density: float = _DENSITY
    ) -> RowSlopes:
        """Measure rows of a task, each on random examples.

        Args:
            task: The task.
            n_rows: Rows.
            per_row: Examples of each.
            rng: Draws masks and examples.
            density: Share of the heads in each mask; 0 for gradients at the intact model.
        """
        experiment: Any = task.experiment
        grid = experiment.grid
        heads, examples = BalancedDraws(np.arange(grid.size), rng), BalancedDraws(task.examples, rng)
        inside = np.zeros((n_rows, grid.size), dtype=bool)
        for row in inside:
            row[heads.draw(round(density * grid.size) or int(density > 0))] = True
        gates = np.where(inside, rng.random((n_rows, 1)), 1.0).astype(np.float32)
        drawn = np.stack([examples.draw(min(per_row, task.n_examples)) for _ in range(n_rows)])
        slopes = experiment.probability_gradients(gates.reshape(-1, *grid.shape), drawn, keep="screen")
        nothing_off = np.zeros((1, *grid.shape), dtype=bool)
        level = responding(experiment, "probability")(nothing_off, task.examples[None]).mean()
        return cls(slopes.reshape(n_rows, -1).astype(float) / float(level), inside)

    def fit(self, scale: float = 1.0, rows: Int[np.ndarray, " n"] | None = None) -> Fit:
        """The mean over rows, times ``scale``, each head of a mask counting more than an open one.

        Args:
            scale: What a share of 1 is.
            rows: The rows that are used, as in a bootstrap (None: all).
        """
        rows = np.arange(len(self.taken)) if rows is None else rows
        taken, weights = self.taken[rows], np.where(self.inside[rows], _INSIDE, 1.0)
        total = weights.sum(axis=0)
        effect = (weights * taken).sum(axis=0) / total
        error = np.sqrt((weights**2 * (taken - effect) ** 2).sum(axis=0)) / total
        return Fit(effect * scale, effect / np.hypot(error, _MISS))

    def resampled(self, scale: float, rng: np.random.Generator) -> Fit:
        """The fit of a bootstrap over rows."""
        return self.fit(scale, rng.integers(len(self.taken), size=len(self.taken)))


def screened(gradients: RowSlopes, controls: Fit, task: TaskLoss, weight: float) -> ContrastFit:
    """What gradients say of the task, and of what its controls lose; ``z`` is in the order of the contrast.

    What gradients of few examples vary by says little of how far they are from what masks take: in the order of a z
    that knew of that alone, heads that matter to some examples would come late.

    Args:
        gradients: Of the task.
        controls: What each head takes from the controls.
        task: The task.
        weight: What is sure of the controls' losses counts so many times.
    """
    above = task.above_guess
    both = combined(gradients.fit(above), controls, np.zeros(0), above, weight)
    return replace(both, z=both.contrast / np.hypot(standard_error(both.task) / above, _ORDER))
