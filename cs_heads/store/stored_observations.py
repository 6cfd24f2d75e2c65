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
    """Observations of some examples under one way of asking; every ``write`` is a transaction.

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
        for place, number in enumerate(self._examples):
            self._places.setdefault(int(number), []).append(place)
        self._masks: dict[bytes, int] = {}
        self._waiting: list[tuple[bytes, int, Said, int]] = []

    def read(self, mask: bytes) -> list[tuple[int, Any]]:
        """What is stored under a ``mask_key``: places of examples, and what was said of each."""
        number = self._number(mask)
        if number is None:
            return []
        rows = self.store.query(
            "SELECT example, said FROM observations WHERE settings = ? AND mask = ?", (self._settings, number)
        )
        return [(place, said) for example, said in rows for place in self._places.get(example, ())]

    def broken(self, place: int, said: Any, error: Exception) -> BrokenStoreError:
        """That what was read of an example is no observation."""
        return BrokenStoreError(
            f"store {str(self.store.path)!r} is broken: what it says of example {place} of task {self.task!r} is "
            f"{said!r:.80} ({error}); what else it holds is kept"
        )

    def write(self, batch: Sequence[tuple[bytes, int, Said]], call: PlannedCall | None = None) -> None:
        """Commit observations: mask, place of the example, what was said. What another process wrote first is kept.

        What cannot be written now, the disk being full, is written with the next batch that can.
        """
        self._waiting += [(mask, place, said, 0 if call is None else call.number) for mask, place, said in batch]
        self.flush()

    def end(self, call: PlannedCall) -> None:
        """All of a call is measured. It keeps the file tidy: a call of which nothing is missing is not resumed."""
        with self.store.transaction() as connection:
            connection.execute("DELETE FROM calls WHERE id = ?", (call.number,))

    def flush(self) -> None:
        """Write what could not be written before; nothing where all is."""
        if not self._waiting:
            return
        self._add([mask for mask, *_ in self._waiting])
        rows = [
            (self._settings, self._masks[mask], int(self._examples[place]), *said, call)
            for mask, place, said, call in self._waiting
        ]
        with self.store.transaction() as connection:
            connection.executemany("INSERT OR IGNORE INTO observations VALUES (?, ?, ?, ?, ?, ?)", rows)
            self.store.stamp(connection)
        self._waiting = []

    def _number(self, mask: bytes) -> int | None:
        if mask not in self._masks:
            found = self.store.query("SELECT id FROM masks WHERE bits = ?", (mask,))
            if not found:
                return None
            self._masks[mask] = found[0][0]
        return self._masks[mask]

    def _add(self, masks: Sequence[bytes]) -> None:
        new = [(mask,) for mask in dict.fromkeys(masks) if self._number(mask) is None]
        if new:
            with self.store.transaction() as connection:
                connection.executemany("INSERT OR IGNORE INTO masks (bits) VALUES (?)", new)
        for (mask,) in new:
            self._number(mask)

    def _numbered(self, masks: Sequence[bytes], examples: Int[np.ndarray, " pair"]) -> Int[np.ndarray, "pair 2"]:
        """Pairs by the numbers that the store has for masks and examples."""
        self._add(masks)
        keys = np.array([self._masks[mask] for mask in masks], dtype=np.int64), self._examples[examples]
        return np.stack(keys, axis=1)

    def _measured_by(self, pairs: Int[np.ndarray, "pair 2"]) -> Int[np.ndarray, " pair"]:
        """The number of the call that measured each pair; 0 for none."""
        calls: dict[tuple[int, int], int] = {}
        for mask in np.unique(pairs[:, 0]).tolist():
            rows = self.store.query(
                "SELECT example, call FROM observations WHERE settings = ? AND mask = ?", (self._settings, mask)
            )
            calls.update({(mask, example): call for example, call in rows})
        return np.array([calls.get((mask, example), 0) for mask, example in pairs.tolist()])


# Sizes differ from task to task: jaxtyping has one for each name in a call.
Pairs = tuple[StoredObservations, Sequence[bytes], np.ndarray, np.ndarray]
"""Observations of one task, and different pairs of them: mask, example, and whether it is missing."""


def begin_together(parts: Sequence[Pairs]) -> list[PlannedCall]:
    """One call for the missing pairs of all parts, of one store: a new one, or one that was cut short.

    Returns:
        What it measures of each part, under one number.
    """
    first, store = parts[0][0], parts[0][0].store
    pairs = [stored._numbered(masks, examples) for stored, masks, examples, _ in parts]
    missing = [part[3] for part in parts]
    n_missing = int(sum(each.sum() for each in missing))
    open_calls = store.query(
        "SELECT id, plan FROM calls WHERE settings = ? AND size BETWEEN ? AND ? ORDER BY id DESC",
        (first._settings, n_missing, sum(map(len, pairs))),
    )

    def plan(chosen: Sequence[np.ndarray]) -> str:
        each = [numbers[which] for numbers, which in zip(pairs, chosen, strict=True)]
        if len(parts) > 1:
            settings = [part[0]._settings for part in parts]
            each = [np.insert(numbers, 0, its, axis=1) for numbers, its in zip(each, settings, strict=True)]
        return hashlib.sha256(np.ascontiguousarray(np.concatenate(each), dtype="<i8").tobytes()).hexdigest()

    by = [part[0]._measured_by(numbers) for part, numbers in zip(parts, pairs, strict=True)] if open_calls else []
    for number, said in open_calls:
        # What was missing when it began is missing, or was measured by it or by a call begun since.
        planned = [absent | (calls >= number) for absent, calls in zip(missing, by, strict=True)]
        if plan(planned) == said:
            return [
                PlannedCall(number, np.flatnonzero(which), ~absent[which])
                for which, absent in zip(planned, missing, strict=True)
            ]
    with store.transaction() as connection:
        number = connection.execute(
            "INSERT INTO calls (settings, size, plan) VALUES (?, ?, ?)", (first._settings, n_missing, plan(missing))
        ).lastrowid
    chosen = [np.flatnonzero(absent) for absent in missing]
    return [PlannedCall(int(number or 0), each, np.zeros(len(each), dtype=bool)) for each in chosen]
