"""What a task must be, checked when it is made, and what its scorer must say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.integers import check_integer
from cs_heads.tasks.scorer import LogprobScorer, RelativeScorer, Scorer

if TYPE_CHECKING:
    from cs_heads.tasks.task import Task

CHATS = ("off", "auto", "on")
TOO_LONG = ("refuse", "truncate")

# How many continuations an example of each kind has.
_CONTINUATIONS: dict[str, tuple[Callable[[int], bool], str]] = {
    "choice": (lambda n: n > 1, "two continuations or more"),
    "completion": (lambda n: n == 1, "one continuation"),
    "generation": (lambda n: n < 2, "one continuation or none"),
}


def check_task(task: Task) -> None:
    """Raise ``ValueError`` where fields of a task do not fit together."""
    if not task.examples:
        raise ValueError(f"task {task.name!r} is empty: it needs at least one example")
    if task.kind not in _CONTINUATIONS:
        raise ValueError(f"kind must be one of {', '.join(_CONTINUATIONS)}, got {task.kind!r}")
    fits, allowed = _CONTINUATIONS[task.kind]
    for index, example in enumerate(task.examples):
        if not fits(len(example.continuations)):
            raise ValueError(
                f"task {task.name!r}, example {index}: a {task.kind} example has {allowed}, "
                f"got {len(example.continuations)}"
            )
    (_check_generation if task.kind == "generation" else _check_continuations)(task)
    if task.chat not in CHATS:
        raise ValueError(f"chat must be one of {', '.join(CHATS)}, got {task.chat!r}")
    if task.too_long not in TOO_LONG:
        raise ValueError(f"too_long must be one of {', '.join(TOO_LONG)}, got {task.too_long!r}")


def _check_continuations(task: Task) -> None:
    if task.max_new_tokens is not None or task.stop:
        raise ValueError(f"max_new_tokens and stop are for generation tasks; task {task.name!r} is {task.kind}")
    if task.scorer is not None and not isinstance(task.scorer, LogprobScorer):
        raise ValueError(f"scorer of {task.kind} task {task.name!r} must be a LogprobScorer, got {task.scorer!r}")
    if task.length_normalised and task.kind != "choice":
        raise ValueError(f"length_normalised applies to choice tasks alone; task {task.name!r} is a {task.kind} task")


def _check_generation(task: Task) -> None:
    if not isinstance(task.scorer, Scorer | RelativeScorer):
        raise ValueError(f"scorer of generation task {task.name!r} must be a Scorer, got {task.scorer!r}")
    check_integer(f"max_new_tokens of task {task.name!r}", task.max_new_tokens, 1)
    if "" in task.stop:
        raise ValueError(f"stop must be texts, none empty, got {task.stop!r}")
    if task.length_normalised:
        raise ValueError(f"length_normalised applies to choice tasks alone; task {task.name!r} is a generation task")


def check_scores(identity: str, scores: Any, n: int) -> Float[np.ndarray, " score"]:
    """A scorer's ``n`` scores as numbers; anything else than so many in [0, 1] raises ``ValueError`` naming it."""
    try:
        checked = np.asarray(scores, dtype=float)
    except (TypeError, ValueError):
        checked = np.empty(0)
    if checked.shape != (n,) or not ((checked >= 0) & (checked <= 1)).all():
        raise ValueError(f"scorer {identity!r} must give {n} numbers in 0..1, got {scores!r}"[:300])
    return checked
