"""How many heads are off, and which are still looked at, as the budget runs down."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np
from jaxtyping import Float, Int

from cs_heads.methods.annealing.inference import ROWS_A_HEAD

WHOLE = 0.4
"""Share of the budget that is spent on all heads."""
LAST = 0.7
"""Share of the budget after which the last phase begins."""

_MAX_STEP = 1.7
_LEVELS = (0.6, 1.0, 1.4)


@dataclass
class DensityControl:
    """Keeps the mean score of a batch near ``target`` of the intact one by the number of heads off.

    A score that falls by the same factor with each head off gives ``ratio = exp(-a * n_off)``; each
    batch estimates ``a`` anew. One step changes the number by a factor of 1.7 at most, within 1 and
    both ``max_density`` of the grid and half of the pool.
    """

    n_heads: int
    target: float
    max_density: float
    n_off: float

    def observe(self, ratio: float, n_off: float) -> None:
        """Take in that rows with ``n_off`` heads off on average kept this share of the intact score."""
        slope = -np.log(np.clip(ratio, 0.02, 0.999)) / n_off
        wanted = -np.log(self.target) / slope
        self.n_off *= float(np.clip(wanted / self.n_off, 1 / _MAX_STEP, _MAX_STEP))

    def resize(self, old: int, new: int) -> None:
        """The pool went from ``old`` heads to ``new``, and those that stay do more harm."""
        self.n_off *= float(np.sqrt(new / old))

    def begin(self, target: float, taken: float) -> None:
        """Aim anew, at ``target``, with heads that take this share of the score above guessing each, in the mean."""
        self.target = target
        self.n_off = float(-np.log(target) / max(taken, 1e-3))

    def numbers(self, pool: int, levels: bool) -> list[int]:
        """Heads off in a row, one number or, with ``levels``, three in turn; none beyond the bounds."""
        most = max(1.0, min(pool / 2, self.max_density * self.n_heads))
        self.n_off = float(np.clip(self.n_off, 1.0, most))
        factors = _LEVELS if levels else (1.0,)
        return [int(np.clip(round(self.n_off * factor), 1, int(most))) for factor in factors]


@dataclass
class Groups:
    """Numbers the groups of rows that share an intercept, by heads off and size of the pool."""

    max_off: float = 1.15
    max_pool: float = 1.65
    _seen: list[tuple[int, int]] = field(default_factory=list)

    def of(self, n_off: int, pool: int) -> int:
        """The first group that is alike in both, or a new one."""
        for number, (off, size) in enumerate(self._seen):
            if _ratio(off, n_off) <= self.max_off and _ratio(size, pool) <= self.max_pool:
                return number
        self._seen.append((n_off, pool))
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


def finalists_and_decoys(
    merit: Float[np.ndarray, " head"], n_finalists: int, n_decoys: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " finalist"], Int[np.ndarray, " decoy"]]:
    """The best heads by merit, and random others to hold them against, none from the best quarter.

    Positions in ``merit``. In a small grid the best quarter may be smaller than the finalists, and there may
    be fewer decoys than asked for.
    """
    order = np.argsort(-merit, kind="stable")
    rest = order[max(n_finalists, len(order) // 4) :]
    return order[:n_finalists], rng.permutation(rest)[:n_decoys]


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)
