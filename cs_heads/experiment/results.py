"""What an experiment has measured: in memory by mask, and in the store where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.designs import key_in_words, mask_key
from cs_heads.engine.protocol import PairMasks
from cs_heads.store.stored_results import PlannedCall, StoredResults, begin_together
from cs_heads.units import Grid

if TYPE_CHECKING:
    import pandas as pd

SCORE, LOGPROB, MARGIN = range(3)
"""The columns of an entry."""

Entry = Float[np.ndarray, "example 3"]


class ResultTable:
    """Scores, log-probabilities and margins by mask; NaN where an example has not been measured under it.

    The key of an entry is the whole mask: a result never answers for another ablation.
    """

    def __init__(self, grid: Grid, n_examples: int) -> None:
        self.grid = grid
        self.n_examples = n_examples
        self._by_mask: dict[bytes, Entry] = {}

    def at(self, key: bytes) -> Entry:
        """The entry of a mask by its key."""
        if key not in self._by_mask:
            self._by_mask[key] = np.full((self.n_examples, 3), np.nan)
        return self._by_mask[key]

    def to_frame(self) -> pd.DataFrame:
        """One row a (mask, example) that was measured: the heads ablated, score, logprob and margin."""
        import pandas as pd

        records = []
        for key, entry in self._by_mask.items():
            ablated = key_in_words(self.grid, key)
            for example in np.flatnonzero(~np.isnan(entry).all(axis=1)):
                records.append((*ablated, int(example), *entry[example]))
        return pd.DataFrame(records, columns=["ablated", "n_ablated", "example", "score", "logprob", "margin"])


@dataclass(frozen=True, eq=False)
class Request:
    """What a call needs that nothing has: different (mask, example) pairs, for the model to run.

    Where it resumes a call that was cut short, it is planned as that was: those ``known`` by now stand among the
    pairs, and are not run. ``keys`` and ``entries`` are those of each row of the call, ``rows`` the row of each pair.
    """

    masks: PairMasks
    examples: Int[np.ndarray, " pair"]
    known: Bool[np.ndarray, " pair"]
    rows: Int[np.ndarray, " pair"]
    keys: list[bytes]
    entries: list[Entry]
    planned: PlannedCall | None


@dataclass(frozen=True, eq=False)
class LookedUp:
    """Different (mask, example) pairs of a call, and which of them nothing has."""

    masks: Shaped[np.ndarray, "row layer head"]
    keys: list[bytes]
    entries: list[Entry]
    pairs: Int[np.ndarray, "pair 2"]
    missing: Bool[np.ndarray, " pair"]


class CachedResults:
    """A table and its store, for one way of running a model, which fills one ``column`` of them, or more.

    ``taken`` counts the different pairs asked for so far, ``ran`` those that were run here: a pair twice where the
    store had it without the column asked for.
    """

    def __init__(self, table: ResultTable, column: int, stored: StoredResults | None) -> None:
        self.table, self.column, self.stored = table, column, stored
        self.taken = self.ran = 0

    def look_up(
        self, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"], column: int
    ) -> LookedUp:
        """What is known of a column of each row's examples, once the store has given what it has."""
        keys = [mask_key(mask) for mask in masks]
        entries = [self.table.at(key) for key in keys]
        if self.stored is not None:
            self.stored.flush()
        pairs = _different(keys, examples, self.table.n_examples)
        missing = _missing(entries, pairs, column)
        if missing.any() and self.stored is not None:
            self._read(self.stored, keys, entries, pairs[missing])
            missing = _missing(entries, pairs, column)
        return LookedUp(masks, keys, entries, pairs, missing)

    def keep(self, request: Request, batch: Sequence[tuple[int, Float[np.ndarray, " 3"]]]) -> None:
        """Take in what was run of a request, in memory and in the store: the number of each pair, and its values."""
        for pair, values in batch:
            self._take(request.entries[request.rows[pair]], request.examples[[pair]], values[None])
        self.ran += len(batch)
        if self.stored is not None:
            places = [(request.keys[request.rows[pair]], int(request.examples[pair]), values) for pair, values in batch]
            self.stored.write([(*place, tuple(values.tolist())) for *place, values in places], request.planned)

    def end(self, request: Request) -> None:
        """All of a request was run."""
        if self.stored is not None and request.planned is not None:
            self.stored.end(request.planned)

    def _read(
        self, stored: StoredResults, keys: list[bytes], entries: list[Entry], pairs: Int[np.ndarray, "pair 2"]
    ) -> None:
        """Take in what the store has of these pairs."""
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        rows, begins = np.unique(pairs[:, 0], return_index=True)
        for row, asked in zip(rows, np.split(pairs[:, 1], begins[1:]), strict=False):
            found = stored.read(keys[row])
            if found:
                places = np.array([place for place, _ in found])
                values = np.array([values for _, values in found], dtype=float)
                chosen = np.isin(places, asked)
                self._take(entries[row], places[chosen], values[chosen])

    def _take(self, entry: Entry, examples: Int[np.ndarray, " n"], values: Float[np.ndarray, "n 3"]) -> None:
        """Take in results of different examples; what is known stays."""
        self.taken += int(np.isnan(entry[examples, self.column]).sum())
        entry[examples] = np.where(np.isnan(entry[examples]), values, entry[examples])


def requests(parts: Sequence[tuple[CachedResults, LookedUp]]) -> list[Request]:
    """What must be run to know all pairs that were looked up, of several tasks in one call."""
    found = [looked_up for _, looked_up in parts]
    planned: list[PlannedCall | None] = [None] * len(parts)
    stored = [cached.stored for cached, _ in parts]
    if any(each.missing.any() for each in found):
        asked = [
            (results, [each.keys[row] for row in each.pairs[:, 0]], each.pairs[:, 1], each.missing)
            for results, each in zip(stored, found, strict=True)
            if results is not None
        ]
        planned = [*begin_together(asked)] if asked else planned
    made = []
    for each, plan in zip(found, planned, strict=True):
        chosen = each.pairs[each.missing if plan is None else plan.pairs]
        known = np.zeros(len(chosen), dtype=bool) if plan is None else plan.known
        rows, examples = chosen.T
        masks = PairMasks(each.masks, rows)
        made.append(Request(masks, examples, known, rows, each.keys, each.entries, plan))
    return made


def _missing(entries: list[Entry], pairs: Int[np.ndarray, "pair 2"], column: int) -> Bool[np.ndarray, " pair"]:
    known = np.stack([entry[:, column] for entry in entries])
    return np.isnan(known[pairs[:, 0], pairs[:, 1]])


def _different(keys: list[bytes], examples: Int[np.ndarray, "row k"], n_examples: int) -> Int[np.ndarray, "pair 2"]:
    """The different pairs of a request, (first row of the mask, example), in the order they come."""
    first: dict[bytes, int] = {}
    rows = np.array([first.setdefault(mask, row) for row, mask in enumerate(keys)])
    numbers = (rows[:, None] * n_examples + examples).ravel()
    _, places = np.unique(numbers, return_index=True)
    return np.stack(np.divmod(numbers[np.sort(places)], n_examples), axis=1)
