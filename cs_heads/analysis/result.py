"""What the results of analyses share: a record with a table, its cost and its origin, which notebooks show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, ClassVar

import pandas as pd

from cs_heads.record import Record

# What a shell shows of a table, at most, and the characters of a cell.
_ROWS, _COLUMNS, _WIDTH = 10, 8, 30


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result(Record):
    """What an analysis found: data, with a table, which notebooks show.

    Attributes:
        spent: Example-evaluations; 0 where nothing is measured.
        provenance: Where it comes from.
        notes: What its reader should know.
    """

    _number: ClassVar[str] = "{:.3f}"
    """How notebooks show a number."""

    spent: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""
        raise NotImplementedError

    def _table(self) -> pd.DataFrame:
        """What notebooks show; numbers of rows are left out."""
        return self.to_frame()

    def _remarks(self) -> Sequence[str]:
        """What notebooks show below the table."""
        return self.notes

    def __repr__(self) -> str:
        table = self._table()
        cost = f", {self.spent:,} example-evaluations" if self.spent else ""
        shown = table.to_string(
            index=not isinstance(table.index, pd.RangeIndex),
            float_format=self._number.format,
            max_rows=_ROWS,
            max_cols=_COLUMNS,
            max_colwidth=_WIDTH,
        )
        return f"{type(self).__name__}({len(table)} rows{cost})\n{shown}"

    def _repr_html_(self) -> str:
        table = self._table()
        by_number = isinstance(table.index, pd.RangeIndex)
        shown = table.to_html(index=not by_number, float_format=self._number.format, border=0)
        return shown + "".join(f"<p>{escape(remark)}</p>" for remark in self._remarks())


def leading(found: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """The name with the largest value, then all whose value lies within its 95 % interval, the larger first.

    Args:
        found: By name a value and its lower bound.

    >>> leading({"a": (0.5, 0.3), "b": (0.6, 0.45), "c": (0.4, 0.2)})
    ('b', 'a')
    """
    order = sorted(found, key=lambda name: -found[name][0])
    return tuple(name for name in order if name == order[0] or found[name][0] >= found[order[0]][1])
