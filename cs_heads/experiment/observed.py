"""What a model has said of continuations: in memory by mask, and in the store where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.designs import mask_key
from cs_heads.engine.protocol import PairMasks, PairResult
from cs_heads.store.stored_observations import PlannedCall, StoredObservations, begin_together, packed, unpacked

Entry = Float[np.ndarray, "example continuation 2"]
"""Log-probability (nats) and share of argmax tokens of each continuation, under one mask."""


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


class Observed:
    """Observations by mask and example; NaN where an example has not been observed under it.

    The key of an entry is the whole mask: an observation never answers for another ablation. ``taken`` counts the
    different pairs asked for so far, ``ran`` those that were run here.

    Args:
        n_continuations: Of each example.
        stored: Those of the store; None without one.
    """

    def __init__(self, n_continuations: Sequence[int], stored: StoredObservations | None) -> None:
        self.n_continuations, self.stored = n_continuations, stored
        self.taken = self.ran = 0
        self.by_mask: dict[bytes, Entry] = {}

    def at(self, key: bytes) -> Entry:
        """The entry of a mask by its key."""
        if key not in self.by_mask:
            self.by_mask[key] = np.full((len(self.n_continuations), max(self.n_continuations), 2), np.nan)
        return self.by_mask[key]

    def look_up(self, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]) -> LookedUp:
        """What is known of each row's examples, once the store has given what it has."""
        keys = [mask_key(mask) for mask in masks]
        entries = [self.at(key) for key in keys]
        if self.stored is not None:
            self.stored.flush()
        pairs = _different(keys, examples, len(self.n_continuations))
        missing = _missing(entries, pairs)
        if missing.any() and self.stored is not None:
            self._read(self.stored, keys, entries, pairs[missing])
            missing = _missing(entries, pairs)
        return LookedUp(masks, keys, entries, pairs, missing)

    def keep(self, request: Request, batch: Sequence[PairResult]) -> None:
        """Take in what was run of a request, in memory and in the store: the number of each pair, and what was said."""
        written = []
        for pair, logprobs, greedy in batch:
            row, example = request.rows[pair], int(request.examples[pair])
            said = np.stack([logprobs, greedy], axis=1).astype(float)
            self._take(request.entries[row], example, said)
            written.append((request.keys[row], example, (packed(said), None)))
        self.ran += len(batch)
        if self.stored is not None:
            self.stored.write(written, request.planned)

    def end(self, request: Request) -> None:
        """All of a request was run."""
        if self.stored is not None and request.planned is not None:
            self.stored.end(request.planned)

    def _read(
        self, stored: StoredObservations, keys: list[bytes], entries: list[Entry], pairs: Int[np.ndarray, "pair 2"]
    ) -> None:
        """Take in what the store has of these pairs."""
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        rows, begins = np.unique(pairs[:, 0], return_index=True)
        for row, asked in zip(rows, np.split(pairs[:, 1], begins[1:]), strict=False):
            chosen = {*asked.tolist()}
            for place, said in stored.read(keys[row]):
                if place in chosen:
                    try:
                        numbers = unpacked(said, self.n_continuations[place])
                    except (TypeError, ValueError) as error:
                        raise stored.broken(place, said, error) from error
                    self._take(entries[row], place, numbers)

    def _take(self, entry: Entry, example: int, said: Float[np.ndarray, "continuation 2"]) -> None:
        """Take in one observation; what is known stays."""
        if np.isnan(entry[example, 0, 0]):
            self.taken += 1
            entry[example, : len(said)] = said


def requests(parts: Sequence[tuple[Observed, LookedUp]]) -> list[Request]:
    """What must be run to know all pairs that were looked up, of several tasks in one call."""
    found = [looked_up for _, looked_up in parts]
    planned: list[PlannedCall | None] = [None] * len(parts)
    if any(each.missing.any() for each in found):
        asked = [
            (observed.stored, [each.keys[row] for row in each.pairs[:, 0]], each.pairs[:, 1], each.missing)
            for observed, each in parts
            if observed.stored is not None
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


def _missing(entries: list[Entry], pairs: Int[np.ndarray, "pair 2"]) -> Bool[np.ndarray, " pair"]:
    known = np.stack([entry[:, 0, 0] for entry in entries])
    return np.isnan(known[pairs[:, 0], pairs[:, 1]])


def _different(keys: list[bytes], examples: Int[np.ndarray, "row k"], n_examples: int) -> Int[np.ndarray, "pair 2"]:
    """The different pairs of a request, (first row of the mask, example), in the order they come."""
    first: dict[bytes, int] = {}
    rows = np.array([first.setdefault(mask, row) for row, mask in enumerate(keys)])
    numbers = (rows[:, None] * n_examples + examples).ravel()
    _, places = np.unique(numbers, return_index=True)
    return np.stack(np.divmod(numbers[np.sort(places)], n_examples), axis=1)
