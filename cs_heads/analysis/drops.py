"""What ablating sets of heads takes from several tasks: the table that the analyses share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.stats import bootstrap

from cs_heads.heads import Head, HeadGrid, HeadLike
from cs_heads.masks import different, explicit
from cs_heads.measure.baseline import chance_of, too_low
from cs_heads.measure.protocol import ExperimentLike
from cs_heads.ranking import HeadRanking

if TYPE_CHECKING:
    import pandas as pd

Role = Literal["own", "sibling", "control", "suite"]
Found = HeadRanking | Sequence[HeadLike]
"""Heads to ablate: a list of them, or a ranking whose top heads are meant."""
Scores = Float[np.ndarray, "_"]


@dataclass(frozen=True)
class TaskDrop:
    """What ablating the heads does to one task; ``interval`` is the 95 % bootstrap interval of ``drop``.

    ``relative_interval`` is that of ``relative_drop``. Both have no width where no example changes, whatever the
    number of examples. ``too_low`` says why the task cannot show a drop, where its baseline does not allow one.
    """

    task: str
    n_examples: int
    chance: float
    baseline: float
    score: float
    interval: tuple[float, float]
    too_low: str | None = None
    relative_interval: tuple[float, float] = (float("nan"), float("nan"))

    @property
    def drop(self) -> float:
        """Baseline minus score, in points."""
        return self.baseline - self.score

    @property
    def relative_drop(self) -> float:
        """Drop as a share of the baseline; 0 where the baseline is 0."""
        return self.drop / self.baseline if self.baseline else 0.0

    @property
    def share_lost(self) -> float:
        """Drop as a share of what the baseline has above chance; 0 where it has nothing."""
        return self.drop / (self.baseline - self.chance) if self.baseline > self.chance else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Every number of it, JSON-ready; an unknown bound is None."""
        low, high = (None if np.isnan(bound) else bound for bound in self.relative_interval)
        return {
            "task": self.task,
            "n_examples": self.n_examples,
            "chance": self.chance,
            "baseline": self.baseline,
            "score": self.score,
            "drop": self.drop,
            "low": self.interval[0],
            "high": self.interval[1],
            "relative_drop": self.relative_drop,
            "relative_low": low,
            "relative_high": high,
            "share_lost": self.share_lost,
            "too_low": self.too_low,
        }


def task_drop(name: str, chance: float, parts: Sequence[tuple[Scores, Scores]], seed: int = 0) -> TaskDrop:
    """The drop of a task, or of a suite: the mean of its parts, which weigh the same however many examples they have.

    Each part holds the scores of its examples with no head off and with the heads off, in the same order.
    Intervals are percentile bootstraps over the examples of each part (2,000 resamples drawn with ``seed``).

    >>> task_drop("t", 0.0, [(np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0]))]).relative_drop
    0.6666666666666666
    """

    def drops(*chosen: np.ndarray, axis: int = -1) -> np.ndarray:
        pairs = [(intact[i].mean(axis), off[i].mean(axis)) for (intact, off), i in zip(parts, chosen, strict=True)]
        intact, off = np.mean(pairs, axis=0)
        return np.stack([intact - off, np.divide(intact - off, intact, out=np.zeros_like(intact), where=intact > 0)])

    baseline, score = (float(np.mean([pair[side].mean() for pair in parts])) for side in (0, 1))
    if any(len(intact) < 2 for intact, _ in parts):
        relative = (baseline - score) / baseline if baseline else 0.0
        low, high = np.array([baseline - score, relative]), np.array([baseline - score, relative])
    else:
        places = tuple(np.arange(len(intact)) for intact, _ in parts)
        drawn = bootstrap(
            places, drops, method="percentile", n_resamples=2000, vectorized=True, rng=np.random.default_rng(seed)
        ).confidence_interval
        low, high = drawn.low, drawn.high
    return TaskDrop(
        task=name,
        n_examples=sum(len(intact) for intact, _ in parts),
        chance=chance,
        baseline=baseline,
        score=score,
        interval=(float(low[0]), float(high[0])),
        too_low=too_low(np.concatenate([intact for intact, _ in parts]), chance),
        relative_interval=(float(low[1]), float(high[1])),
    )


@dataclass(frozen=True, eq=False)
class Column:
    """One task to ablate heads on, or a suite of several; ``role`` is what it is to the heads."""

    name: str
    role: Role
    parts: tuple[ExperimentLike, ...]

    @property
    def chance(self) -> float:
        """The score of guessing, its mean over the parts."""
        return float(np.mean([chance_of(part) for part in self.parts]))


@dataclass(frozen=True, eq=False)
class TaskDrops:
    """What each of several sets of heads takes from each of several tasks, on unseen examples.

    ``drops[heads set][task]``; ``roles`` say what a task is: ``own``, ``sibling``, ``control`` or ``suite``;
    ``own`` names the task each set belongs to, so that in a matrix of sets and tasks it is the diagonal.
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
        ``transfer`` the mean drop of the siblings as a share of the own one. NaN where there is nothing to compare.
        """
        import pandas as pd

        rows = []
        for found, row in self.drops.items():
            own = row[self.own[found]].relative_drop
            by_role: dict[Role, dict[str, float]] = {}
            for name, drop in row.items():
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


def heads_of(grid: HeadGrid, found: Found, k: int, name: str = "heads") -> tuple[Head, ...]:
    """The top ``k`` of a ranking, or all of a list of heads; none, or one named twice, raises ``ValueError``."""
    if isinstance(found, HeadRanking):
        if found.grid != grid:
            raise ValueError(f"{name} must be ranked on the grid {grid.shape} of the model, got {found.grid.shape}")
        return tuple(found.top(k))
    if isinstance(found, str | Head):
        raise ValueError(f"{name} must be a ranking or a list of heads, got {type(found).__name__}")
    heads = tuple(grid.resolve(head) for head in found)
    if not heads or len({*heads}) < len(heads):
        raise ValueError(f"{name} must be one head or more, none twice; got {', '.join(map(str, heads)) or 'none'}")
    return heads


def measure_drops(
    columns: Sequence[Column], heads: Mapping[str, Sequence[HeadLike]], own: Mapping[str, str], seed: int = 0
) -> TaskDrops:
    """Ablate each set of heads on every example of each column; the core of the analyses, on any experiments.

    All sets of a task are asked for at once, each different mask once. ``spent`` counts every different mask
    (the intact one among them) on every example, with what ``mean`` or ``resample`` ablation runs beforehand. Columns
    of one name, or of different grids, raise ``ValueError`` before anything is measured.
    """
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"tasks must have different names, got two or more of {', '.join(map(repr, twice))}")
    empty = [column.name for column in columns if not column.parts]
    if not columns or empty:
        raise ValueError(f"suites must hold one task or more, got none in {', '.join(map(repr, empty)) or 'any'}")
    grid = columns[0].parts[0].grid
    if any(part.grid != grid for column in columns for part in column.parts):
        raise ValueError("tasks must all be measured on one grid")
    once, place = different(explicit(grid, [[], *heads.values()]))
    drops: dict[str, dict[str, TaskDrop]] = {found: {} for found in heads}
    spent = 0
    for column in columns:
        scores = [part(once)[place] for part in column.parts]
        spent += sum(len(once) * part.n_examples + getattr(part, "preparation", 0) for part in column.parts)
        for row, found in enumerate(heads, start=1):
            parts = [(each[0], each[row]) for each in scores]
            drops[found][column.name] = task_drop(column.name, column.chance, parts, seed)
    origin = _provenance(columns[0].parts[0])
    return TaskDrops(
        heads={found: tuple(grid.resolve(head) for head in named) for found, named in heads.items()},
        drops=drops,
        roles={column.name: column.role for column in columns},
        own=dict(own),
        spent=spent,
        provenance={
            **origin,
            "tasks": {column.name: [_provenance(part).get("task") for part in column.parts] for column in columns},
            "seed": seed,
        },
    )


def _provenance(experiment: ExperimentLike) -> dict[str, Any]:
    """What an experiment says of its origin; nothing where it does not say."""
    said: Callable[[], dict[str, Any]] = getattr(experiment, "provenance", dict)
    return said()
