"""Experiments on the unseen examples of several tasks, for analyses that start from a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cs_heads.analysis.drops import Column, Role
from cs_heads.measure.baseline import MIN_CORRECT, check_size
from cs_heads.tasks import Task, confirming_side, control_side

Others = list[tuple[str, Role, Sequence[Task]]]
"""Name, role and tasks of what heads are ablated on beside their own task."""


def unseen_columns(
    model: Any, own: Mapping[str, Task], others: Others, *, n: int, seed: int, settings: dict[str, Any]
) -> list[Column]:
    """Experiments on the unseen examples of all tasks, checked before the model runs; refusals of ``specificity``."""
    from cs_heads.measure.experiment import Experiment

    if n < MIN_CORRECT:
        raise ValueError(f"n must be {MIN_CORRECT} or more, got {n}")
    sides: list[tuple[str, Role, list[Task]]] = []
    for name, task in own.items():
        check_size(confirming_side(task))
        sides.append((name, "own", [confirming_side(task).take(n)]))
    for name, role, tasks in others:
        judged = [control_side(task, n, seed) for task in tasks]
        for side in judged:
            check_size(side)
            for task in own.values():
                _check_unseen(task, side)
        sides.append((name, role, judged))
    columns = []
    for name, role, judged in sides:
        parts = []
        for side in judged:
            parts.append(Experiment(model, side, **settings))
            model = parts[-1].model  # a name is loaded once
        columns.append(Column(name, role, tuple(parts)))
    return columns


def others_of(role: Role, tasks: Sequence[Task]) -> Others:
    """Each task under its own name; one task that is no list raises ``ValueError``."""
    if isinstance(tasks, Task):
        raise ValueError(f"{role}s must be a list of tasks, got one task")
    return [(task.name, role, [task]) for task in tasks]


def suites_of(suites: Mapping[str, Sequence[Task]] | None) -> Others:
    """Several tasks under one name; an empty suite raises ``ValueError``."""
    for name, tasks in (suites or {}).items():
        if isinstance(tasks, Task) or not tasks:
            raise ValueError(f"suite {name!r} must be a list of one task or more")
    return [(name, "suite", list(tasks)) for name, tasks in (suites or {}).items()]


def settings_of(
    ablation: str, progress: bool | None, batch_tokens: int | None, prepend_bos: bool | None
) -> dict[str, Any]:
    """The settings that every experiment of an analysis has in common."""
    return {"ablation": ablation, "progress": progress, "batch_tokens": batch_tokens, "prepend_bos": prepend_bos}


def _check_unseen(task: Task, side: Task) -> None:
    """Raise ``ValueError`` where a task to judge with holds a question that heads were found with."""
    if task.role != "finding":
        return
    shared = {e.question for e in task.examples} & {e.question for e in side.examples}
    if shared:
        raise ValueError(
            f"task {side.name!r} shares {len(shared)} examples with those that heads of {task.name!r} were found with"
        )
