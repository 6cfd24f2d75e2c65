"""What breaks and what stays: heads ablated on their own task, on others of its kind, and on unrelated ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Unpack

from cs_heads.analysis.drops import Found, TaskDrops, heads_of, measure_drops
from cs_heads.analysis.unseen import others_of, suites_of, unseen_columns
from cs_heads.arguments import check_mapping, check_seed
from cs_heads.experiment.baseline import fitting_k
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task
from cs_heads.tasks.sides import check_is_task, check_tasks


def specificity(
    model: Any,
    tasks: Task | Sequence[Task],
    heads: Found | Mapping[str, Found],
    *,
    k: int | None = None,
    controls: Sequence[Task] = (),
    seed: int = 0,
    siblings: Sequence[Task] = (),
    suites: Mapping[str, Sequence[Task]] | None = None,
    n: int = 100,
    **settings: Unpack[SettingsArguments],
) -> TaskDrops:
    """Ablate heads on the unseen examples of their own task, and of others.

    Of one task: heads that are specific to it leave controls and suites as they were, and heads of a capability take
    from its siblings as much (``TaskDrops.summary()`` has ``transfer``). Of several: the matrix of heads found on one
    task and ablated on another. Costs ``n × (1 + sets of heads)`` example-evaluations a task at most.

    Args:
        model: A model, the name of one, or a ``Cluster``.
        tasks: The task that the heads were found on; several, where ``heads`` has those of each.
        heads: A ranking, a list of heads, or several of either by name: of one task those of several methods, of
            several tasks those of each by the task's name.
        k: Heads taken of a ranking (None: 5, or half of a grid of fewer than ten heads).
        controls: Tasks of other capabilities.
        seed: Draws the examples of whole tasks, from the half that ``find_heads`` with the same seed does not search
            with, and intervals.
        siblings: Other sets of examples of the same capability.
        suites: Several tasks by one name, whose score is their mean, as the general score of Bair et al. (arXiv
            2603.03335) is that of several benchmarks.
        n: Examples of every task at most: those held out, or some of a whole task.
        settings: As of ``Experiment``.

    Raises:
        ValueError: A task without unseen examples, with fewer than 20, that shares a question with the finding side of
            another or has its name; heads outside the grid, named twice, or of no task. Raised before the model runs.
    """
    check_seed(seed)
    others = others_of("sibling", siblings) + others_of("control", controls) + suites_of(suites)
    if isinstance(tasks, Sequence):
        own, found = _of_each(tasks, heads)
        belongs = {name: name for name in found}
    else:
        check_is_task(tasks)
        own, found = {tasks.name: tasks}, heads if isinstance(heads, Mapping) else {tasks.name: heads}
        belongs = dict.fromkeys(found, tasks.name)
    columns = unseen_columns(model, own, others, n=n, seed=seed, settings=settings)
    grid = columns[0].parts[0].grid
    k, _ = fitting_k(k, grid.size)
    return measure_drops(columns, {name: heads_of(grid, each, k) for name, each in found.items()}, belongs, seed)


def _of_each(tasks: Sequence[Task], heads: Found | Mapping[str, Found]) -> tuple[dict[str, Task], Mapping[str, Found]]:
    """Tasks, and heads found on them, by the name of the task."""
    if not check_tasks("tasks", tasks):
        raise ValueError("tasks must be a list of one task or more")
    own = {task.name: task for task in tasks}
    if len(own) < len(tasks):
        raise ValueError(f"tasks must have different names, got {', '.join(task.name for task in tasks)}")
    found = check_mapping("heads", heads, "rankings or lists of heads by the name of their task")
    foreign = [str(name) for name in found if name not in own]
    if foreign or not found:
        raise ValueError(
            f"heads must be by the name of a task among {', '.join(own)}; got {', '.join(foreign) or '{}'}"
        )
    return own, found
