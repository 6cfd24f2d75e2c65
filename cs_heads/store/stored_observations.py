"""What a model said of one task, in a store by mask, and calls that can be resumed where they stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.record import MOST
from cs_heads.store.store import BrokenStoreError, Store

Said = tuple[bytes, str | None]
"""What a model said: numbers of continuations or tokens as bytes (``packed``), and the text of those tokens."""


def packed(numbers: Float[np.ndarray, "continuation 2"]) -> bytes:
    """Log-probability (nats) and share of argmax tokens of each continuation, as a store has them."""
    return np.ascontiguousarray(numbers, dtype="<f8").tobytes()


def unpacked(said: Any, n: int) -> Float[np.ndarray, "continuation 2"]:
    """What was ``packed`` of ``n`` continuations; ``ValueError`` for what is no observation of so many."""
    numbers = np.frombuffer(said, dtype="<f8").reshape(n, 2)
    logprobs, greedy = numbers.T
    # What is a rounding above 0 is no fault.
    if not ((logprobs >= -MOST) & (logprobs <= 1e-3) & (greedy >= 0) & (greedy <= 1)).all():
        raise ValueError(f"no log-probabilities: {numbers.tolist()}")
    return numbers


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """What one call of the engine measures: pairs in the order of the request, those ``known`` already among them.

    A call that was cut short is planned as it was, its finished pairs known, so that what is left runs in the
    same batches and gives the same numbers bit for bit.
    """

    number: int
    pairs: Int[np.ndarray, " pair"]
    known: Bool[np.ndarray, " pair"]


class StoredObservations:
    """Observations of some examples under one way of asking; every ``flush`` is a transaction.

    An observation is found again under the same settings, the same example and the same mask alone.

    Args:
        store: The file.
        settings: What can change what is said, but for the model, the mask and the example; JSON-ready.
        task: The name of the task.
        examples: The key of each example (``identity.example_identities``).
        prompts: The prompt of each example, as text.
    """

    def __init__(
        self, store: Store, settings: Mapping[str, Any], task: str, examples: Sequence[str], prompts: Sequence[str]
    ) -> None:
        self.store, self.task = store, task
        with store.transaction() as connection:
            rows = list(dict.fromkeys(zip(examples, prompts, strict=True)))
            connection.executemany("INSERT OR IGNORE INTO examples (identity, prompt) VALUES (?, ?)", rows)
            identity = json.dumps(settings, sort_keys=True)
            connection.execute("INSERT OR IGNORE INTO settings (identity) VALUES (?)", (identity,))
            connection.executemany(
                "INSERT OR IGNORE INTO tasks SELECT ?, settings.id, examples.id FROM settings, examples "
                "WHERE settings.identity = ? AND examples.identity = ?",
                [(task, identity, example) for example, _ in rows],
            )
        ((self._settings,),) = store.query("SELECT id FROM settings WHERE identity = ?", (identity,))
        numbers = dict(store.query("SELECT identity, id FROM examples"))
        self._examples = np.array([numbers[identity] for identity in examples], dtype=np.int64)
        # Examples that stand twice in a task are one here.
        self._places: dict[int, list[int]] = {}
        for place, number in enumerate(self._examples.tolist()):
            self._places.setdefault(number, []).append(place)
        self._masks: dict[bytes, int] = {}
        self._waiting: list[tuple[bytes, int, Said, int]] = []

    def read(self, mask: bytes) -> list[tuple[int, Any]]:
        """What is stored under a ``mask_key``: places of examples, and what was said of each."""
        return [(place, said) for example, said in self._of("said", mask) for place in self._places.get(example, ())]

    def broken(self, place: int, said: Any, error: Exception) -> BrokenStoreError:
        """That what was read of an example is no observation."""
        what = f"what it says of example {place} of task {self.task!r} is {said!r:.80} ({error})"
        return BrokenStoreError(f"{self.store} is broken: {what}; what else it holds is kept")

    def add(self, batch: Sequence[tuple[bytes, int, Said]], call: PlannedCall) -> None:
        """Take in observations, which the next ``flush`` writes: mask, place of the example, what was said."""
        self._waiting += [(mask, place, said, call.number) for mask, place, said in batch]

    def end(self, call: PlannedCall) -> None:
        """All of a call is measured. It keeps the file tidy: a call of which nothing is missing is not resumed."""
        with self.store.transaction() as connection:
            connection.execute("DELETE FROM calls WHERE id = ?", (call.number,))

    def flush(self) -> None:
        """Commit what was added; what another process wrote first is kept.

        What cannot be written now, the disk being full, is written with the next batch that can.
        """
        if not self._waiting:
            return
        pairs = self._numbered([mask for mask, *_ in self._waiting], [place for _, place, *_ in self._waiting])
        rows = [(*pair, *said, call) for pair, (*_, said, call) in zip(pairs.tolist(), self._waiting, strict=True)]
        with self.store.transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO observations VALUES (?, ?, ?, ?, ?, ?)", rows)
            self.store.stamp(connection)
        self._waiting = []

    def _of(self, column: str, mask: bytes) -> list[Any]:
        """A column of the observations under a mask, each after the number of its example."""
        sql = f"SELECT example, {column} FROM observations JOIN masks ON mask = id WHERE settings = ? AND bits = ?"
        return self.store.query(sql, (self._settings, mask))

    def _numbered(self, masks: Sequence[bytes], places: Sequence[int] | np.ndarray) -> Int[np.ndarray, "pair 3"]:
        """Pairs by the numbers that the store has for settings, mask and example."""
        new = [(mask,) for mask in dict.fromkeys(masks) if mask not in self._masks]
        if new:
            with self.store.transaction() as connection:
                connection.executemany("INSERT OR IGNORE INTO masks (bits) VALUES (?)", new)
        for (mask,) in new:
            ((self._masks[mask],),) = self.store.query("SELECT id FROM masks WHERE bits = ?", (mask,))
        numbers = np.array([self._masks[mask] for mask in masks], dtype=np.int64)
        return np.stack([np.full_like(numbers, self._settings), numbers, self._examples[places]], axis=1)

    def _measured_by(self, masks: Sequence[bytes], places: np.ndarray) -> Int[np.ndarray, " pair"]:
        """The number of the call that measured each pair; 0 for none."""
        calls = {(mask, example): call for mask in {*masks} for example, call in self._of("call", mask)}
        pairs = zip(masks, self._examples[places].tolist(), strict=True)
        return np.array([calls.get(pair, 0) for pair in pairs], dtype=np.int64)


# Sizes differ from task to task: jaxtyping has one for each name in a call.
Pairs = tuple[StoredObservations, Sequence[bytes], np.ndarray, np.ndarray]
"""Observations of one task, and different pairs of them: mask, example, and whether it is missing."""


def begin_together(parts: Sequence[Pairs]) -> list[PlannedCall]:
    """One call for the missing pairs of all parts, of one store: a new one, or one that was cut short.

    Returns:
        What it measures of each part, under one number.
    """
    first, store = parts[0][0], parts[0][0].store
    pairs = [stored._numbered(masks, places) for stored, masks, places, _ in parts]
    missing = [absent for *_, absent in parts]
    begun = "SELECT id, plan FROM calls WHERE settings = ? ORDER BY id DESC"
    open_calls = store.query(begun, (first._settings,))

    def plan(chosen: Sequence[np.ndarray]) -> str:
        each = [numbers[which] for numbers, which in zip(pairs, chosen, strict=True)]
        return hashlib.sha256(np.ascontiguousarray(np.concatenate(each), dtype="<i8").tobytes()).hexdigest()

    by = [stored._measured_by(masks, places) for stored, masks, places, _ in parts] if open_calls else []
    for number, said in open_calls:
        # What was missing when it began is missing, or was measured by it or by a call begun since.
        planned = [absent | (calls >= number) for absent, calls in zip(missing, by, strict=True)]
        if plan(planned) == said:
            break
    else:
        planned = missing
        with store.transaction() as connection:
            row = first._settings, plan(missing)
            number = connection.execute("INSERT INTO calls (settings, plan) VALUES (?, ?)", row).lastrowid
    each = zip(planned, missing, strict=True)
    return [PlannedCall(number, np.flatnonzero(which), ~absent[which]) for which, absent in each]
