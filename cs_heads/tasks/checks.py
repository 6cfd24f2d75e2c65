"""What a task must be, checked when it is made, and what its scorer must say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.arguments import check_integer
from cs_heads.tasks.scorer import (
    AnyScorer,
    FunctionScorer,
    LogprobScorer,
    RelativeScorer,
    Scorer,
    check_identity,
    written,
)

if TYPE_CHECKING:
    from cs_heads.tasks.task import Task

CHATS = ("off", "auto", "on")
TOO_LONG = ("refuse", "truncate")
ACCURACIES = ("sequence", "token")

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
    if len({example.over_token_ids for example in task.examples}) > 1:
        raise ValueError(f"task {task.name!r} mixes texts and token ids; a task has one of them")
    if task.accuracy not in ACCURACIES:
        raise ValueError(f"accuracy must be one of {', '.join(ACCURACIES)}, got {task.accuracy!r}")
    if task.accuracy == "token" and not (task.over_token_ids and task.kind == "completion" and task.scorer is None):
        raise ValueError(
            f"accuracy 'token' is for completions over token ids without a scorer; task {task.name!r} is a "
            f"{task.kind} task{'' if task.over_token_ids else ' of texts'}"
        )
    if task.over_token_ids:
        _check_token_ids(task)
    (_check_generation if task.kind == "generation" else _check_continuations)(task)
    if task.scorer is not None:
        check_identity(task.scorer)
    if task.chat not in CHATS:
        raise ValueError(f"chat must be one of {', '.join(CHATS)}, got {task.chat!r}")
    if task.too_long not in TOO_LONG:
        raise ValueError(f"too_long must be one of {', '.join(TOO_LONG)}, got {task.too_long!r}")


def check_unseen(task: Task, unseen: Task) -> None:
    """Raise ``ValueError`` where unseen examples ask what a task asks, or are of its sequences."""
    for each, what in (("example", "question"), ("sequence", "sequence")):
        own, others = ({getattr(example, what) for example in side.examples} - {None} for side in (task, unseen))
        if shared := own & others:
            raise ValueError(
                f"unseen must share no {each} with task {task.name!r}; {len(shared)} of its {each}s are in both"
            )


def check_stop(stop: Sequence[str]) -> tuple[str, ...]:
    """The strings as a tuple; one text raises ``ValueError``."""
    if isinstance(stop, str):
        raise ValueError(f"stop must be a list of texts, got {stop!r}")
    return tuple(stop)


def _check_token_ids(task: Task) -> None:
    """What reads texts has no meaning over token ids."""
    if task.kind == "generation":
        raise ValueError(f"task {task.name!r} is over token ids: what a generation task writes are texts")
    if task.length_normalized:
        raise ValueError(f"length_normalized divides by characters, and task {task.name!r} is over token ids")
    if task.chat == "on":
        raise ValueError(f"chat must be off for task {task.name!r}, which is over token ids")


def _check_continuations(task: Task) -> None:
    if task.max_new_tokens is not None or task.stop:
        raise ValueError(f"max_new_tokens and stop are for generation tasks; task {task.name!r} is {task.kind}")
    if task.scorer is not None and not isinstance(task.scorer, LogprobScorer):
        raise ValueError(f"scorer of {task.kind} task {task.name!r} must be a LogprobScorer, got {task.scorer!r}")
    if task.length_normalized and task.kind != "choice":
        raise ValueError(f"length_normalized applies to choice tasks alone; task {task.name!r} is a {task.kind} task")


def _check_generation(task: Task) -> None:
    if not isinstance(task.scorer, FunctionScorer | Scorer | RelativeScorer):
        raise ValueError(f"scorer of generation task {task.name!r} must be a Scorer, got {task.scorer!r}")
    check_integer(f"max_new_tokens of task {task.name!r}", task.max_new_tokens, 1)
    if "" in task.stop:
        raise ValueError(f"stop must be texts, none empty, got {task.stop!r}")
    if task.length_normalized:
        raise ValueError(f"length_normalized applies to choice tasks alone; task {task.name!r} is a generation task")


def check_scores(scorer: AnyScorer, scores: Any, n: int) -> Float[np.ndarray, " score"]:
    """A scorer's ``n`` scores as numbers; anything else than so many in [0, 1] raises ``ValueError`` naming it."""
    try:
        checked = np.asarray(scores, dtype=float)
    except (TypeError, ValueError, OverflowError):
        checked = np.empty(0)
    if checked.shape != (n,) or not ((checked >= 0) & (checked <= 1)).all():
        raise ValueError(f"scorer {scorer.identity!r} must give {n} numbers in 0..1, got {written(scores)}"[:300])
    return checked
