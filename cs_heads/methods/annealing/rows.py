"""What annealed sensing measures: rows of few heads off, each on few examples of the task and of its controls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

# Entries of the masks built at once, 64 MiB of bools.
_MAX_ENTRIES = 2**26


@dataclass(frozen=True, eq=False)
class Rows:
    """Measured rows: the heads off in each (sparse, 1 = off), its examples, their scores, its group.

    ``drawn`` are the examples of the controls and ``losses`` what they lost; without controls a row has none. Rows of
    one group share an intercept; ``last`` marks those of the last phase.
    """

    off: sparse.csr_array
    examples: Int[np.ndarray, "row k"]
    scores: Float[np.ndarray, "row k"]
    drawn: Int[np.ndarray, "row c"]
    losses: Float[np.ndarray, "row c"]
    group: Int[np.ndarray, " row"]
    last: Bool[np.ndarray, " row"]

    @classmethod
    def none(cls, n_heads: int, per_row: int, of_controls: int = 0) -> Rows:
        """No rows yet."""
        empty = np.zeros(0, dtype=int)
        return cls(
            sparse_rows([], n_heads),
            np.zeros((0, per_row), int),
            np.zeros((0, per_row)),
            np.zeros((0, of_controls), int),
            np.zeros((0, of_controls)),
            empty,
            empty.astype(bool),
        )

    def __len__(self) -> int:
        return len(self.group)

    def __getitem__(self, chosen: np.ndarray) -> Rows:
        return Rows(
            self.off[chosen],
            self.examples[chosen],
            self.scores[chosen],
            self.drawn[chosen],
            self.losses[chosen],
            self.group[chosen],
            self.last[chosen],
        )

    def __add__(self, other: Rows) -> Rows:
        return Rows(
            sparse.vstack([self.off, other.off], format="csr"),
            np.concatenate([self.examples, other.examples]),
            np.concatenate([self.scores, other.scores]),
            np.concatenate([self.drawn, other.drawn]),
            np.concatenate([self.losses, other.losses]),
            np.concatenate([self.group, other.group]),
            np.concatenate([self.last, other.last]),
        )

    def without(self, heads: Iterable[int]) -> Rows:
        """The rows in which none of these heads (flat indices) is off."""
        columns = list(heads)
        return self[np.flatnonzero(self.off[:, columns].sum(axis=1) == 0)] if columns else self

    def response(self) -> Float[np.ndarray, " row"]:
        """Mean score of each row's examples, hard examples not held against it."""
        return row_means(self.scores, self.examples)

    def control_response(self) -> Float[np.ndarray, " row"]:
        """Mean loss of each row's control examples, hard examples not held against it."""
        return row_means(self.losses, self.drawn)


def row_means(
    values: Float[np.ndarray, "row k"], examples: Int[np.ndarray, "row k"], n_passes: int = 5
) -> Float[np.ndarray, " row"]:
    """Mean over a row's examples of value less example effect, which alternating passes estimate.

    An example's effect is its mean distance from the rows it stands in, so a row is not called
    harmful for the hard examples it happened to be given.
    """
    effect = np.zeros(int(examples.max()) + 1)
    times = np.maximum(np.bincount(examples.ravel(), minlength=len(effect)), 1)
    for _ in range(n_passes):
        row = (values - effect[examples]).mean(axis=1)
        distance = values - row[:, None]
        effect = np.bincount(examples.ravel(), distance.ravel(), len(effect)) / times
        effect -= (effect * times).sum() / times.sum()
    return np.asarray((values - effect[examples]).mean(axis=1))


def sparse_rows(heads_off: list[np.ndarray], n_heads: int) -> sparse.csr_array:
    """Lists of heads off as a sparse matrix, 1 = off."""
    ends = np.cumsum([0, *map(len, heads_off)])
    indices = np.concatenate(heads_off) if heads_off else np.zeros(0, dtype=int)
    return sparse.csr_array((np.ones(len(indices)), indices, ends), shape=(len(heads_off), n_heads))


def in_chunks(off: sparse.csr_array) -> Iterator[tuple[slice, Bool[np.ndarray, "row flat"]]]:
    """The rows as bool masks, some at a time: a big grid's masks do not fit into memory all at once."""
    step = max(1, _MAX_ENTRIES // off.shape[1])
    for start in range(0, off.shape[0], step):
        rows = slice(start, start + step)
        yield rows, off[rows].astype(bool).toarray()


class BalancedDraws:
    """Draws groups of heads from a pool, those drawn least often so far first, ties at random."""

    def __init__(self, pool: Int[np.ndarray, " head"], rng: np.random.Generator) -> None:
        self.pool = pool
        self._rng = rng
        self._waiting = np.zeros(0, dtype=int)

    def draw(self, n: int) -> Int[np.ndarray, " n"]:
        """``n`` different heads of the pool."""
        chosen, self._waiting = self._waiting[:n], self._waiting[n:]
        if len(chosen) < n:
            # All of the pool have been drawn equally often now: a new order, in which those just chosen wait.
            order = self._rng.permutation(self.pool)
            late = np.isin(order, chosen)
            order = np.concatenate([order[~late], order[late]])
            more = n - len(chosen)
            chosen, self._waiting = np.concatenate([chosen, order[:more]]), order[more:]
        return chosen
