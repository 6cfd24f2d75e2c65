"""Work that is no list of results, such as fitted gates, kept in a store so that it can be resumed."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

import numpy as np

from cs_heads.store.store import Store

# Seconds of work that an interruption may cost.
_EVERY = 5.0

State = dict[str, np.ndarray]


class KeptWork:
    """Arrays of one piece of work in a store, by phase.

    Args:
        store: The file.
        kind: The method, which ``Store.contents`` counts by.
        identity: Everything that the work depends on.
    """

    def __init__(self, store: Store, kind: str, identity: Mapping[str, Any]) -> None:
        self.store = store
        self._identity = f"{kind}/{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()}"
        self._saved = monotonic()

    @property
    def due(self) -> bool:
        """Whether the last state saved is some seconds old."""
        return monotonic() - self._saved >= _EVERY

    def load(self, phase: int) -> State | None:
        """The last state of a phase; None where it has not begun."""
        found = self.store.query("SELECT state FROM progress WHERE identity = ?", (self._key(phase),))
        if not found:
            return None
        with np.load(io.BytesIO(found[0][0]), allow_pickle=False) as arrays:
            return dict(arrays)

    def save(self, phase: int, state: State) -> None:
        """Put a state in place of the last one, in one transaction."""
        packed = io.BytesIO()
        np.savez(packed, **state)  # type: ignore[arg-type]  # its stub takes names for allow_pickle
        with self.store.transaction() as connection:
            row = (self._key(phase), packed.getvalue())
            connection.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", row)
            self.store.stamp(connection)
        self._saved = monotonic()

    def _key(self, phase: int) -> str:
        return f"{self._identity}/{phase}"


@contextmanager
def filled(
    work: KeptWork | None, phase: int, rows: np.ndarray, count: Callable[[int], object]
) -> Iterator[Callable[[int], None]]:
    """``rows`` filled in place: from a store as far as it has them, NaN elsewhere, by the block.

    The block tells of rows that it has filled in: they are kept every few seconds and at its end, and counted.
    """
    kept = None if work is None else work.load(phase)
    if kept is not None:
        rows[...] = kept["rows"]

    def keep() -> None:
        # Another process may have got further.
        assert work is not None
        if (saved := work.load(phase)) is not None:
            np.copyto(rows, saved["rows"], where=np.isnan(rows))
        work.save(phase, {"rows": rows})

    known = len(rows) - int(np.isnan(rows.reshape(len(rows), -1)).any(axis=1).sum())
    count(known)

    def done(more: int) -> None:
        count(more)
        if work is not None and work.due:
            keep()

    yield done
    if known < len(rows) and work is not None:
        keep()
