"""What breaks and what stays: heads ablated on their own task, on others of its kind, and on unrelated ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cs_heads.analysis.drops import Found, TaskDrops, heads_of, measure_drops
from cs_heads.analysis.unseen import Others, others_of, settings_of, suites_of, unseen_columns
from cs_heads.arguments import check_mapping, check_seed
from cs_heads.experiment.baseline import fitting_k
from cs_heads.store.store import Store
from cs_heads.tasks import Task
from cs_heads.tasks.sides import check_is_task, check_tasks


def specificity(
    model: Any,
    task: Task,
    heads: Found | Mapping[str, Found],
    *,
    controls: Sequence[Task] = (),
    siblings: Sequence[Task] = (),
    suites: Mapping[str, Sequence[Task]] | None = None,
    k: int | None = None,
    n: int = 100,
    seed: int = 0,
    ablation: str = "zero",
    progress: bool | None = None,
    batch_tokens: int | None = None,
    prepend_bos: bool | None = None,
    store: str | Path | Store | None = None,
) -> TaskDrops:
    """Ablate heads of ``task`` on its unseen examples, on siblings and controls, and on suites of tasks.

    ``heads`` are a ranking (its top ``k``: 5, or half of a grid of fewer than ten heads), a list, or several of either
    by name, as those of several methods.
    ``siblings`` are other sets of examples of the same capability, ``controls`` of others.
    A suite is a name for several tasks; its score is their mean, as the general score of Bair et al. (arXiv 2603.03335)
    is the mean of several benchmarks. Up to ``n`` examples of every task are used: those held out, or of a whole task
    those of the half that ``find_heads`` with the same ``seed`` does not search with. Costs ``n × (1 + sets of heads)``
    example-evaluations a task at most. The rest is as in ``confirm``.

    Raises ``ValueError`` before the model runs where a task has no unseen examples, fewer than 20, shares a question
    with the finding side of another, or has the name of another; and where heads are outside the grid or named twice.
    """
    check_seed(seed)
    check_is_task(task)
    others = others_of("sibling", siblings) + others_of("control", controls) + suites_of(suites)
    found = heads if isinstance(heads, Mapping) else {task.name: heads}
    settings = settings_of(ablation, progress, batch_tokens, prepend_bos, store)
    return _measure(
        model,
        {task.name: task},
        dict.fromkeys(found, task.name),
        others=others,
        found=found,
        k=k,
        n=n,
        seed=seed,
        settings=settings,
    )


def generalisation(
    model: Any,
    task: Task,
    heads: Found | Mapping[str, Found],
    siblings: Sequence[Task],
    *,
    controls: Sequence[Task] = (),
    k: int | None = None,
    n: int = 100,
    seed: int = 0,
    ablation: str = "zero",
    progress: bool | None = None,
    batch_tokens: int | None = None,
    prepend_bos: bool | None = None,
    store: str | Path | Store | None = None,
) -> TaskDrops:
    """Ablate heads found on ``task`` on ``siblings``: other sets of examples of the same capability.

    ``TaskDrops.summary()`` gives ``transfer``, the mean relative drop of the siblings as a share of the own one.
    This is ``specificity`` with siblings; no sibling at all raises ``ValueError``.
    """
    check_seed(seed)
    if not check_tasks("siblings", siblings):
        raise ValueError("siblings must be a list of one task or more of the same capability")
    return specificity(
        model,
        task,
        heads,
        siblings=siblings,
        controls=controls,
        k=k,
        n=n,
        seed=seed,
        ablation=ablation,
        progress=progress,
        batch_tokens=batch_tokens,
        prepend_bos=prepend_bos,
        store=store,
    )


def cross_drops(
    model: Any,
    tasks: Sequence[Task],
    found: Mapping[str, Found],
    *,
    suites: Mapping[str, Sequence[Task]] | None = None,
    k: int | None = None,
    n: int = 100,
    seed: int = 0,
    ablation: str = "zero",
    progress: bool | None = None,
    batch_tokens: int | None = None,
    prepend_bos: bool | None = None,
    store: str | Path | Store | None = None,
) -> TaskDrops:
    """The matrix of heads found on one task and ablated on another: rows found on, columns evaluated on.

    ``found`` are rankings or lists of heads by the name of the task they were found on; every task is split, and
    measured on its unseen examples. ``suites`` come as further columns. Each task costs ``n × (1 + rows)``
    example-evaluations at most. A row whose task is not among ``tasks`` raises ``ValueError``; else as ``specificity``.
    """
    check_seed(seed)
    if not check_tasks("tasks", tasks):
        raise ValueError("tasks must be a list of one task or more")
    own = {task.name: task for task in tasks}
    if len(own) < len(tasks):
        raise ValueError(f"tasks must have different names, got {', '.join(task.name for task in tasks)}")
    check_mapping("found", found, "rankings or lists of heads by the name of their task")
    foreign = [str(name) for name in found if name not in own]
    if foreign or not found:
        raise ValueError(
            f"found must be by the name of a task among {', '.join(own)}; got {', '.join(foreign) or '{}'}"
        )
    settings = settings_of(ablation, progress, batch_tokens, prepend_bos, store)
    return _measure(
        model,
        own,
        {name: name for name in found},
        others=suites_of(suites),
        found=found,
        k=k,
        n=n,
        seed=seed,
        settings=settings,
    )


def _measure(
    model: Any,
    own: Mapping[str, Task],
    belongs: Mapping[str, str],
    *,
    others: Others,
    found: Mapping[str, Found],
    k: int | None,
    n: int,
    seed: int,
    settings: dict[str, Any],
) -> TaskDrops:
    columns = unseen_columns(model, own, others, n=n, seed=seed, settings=settings)
    grid = columns[0].parts[0].grid
    k, _ = fitting_k(k, grid.size)
    heads = {name: heads_of(grid, each, k) for name, each in found.items()}
    return measure_drops(columns, heads, belongs, seed)
