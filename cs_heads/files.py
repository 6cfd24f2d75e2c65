"""Files of text, JSON and CSV: the one way they are read, strictly, and written, so that others can read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_DEEPEST = 100
# What spreadsheets run as a formula, or as one after a separator of their own, unless it is a number; those with ";"
# between cells begin one there, whatever quotes are around all of it.
_FORMULA, _NUMBER = re.compile(r"[=+\-@\t\r\n]"), re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?")
_LATER = re.compile(r'(;["\s]*)(?=[=+\-@])')


def read_text(path: str | Path, what: str) -> str:
    """The text of a file; a missing file or another encoding than UTF-8 raises ``ValueError`` naming ``what``."""
    path = Path(path)
    if path.is_dir() or not path.exists():
        raise ValueError(f"{what} {str(path)!r} {'is no file' if path.exists() else 'does not exist'}")
    return text_of(path.read_bytes(), f"{what} {str(path)!r}")


def text_of(content: bytes, place: str) -> str:
    """Bytes as text, without a mark of their order; another encoding than UTF-8 raises ``ValueError``."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{place} is not UTF-8 text: {error}") from error


def read_json(path: str | Path, what: str) -> Any:
    """The content of a JSON file; a missing file, another encoding or no JSON raises ``ValueError`` naming ``what``."""
    return parse_json(read_text(path, what), f"{what} {str(path)!r}")


def parse_json(text: str, place: str) -> Any:
    """What JSON text says.

    Refused is all that two readers would read differently: NaN and infinity, a key that stands twice in one object,
    more than 100 levels.

    Args:
        text: The text.
        place: What errors begin with.

    Raises:
        ValueError: The text is no such JSON.

    >>> parse_json('{"p": 0.5, "p": 1}', "path 'result.json'")
    Traceback (most recent call last):
    ValueError: path 'result.json': not JSON (key 'p' stands twice in one record, which would be read once)
    """
    try:
        value = json.loads(text, object_pairs_hook=_once_each, parse_constant=_refuse, parse_float=_finite)
        level = [value]
        for _ in range(_DEEPEST + 1):
            level = [each for one in level for each in _inside(one) if isinstance(each, dict | list)]
        if level:
            raise RecursionError
    except RecursionError as error:
        raise ValueError(f"{place}: not JSON (nested more than {_DEEPEST} levels deep)") from error
    except ValueError as error:
        raise ValueError(f"{place}: not JSON ({error})") from error
    return value


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, of which JSON would keep the last of a key that is there twice."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"key {key!r:.80} stands twice in one record, which would be read once")
        made[key] = value
    return made


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is no number of JSON")


def _finite(token: str) -> float:
    number = float(token)
    if abs(number) == float("inf"):
        raise ValueError(f"{token:.80} is too large a number")
    return number


def write_csv(path: Path, frame: pd.DataFrame, **options: Any) -> Path:
    """Write a table as CSV; returns the path.

    Text that a spreadsheet would run as a formula has ``'`` before it, as OWASP advises ("CSV Injection"), also after a
    ``;`` inside it, and in names of columns and of the index; numbers stay numbers.

    Args:
        path: The file; one that is there is replaced.
        frame: The table.
        options: Those of ``DataFrame.to_csv``.
    """
    safe = frame.rename(index=_inert, columns=_inert)
    safe.index.names, safe.columns.names = ([*map(_inert, axis.names)] for axis in frame.axes)
    for place, kind in enumerate(safe.dtypes):
        if kind.kind not in "biuf":
            safe.isetitem(place, [*map(_inert, safe.iloc[:, place])])
    # Both characters of this line end are quoted where they stand in a text.
    path.write_text(safe.to_csv(**{"lineterminator": "\r\n", **options}), encoding="utf-8", newline="")
    return path


def _inert(value: Any) -> Any:
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    value = _LATER.sub(r"\1'", value)
    return f"'{value}" if _FORMULA.match(value) else value
