"""Experiments on the unseen examples of several tasks, for analyses that start from a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cs_heads.analysis.drops import Column, Role
from cs_heads.arguments import check_integer, check_mapping
from cs_heads.experiment.baseline import MIN_CORRECT, check_size
from cs_heads.experiment.controls import defaults_of
from cs_heads.experiment.experiment import Experiment
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task, confirming_side, control_side
from cs_heads.tasks.sides import check_tasks

Others = list[tuple[str, Role, Sequence[Task]]]
"""Name, role and tasks of what heads are ablated on beside their own task."""


def unseen_side(task: Task, n: int) -> Task:
    """Up to ``n`` examples that heads were not found with; ``ValueError`` where they are too few, or ``n`` is."""
    check_integer("n", n, MIN_CORRECT)
    unseen = confirming_side(task)
    check_size(unseen)
    return unseen.take(n)


def unseen_columns(
    model: Any, own: Mapping[str, Task], others: Others, *, n: int, seed: int, settings: SettingsArguments
) -> list[Column]:
    """Experiments on the unseen examples of all tasks, checked before the model runs; refusals of ``specificity``.

    No side that is judged may share a question with the finding side of another task.
    """
    check_integer("n", n, MIN_CORRECT)
    sides: list[tuple[str, Role, list[Task]]] = [(name, "own", [unseen_side(task, n)]) for name, task in own.items()]
    sides += [(name, role, [control_side(task, n, seed) for task in tasks]) for name, role, tasks in others]
    given = [*own.values(), *(task for _, _, tasks in others for task in tasks)]
    judged = [side for _, _, each in sides for side in each]
    for side in judged:
        check_size(side)
    check_apart(given, judged)
    first = Experiment(model, judged[0], **settings)
    made = iter([first, *map(first.on, judged[1:])])
    return [Column(name, role, tuple(next(made) for _ in each)) for name, role, each in sides]


def default_sides(task: Task, experiment: Experiment, n: int, seed: int) -> list[Task]:
    """Up to ``n // 2`` unseen examples of each default control of a task, 20 at least, beside ``n`` of its own."""
    controls = defaults_of(experiment, task, seed)
    return [control_side(control, max(n // 2, MIN_CORRECT), seed) for control in controls]


def others_of(role: Role, tasks: Sequence[Task]) -> Others:
    """Each task under its own name; one task that is no list raises ``ValueError``."""
    return [(task.name, role, [task]) for task in check_tasks(f"{role}s", tasks)]


def suites_of(suites: Mapping[str, Sequence[Task]] | None) -> Others:
    """Several tasks under one name; an empty suite raises ``ValueError``."""
    given = {} if suites is None else check_mapping("suites", suites, "a list of tasks by the name of each suite")
    for name, tasks in given.items():
        if not check_tasks(f"suite {name!r}", tasks):
            raise ValueError(f"suite {name!r} must be a list of one task or more")
    return [(name, "suite", list(tasks)) for name, tasks in given.items()]


def check_apart(tasks: Sequence[Task], judged: Sequence[Task]) -> None:
    """Raise ``ValueError`` where the side of a task to judge with holds a question of the finding side of another.

    ``judged`` has the side of each of ``tasks``, in their order.
    """
    for place, task in enumerate(tasks):
        if task.role != "finding":
            continue
        searched = {example.question for example in task.examples}
        for other, side in enumerate(judged):
            shared = searched & {example.question for example in side.examples}
            if shared and other != place:
                raise ValueError(
                    f"task {side.name!r} shares {len(shared)} examples with the finding side of {task.name!r}: heads "
                    "are judged on examples that none were found with"
                )
