"""A plan: the different (mask, example) pairs that calls ask for, what is known of them, and the rest run once.

``Observed`` keeps what a model has said of the continuations of one task. ``Part`` is what one call asks of it, and
``run`` runs what is missing of several parts in forwards that they share. The number of different pairs is what is
spent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.designs import as_gates, mask_key
from cs_heads.engine.protocol import EngineLike, PairMasks, PairResult
from cs_heads.lens.locks import alone
from cs_heads.progress import counting, is_shown, show_baseline
from cs_heads.store.stored_observations import PlannedCall, StoredObservations, begin_together, packed, unpacked
from cs_heads.tasks import Task
from cs_heads.tasks.responses import RESPONSES, Observations

Entry = Float[np.ndarray, "example continuation 2"]
"""Log-probability (nats) and share of argmax tokens of each continuation, under one mask."""


class Observed:
    """What a model said of the examples of a task, by mask; NaN where an example has not been observed under it.

    The key of an entry is the whole mask: an observation never answers for another ablation. ``taken`` counts the
    different pairs asked for so far, ``ran`` those that were run here.

    Args:
        task: The task.
        engine: What runs its examples.
        stored: What the store has; None without one.
        progress: Whether to show a bar.
    """

    def __init__(
        self, task: Task, engine: EngineLike, stored: StoredObservations | None, progress: bool | None
    ) -> None:
        self.task, self.engine, self.stored, self.progress = task, engine, stored, progress
        # The number that the engine has for the first example: that of several tasks numbers them through.
        self.first = 0
        self.n_continuations = [max(1, len(example.continuations)) for example in task.examples]
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

    @staticmethod
    def known(entry: Entry) -> tuple[Int[np.ndarray, " known"], Observations]:
        """The examples that a mask was measured on, and what was said of them."""
        [known] = np.nonzero(~np.isnan(entry[:, 0, 0]))
        said = entry[None, known]
        return known, Observations(known[None], said[..., 0], said[..., 1])

    def scores(self, entry: Entry) -> Float[np.ndarray, " example"]:
        """The score of each example under one mask; NaN where it was not measured, or a scorer judges."""
        scores = np.full(len(entry), np.nan)
        known, said = self.known(entry)
        # What a scorer makes of it is asked for once all is measured.
        if self.task.scorer is None:
            scores[known] = RESPONSES["score"](self.task, said)[0]
        return scores


class Part:
    """What one call asks of a task: different pairs (row of a mask, example), in the order they come.

    Args:
        observed: What is known of it.
        masks: A mask, or gates, a row.
        examples: Each row's own example indices.
    """

    def __init__(
        self, observed: Observed, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]
    ) -> None:
        self.observed, self.masks = observed, masks
        self.keys = [mask_key(mask) for mask in masks]
        self.entries = [observed.at(key) for key in self.keys]
        self.pairs = _different(self.keys, examples, len(observed.n_continuations))
        if observed.stored is not None:
            observed.stored.flush()
        absent: dict[int, set[int]] = {}
        for row, example in self.pairs[self.missing].tolist():
            absent.setdefault(row, set()).add(example)
        for row, asked in absent.items():
            observed.read(self.keys[row], asked)

    @property
    def missing(self) -> Bool[np.ndarray, " pair"]:
        """The pairs that nothing has."""
        known = np.stack([entry[:, 0, 0] for entry in self.entries])
        return np.isnan(known[self.pairs[:, 0], self.pairs[:, 1]])

    def keep(self, batch: Sequence[tuple[int, int, Float[np.ndarray, "continuation 2"]]], call: PlannedCall) -> None:
        """Take in what was run, in memory and in the store: row, example, and what was said."""
        observed = self.observed
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
            show_baseline(self.observed.task.name, self.observed.scores(self.entries[int(nothing_off.argmax())]))


def run(parts: Sequence[Part]) -> None:
    """Run what is missing of parts that share an engine, and keep it as it comes; other threads wait meanwhile."""
    first = parts[0].observed
    with alone(first.engine.model):
        calls = _begun(parts)
        # Of each pair that is planned its part, and its row and example there.
        of = np.repeat(np.arange(len(parts)), [len(call.pairs) for call in calls])
        pairs = np.concatenate([part.pairs[call.pairs] for part, call in zip(parts, calls, strict=True)])
        if len(pairs):
            numbers = np.array([part.observed.first for part in parts])[of] + pairs[:, 1]
            known = np.concatenate([call.known for call in calls])
            several = f"{first.task.name} and {len(parts) - 1} more" if len(parts) > 1 else first.task.name
            with counting(several, len(pairs), first.progress, int(known.sum())) as bar:
                for batch in first.engine.run(_masks(parts, of, pairs), numbers, known):
                    _keep(parts, calls, of, pairs, batch)
                    bar.at(parts[of[batch[-1][0]]].observed.task.name)
                    bar.add(len(batch))
                    for part in parts:
                        part.show_baseline()
        for part, call in zip(parts, calls, strict=True):
            if part.observed.stored is not None:
                part.observed.stored.end(call)


def _begun(parts: Sequence[Part]) -> list[PlannedCall]:
    """Which pairs to run of each part; where they resume a call that was cut short, as that was planned."""
    missing = [part.missing for part in parts]
    stored = [part.observed.stored for part in parts]
    if any(each.any() for each in missing):
        asked = [
            (each, [part.keys[row] for row in part.pairs[:, 0]], part.pairs[:, 1], absent)
            for part, each, absent in zip(parts, stored, missing, strict=True)
            if each is not None
        ]
        if asked:
            return begin_together(asked)
    return [PlannedCall(0, np.flatnonzero(absent), np.zeros(int(absent.sum()), dtype=bool)) for absent in missing]


def _keep(
    parts: Sequence[Part],
    calls: Sequence[PlannedCall],
    of: Int[np.ndarray, " pair"],
    pairs: Int[np.ndarray, "pair 2"],
    batch: Sequence[PairResult],
) -> None:
    """Keep what a forward gave; a part of which nothing can be written loses nothing of the others."""
    done: list[list[tuple[int, int, np.ndarray]]] = [[] for _ in parts]
    for pair, logprobs, greedy in batch:
        row, example = pairs[pair].tolist()
        done[of[pair]].append((row, example, np.stack([logprobs, greedy], axis=1).astype(float)))
    errors: list[Exception] = []
    for part, call, said in zip(parts, calls, done, strict=True):
        try:
            if said:
                part.keep(said, call)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _masks(parts: Sequence[Part], of: Int[np.ndarray, " pair"], pairs: Int[np.ndarray, "pair 2"]) -> PairMasks:
    """The masks of all pairs, each once; bools and gates together are gates."""
    place: dict[bytes, int] = {}
    masks: list[np.ndarray] = []
    which: list[int] = []
    for number, row in zip(of.tolist(), pairs[:, 0].tolist(), strict=True):
        key = parts[number].keys[row]
        if key not in place:
            place[key] = len(masks)
            masks.append(parts[number].masks[row])
        which.append(place[key])
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
