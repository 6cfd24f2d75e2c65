"""A plan: the different (mask, example) pairs that calls ask for, what is known of them, and the rest run once.

``Observed`` keeps what a model has said of one task: of its continuations, or as texts. ``Part`` is what calls ask of
it, and ``run`` runs what is missing of several parts in forwards that they share. The number of different pairs is what
is spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

from cs_heads.designs import as_gates, mask_key
from cs_heads.engine.protocol import EngineLike, Known, PairExamples, PairMasks, TextRequest
from cs_heads.lens.locks import alone
from cs_heads.progress import counting, is_shown, show_baseline
from cs_heads.store.stored_observations import PlannedCall, Said, StoredObservations, begin_together, packed, unpacked
from cs_heads.tasks import Task
from cs_heads.tasks.responses import RESPONSES, Observations
from cs_heads.text import TokenIds

# Sizes differ from mask to mask: jaxtyping has one for each name in a call.
Rows = Sequence[np.ndarray]
"""An array for each row: its mask, or the indices of its examples."""


class Entry(NamedTuple):
    """What was said under one mask, and of which examples something is ``known``."""

    known: Bool[np.ndarray, " example"]
    said: Shaped[np.ndarray, "example ..."]


@dataclass(eq=False)
class Observed:
    """What a model said of the examples of a task, by mask.

    Of continuations it is the log-probability (nats) and the share of argmax tokens of each, NaN where an example has
    fewer; with a ``request`` the text after its prompt of each example, up to the first stop string. The key of an
    entry is the whole mask: an observation never answers for another ablation.

    Attributes:
        task: The task.
        engine: What runs its examples.
        stored: What the store has; None without one.
        progress: Whether to show a bar.
        request: What texts are generated after; None of continuations.
        taken: Different pairs asked for so far.
        ran: Those that were run here.
        first: The number of the first example for the engine.
        by_mask: Entries by the key of their mask.
    """

    task: Task
    engine: EngineLike
    stored: StoredObservations | None
    progress: bool | None
    request: TextRequest | None = None
    taken: int = field(default=0, init=False)
    ran: int = field(default=0, init=False)
    # The number that the engine has for the first example: that of several tasks numbers them through.
    first: int = field(default=0, init=False)
    by_mask: dict[bytes, Entry] = field(default_factory=dict, init=False)

    @cached_property
    def n_continuations(self) -> list[int]:
        """Of each example, one at least."""
        return [max(1, len(example.continuations)) for example in self.task.examples]

    def at(self, key: bytes) -> Entry:
        """The entry of a mask by its key."""
        if key not in self.by_mask:
            n = len(self.n_continuations)
            said = np.full((n, max(self.n_continuations), 2), np.nan) if self.request is None else np.full(n, None)
            self.by_mask[key] = Entry(np.zeros(n, dtype=bool), said)
        return self.by_mask[key]

    def take(self, entry: Entry, example: int, said: Any) -> None:
        """Take in one observation; what is known stays."""
        if not entry.known[example]:
            if self.request is None:
                entry.said[example, : len(said)] = said
            else:
                entry.said[example] = self._decoded(said)
            entry.known[example] = True
            self.taken += 1

    def keep(self, batch: Sequence[tuple[bytes, int, Any]], call: PlannedCall) -> None:
        """Take in what was run, to be written with the next ``flush``: key of a mask, example, and what was said."""
        for key, example, said in batch:
            self.take(self.by_mask[key], example, said)
        self.ran += len(batch)
        if self.stored is not None:
            self.stored.add([(key, example, self._packed(said)) for key, example, said in batch], call)

    def read(self, key: bytes, examples: set[int]) -> None:
        """Take in what the store has of these examples under a mask."""
        assert self.stored is not None
        for place, said in self.stored.read(key):
            if place in examples:
                try:
                    one = self._unpacked(said, place)
                except (TypeError, ValueError) as error:
                    raise self.stored.broken(place, said, error) from error
                self.take(self.at(key), place, one)

    def run(self, masks: PairMasks, examples: PairExamples, known: Known) -> Iterator[list[tuple[int, Any]]]:
        """Run pairs: batches of numbers of pairs, and what was said."""
        if self.request is None:
            return self.engine.run(masks, examples, known)
        return self.engine.generate(self.request, masks, examples, known)

    @staticmethod
    def known(entry: Entry) -> Observations:
        """What was said of continuations under a mask, in one row."""
        [examples] = np.nonzero(entry.known)
        said = entry.said[None, examples]
        return Observations(examples[None], said[..., 0], said[..., 1])

    def _packed(self, said: Any) -> Said:
        """What was said, as a store has it: numbers, or tokens and the text of these."""
        if self.request is None:
            return packed(said), None
        return np.array(said, dtype="<i4").tobytes(), self._decoded(said)

    def _unpacked(self, said: Any, example: int) -> Any:
        if self.request is None:
            return unpacked(said, self.n_continuations[example])
        return tuple(np.frombuffer(said, dtype="<i4").tolist())

    def _decoded(self, text: TokenIds) -> str:
        assert self.request is not None
        return self.request.stopping.kept(text, self.engine.model.tokenizer)


class Part:
    """What calls ask of a task: different pairs (row of a mask, example), in the order they come.

    Args:
        observed: What is known of it.
        masks: A mask, or gates, a row.
        examples: Each row's own example indices.
    """

    def __init__(self, observed: Observed, masks: Rows, examples: Rows) -> None:
        self.observed, self.masks = observed, masks
        self.keys = [mask_key(mask) for mask in masks]
        self.entries = [observed.at(key) for key in self.keys]
        first: dict[bytes, int] = {}
        rows = [first.setdefault(key, row) for row, key in enumerate(self.keys)]
        n = len(observed.task)
        numbers = np.concatenate([row * n + each for row, each in zip(rows, examples, strict=True)])
        _, places = np.unique(numbers, return_index=True)
        self.pairs: Int[np.ndarray, "pair 2"] = np.stack(np.divmod(numbers[np.sort(places)], n), axis=1)
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
        return ~np.stack([entry.known for entry in self.entries])[self.pairs[:, 0], self.pairs[:, 1]]

    def show_baseline(self) -> None:
        """Show what is known of the intact model, where the call asks for it."""
        # What a scorer makes of it is asked for once all is measured.
        observed, nothing_off = self.observed, mask_key(np.zeros(self.masks[0].shape, dtype=bool))
        if is_shown() and observed.request is None and observed.task.scorer is None and nothing_off in self.keys:
            entry = observed.at(nothing_off)
            scores = np.full(len(entry.known), np.nan)
            scores[entry.known] = RESPONSES["score"](observed.task, observed.known(entry))[0]
            show_baseline(observed.task.name, scores)


def run(parts: Sequence[Part]) -> None:
    """Run what is missing of parts that share an engine, and keep it as it comes; other threads wait meanwhile.

    Texts are a part by themselves.
    """
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
                for batch in first.run(_masks(parts, of, pairs), numbers, known):
                    _keep(parts, calls, of, pairs, batch)
                    if batch:
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
    asked = [
        (part.observed.stored, [part.keys[row] for row in part.pairs[:, 0]], part.pairs[:, 1], absent)
        for part, absent in zip(parts, missing, strict=True)
        if part.observed.stored is not None
    ]
    if asked and any(each.any() for each in missing):
        return begin_together(asked)
    return [PlannedCall(0, np.flatnonzero(absent), np.zeros(int(absent.sum()), dtype=bool)) for absent in missing]


def _keep(
    parts: Sequence[Part],
    calls: Sequence[PlannedCall],
    of: Int[np.ndarray, " pair"],
    pairs: Int[np.ndarray, "pair 2"],
    batch: Sequence[tuple[int, Any]],
) -> None:
    """Keep what a forward gave, all of it in memory before some of it is written, which may fail."""
    done: list[list[tuple[bytes, int, Any]]] = [[] for _ in parts]
    for pair, said in batch:
        part, (row, example) = int(of[pair]), pairs[pair].tolist()
        done[part].append((parts[part].keys[row], example, said))
    for each, call, taken in zip(parts, calls, done, strict=True):
        each.observed.keep(taken, call)
    for each in parts:
        if each.observed.stored is not None:
            each.observed.stored.flush()


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
