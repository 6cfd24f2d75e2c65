"""What the results of analyses share: a form for JSON files, the way back, and a table in notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from html import escape
from types import UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
from jaxtyping import AbstractArray

from cs_heads.ranking import HeadRanking
from cs_heads.units import Unit

AnyRecord = TypeVar("AnyRecord", bound="Record")

# What a shell shows of a table, at most, and the characters of a cell.
_ROWS, _COLUMNS, _WIDTH = 10, 8, 30


class Record:
    """A dataclass that is written as JSON by the names of its fields, and read back.

    One without an equality of its own equals another of which the same is written.

    A field ``interval``, or ``..._interval``, is written as two numbers: ``low`` and ``high``, or ``..._low`` and
    ``..._high``.
    """

    _written: ClassVar[tuple[str, ...]] = ()
    """Fields and properties that are written, in order; none: the fields."""

    def to_dict(self) -> dict[str, Any]:
        """Every field and number of it, JSON-ready; what is not known is None."""
        names = self._written or tuple(field.name for field in fields(self))  # type: ignore[arg-type]
        return {key: value for name in names for key, value in _items(name, getattr(self, name))}

    def _text(self) -> str:
        return json.dumps(json_ready(self.to_dict()), default=str)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or type(self) is not type(other):
            return NotImplemented
        return self._text() == other._text()

    def __hash__(self) -> int:
        return hash(self._text())

    @classmethod
    def from_dict(cls: type[AnyRecord], record: Mapping[str, Any]) -> AnyRecord:
        """What ``to_dict`` wrote.

        What an older version did not write is as by default.

        Args:
            record: The record.

        Raises:
            KeyError: A bound, or a field without a default, is missing.
        """
        hints, values = get_type_hints(cls), dict[str, Any]()
        for field in fields(cls):  # type: ignore[arg-type]
            name, required = field.name, field.default is field.default_factory  # both are missing
            if name.endswith("interval"):
                values[name] = tuple(np.nan if record[key] is None else float(record[key]) for key in _bounds(name))
            elif name in record or required:
                values[name] = _read(hints[name], record[name])
        return cls(**values)


class Result(Record):
    """What an analysis found: data, with a table, which notebooks show."""

    _number: ClassVar[str] = "{:.3f}"
    """How notebooks show a number."""

    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""
        raise NotImplementedError

    def _rows(self) -> list[dict[str, Any]]:
        """The rows of the table, JSON-ready."""
        rows: list[dict[str, Any]] = json.loads(self.to_frame().to_json(orient="records"))
        return rows

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


def _bounds(name: str) -> tuple[str, str]:
    """The keys of an interval."""
    return name.replace("interval", "low"), name.replace("interval", "high")


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    names, values = (_bounds(name), value) if name.endswith("interval") else ((name,), (value,))
    return zip(names, map(json_ready, values), strict=True)


def json_ready(value: Any) -> Any:
    """A value as JSON has it: heads by their names, arrays and tuples as lists, and None for NaN.

    >>> from cs_heads.units import Head
    >>> json_ready({"heads": (Head(0, 1),), "drop": float("nan")})
    {'heads': ['L0H1'], 'drop': None}
    """
    if isinstance(value, Record | HeadRanking):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {" ".join(key) if isinstance(key, tuple) else key: json_ready(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [json_ready(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Unit):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and np.isnan(value) else value


def _read(hint: Any, value: Any) -> Any:
    """A value of JSON as the type of its field has it."""
    kind, inside = get_origin(hint), get_args(hint)
    if kind is UnionType:
        return None if value is None else _read(inside[0], value)
    if kind is tuple:
        return tuple(_read(inside[0], each) for each in value)
    if kind in (dict, Mapping):
        return {key: _read(inside[1], each) for key, each in value.items()}
    if hint is float and value is None:
        return np.nan
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return np.array(value, dtype=float)
    is_unit = isinstance(hint, type) and issubclass(hint, Unit)
    read = hint.parse if is_unit else getattr(hint, "from_dict", None)
    return value if read is None else read(value)
