"""What ablating sets of heads takes from several tasks: the table that the analyses share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cs_heads.analysis.task_drop import TaskDrop, task_drop
from cs_heads.arguments import check_integer, check_seed
from cs_heads.designs import different, explicit
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import baseline_too_low, chance_of, fitting_k
from cs_heads.experiment.protocol import ExperimentLike, preparation_of, provenance_of
from cs_heads.ranking import HeadRanking
from cs_heads.units import Head, HeadGrid, HeadLike, as_heads

if TYPE_CHECKING:
    import pandas as pd

Role = Literal["own", "sibling", "control", "suite", "letters", "full"]
Found = HeadRanking | Sequence[HeadLike]
"""Heads to ablate: a list of them, or a ranking whose top heads are meant."""


@dataclass(frozen=True, eq=False)
class Column:
    """One task to ablate heads on, or a suite of several; ``role`` is what it is to the heads."""

    name: str
    role: Role
    parts: tuple[ExperimentLike, ...]


@dataclass(frozen=True, eq=False)
class TaskDrops(Drawable, picture="specificity"):
    """What each of several sets of heads takes from each of several tasks, on unseen examples.

    ``drops[heads set][task]``; ``roles`` say what a task is: ``own``, ``sibling``, ``control`` or ``suite``, and to
    ``format_heads`` ``letters`` or ``full``; ``own`` names the task each set belongs to, so that in a matrix of sets
    and tasks it is the diagonal. It is empty where heads belong to none.
    """

    heads: dict[str, tuple[Head, ...]]
    drops: dict[str, dict[str, TaskDrop]]
    roles: dict[str, Role]
    own: dict[str, str]
    spent: int
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row a (heads set, task): role, baseline, score, drop and relative drop with their intervals."""
        import pandas as pd

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
        """What a task is to one set of heads: the own task of another set is a control to it."""
        if self.own.get(found) == task:
            return "own"
        return "control" if self.roles[task] == "own" else self.roles[task]

    def matrix(self, value: str = "relative_drop") -> pd.DataFrame:
        """Heads sets down, tasks across: one property of ``TaskDrop`` in each cell."""
        import pandas as pd

        if not isinstance(getattr(TaskDrop, value, None), property) and value not in TaskDrop.__dataclass_fields__:
            raise ValueError(f"value must be a property of TaskDrop, as 'drop' or 'relative_drop'; got {value!r}")
        return pd.DataFrame(
            {found: {name: getattr(drop, value) for name, drop in row.items()} for found, row in self.drops.items()}
        ).T

    def summary(self) -> pd.DataFrame:
        """One row a heads set: what its own task loses, siblings on average, and which other task loses most.

        Relative drops. ``specificity`` is the own drop less the worst drop among controls and suites;
        ``transfer`` the mean drop of the siblings as a share of the own one. A task whose baseline is too low to show a
        drop is no part of them. NaN where there is nothing to compare; ``ValueError`` where heads belong to no task.
        """
        import pandas as pd

        homeless = [found for found in self.drops if self.own.get(found) not in self.roles]
        if homeless:
            raise ValueError(f"own must name the task of every set of heads; none for {', '.join(homeless)}")
        rows = []
        for found, row in self.drops.items():
            own = row[self.own[found]].relative_drop
            by_role: dict[Role, dict[str, float]] = {}
            for name, drop in row.items():
                if not np.isnan(drop.relative_drop):
                    by_role.setdefault(self.role_beside(found, name), {})[name] = drop.relative_drop
            siblings = list(by_role.get("sibling", {}).values())
            others = {**by_role.get("control", {}), **by_role.get("suite", {})}
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

    def to_dict(self) -> dict[str, Any]:
        """The whole result, JSON-ready."""
        return {
            "heads": {found: [str(head) for head in heads] for found, heads in self.heads.items()},
            "drops": {found: {name: drop.to_dict() for name, drop in row.items()} for found, row in self.drops.items()},
            "roles": dict(self.roles),
            "own": dict(self.own),
            "spent": self.spent,
            "provenance": self.provenance,
        }

    def _repr_html_(self) -> str:
        return self.matrix().to_html(float_format="{:.3f}".format, border=0)


def heads_of(grid: HeadGrid, found: Found, k: int | None, name: str = "heads") -> tuple[Head, ...]:
    """The top ``k`` of a ranking (None: 5, or half of a small grid), or all of a list of heads.

    No head, or one named twice, raises ``ValueError``.
    """
    if k is not None:
        check_integer("k", k, 1, grid.size, "the heads of the grid")
    if isinstance(found, HeadRanking):
        if found.grid != grid:
            raise ValueError(f"{name} must be ranked on the grid {grid.shape} of the model, got {found.grid.shape}")
        return tuple(found.top(fitting_k(k, grid.size, beside=False)[0]))
    if isinstance(found, str | Head) or not isinstance(found, Iterable):
        raise ValueError(f"{name} must be a ranking or a list of heads, got {type(found).__name__}")
    heads = tuple(grid.resolve(head) for head in as_heads(name, found))
    if not heads or len({*heads}) < len(heads):
        raise ValueError(f"{name} must be one head or more, none twice; got {', '.join(map(str, heads)) or 'none'}")
    return heads


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


def measure_drops(
    columns: Sequence[Column], heads: Mapping[str, Sequence[HeadLike]], own: Mapping[str, str], seed: int = 0
) -> TaskDrops:
    """Ablate each set of heads on every example of each column; the core of the analyses, on any experiments.

    All sets of a task are asked for at once, each different mask once. ``spent`` counts every different mask
    (the intact one among them) on every example, with what ``mean`` or ``resample`` ablation runs beforehand. Columns
    of one name, or of different grids, raise ``ValueError`` before anything is measured.
    """
    check_seed(seed)
    check_columns(columns)
    grid = columns[0].parts[0].grid
    once, place = different(explicit(grid, [[], *heads.values()]))
    drops: dict[str, dict[str, TaskDrop]] = {found: {} for found in heads}
    spent = 0
    for column in columns:
        scores = [part(once)[place] for part in column.parts]
        spent += sum(len(once) * part.n_examples + preparation_of(part) for part in column.parts)
        chances = list(map(chance_of, column.parts))
        low = [baseline_too_low(part, each[0]) for part, each in zip(column.parts, scores, strict=True)]
        for row, found in enumerate(heads, start=1):
            parts = [(each[0], each[row]) for each in scores]
            drops[found][column.name] = task_drop(column.name, chances, parts, seed, low)
    return TaskDrops(
        heads={found: tuple(grid.resolve(head) for head in named) for found, named in heads.items()},
        drops=drops,
        roles={column.name: column.role for column in columns},
        own=dict(own),
        spent=spent,
        provenance={
            **provenance_of(columns[0].parts[0]),
            "tasks": {column.name: [provenance_of(part).get("task") for part in column.parts] for column in columns},
            "seed": seed,
        },
    )
