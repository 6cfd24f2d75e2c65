"""What the results of analyses share: a record with a table, which notebooks show."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import ClassVar

import pandas as pd

from cs_heads.record import Record

# What a shell shows of a table, at most, and the characters of a cell.
_ROWS, _COLUMNS, _WIDTH = 10, 8, 30


class Result(Record):
    """What an analysis found: data, with a table, which notebooks show."""

    _number: ClassVar[str] = "{:.3f}"
    """How notebooks show a number."""

    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""
        raise NotImplementedError

    def _table(self) -> pd.DataFrame:
        """What notebooks show; numbers of rows are left out."""
        return self.to_frame()

    def _remarks(self) -> Sequence[str]:
        """What notebooks show below the table."""
        return getattr(self, "notes", ())

    def __repr__(self) -> str:
        table, spent = self._table(), getattr(self, "spent", None)
        cost = "" if spent is None else f", {spent:,} example-evaluations"
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
