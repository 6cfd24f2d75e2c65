"""One task's results in a store, by mask, and calls that can be resumed where they stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from cs_heads.lens.model import HookedModel, ModelInfo, end_tokens
from cs_heads.record import MOST
from cs_heads.store.identity import scoring_identity
from cs_heads.store.store import BrokenStoreError, Store
from cs_heads.tasks import Task
from cs_heads.text import shown

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Columns:
    """The columns of the table ``results`` that one way of scoring writes.

    Attributes:
        names: For a SELECT or an INSERT.
        on_conflict: What an INSERT does where there is a result: the first one written is kept.
    """

    names: str
    on_conflict: str = "DO NOTHING"


# Results of format 1 have no margin: it is filled in, and nothing else of a result is ever changed. The call that
# fills it in has measured the pair: a call that was cut short finds its own pairs by that.
SCORES = Columns(
    "score, logprob, margin",
    "DO UPDATE SET margin = excluded.margin, call = excluded.call WHERE margin IS NULL AND excluded.margin IS NOT NULL",
)
# Logarithms of probabilities and their differences, in nats; what is a rounding above 0 is no fault.
_BOUNDS = {"score": (0.0, 1.0), "logprob": (-MOST, 1e-3), "margin": (-MOST, MOST)}
TEXTS = Columns("tokens, text")


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """What one call of the engine measures: pairs in the order of the request, those ``known`` already among them.

    A call that was cut short is planned as it was, its finished pairs known, so that what is left runs in the
    same batches and gives the same numbers bit for bit.
    """

    number: int
    pairs: Int[np.ndarray, " pair"]
    known: Bool[np.ndarray, " pair"]


class StoredResults:
    """Results of some examples under one way of scoring them; every ``write`` is a transaction.

    A result is found again under the same scoring, the same example and the same mask alone.

    Args:
        store: The file.
        scoring: What can change a number, but for the model, the mask and the example (``identity.scoring_identity``).
        task: The name of the task.
        examples: The key of each example (``identity.example_identities``).
        prompts: The prompt of each example, as text.
        columns: What is written of a result.
    """

    def __init__(
        self,
        store: Store,
        scoring: Mapping[str, Any],
        task: str,
        examples: Sequence[str],
        prompts: Sequence[str],
        *,
        columns: Columns = SCORES,
    ) -> None:
        self.store, self.task, self.columns = store, task, columns
        with store.transaction() as connection:
            rows = list(dict.fromkeys(zip(examples, prompts, strict=True)))
            connection.executemany("INSERT OR IGNORE INTO examples (identity, prompt) VALUES (?, ?)", rows)
            identity = json.dumps(scoring, sort_keys=True)
            connection.execute("INSERT OR IGNORE INTO scorings (identity) VALUES (?)", (identity,))
            connection.executemany(
                "INSERT OR IGNORE INTO tasks SELECT ?, scorings.id, examples.id FROM scorings, examples "
                "WHERE scorings.identity = ? AND examples.identity = ?",
                [(task, identity, example) for example, _ in rows],
            )
        ((self._scoring,),) = store.query("SELECT id FROM scorings WHERE identity = ?", (identity,))
        numbers = dict(store.query("SELECT identity, id FROM examples"))
        self._examples = np.array([numbers[identity] for identity in examples], dtype=np.int64)
        # Examples that stand twice in a task are one here.
        self._places: dict[int, list[int]] = {}
        for place, number in enumerate(self._examples):
            self._places.setdefault(int(number), []).append(place)
        self._masks: dict[bytes, int] = {}
        self._waiting: list[tuple[bytes, int, Values, int]] = []

    @classmethod
    def of_task(
        cls,
        store: Store,
        model: HookedModel | ModelInfo,
        task: Task,
        examples: Sequence[str],
        what: str,
        **settings: Any,
    ) -> StoredResults:
        """Those of a task's ``"score"``, ``"logprob"`` or ``"text"``.

        Args:
            store: The file.
            model: What the study is of.
            task: The task.
            examples: The key of each example (``identity.example_identities``).
            what: Which results.
            settings: What they depend on besides, JSON-ready.
        """
        # A text ends where the model's generation settings say; its score goes with it.
        written = what == "text" or (what == "score" and task.kind == "generation")
        ends = {"end_tokens": sorted(end_tokens(model))} if written else {}
        scoring = scoring_identity(task, what, store.study["ablation"], examples) | settings | ends
        prompts = [shown(example.prompt) for example in task.examples]
        return cls(store, scoring, task.name, examples, prompts, columns=TEXTS if what == "text" else SCORES)

    def read(self, mask: bytes) -> list[tuple[int, Values]]:
        """What is stored under a ``mask_key``: places of examples, each with the values of its columns."""
        number = self._number(mask)
        if number is None:
            return []
        rows = self.store.query(
            f"SELECT example, {self.columns.names} FROM results WHERE scoring = ? AND mask = ?",
            (self._scoring, number),
        )
        found = [(place, tuple(values)) for example, *values in rows for place in self._places.get(example, ())]
        if self.columns is SCORES:
            for place, values in found:
                for (what, (least, most)), value in zip(_BOUNDS.items(), values, strict=True):
                    # None is what was not measured.
                    if value is not None and not (isinstance(value, float) and least <= value <= most):
                        raise BrokenStoreError(
                            f"store {str(self.store.path)!r} is broken: the {what} of example {place} of task "
                            f"{self.task!r} is {value!r}, and must be in {least:g}..{most:g}; what else it holds is "
                            "kept"
                        )
        return found

    def begin(
        self, masks: Sequence[bytes], examples: Int[np.ndarray, " pair"], missing: Bool[np.ndarray, " pair"]
    ) -> PlannedCall:
        """A call for the missing ones of these different pairs: a new one, or one that was cut short."""
        return begin_together([(self, masks, examples, missing)])[0]

    def write(self, batch: Sequence[tuple[bytes, int, Values]], call: PlannedCall | None = None) -> None:
        """Commit results: mask, place of the example, values. What another process wrote first is kept.

        What cannot be written now, the disk being full, is written with the next batch that can.
        """
        self._waiting += [(mask, place, values, 0 if call is None else call.number) for mask, place, values in batch]
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
            (self._scoring, self._masks[mask], int(self._examples[place]), *values, call)
            for mask, place, values, call in self._waiting
        ]
        marks = ", ".join("?" * len(rows[0]))
        with self.store.transaction() as connection:
            connection.executemany(
                f"INSERT INTO results (scoring, mask, example, {self.columns.names}, call) VALUES ({marks}) "
                f"ON CONFLICT (scoring, mask, example) {self.columns.on_conflict}",
                rows,
            )
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
                "SELECT example, call FROM results WHERE scoring = ? AND mask = ?", (self._scoring, mask)
            )
            calls.update({(mask, example): call for example, call in rows})
        return np.array([calls.get((mask, example), 0) for mask, example in pairs.tolist()])


# Sizes differ from task to task: jaxtyping has one for each name in a call.
Pairs = tuple[StoredResults, Sequence[bytes], np.ndarray, np.ndarray]
"""Results of one task, and different pairs of them: mask, example, and whether it is missing."""


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
        "SELECT id, plan FROM calls WHERE scoring = ? AND size BETWEEN ? AND ? ORDER BY id DESC",
        (first._scoring, n_missing, sum(map(len, pairs))),
    )

    def plan(chosen: Sequence[np.ndarray]) -> str:
        each = [numbers[which] for numbers, which in zip(pairs, chosen, strict=True)]
        if len(parts) > 1:
            scorings = [part[0]._scoring for part in parts]
            each = [np.insert(numbers, 0, scoring, axis=1) for numbers, scoring in zip(each, scorings, strict=True)]
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
            "INSERT INTO calls (scoring, size, plan) VALUES (?, ?, ?)", (first._scoring, n_missing, plan(missing))
        ).lastrowid
    chosen = [np.flatnonzero(absent) for absent in missing]
    return [PlannedCall(int(number or 0), each, np.zeros(len(each), dtype=bool)) for each in chosen]
