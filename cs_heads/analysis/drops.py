"""What ablating sets of heads takes from several tasks: what breaks and what stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd
from typing_extensions import Unpack

from cs_heads.analysis.losses import TaskDrop, task_drop
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_integer, check_mapping, check_seed
from cs_heads.cluster import ModelLike
from cs_heads.designs import different, explicit
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import MIN_CORRECT, baseline_too_low, check_k, check_size
from cs_heads.experiment.controls import check_apart, found_on, unseen_parts, unseen_side, unseen_tokens
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.protocol import ExperimentLike, chance_of, measured, preparation_of, provenance_of
from cs_heads.experiment.together import Asked, measure_together
from cs_heads.lens import check_weights
from cs_heads.progress import expect, one_bar, step
from cs_heads.ranking import HeadRanking
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task
from cs_heads.tasks.splits import check_is_task, check_tasks, unseen_control
from cs_heads.units import Grid, HeadLike, Unit, as_heads

Role = Literal["own", "sibling", "control", "suite", "letters", "full"]
Found = HeadRanking | Sequence[HeadLike]
"""Heads to ablate: a list of them, or a ranking whose top heads are meant."""

Others = list[tuple[str, Role, Sequence[Task]]]
"""Name, role and tasks of what heads are ablated on beside their own task."""


@dataclass(frozen=True, eq=False)
class Column:
    """One task to ablate heads on, or a suite of several.

    Attributes:
        name: Of the task or suite.
        role: What it is to the heads.
        parts: One experiment, or those of a suite, whose score is their mean.
        notes: On examples that are no part of it.
    """

    name: str
    role: Role
    parts: tuple[ExperimentLike, ...]
    notes: tuple[str, ...] = ()


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
    spent: int
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """One row per (set of heads, task): role, baseline, score, drop and relative drop with their intervals."""
        return pd.DataFrame(
            {
                "found": found,
                "heads": " ".join(map(str, self.heads[found])),
                "role": "own" if self.own.get(found) == name else self.role_beside(found, name),
                **drop.to_dict(),
            }
            for found, row in self.drops.items()
            for name, drop in row.items()
        )

    def role_beside(self, found: str, task: str) -> Role:
        """What a task is to one set of heads: the own task of another set is a control to it.

        Args:
            found: Name of the set.
            task: Name of the task.

        Returns:
            The role: ``"own"``, ``"sibling"``, ``"control"``, ``"suite"``, or of ``format_heads`` ``"letters"`` or
            ``"full"``.
        """
        if self.own.get(found) == task:
            return "own"
        return "control" if self.roles[task] == "own" else self.roles[task]

    def matrix(self, value: str = "relative_drop") -> pd.DataFrame:
        """Sets of heads down, tasks across: one property of ``TaskDrop`` in each cell.

        Args:
            value: Which: ``"drop"``, ``"relative_drop"``, ``"loss"``, or another number that a ``TaskDrop`` has.

        Raises:
            ValueError: A ``TaskDrop`` has no such property.
        """
        if not isinstance(getattr(TaskDrop, value, None), property) and value not in TaskDrop.__dataclass_fields__:
            raise ValueError(f"value must be a property of TaskDrop, as 'drop' or 'relative_drop'; got {value!r}")
        return pd.DataFrame(
            {found: {name: getattr(drop, value) for name, drop in row.items()} for found, row in self.drops.items()}
        ).T

    def summary(self) -> pd.DataFrame:
        """One row per set of heads: what its own task loses, siblings on average, and which other task loses most.

        Relative drops. ``specificity`` is the own drop less the worst drop among controls and suites;
        ``transfer`` the mean drop of the siblings as a share of the own one. A task whose baseline is too low to show a
        drop is no part of them. NaN where there is nothing to compare.

        Raises:
            ValueError: A set of heads belongs to no task.
        """
        homeless = [found for found in self.drops if self.own.get(found) not in self.roles]
        if homeless:
            raise ValueError(f"own must name the task of every set of heads; none for {', '.join(homeless)}")
        rows = []
        for found, row in self.drops.items():
            own = row[self.own[found]].relative_drop
            known = {name: drop.relative_drop for name, drop in row.items() if not np.isnan(drop.relative_drop)}
            roles = {name: self.role_beside(found, name) for name in known}
            siblings = [drop for name, drop in known.items() if roles[name] == "sibling"]
            others = {name: drop for name, drop in known.items() if roles[name] in ("control", "suite")}
            worst = max(others, key=lambda name: others[name], default=None)
            rows.append(
                {
                    "found": found,
                    "own": own,
                    "siblings": np.mean(siblings) if siblings else np.nan,
                    "transfer": np.mean(siblings) / own if siblings and own else np.nan,
                    "worst other": worst,
                    "worst": np.nan if worst is None else others[worst],
                    "specificity": np.nan if worst is None else own - others[worst],
                }
            )
        return pd.DataFrame(rows)

    def _table(self) -> pd.DataFrame:
        return self.matrix()


def heads_of(
    grid: Grid,
    found: HeadRanking | Iterable[HeadLike],
    k: int | None = None,
    name: str = "heads",
    model: Mapping[str, Any] | None = None,
) -> tuple[Unit, ...]:
    """The heads that a ranking or a list stands for.

    Args:
        grid: The grid of the model.
        found: A ranking, or a list of heads.
        k: Heads taken of a ranking (None: as many as it was searched for).
        name: Of the argument, for errors.
        model: What the heads are ablated on: the model's part of a provenance (None: not known).

    Raises:
        ValueError: No head, one named twice or outside the grid, or a ranking of another grid or other weights.
    """
    if k is not None:
        check_integer("k", k, 1, grid.size, "the heads of the grid")
    if isinstance(found, HeadRanking):
        if found.grid != grid:
            other = f": give units={found.grid.kind!r}" if found.grid.kind != grid.kind else ""
            raise ValueError(f"{name} must be ranked on the grid of the model, {grid}, got {found.grid}{other}")
        check_weights(f"{name} and the model", found.provenance.get("model"), model)
        return tuple(found.top(k))
    if isinstance(found, str | Unit) or not isinstance(found, Iterable):
        raise ValueError(f"{name} must be a ranking or a list of heads, got {type(found).__name__}")
    heads = tuple(grid.resolve(head) for head in as_heads(name, found))
    if not heads or len({*heads}) < len(heads):
        raise ValueError(f"{name} must be one head or more, none twice; got {', '.join(map(str, heads)) or 'none'}")
    return heads


def check_states(name: str, found: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where two results by name are of two states of one model, which is a mistake."""
    for names in combinations(found, 2):
        origins = [found[each].provenance.get("model", {}) for each in names]
        if len({(origin.get("name"), origin.get("revision")) for origin in origins}) == 1:
            check_weights(" and ".join(f"{name}[{each!r}]" for each in names), *origins)


def model_of(experiment: object) -> Mapping[str, Any] | None:
    """The model's part of an experiment's provenance; None where it says none."""
    return provenance_of(experiment).get("model")


def without_seen(columns: Sequence[Column], *found: Any) -> list[Column]:
    """The columns with one example of each question, of those that none of the rankings ``found`` was found on."""
    seen = found_on(found)
    unseen = [unseen_parts(column.parts, seen) for column in columns]
    return [
        replace(column, parts=tuple(parts), notes=(*column.notes, *notes))
        for column, (parts, notes) in zip(columns, unseen, strict=True)
    ]


def check_columns(columns: Sequence[Column]) -> None:
    """Raise ``ValueError`` unless there are columns, of different names, each of one task or more, on one grid."""
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"tasks must have different names, got two or more of {', '.join(map(repr, twice))}")
    empty = [column.name for column in columns if not column.parts]
    if not columns or empty:
        raise ValueError(f"suites must hold one task or more, got none in {', '.join(map(repr, empty)) or 'any'}")
    if len({part.grid for column in columns for part in column.parts}) > 1:
        raise ValueError("tasks must all be measured on one grid")


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
    check_seed(seed)
    check_columns(columns)
    columns = without_seen(columns, heads)
    grid = columns[0].parts[0].grid
    sets = {found: tuple(map(grid.resolve, named)) for found, named in heads.items()}
    once, place = different(explicit(grid, [[], *sets.values()]))
    drops: dict[str, dict[str, TaskDrop]] = {found: {} for found in heads}
    parts = [part for column in columns for part in column.parts]
    expect(len(once) * sum(part.n_examples for part in parts) + preparation_of(*parts))
    measure_together([Asked(part, once) for part in parts])
    spent = 0
    for column in columns:
        scores = [measured(part, once)[place] for part in column.parts]
        spent += sum(len(once) * part.n_examples + preparation_of(part) for part in column.parts)
        chances = list(map(chance_of, column.parts))
        low = [baseline_too_low(part, each[0]) for part, each in zip(column.parts, scores, strict=True)]
        for row, found in enumerate(heads, start=1):
            pairs = [(each[0], each[row]) for each in scores]
            drops[found][column.name] = task_drop(column.name, chances, pairs, seed, low)
    return TaskDrops(
        heads=sets,
        drops=drops,
        roles={column.name: column.role for column in columns},
        own=dict(own),
        spent=spent,
        provenance={
            **provenance_of(columns[0].parts[0]),
            "tasks": {column.name: [provenance_of(part).get("task") for part in column.parts] for column in columns},
            "seed": seed,
        },
        notes=tuple(dict.fromkeys(note for column in columns for note in column.notes)),
    )


@one_bar("specificity")
def specificity(
    model: ModelLike,
    tasks: Task | Sequence[Task],
    heads: Found | Mapping[str, Found],
    *,
    k: int | None = None,
    controls: Sequence[Task] | None = None,
    seed: int = 0,
    siblings: Sequence[Task] = (),
    suites: Mapping[str, Sequence[Task]] | None = None,
    n: int = 100,
    **settings: Unpack[SettingsArguments],
) -> TaskDrops:
    """Ablate heads on the unseen examples of their own task, and of others.

    Of one task: heads that are specific to it leave controls and suites as they were, and heads of a capability take
    from its siblings as much (``TaskDrops.summary()`` has ``transfer``). Of several: the matrix of heads found on one
    task and ablated on another. Examples that a ranking was found on are left out, and one example of each question
    counts; ``notes`` say how many others there are. A list of heads does not say what it was found on. Costs
    ``n × (1 + sets of heads)`` example-evaluations per task at most.

    Args:
        model: A model, the name of one, or a ``Cluster``.
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
        By the name of a set of heads what it takes from each task, with 95 % intervals: ``to_frame()``, ``matrix()``
        and ``summary()`` are tables of it.

    Raises:
        ValueError: A task without unseen examples, with fewer than 20, that shares a question with the finding side of
            another or has its name; heads outside the grid, named twice, or of no task. Raised before the model runs.
    """
    check_seed(seed)
    others = other_tasks(siblings, controls or (), suites)
    if isinstance(tasks, Sequence):
        own, found = _of_each(tasks, heads)
        belongs = {name: name for name in found}
    else:
        check_is_task(tasks)
        own, found = {tasks.name: tasks}, heads if isinstance(heads, Mapping) else {tasks.name: heads}
        belongs = dict.fromkeys(found, tasks.name)
    step("", own)
    with unseen_columns(model, own, others, found, n=n, seed=seed, settings=settings) as columns:
        grid = columns[0].parts[0].grid
        if k is not None:
            check_k(k, grid)
        described = model_of(columns[0].parts[0])
        chosen = {name: heads_of(grid, each, k, model=described) for name, each in found.items()}
        return measure_drops(columns, chosen, belongs, seed)


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


@contextmanager
def unseen_columns(
    model: ModelLike,
    own: Mapping[str, Task],
    others: Others,
    found: Any,
    *,
    n: int,
    seed: int,
    settings: SettingsArguments,
) -> Iterator[list[Column]]:
    """Experiments on the unseen examples of all tasks, checked before the model runs; workers end with the block.

    Args:
        model: A model, the name of one, or a ``Cluster``.
        own: The heads' own tasks by name.
        others: Name, role and tasks of all others.
        found: The heads: what rankings among them were found on is left out.
        n: Examples of every task at most.
        seed: Draws the examples of whole tasks.
        settings: As of ``Experiment``.

    Raises:
        ValueError: What ``specificity`` refuses: a side that is judged may not share a question with the finding side
            of another task.
    """
    check_integer("n", n, MIN_CORRECT)
    seen = found_on(found)
    sides: list[tuple[str, Role, list[tuple[Task, tuple[str, ...]]]]] = [
        *((name, "own", [unseen_side(task, n, seen)]) for name, task in own.items()),
        *((name, role, [unseen_control(task, n, seed, seen) for task in tasks]) for name, role, tasks in others),
    ]
    given = [*own.values(), *(task for _, _, tasks in others for task in tasks)]
    judged = [side for _, _, each in sides for side in each]
    for side, notes in judged:
        check_size(side, notes)
    check_apart(given, [side for side, _ in judged])
    with Experiment(model, judged[0][0], **settings) as first:
        made = [first, *(first.on(side) for side, _ in judged[1:])]
        parts = iter([unseen_tokens([part], task, seen) for part, task in zip(made, given, strict=True)])
        columns = []
        for name, role, each in sides:
            read = [next(parts) for _ in each]
            said = [note for (_, before), (_, after) in zip(each, read, strict=True) for note in (*before, *after)]
            columns.append(Column(name, role, tuple(part for [part], _ in read), tuple(said)))
        yield columns


def other_tasks(
    siblings: Sequence[Task], controls: Sequence[Task], suites: Mapping[str, Sequence[Task]] | None
) -> Others:
    """Tasks beside the own one, each under its own name, and suites under theirs.

    One task that is no list, and an empty suite, raise ``ValueError``.
    """
    given = {} if suites is None else check_mapping("suites", suites, "a list of tasks by the name of each suite")
    for name, tasks in given.items():
        if not check_tasks(f"suite {name!r}", tasks):
            raise ValueError(f"suite {name!r} must be a list of one task or more")
    roles: tuple[tuple[Role, Sequence[Task]], ...] = (("sibling", siblings), ("control", controls))
    others: Others = [(task.name, role, [task]) for role, each in roles for task in check_tasks(f"{role}s", each)]
    return [*others, *((name, "suite", list(tasks)) for name, tasks in given.items())]
