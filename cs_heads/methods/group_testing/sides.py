"""A task, or its controls, under masks: what they keep, what they keep as a rule, and groups of heads that take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from cs_heads.experiment.cost import Budget
from cs_heads.methods.controls import Controls, TaskLoss
from cs_heads.units import HeadGrid

Losses: TypeAlias = Float[np.ndarray, "row k"]

# A group is shared where its controls lose half as much as the task and more than this.
_SHARED = 0.25
# Nothing is lost or kept for sure.
LEAST = 0.02


@dataclass
class Side:
    """A task, or its controls: how much of it masks keep, and how much masks of ``n`` heads keep as a rule.

    What is kept is the response above guessing as a share of the intact one, clipped to 0..1; ``floor`` is what an
    answer that is guessed keeps on average after the clip. Masks of ``n`` heads keep ``exp(-n / scale)``.
    """

    losses: TaskLoss | Controls
    n_examples: int
    floor: float
    scale: float
    purse: Budget
    rng: np.random.Generator = field(repr=False)
    seen: list[tuple[int, float, int]] = field(default_factory=list, repr=False)

    def losses_of(self, grid: HeadGrid, off: Sequence[np.ndarray], n: int, *, same: bool = False) -> Losses:
        """What each of ``n`` random examples loses with each row's heads off, the ``same`` in all rows or others."""
        n = min(n, self.n_examples)
        self.purse.pay(n * len(off))
        masks = np.zeros((len(off), grid.size), dtype=bool)
        for mask, heads in zip(masks, off, strict=True):
            mask[heads] = True
        places = self.rng.random((1 if same else len(off), self.n_examples)).argsort(axis=1)[:, :n]
        return self.losses(masks.reshape(-1, *grid.shape), np.broadcast_to(places, (len(off), n)).copy())

    def keep(self, grid: HeadGrid, off: Sequence[np.ndarray], n: int) -> Float[np.ndarray, "row k"]:
        """What each of ``n`` random examples keeps with each row's heads off, within 0..1."""
        return np.clip(1 - self.losses_of(grid, off, n), 0, 1)

    def error_of(self, losses: Float[np.ndarray, " k"]) -> float:
        """The standard error of a mean loss; as if half an example more had gone the other way.

        None lost of a few is no proof that none is.
        """
        one = 1 / (1 - self.floor)
        return float(np.sqrt((losses.var() * len(losses) + one**2 / 2) / len(losses) / (len(losses) + 1)))

    def rule(self, n: Any, effect: Any = 0.0) -> Any:
        """What an example keeps on average with ``n`` random heads off, and heads that take ``effect``."""
        kept = self.floor + (1 - self.floor) * np.exp(-np.asarray(n) / self.scale) * (1 - effect)
        return np.clip(kept, LEAST, 1 - LEAST)

    def learn(self, n: int, kept: Float[np.ndarray, "row k"]) -> None:
        """Learn from random masks of ``n`` heads what such masks keep; the last few waves count."""
        self.seen = [*self.seen[-7:], (n, float(kept.mean()), kept.size)]
        sizes, means, times = np.array(self.seen).T
        above = (np.average(means, weights=times) - self.floor) / (1 - self.floor)
        self.scale = float(np.average(sizes, weights=times) / -np.log(np.clip(above, 0.1, 0.97)))

    def evidence(self, n: int, kept: Float[np.ndarray, "*row k"]) -> Float[np.ndarray, "*row"]:
        """Log likelihood ratio of answers: that half of what masks of ``n`` heads keep is gone, against the rule."""
        clean, broken = self.rule(n), self.rule(n, 0.5)
        return np.asarray((kept * np.log(broken / clean) + (1 - kept) * np.log((1 - broken) / (1 - clean))).sum(-1))


@dataclass(frozen=True)
class Group:
    """One head, or a pair, and what the task and its controls lose with it off (shares, with standard errors)."""

    heads: tuple[int, ...]
    task: float
    task_error: float
    controls: float
    controls_error: float

    @property
    def z(self) -> float:
        """By how many standard errors the task loses more than its controls."""
        return (self.task - self.controls) / float(np.hypot(self.task_error, self.controls_error))

    @property
    def is_shared(self) -> bool:
        """Whether the controls lose it as well."""
        return self.controls > max(_SHARED, self.task / 2)
