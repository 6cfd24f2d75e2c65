"""Whether a model does a task well enough for a head to be missed, and the sizes a search needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.stats import binomtest

from cs_heads.integers import check_integer
from cs_heads.measure.protocol import name_of
from cs_heads.tasks import Task

if TYPE_CHECKING:
    from cs_heads.measure.experiment import Experiment
    from cs_heads.measure.without import Without

MIN_CORRECT = 20
"""Examples the intact model must answer right."""
FEW_CORRECT = 60
"""Examples answered right below which a ranking is weak."""

MAX_LEFT = 0.4
"""What the ablation of a universal head leaves of the control's score above chance, at most."""
MAX_LEFT_OF_TASK = 0.7
"""What it leaves of a task's, at most; more than of the control's, for it is held against tasks it is known to harm."""


class BaselineTooLowError(ValueError):
    """The intact model cannot do the task well enough for any head to be missed."""


def check_size(task: Task) -> None:
    """Raise ``ValueError`` where a side of a task is too small to say anything."""
    if len(task) < MIN_CORRECT:
        raise ValueError(
            f"task {task.name!r} has {len(task)} {task.role} examples; {MIN_CORRECT} or more are needed on each side: "
            "add examples"
        )


def check_k(k: Any, n_heads: int, name: str = "k") -> int:
    """``k`` as an ``int``; raises ``ValueError``, under ``name``, unless it leaves as many heads to compare with."""
    why = f"half of the {n_heads} heads of the grid, so that as many random heads are left to compare with"
    return check_integer(name, k, 1, n_heads // 2, why)


def check_baseline(experiment: Experiment | Without) -> tuple[str, ...]:
    """A note where the intact model answers few examples right; raises ``BaselineTooLowError`` where too few."""
    scores = experiment.baseline()
    reason = too_low(scores, chance_of(experiment))
    if reason:
        raise BaselineTooLowError(f"task {name_of(experiment)!r}: {reason}; use a model that can do the task")
    return few_correct(int(scores.sum()))


def few_correct(n_correct: int) -> tuple[str, ...]:
    """A note where few examples are answered right, else none."""
    note = f"the intact model answers only {n_correct} examples right: {FEW_CORRECT} or more rank heads better"
    return (note,) if n_correct < FEW_CORRECT else ()


def is_universal(control_left: float, tasks_left: Iterable[float]) -> bool:
    """Whether a head serves everything: it breaks the control, and most of the tasks.

    Each number is the share of a score above chance that is left with the head off, alone; NaN, where a task can show
    nothing, counts as a task that is not broken.
    """
    broken = [left <= MAX_LEFT_OF_TASK for left in tasks_left]
    return bool(control_left <= MAX_LEFT and 2 * sum(broken) > len(broken))


def chance_of(experiment: object) -> float:
    """The score of guessing on an experiment's task, or its own ``chance``; 0 where it has neither."""
    return float(getattr(getattr(experiment, "task", experiment), "chance", 0.0))


def too_low(scores: Float[np.ndarray, " example"], chance: float, least: int = MIN_CORRECT) -> str | None:
    """Why a baseline is too low to find heads with (at chance, or fewer than ``least`` right), or None."""
    correct, n = round(float(scores.sum())), len(scores)
    if correct < least:
        return f"the intact model answers {correct} of {n} examples right, fewer than {least}"
    if chance > 0 and binomtest(correct, n, chance, alternative="greater").pvalue > 0.05:
        return f"the intact model scores {scores.mean():.3f} on {n} examples, no better than chance ({chance:.3f})"
    return None
