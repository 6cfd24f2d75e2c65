"""A screen of all heads at once: gradients in gates, between the intact model and one with random heads off.

A row of heads off tells one number. A gradient tells one of every head, for a forward and a backward pass. Each is
taken on the way from all gates open to those of a random mask shut. For a head of the mask that is an integrated
gradient (Sundararajan et al., *Axiomatic Attribution for Deep Networks*, arXiv 1703.01365): over the mask they sum up
to what the mask takes, on average, and of redundant heads in one mask they see what these take together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.arguments import check_one_of
from cs_heads.experiment.protocol import ExperimentLike, GradientExperiment, measured
from cs_heads.methods.annealing.regression import Fit
from cs_heads.methods.controls import BalancedDraws
from cs_heads.methods.losses import TaskLoss
from cs_heads.settings import SCREENS

SAVED = 4
"""What gradients of all heads save of the budget for masks by default: it is divided by so much."""
SMALL, _MANY = 2 / 3, 200
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
ORDER = 0.05
"""What is added to the standard errors of gradients for the order of heads by z. What gradients of few examples vary by
says little of how far they are from what masks take: by a z that knew of that alone, heads that matter to some examples
would come late."""
# Of a budget, the share that gradients take at most; the rows of the task, and of each control, below which they tell
# too little.
_SHARE, _FEWEST, _FEWEST_OF_CONTROL = 0.3, 24, 4


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
        per_row = min(per_row, _PER_ROW)
        rows, control_rows = _ROWS, _CONTROL_ROWS
        most = rows + control_rows * n_controls if budget is None else int(_SHARE * budget) // (2 * per_row)
        if rows + control_rows * n_controls > most:
            share = most / (rows + control_rows * n_controls)
            control_rows = max(_FEWEST_OF_CONTROL, int(share * control_rows))
            rows = min(rows, most - control_rows * n_controls)
        return cls(rows, control_rows, per_row) if rows >= _FEWEST else None

    def cost(self, n_controls: int) -> int:
        """Example-evaluations, a backward pass being one more."""
        return 2 * self.per_row * (self.rows + self.control_rows * n_controls)


def screening_of(
    screen: str,
    experiments: Sequence[ExperimentLike],
    budget: int | None,
    per_row: int,
    *,
    n_controls: int,
    is_small: bool,
) -> Screening | None:
    """The screening of a search by gradients; None where it is by masks.

    Args:
        screen: "gradients", "masks", or "auto" for gradients where the budget is small but has room for them, the grid
            has 200 heads or more, and experiments have gradients.
        experiments: The task, and its controls.
        budget: What is left for gradients and masks (None: the usual).
        per_row: Examples of a task under one mask.
        n_controls: Controls whose gradients are paid by the task.
        is_small: Whether the budget is small beside that of a search by masks.

    Raises:
        ValueError: Another screen, or gradients that an experiment does not have or a budget has no room for.
    """
    check_one_of("screen", screen, SCREENS)
    without = [each.name for each in experiments if not (isinstance(each, GradientExperiment) and each.has_gradients)]
    found = None if without else Screening.of(budget, n_controls, per_row)
    if screen == "gradients" and found is None:
        need = "a model in this process, zero ablation, and answers that no scorer judges"
        if without:
            why = f"for {without[0]!r}, which has no gradients (they need {need})"
        else:
            why = f"where a budget leaves {budget:,} example-evaluations for gradients and masks"
        raise ValueError(f"screen must be 'auto' or 'masks' {why}; got 'gradients'")
    by_default = is_small and experiments[0].grid.size >= _MANY
    return found if screen == "gradients" or (screen == "auto" and by_default) else None


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
        level = measured(experiment, nothing_off, task.examples[None], "probability").mean()
        return cls(slopes.reshape(n_rows, -1).astype(float) / float(level), inside)

    def fit(self, rows: Int[np.ndarray, " n"] | slice = slice(None)) -> Fit:
        """The mean over these rows, each head of a mask counting more than an open one."""
        taken, weights = self.taken[rows], np.where(self.inside[rows], _INSIDE, 1.0)
        total = weights.sum(axis=0)
        effect = (weights * taken).sum(axis=0) / total
        error = np.sqrt((weights**2 * (taken - effect) ** 2).sum(axis=0)) / total
        return Fit(effect, effect / np.hypot(error, _MISS))
