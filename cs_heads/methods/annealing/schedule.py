"""How a search spends its budget: how many heads go off, out of how many, and which are finalists."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np

WHOLE = 0.4
"""Share of the budget that is spent on all heads."""
LAST = 0.7
"""Share of the budget after which the last phase begins."""
ROWS_A_HEAD = 2
"""Rows of the last phase for each head in its fit, below which errors come out far too small."""
MIN_ROWS, MIN_BATCHES = 4, 4
"""Rows of a batch below which no regression after it means anything; batches below which none follows ``LAST``."""
TARGET, LAST_TARGET = 0.65, 0.8
"""Share of the score above chance that masks leave; the same in the last phase."""
DENSITY, MAX_DENSITY = 0.03, 0.12
"""Share of the heads that are off in the first masks, and in any mask at most."""
N_FINALISTS, N_DECOYS = 20, 6
"""Heads of the last phase, and random heads that they are compared with."""

_MAX_STEP = 1.7
_LEVELS = (0.6, 1.0, 1.4)
# How far rows of a group may differ in heads off and in the pool: the larger by the smaller.
_LIKE = 1.15, 1.65


@dataclass
class DensityControl:
    """Adjusts the number of heads off so that the mean score of a batch stays near ``target`` of the intact one.

    A score that falls by the same factor with each head off gives ``ratio = exp(-a * n_off)``; each
    batch estimates ``a`` anew. One step changes the number by a factor of 1.7 at most, within 1 and
    both ``MAX_DENSITY`` of the grid and half of the pool.
    """

    n_heads: int
    n_off: float
    target: float = TARGET

    @classmethod
    def of(cls, n_heads: int) -> DensityControl:
        """That of the first masks of a grid."""
        return cls(n_heads, DENSITY * n_heads)

    def observe(self, ratio: float, n_off: float) -> None:
        """Update after rows that kept this share of the intact score, with ``n_off`` heads off on average."""
        slope = -np.log(np.clip(ratio, 0.02, 0.999)) / n_off
        wanted = -np.log(self.target) / slope
        self.n_off *= float(np.clip(wanted / self.n_off, 1 / _MAX_STEP, _MAX_STEP))

    def begin_last(self, taken: float) -> None:
        """Begin the last phase, of heads each of which takes this share of the score above guessing on average."""
        self.target = LAST_TARGET
        self.n_off = float(-np.log(LAST_TARGET) / max(taken, 1e-3))

    def numbers(self, pool: int, levels: bool) -> list[int]:
        """The numbers of heads off in a row: one, or with ``levels`` three in turn, all within the bounds."""
        most = max(1.0, min(pool / 2, MAX_DENSITY * self.n_heads))
        self.n_off = float(np.clip(self.n_off, 1.0, most))
        factors = _LEVELS if levels else (1.0,)
        return [int(np.clip(round(self.n_off * factor), 1, int(most))) for factor in factors]


@dataclass
class Groups:
    """Numbers the groups of rows that share an intercept, by heads off and size of the pool."""

    _seen: list[tuple[int, int] | None] = field(default_factory=list)

    def of(self, n_off: int, pool: int) -> int:
        """The first group that is similar in both, or a new one."""
        for number, seen in enumerate(self._seen):
            if seen and _ratio(seen[0], n_off) <= _LIKE[0] and _ratio(seen[1], pool) <= _LIKE[1]:
                return number
        return self.new((n_off, pool))

    def new(self, like: tuple[int, int] | None = None) -> int:
        """A new group, which no other rows join unless they are similar to ``like``."""
        self._seen.append(like)
        return len(self._seen) - 1


def pool_size(done: float, n_heads: int, n_finalists: int) -> int:
    """Heads in the pool when ``done`` of the budget is spent: all at first, then geometrically fewer."""
    annealed = min(max((done - WHOLE) / (LAST - WHOLE), 0.0), 1.0)
    return max(n_finalists, round(n_heads * (n_finalists / n_heads) ** annealed))


def rows_for_intervals(n_batches: int, n_heads: int) -> int:
    """Rows of the whole search that leave the last phase two for each of its heads, and some for those left out.

    >>> rows_for_intervals(14, 26)
    201
    """
    last = sum(batch / n_batches >= LAST for batch in range(n_batches))
    return ceil(1.1 * ROWS_A_HEAD * n_heads * n_batches / last)


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)
