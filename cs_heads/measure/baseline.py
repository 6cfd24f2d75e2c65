"""When the intact model does a task too badly for any head to be missed."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.stats import binomtest

MIN_CORRECT = 20
"""Examples the intact model must answer right."""
FEW_CORRECT = 60
"""Examples answered right below which a ranking is weak."""


class BaselineTooLowError(ValueError):
    """The intact model cannot do the task well enough for any head to be missed."""


def few_correct(n_correct: int) -> tuple[str, ...]:
    """A note where few examples are answered right, else none."""
    note = f"the intact model answers only {n_correct} examples right: {FEW_CORRECT} or more rank heads better"
    return (note,) if n_correct < FEW_CORRECT else ()


def too_low(scores: Float[np.ndarray, " example"], chance: float) -> str | None:
    """Why a baseline is too low to find heads with (at chance, or too few right), or None."""
    correct, n = round(float(scores.sum())), len(scores)
    if correct < MIN_CORRECT:
        return f"the intact model answers {correct} of {n} examples right, fewer than {MIN_CORRECT}"
    if chance > 0 and binomtest(correct, n, chance, alternative="greater").pvalue > 0.05:
        return f"the intact model scores {scores.mean():.3f} on {n} examples, no better than chance ({chance:.3f})"
    return None
