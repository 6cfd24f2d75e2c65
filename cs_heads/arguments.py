"""The check of arguments that are lists, mappings, paths or switches, asked before anything is read or run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def check_list(name: str, values: Any, what: str) -> list[Any]:
    """The values as a list; raises ``ValueError`` for a text, a mapping and whatever is no collection.

    >>> check_list("prompts", None, "texts")
    Traceback (most recent call last):
    ValueError: prompts must be a list of texts, got None
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of {what}, got {values!r:.80}")
    return list(values)


def check_mapping(name: str, values: Any, what: str) -> Mapping[str, Any]:
    """The mapping itself; raises ``ValueError`` for anything else, saying ``what`` belongs to what.

    >>> check_mapping("options", 5, "options by method")
    Traceback (most recent call last):
    ValueError: options must be a mapping, options by method, got 5
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be a mapping, {what}, got {values!r:.80}")
    return values


def check_path(name: str, path: Any) -> Path:
    """The path as a ``Path``; raises ``ValueError`` for anything but a text or a ``Path``.

    >>> check_path("path", None)
    Traceback (most recent call last):
    ValueError: path must be a path, got None
    """
    if not isinstance(path, str | Path):
        raise ValueError(f"{name} must be a path, got {path!r:.80}")
    return Path(path)


def check_switch(name: str, value: Any) -> bool | None:
    """True, False or None, as it is; anything else raises ``ValueError``."""
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} must be True, False or None, got {value!r:.80}")
    return value
