"""What ablating sets of heads takes from several tasks: what breaks and what stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from typing_extensions import Unpack

from cs_heads.analysis.columns import (
    Column,
    Judged,
    Role,
    check_columns,
    in_role,
    unseen_columns,
    with_others,
    without_seen,
)
from cs_heads.analysis.found_heads import Found, sets_of
from cs_heads.analysis.losses import TaskDrop, task_drop
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_mapping, check_one_of, check_seed
from cs_heads.cluster import ModelLike
from cs_heads.designs import different, explicit
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import baseline_too_low, check_k
from cs_heads.experiment.protocol import measured, preparation_of
from cs_heads.experiment.shared_forwards import Call, measure_together
from cs_heads.progress import expect, one_bar, step
from cs_heads.settings import SettingsArguments
from cs_heads.units import Unit

_NUMBERS = ("n_examples", "chance", "baseline", "score", "drop", "loss", "above_chance")


@dataclass(frozen=True, eq=False, repr=False)
class TaskDrops(Result, Drawable, picture="specificity"):
    """What each of several sets of heads takes from each of several tasks, on unseen examples.

    Attributes:
        heads: By the name of a set its heads.
        drops: By set, then by task.
        roles: What each task is: ``own``, ``sibling``, ``control`` or ``suite``, and to ``format_heads`` ``letters`` or
            ``full``.
        own: The task each set belongs to, so that in a matrix of sets and tasks it is the diagonal; empty where heads
            belong to none.
        spent: Example-evaluations.
        provenance: Model, tasks and seed.
        notes: How many examples were left out, since heads were found on them or they repeat a question.
    """

    heads: dict[str, tuple[Unit, ...]]
    drops: dict[str, dict[str, TaskDrop]]
    roles: dict[str, Role]
    own: dict[str, str]

    def to_frame(self) -> pd.DataFrame:
        """One row per (set of heads, task): role, baseline, score, drop and loss with their intervals."""
        return pd.DataFrame(
            # The own task of another set is a control to this one.
            {
                "found": found,
                "heads": " ".join(map(str, self.heads[found])),
                "role": "control" if self.roles[name] == "own" and self.own.get(found) != name else self.roles[name],
                **drop.to_dict(),
            }
            for found, row in self.drops.items()
            for name, drop in row.items()
        )

    def matrix(self, value: str = "loss") -> pd.DataFrame:
        """Sets of heads down, tasks across: one property of ``TaskDrop`` in each cell.

        Args:
            value: Which: ``"drop"``, ``"loss"``, or another number that a ``TaskDrop`` has.

        Raises:
            ValueError: A ``TaskDrop`` has no such number.
        """
        check_one_of("value", value, _NUMBERS)
        return pd.DataFrame(
            {found: {name: getattr(drop, value) for name, drop in row.items()} for found, row in self.drops.items()}
        ).T

    def _table(self) -> pd.DataFrame:
        return self.matrix()


@one_bar("specificity", outermost=True)
def measure_drops(
    columns: Sequence[Column], heads: Mapping[str, Found], own: Mapping[str, str], seed: int = 0
) -> TaskDrops:
    """``specificity`` on any experiments: ablate each set of heads on every example of each column.

    Of several examples that ask one question the first is measured, and none that a ranking among ``heads`` was found
    on. All sets of a task are asked for at once, each different mask once. ``spent`` counts every different mask (the
    intact one among them) on every example, with what ``mean`` or ``resample`` ablation runs beforehand.

    Args:
        columns: The tasks.
        heads: Sets of heads by name; of a ranking its heads found.
        own: By the name of a set the name of its own task; empty where heads belong to none.
        seed: Draws intervals.

    Returns:
        By the name of a set, then by that of a column, what the set takes from it, with 95 % intervals.

    Raises:
        ValueError: Columns of one name, or of different grids. Raised before anything is measured.
    """
    check_columns(columns)
    columns = without_seen(columns, heads)
    grid = columns[0].parts[0].grid
    sets = {found: tuple(map(grid.resolve, named)) for found, named in heads.items()}
    once, place = different(explicit(grid, [[], *sets.values()]))
    drops: dict[str, dict[str, TaskDrop]] = {found: {} for found in heads}
    parts = [part for column in columns for part in column.parts]
    spent = len(once) * sum(part.n_examples for part in parts) + preparation_of(*parts)
    expect(spent)
    measure_together([Call(part, once) for part in parts])
    for column in columns:
        scores = [measured(part, once)[place] for part in column.parts]
        chances = [part.chance for part in column.parts]
        low = [baseline_too_low(part, each[0]) for part, each in zip(column.parts, scores, strict=True)]
        for row, found in enumerate(heads, start=1):
            pairs = [(each[0], each[row]) for each in scores]
            drops[found][column.name] = task_drop(column.name, chances, pairs, seed, low)
    tasks = {column.name: [part.provenance().get("task") for part in column.parts] for column in columns}
    return TaskDrops(
        heads=sets,
        drops=drops,
        roles={column.name: column.role for column in columns},
        own=dict(own),
        spent=spent,
        provenance=columns[0].parts[0].provenance() | {"tasks": tasks, "seed": seed},
        notes=tuple(dict.fromkeys(note for column in columns for note in column.notes)),
    )


@one_bar("specificity")
def specificity(
    model: ModelLike | None,
    tasks: Judged | Sequence[Judged],
    heads: Found | Mapping[str, Found],
    *,
    k: int | None = None,
    controls: Sequence[Judged] | None = None,
    seed: int = 0,
    siblings: Sequence[Judged] = (),
    suites: Mapping[str, Sequence[Judged]] | None = None,
    n: int = 100,
    **settings: Unpack[SettingsArguments],
) -> TaskDrops:
    """Ablate heads on the unseen examples of their own task, and of others.

    Of one task: heads that are specific to it leave controls and suites as they were, and heads of a capability take
    from its siblings as much. Of several: the matrix of heads found on one
    task and ablated on another. Examples that a ranking was found on are left out, and one example of each question
    counts; ``notes`` say how many others there are. A list of heads does not say what it was found on. Costs
    ``n × (1 + sets of heads)`` example-evaluations per task at most.

    Args:
        model: A model, the name of one, or a ``Cluster``. None: every task here is an experiment, with a model,
            examples and settings of its own (see ``cs_heads.analysis``).
        tasks: The task that the heads were found on; several, where ``heads`` has those of each.
        heads: A ranking, a list of heads, or several of either by name: of one task those of several methods, of
            several tasks those of each by the task's name.
        k: Heads taken of a ranking (None: as many as it was searched for).
        controls: Tasks of other capabilities (None: none).
        seed: Draws the examples of whole tasks, from the half that ``find_heads`` with the same seed does not search
            with, and intervals.
        siblings: Other sets of examples of the same capability.
        suites: Several tasks by one name, whose score is their mean, as the general score of Bair et al. (arXiv
            2603.03335) is that of several benchmarks.
        n: Examples of every task at most: those held out, or some of a whole task.
        settings: As of ``Experiment``.

    Returns:
        By the name of a set of heads what it takes from each task, with 95 % intervals: ``to_frame()`` and ``matrix()``
        are tables of it.

    Raises:
        ValueError: A task without unseen examples, with fewer than 20, that shares a question with the finding side of
            another or has its name; heads outside the grid, named twice, or of no task. Raised before the model runs.
    """
    check_seed(seed)
    several = isinstance(tasks, Sequence)
    own = in_role("own", tasks if several else [tasks], "tasks")
    names = [column.name for column in own]
    if not own or len({*names}) < len(names):
        raise ValueError(f"tasks must be one or more of different names, got {', '.join(names) or 'none'}")
    found = heads if isinstance(heads, Mapping) else {names[0]: heads}
    if several:
        found = _of_each(names, heads)
    asked = with_others(own, siblings, controls, suites)
    step("", names)
    with unseen_columns(model, asked, found, n=n, seed=seed, settings=settings) as columns:
        judged = columns[0].parts[0]
        if k is not None:
            check_k(k, judged.grid)
        belongs = {name: name if several else names[0] for name in found}
        return measure_drops(columns, sets_of(judged, found, k), belongs, seed)


def _of_each(names: Sequence[str], heads: Any) -> Mapping[str, Found]:
    """Heads by the name of the task that they were found on."""
    found = check_mapping("heads", heads, "rankings or lists of heads by the name of their task")
    foreign = [str(name) for name in found if name not in names]
    if foreign or not found:
        raise ValueError(
            f"heads must be by the name of a task among {', '.join(names)}; got {', '.join(foreign) or '{}'}"
        )
    return found
