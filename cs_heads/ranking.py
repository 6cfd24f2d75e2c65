"""The result of every method: heads, how important each is, and how that is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.heads import Head, HeadGrid

if TYPE_CHECKING:
    import pandas as pd

FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class HeadRanking:
    """Importance of every head, in ``unit``: positive = the task does worse without the head.

    ``interval`` is a lower and an upper bound on each importance and ``frequency`` the share of
    resamples that select the head, where the method gives them; ``spent`` counts
    example-evaluations; ``provenance`` says how the ranking was made; ``notes`` are what its reader
    should know before trusting it. Methods that measure no score name another ``unit``.

    >>> ranking = HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.0]]), spent=800)
    >>> ranking.top(2)
    [Head(0, 1), Head(1, 0)]
    """

    method: str
    importance: Float[np.ndarray, "layer head"]
    spent: int
    interval: Float[np.ndarray, "layer head bound"] | None = None
    frequency: Float[np.ndarray, "layer head"] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unit: str = "points of score"

    def __post_init__(self) -> None:
        if self.importance.ndim != 2 or not self.importance.size:
            raise ValueError(f"importance must be [layer, head], got shape {self.importance.shape}")
        if not np.isfinite(self.importance).all():
            raise ValueError("importance must be finite in every head")
        shape = self.importance.shape
        if self.interval is not None and self.interval.shape != (*shape, 2):
            raise ValueError(f"interval must be [layer, head, 2] = {(*shape, 2)}, got {self.interval.shape}")
        if self.frequency is not None and self.frequency.shape != shape:
            raise ValueError(f"frequency must be [layer, head] = {shape}, got {self.frequency.shape}")
        if self.spent < 0:
            raise ValueError(f"spent must be 0 or more, got {self.spent}")

    @property
    def grid(self) -> HeadGrid:
        """The grid of the model that was measured."""
        return HeadGrid(*self.importance.shape)

    @property
    def order(self) -> list[Head]:
        """All heads, the most important first; of equal heads the one with the lower flat index."""
        indices = np.argsort(-self.importance.ravel(), kind="stable")
        return [self.grid.head(int(index)) for index in indices]

    def top(self, k: int) -> list[Head]:
        """The ``k`` most important heads; ``k`` outside 1..grid size raises ``ValueError``."""
        if not 1 <= k <= self.grid.size:
            raise ValueError(f"k must be in 1..{self.grid.size}, the heads of the grid; got {k}")
        return self.order[:k]

    def to_frame(self) -> pd.DataFrame:
        """One row a head, the most important first: rank, head, layer, index, importance and what else is known."""
        import pandas as pd

        order = self.order
        layers, heads = [h.layer for h in order], [h.head for h in order]
        columns: dict[str, Any] = {
            "rank": range(1, len(order) + 1),
            "head": [str(h) for h in order],
            "layer": layers,
            "index": [self.grid.index(h) for h in order],
            "importance": self.importance[layers, heads],
        }
        if self.interval is not None:
            columns["low"], columns["high"] = self.interval[layers, heads].T
        if self.frequency is not None:
            columns["frequency"] = self.frequency[layers, heads]
        return pd.DataFrame(columns)

    def save(self, path: str | Path) -> None:
        """Write the ranking as JSON, with the version of its format."""
        record = {
            "format": "cs-heads ranking",
            "version": FORMAT_VERSION,
            "method": self.method,
            "importance": self.importance.tolist(),
            "spent": self.spent,
            "interval": None if self.interval is None else self.interval.tolist(),
            "frequency": None if self.frequency is None else self.frequency.tolist(),
            "provenance": self.provenance,
            "notes": list(self.notes),
            "unit": self.unit,
        }
        text = json.dumps(record, indent=1, default=lambda number: number.item())  # NumPy numbers in the provenance
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> HeadRanking:
        """Read a saved ranking; a file of another kind or of a newer format raises ``ValueError``."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"path {str(path)!r} is no saved ranking: {error}") from error
        if not isinstance(record, dict) or record.get("format") != "cs-heads ranking":
            raise ValueError(f"path {str(path)!r} is no saved ranking")
        missing = {"version", "method", "importance", "spent"} - record.keys()
        if missing:
            raise ValueError(f"path {str(path)!r} is no saved ranking: it has no {', '.join(sorted(missing))}")
        if record["version"] not in range(1, FORMAT_VERSION + 1):
            raise ValueError(
                f"path {str(path)!r} has ranking format {record['version']!r}; this version of cs-heads reads "
                f"up to {FORMAT_VERSION}: update cs-heads"
            )

        def array(name: str) -> np.ndarray | None:
            return None if record.get(name) is None else np.array(record[name], dtype=float)

        try:
            return cls(
                method=record["method"],
                importance=np.array(record["importance"], dtype=float),
                spent=int(record["spent"]),
                interval=array("interval"),
                frequency=array("frequency"),
                provenance=record.get("provenance") or {},
                notes=tuple(record.get("notes") or ()),
                unit=record.get("unit", "points of score"),
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"path {str(path)!r} is a broken ranking: {error}") from error

    def _title(self) -> str:
        task = self.provenance.get("task", {}).get("name")
        model = self.provenance.get("model", {}).get("name")
        about = "".join(f", {name}" for name in (task, model) if name)
        return f"HeadRanking({self.method}{about}: {self.grid.size} heads, {self.spent:,} example-evaluations)"

    def __repr__(self) -> str:
        shown = self.top(min(5, self.grid.size))
        top = "  ".join(f"{head} {self.importance[head.layer, head.head]:+.3f}" for head in shown)
        return f"{self._title()}\n  {top}"

    def _repr_html_(self) -> str:
        table = self.to_frame().head(10).to_html(index=False, float_format="{:+.3f}".format, border=0)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<div><b>{escape(self._title())}</b>{table}{f'<ul>{notes}</ul>' if notes else ''}</div>"
