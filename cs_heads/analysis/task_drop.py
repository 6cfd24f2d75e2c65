"""What ablating heads takes from one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cs_heads.analysis.intervals import UNKNOWN, Interval, Scores, paired_intervals
from cs_heads.arguments import check_seed
from cs_heads.experiment.baseline import too_low


@dataclass(frozen=True)
class TaskDrop:
    """What ablating the heads does to one task, with 95 % intervals (``paired_intervals`` says which).

    ``interval`` is that of ``drop``, ``relative_interval`` of ``relative_drop``, ``share_interval`` of ``share_lost``;
    a bound that is not known is NaN. ``too_low`` says why the task cannot show a drop, where its baseline does not
    allow one: its relative drop and share lost are NaN then, for they would be nothing but noise.
    """

    task: str
    n_examples: int
    chance: float
    baseline: float
    score: float
    interval: Interval
    too_low: str | None = None
    relative_interval: Interval = UNKNOWN
    share_interval: Interval = UNKNOWN

    @property
    def drop(self) -> float:
        """Baseline minus score, in points."""
        return self.baseline - self.score

    @property
    def relative_drop(self) -> float:
        """Drop as a share of the baseline; NaN where the baseline is too low to show one."""
        return self.drop / self.baseline if self.baseline and not self.too_low else float("nan")

    @property
    def share_lost(self) -> float:
        """Drop as a share of what the baseline has above chance; NaN where the baseline is too low to show one."""
        return self.drop / (self.baseline - self.chance) if self.baseline > self.chance and not self.too_low else np.nan

    def to_dict(self) -> dict[str, Any]:
        """Every number of it, JSON-ready; what is not known is None."""
        numbers = {
            "drop": self.drop,
            "low": self.interval[0],
            "high": self.interval[1],
            "relative_drop": self.relative_drop,
            "relative_low": self.relative_interval[0],
            "relative_high": self.relative_interval[1],
            "share_lost": self.share_lost,
            "share_low": self.share_interval[0],
            "share_high": self.share_interval[1],
        }
        return {
            "task": self.task,
            "n_examples": self.n_examples,
            "chance": self.chance,
            "baseline": self.baseline,
            "score": self.score,
            **{name: None if np.isnan(number) else number for name, number in numbers.items()},
            "too_low": self.too_low,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TaskDrop:
        """What ``to_dict`` wrote; a number that is missing raises ``KeyError``."""

        def bounds(name: str) -> Interval:
            low, high = (np.nan if record[key] is None else float(record[key]) for key in (f"{name}low", f"{name}high"))
            return low, high

        return cls(
            task=record["task"],
            n_examples=record["n_examples"],
            chance=record["chance"],
            baseline=record["baseline"],
            score=record["score"],
            interval=bounds(""),
            too_low=record["too_low"],
            relative_interval=bounds("relative_"),
            share_interval=bounds("share_"),
        )


def task_drop(
    name: str,
    chance: float | Sequence[float],
    parts: Sequence[tuple[Scores, Scores]],
    seed: int = 0,
    low: Sequence[str | None] | None = None,
) -> TaskDrop:
    """The drop of a task, or of a suite: the mean of its parts, which weigh the same however many examples they have.

    Each part holds the scores of its examples with no head off and with the heads off, in the same order; ``chance`` is
    that of each part, or of all. A suite is too low to show a drop where one of its parts is; ``low`` says why of each
    part, or None (None: by its scores and chance alone, see ``baseline_too_low``).

    >>> task_drop("t", 0.0, [(np.ones(40), np.repeat([1.0, 0.0], 20))]).relative_drop
    0.5
    """
    check_seed(seed)
    chances = [chance] * len(parts) if isinstance(chance, int | float) else list(chance)
    baseline, score = (float(np.mean([pair[side].mean() for pair in parts])) for side in (0, 1))
    reasons = (
        [too_low(intact, guess) for (intact, _), guess in zip(parts, chances, strict=True)] if low is None else low
    )
    named = [
        reason if len(parts) == 1 else f"part {number} of {len(parts)}: {reason}"
        for number, reason in enumerate(reasons, start=1)
        if reason
    ]
    mean = float(np.mean(chances))
    interval, relative, share = paired_intervals(parts, mean, seed)
    return TaskDrop(
        task=name,
        n_examples=sum(len(intact) for intact, _ in parts),
        chance=mean,
        baseline=baseline,
        score=score,
        interval=interval,
        too_low="; ".join(named) or None,
        relative_interval=UNKNOWN if named else relative,
        share_interval=UNKNOWN if named else share,
    )
