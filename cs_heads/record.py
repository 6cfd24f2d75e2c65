"""Results as records: written as JSON by the names of their fields, and read back by the types of these."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from jaxtyping import AbstractArray

from cs_heads.arguments import check_integer, check_path, check_type, did_you_mean, in_line
from cs_heads.files import parse_json, read_text
from cs_heads.units import Grid, Unit

AnyRecord = TypeVar("AnyRecord", bound="Record")
AnySaved = TypeVar("AnySaved", bound="Saved")

MOST = 1e12
"""The largest number of any result, beyond which there is no score, cost or evidence."""

# What a mean of zeros and ones may lie outside of [0, 1].
_ROUNDING = 1e-6

Proportion = Annotated[float, (0.0, 1.0)]
"""A number in [0, 1], up to rounding: a score, a p-value."""


class Record:
    """A dataclass that is written as JSON by the names of its fields, and read back by their types.

    One without an equality of its own equals another of which the same is written.

    A pair ``interval``, or ``..._interval``, is written as two numbers: ``low`` and ``high``, or ``..._low`` and
    ``..._high``.
    """

    _written: ClassVar[tuple[str, ...]] = ()
    """Fields and properties that are written, in order; none: the fields."""

    def to_dict(self) -> dict[str, Any]:
        """Every field and number of it, JSON-ready; what is not known is None."""
        names = self._written or tuple(field.name for field in fields(self))  # type: ignore[arg-type]
        return {key: value for name in names for key, value in _items(name, getattr(self, name))}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or type(self) is not type(other):
            return NotImplemented
        return json_text(self) == json_text(other)

    def __hash__(self) -> int:
        return hash(json_text(self))

    @classmethod
    def from_dict(cls: type[AnyRecord], record: Mapping[str, Any]) -> AnyRecord:
        """What ``to_dict`` wrote; what a field has by default may be missing.

        Args:
            record: The record.

        Raises:
            ValueError: A value is not of the type of its field, a field is missing, or a key is unknown.
        """
        hints, values = get_type_hints(cls, include_extras=True), dict[str, Any]()
        for field in fields(cls):  # type: ignore[arg-type]
            name, required = field.name, field.default is field.default_factory  # both are missing
            pair = name.endswith("interval") and get_origin(hints[name]) is tuple
            keys = _bounds(name) if pair else (name,)
            if required and (lacking := [key for key in keys if key not in record]):
                raise ValueError(f"{lacking[0]} is missing")
            if pair and all(key in record for key in keys):
                values[name] = tuple(read_as(key, record[key], float) for key in keys)
            elif name in record:
                values[name] = read_as(name, record[name], hints[name])
        made = cls(**values)
        written = made.to_dict()
        known = {*written, *values}
        if unknown := [key for key in record if key not in known]:
            raise ValueError(f"{unknown[0]!r:.80} is no field of it{did_you_mean(unknown[0], known)}")
        # What is written beside the fields follows from them.
        for key in (key for key in written if key in record and key not in values):
            if not _agree(record[key], written[key]):
                wanted = f"{in_line(written[key])}, by its other fields"
                raise ValueError(f"{key} must be {wanted}, got {in_line(record[key])}")
        return made


class Saved(Record):
    """A record with a file of its own, which names its format."""

    _format: ClassVar[str]
    _version: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        """The whole of it, JSON-ready, with the name and version of its format; what is not known is None."""
        return {"format": f"cs-heads {self._format}", "version": self._version, **super().to_dict()}

    def save(self, path: str | Path) -> None:
        """Write it as JSON.

        Args:
            path: The file; one that is there is replaced.

        Raises:
            ValueError: ``path`` is no path.
            OSError: The file cannot be written.
        """
        write_json(check_path("path", path), self, indent=None)

    @classmethod
    def load(cls: type[AnySaved], path: str | Path) -> AnySaved:
        """Read what ``save`` wrote.

        Args:
            path: The file.

        Raises:
            ValueError: ``path`` is no path, or no file that can be read as this; the message names the field, its value
                and what is allowed.
            OSError: The file cannot be read.
        """
        path = check_path("path", path)
        record = parse_json(read_text(path, "path"), f"path {str(path)!r} is no saved {cls._format}")
        if not isinstance(record, dict) or record.get("format") != f"cs-heads {cls._format}":
            raise ValueError(f"path {str(path)!r} is no saved {cls._format}")
        version = record.get("version")
        if type(version) is not int or version != cls._version:
            what = "update cs-heads" if type(version) is int and version > cls._version else "make it again"
            here = f"this version of cs-heads reads {cls._version}: {what}"
            raise ValueError(f"path {str(path)!r} has {cls._format} format {in_line(version)}; {here}")
        try:
            return cls.from_dict(record)
        except ValueError as error:
            raise ValueError(f"path {str(path)!r} is a broken {cls._format}: {error}") from error


def write_json(path: Path, value: Any, indent: int | None = 1) -> Path:
    """Write what ``json_text`` makes of a value; returns the path."""
    path.write_text(json_text(value, indent) + "\n", encoding="utf-8")
    return path


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as strict JSON, which has no NaN: what is not known is null.

    >>> json_text({"score": 0.5, "error": float("inf")})
    '{"score": 0.5, "error": null}'
    """
    return json.dumps(json_ready(value), indent=indent, allow_nan=False)


def json_ready(value: Any) -> Any:
    """A value as JSON has it: heads by their names, arrays and tuples as lists, and None for what is not finite.

    >>> from cs_heads.units import Head
    >>> json_ready({"heads": (Head(0, 1),), "drop": float("nan")})
    {'heads': ['L0H1'], 'drop': None}
    """
    if isinstance(value, Record | Grid):
        return json_ready(value.to_dict())
    if isinstance(value, Mapping):
        return {json.dumps(key) if isinstance(key, tuple) else key: json_ready(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [json_ready(each) for each in value]
    if isinstance(value, np.ndarray):
        return json_ready(value.tolist())
    if isinstance(value, Unit):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _agree(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same, numbers up to rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_agree(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_agree, one, other))
    if type(one) in (int, float) and type(other) in (int, float):
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    return type(one) is type(other) and bool(one == other)


def _bounds(name: str) -> tuple[str, str]:
    """The keys of an interval."""
    return name.replace("interval", "low"), name.replace("interval", "high")


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    pair = name.endswith("interval") and isinstance(value, tuple)
    names, values = (_bounds(name), value) if pair else ((name,), (value,))
    return zip(names, map(json_ready, values), strict=True)


def read_as(name: str, value: Any, hint: Any) -> Any:
    """A value of JSON as a type has it; what is not of the type raises ``ValueError`` that begins with ``name``.

    >>> read_as("spent", True, int)
    Traceback (most recent call last):
    ValueError: spent must be an integer of 0 or more, got True
    """
    kind, inside = get_origin(hint), get_args(hint)
    if NoneType in inside:
        return None if value is None else read_as(name, value, inside[0])
    if kind in (tuple, dict, Mapping):
        return _read_several(name, value, kind, inside)
    of, bounds = inside if kind is Annotated else (hint, (-MOST, MOST) if hint is float else (0,))
    if of is int:
        return check_integer(name, value, *bounds)
    if of is float:
        return _read_number(name, value, *bounds)
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        value = _read_array(name, value, hint)
    elif isinstance(hint, type) and issubclass(hint, Record | Grid | Unit) and not isinstance(value, hint):
        if not issubclass(hint, Unit) and not isinstance(value, Mapping):
            raise ValueError(f"{name} must be an object, got {in_line(value)}")
        try:
            value = hint.parse(value) if issubclass(hint, Unit) else hint.from_dict(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    else:
        check_type(name, value, hint)
    return value


def _read_several(name: str, value: Any, kind: Any, inside: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple if kind is tuple else Mapping):
        raise ValueError(f"{name} must be {'a list' if kind is tuple else 'an object'}, got {in_line(value)}")
    if isinstance(value, Mapping):
        return {_key(key, inside[0]): read_as(f"{name}[{key!r}]", each, inside[1]) for key, each in value.items()}
    return tuple(read_as(f"{name}[{place}]", each, inside[0]) for place, each in enumerate(value))


def _key(key: str, hint: Any) -> Any:
    return tuple(json.loads(key)) if get_origin(hint) is tuple else key


def _read_number(name: str, value: Any, least: float = -MOST, most: float = MOST) -> float:
    if value is None:
        return float("nan")
    if type(value) not in (int, float) or not least - _ROUNDING <= value <= most + _ROUNDING:
        raise ValueError(f"{name} must be a number in {least:g}..{most:g}, got {in_line(value)}")
    return float(value)


def _read_array(name: str, value: Any, hint: Any) -> np.ndarray:
    numbers = np.array(value, dtype=object)
    if "bool" in hint.dtypes and all(type(each) is bool for each in numbers.flat):
        return numbers.astype(bool)
    made = np.empty(numbers.shape)
    for place, each in np.ndenumerate(numbers):
        made[place] = _read_number("".join((name, *(f"[{index}]" for index in place))), each)
    whole, axes = "int64" in hint.dtypes, hint.dim_str.split()
    # The axes' names would bind those of whatever shapes are checked around this.
    if made.ndim != len(axes) or (whole and not (made == np.round(made)).all()):
        what = "integers" if whole else "numbers"
        raise ValueError(f"{name} must be {what} [{', '.join(axes)}], got {in_line(value)} of shape {made.shape}")
    return made.astype(int) if whole else made
