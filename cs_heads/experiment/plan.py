"""A plan: the different (mask, example) pairs that calls ask for, what is known of them, and the rest run once.

``Observed`` keeps what a model has said of the continuations of one task. ``Part`` is what one call asks of it, and
``run`` runs what is missing of several parts in forwards that they share. The number of different pairs is what is
spent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.designs import as_gates, mask_key
from cs_heads.engine.protocol import EngineLike, PairMasks, PairResult
from cs_heads.lens.locks import alone
from cs_heads.progress import counting, is_shown, show_baseline
from cs_heads.store.stored_observations import PlannedCall, StoredObservations, begin_together, packed, unpacked

Entry = Float[np.ndarray, "example continuation 2"]
"""Log-probability (nats) and share of argmax tokens of each continuation, under one mask."""


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

    def take(self, entry: Entry, example: int, said: Float[np.ndarray, "continuation 2"]) -> None:
        """Take in one observation; what is known stays."""
        if np.isnan(entry[example, 0, 0]):
            self.taken += 1
            entry[example, : len(said)] = said

    def read(self, key: bytes, examples: set[int]) -> None:
        """Take in what the store has of these examples under a mask."""
        for place, said in () if self.stored is None else self.stored.read(key):
            if place in examples:
                try:
                    numbers = unpacked(said, self.n_continuations[place])
                except (TypeError, ValueError) as error:
                    assert self.stored is not None
                    raise self.stored.broken(place, said, error) from error
                self.take(self.at(key), place, numbers)


@dataclass(frozen=True, eq=False)
class Source:
    """What runs the examples of a task, and keeps what is said of them.

    Attributes:
        engine: What runs them.
        first: The number that the engine has for the first of them.
        observed: What is known.
        scores: The score of each example under one mask, NaN where it was not measured; to be shown.
        name: That of the task.
        progress: Whether to show a bar.
    """

    engine: EngineLike
    first: int
    observed: Observed
    scores: Callable[[Entry], Float[np.ndarray, " example"]]
    name: str
    progress: bool | None


class Part:
    """What one call asks of a source: different pairs (row of a mask, example), in the order they come.

    Args:
        source: What runs them.
        masks: A mask, or gates, a row.
        examples: Each row's own example indices.
    """

    def __init__(
        self, source: Source, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]
    ) -> None:
        self.source, self.masks = source, masks
        self.keys = [mask_key(mask) for mask in masks]
        self.entries = [source.observed.at(key) for key in self.keys]
        self.pairs = _different(self.keys, examples, len(source.observed.n_continuations))
        if source.observed.stored is not None:
            source.observed.stored.flush()
        absent: dict[int, set[int]] = {}
        for row, example in self.pairs[self.missing].tolist():
            absent.setdefault(row, set()).add(example)
        for row, asked in absent.items():
            source.observed.read(self.keys[row], asked)

    @property
    def missing(self) -> Bool[np.ndarray, " pair"]:
        """The pairs that nothing has."""
        known = np.stack([entry[:, 0, 0] for entry in self.entries])
        return np.isnan(known[self.pairs[:, 0], self.pairs[:, 1]])

    def keep(self, batch: Sequence[tuple[int, int, Float[np.ndarray, "continuation 2"]]], call: PlannedCall) -> None:
        """Take in what was run, in memory and in the store: row, example, and what was said."""
        observed = self.source.observed
        for row, example, said in batch:
            observed.take(self.entries[row], example, said)
        observed.ran += len(batch)
        if observed.stored is not None:
            observed.stored.write(
                [(self.keys[row], example, (packed(said), None)) for row, example, said in batch], call
            )

    def show_baseline(self) -> None:
        """Show what is known of the intact model, where the call asks for it."""
        # Of a mask nothing is True, of gates all are 1.
        nothing_off = (~self.masks if self.masks.dtype == bool else self.masks == 1).all(axis=(1, 2))
        if is_shown() and nothing_off.any():
            show_baseline(self.source.name, self.source.scores(self.entries[int(nothing_off.argmax())]))


def run(parts: Sequence[Part]) -> None:
    """Run what is missing of parts that share an engine, and keep it as it comes; other threads wait meanwhile."""
    with alone(parts[0].source.engine.model):
        calls = _begun(parts)
        chosen = [part.pairs[call.pairs] for part, call in zip(parts, calls, strict=True)]
        starts = np.cumsum([0, *map(len, chosen)])
        if starts[-1]:
            _run(parts, calls, chosen, starts)
        for part, call in zip(parts, calls, strict=True):
            if part.source.observed.stored is not None:
                part.source.observed.stored.end(call)


def _begun(parts: Sequence[Part]) -> list[PlannedCall]:
    """Which pairs to run of each part; where they resume a call that was cut short, as that was planned."""
    missing = [part.missing for part in parts]
    stored = [part.source.observed.stored for part in parts]
    if any(each.any() for each in missing):
        asked = [
            (each, [part.keys[row] for row in part.pairs[:, 0]], part.pairs[:, 1], absent)
            for part, each, absent in zip(parts, stored, missing, strict=True)
            if each is not None
        ]
        if asked:
            return begin_together(asked)
    return [PlannedCall(0, np.flatnonzero(absent), np.zeros(int(absent.sum()), dtype=bool)) for absent in missing]


def _run(
    parts: Sequence[Part],
    calls: Sequence[PlannedCall],
    chosen: Sequence[Int[np.ndarray, "_ 2"]],
    starts: Int[np.ndarray, " start"],
) -> None:
    first = parts[0].source
    numbers = np.concatenate([part.source.first + pairs[:, 1] for part, pairs in zip(parts, chosen, strict=True)])
    known = np.concatenate([call.known for call in calls])
    several = f"{first.name} and {len(parts) - 1} more" if len(parts) > 1 else first.name
    with counting(several, len(numbers), first.progress, int(known.sum())) as bar:
        for batch in first.engine.run(_masks(parts, chosen), numbers, known):
            _keep(parts, calls, chosen, starts, batch)
            last, *_ = batch[-1]
            bar.at(parts[int(np.searchsorted(starts, last, side="right")) - 1].source.name)
            bar.add(len(batch))
            for part in parts:
                part.show_baseline()


def _keep(
    parts: Sequence[Part],
    calls: Sequence[PlannedCall],
    chosen: Sequence[Int[np.ndarray, "_ 2"]],
    starts: Int[np.ndarray, " start"],
    batch: Sequence[PairResult],
) -> None:
    """Keep what a forward gave; a part of which nothing can be written loses nothing of the others."""
    done: list[list[tuple[int, int, np.ndarray]]] = [[] for _ in parts]
    for pair, logprobs, greedy in batch:
        place = int(np.searchsorted(starts, pair, side="right")) - 1
        row, example = chosen[place][pair - starts[place]].tolist()
        done[place].append((row, example, np.stack([logprobs, greedy], axis=1).astype(float)))
    errors: list[Exception] = []
    for part, call, said in zip(parts, calls, done, strict=True):
        try:
            if said:
                part.keep(said, call)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _masks(parts: Sequence[Part], chosen: Sequence[Int[np.ndarray, "_ 2"]]) -> PairMasks:
    """The masks of all pairs, each once; bools and gates together are gates."""
    place: dict[bytes, int] = {}
    masks: list[np.ndarray] = []
    which: list[int] = []
    for part, pairs in zip(parts, chosen, strict=True):
        for row in pairs[:, 0].tolist():
            if part.keys[row] not in place:
                place[part.keys[row]] = len(masks)
                masks.append(part.masks[row])
            which.append(place[part.keys[row]])
    if len({mask.dtype for mask in masks}) > 1:
        masks = [as_gates(mask).astype(np.float32) for mask in masks]
    return PairMasks(np.stack(masks), np.array(which))


def _different(keys: list[bytes], examples: Int[np.ndarray, "row k"], n_examples: int) -> Int[np.ndarray, "pair 2"]:
    """The different pairs of a request, (first row of the mask, example), in the order they come."""
    first: dict[bytes, int] = {}
    rows = np.array([first.setdefault(mask, row) for row, mask in enumerate(keys)])
    numbers = (rows[:, None] * n_examples + examples).ravel()
    _, places = np.unique(numbers, return_index=True)
    return np.stack(np.divmod(numbers[np.sort(places)], n_examples), axis=1)
