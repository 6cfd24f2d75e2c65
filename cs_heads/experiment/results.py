"""What has been measured: score, log-probability and margin per (mask, example)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.designs import described, packed
from cs_heads.store.task_results import TaskResults
from cs_heads.units import HeadGrid

if TYPE_CHECKING:
    import pandas as pd

SCORE, LOGPROB, MARGIN = range(3)
"""The columns of an entry."""

Measured = Float[np.ndarray, "example 3"]
Run = Callable[
    [Shaped[np.ndarray, "pair layer head"], Int[np.ndarray, " pair"], Bool[np.ndarray, " pair"]],
    Iterator[list[tuple[int, Float[np.ndarray, " 3"]]]],
]
"""Masks and examples of different pairs, and which of them are known and not asked for: yields batches of results."""


class Results:
    """Scores, log-probabilities and margins by mask; NaN where an example has not been measured under it.

    The key of an entry is the whole mask: a result never answers for another ablation.
    """

    def __init__(self, grid: HeadGrid, n_examples: int) -> None:
        self.grid = grid
        self.n_examples = n_examples
        self._by_mask: dict[bytes, Measured] = {}

    def at(self, key: bytes) -> Measured:
        """The entry of a mask by its key."""
        if key not in self._by_mask:
            self._by_mask[key] = np.full((self.n_examples, 3), np.nan)
        return self._by_mask[key]

    def to_frame(self) -> pd.DataFrame:
        """One row a (mask, example) that was measured: the heads ablated, score, logprob and margin."""
        import pandas as pd

        records = []
        for key, measured in self._by_mask.items():
            ablated = described(self.grid, key)
            for example in np.flatnonzero(~np.isnan(measured).all(axis=1)):
                records.append((*ablated, int(example), *measured[example]))
        return pd.DataFrame(records, columns=["ablated", "n_ablated", "example", "score", "logprob", "margin"])


class Measurement:
    """What one run gives of ``results``, told by a column that it fills: taken from the store, or else run.

    ``taken`` counts the different pairs asked for so far, ``ran`` those that were run here: a pair twice where the
    store had it without the column asked for.
    """

    def __init__(self, results: Results, column: int, stored: TaskResults | None) -> None:
        self.results, self.column, self.stored = results, column, stored
        self.taken = self.ran = 0

    def __call__(
        self,
        masks: Shaped[np.ndarray, "row layer head"],
        examples: Int[np.ndarray, "row k"],
        run: Run,
        wanted: int | None = None,
    ) -> Float[np.ndarray, "row k 3"]:
        """The entries of each row's examples, with what was missing measured and kept, batch by batch.

        ``wanted`` is the column asked for (None: the measurement's own).
        """
        wanted = self.column if wanted is None else wanted
        keys = [packed(mask) for mask in masks]
        entries = [self.results.at(mask) for mask in keys]
        if self.stored is not None:
            self.stored.save()
        pairs = _different(keys, examples, self.results.n_examples)
        missing = _missing(entries, pairs, wanted)
        if missing.any():
            self._read(keys, entries, pairs[missing])
            missing = _missing(entries, pairs, wanted)
        if missing.any():
            self._run(masks, keys, entries, pairs, run, missing=missing)
        return np.stack([entry[chosen] for entry, chosen in zip(entries, examples, strict=True)])

    def _read(self, keys: list[bytes], entries: list[Measured], pairs: Int[np.ndarray, "pair 2"]) -> None:
        """Fill in what the store has of these pairs."""
        if self.stored is None:
            return
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        rows, begins = np.unique(pairs[:, 0], return_index=True)
        for row, asked in zip(rows, np.split(pairs[:, 1], begins[1:]), strict=False):
            found = self.stored.read(keys[row])
            if found:
                places = np.array([place for place, _ in found])
                values = np.array([values for _, values in found], dtype=float)
                chosen = np.isin(places, asked)
                self._keep(entries[row], places[chosen], values[chosen])

    def _run(
        self,
        masks: Shaped[np.ndarray, "row layer head"],
        keys: list[bytes],
        entries: list[Measured],
        pairs: Int[np.ndarray, "pair 2"],
        run: Run,
        *,
        missing: Bool[np.ndarray, " pair"],
    ) -> None:
        if self.stored is None:
            call, chosen, known = None, pairs[missing], np.zeros(int(missing.sum()), dtype=bool)
        else:
            call = self.stored.begin([keys[row] for row in pairs[:, 0]], pairs[:, 1], missing)
            chosen, known = pairs[call.pairs], call.known
        for batch in run(masks[chosen[:, 0]], chosen[:, 1], known):
            for pair, values in batch:
                row, example = chosen[pair]
                self._keep(entries[row], np.array([example]), values[None])
            self.ran += len(batch)
            if self.stored is not None:
                places = [(*chosen[pair], values) for pair, values in batch]
                self.stored.write([(keys[row], int(e), tuple(values.tolist())) for row, e, values in places], call)
        if self.stored is not None and call is not None:
            self.stored.end(call)

    def _keep(self, entry: Measured, examples: Int[np.ndarray, " n"], values: Float[np.ndarray, "n 3"]) -> None:
        """Take in results of different examples; what is known stays."""
        self.taken += int(np.isnan(entry[examples, self.column]).sum())
        entry[examples] = np.where(np.isnan(entry[examples]), values, entry[examples])


def _missing(entries: list[Measured], pairs: Int[np.ndarray, "pair 2"], column: int) -> Bool[np.ndarray, " pair"]:
    known = np.stack([entry[:, column] for entry in entries])
    return np.isnan(known[pairs[:, 0], pairs[:, 1]])


def _different(keys: list[bytes], examples: Int[np.ndarray, "row k"], n_examples: int) -> Int[np.ndarray, "pair 2"]:
    """The different pairs of a request, (first row of the mask, example), in the order they come."""
    first: dict[bytes, int] = {}
    rows = np.array([first.setdefault(mask, row) for row, mask in enumerate(keys)])
    numbers = (rows[:, None] * n_examples + examples).ravel()
    _, places = np.unique(numbers, return_index=True)
    return np.stack(np.divmod(numbers[np.sort(places)], n_examples), axis=1)
