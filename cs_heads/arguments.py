"""The check of arguments that are lists, mappings, paths or switches, asked before anything is read or run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def in_line(value: Any, most: int = 80) -> str:
    """What a value looks like, on one line and cut short: arrays and frames take several.

    >>> import numpy as np
    >>> in_line(np.eye(2)), in_line([1, 2, 3], most=5)
    ('array([[1., 0.], [0., 1.]])', '[1, 2')
    """
    return " ".join(repr(value).split())[:most]


def check_list(name: str, values: Any, what: str) -> list[Any]:
    """The values as a list; raises ``ValueError`` for a text, a mapping and whatever is no collection.

    >>> check_list("prompts", None, "texts")
    Traceback (most recent call last):
    ValueError: prompts must be a list of texts, got None
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of {what}, got {in_line(values)}")
    return list(values)


def check_mapping(name: str, values: Any, what: str) -> Mapping[str, Any]:
    """The mapping itself; raises ``ValueError`` for anything else, saying ``what`` belongs to what.

    >>> check_mapping("options", 5, "options by method")
    Traceback (most recent call last):
    ValueError: options must be a mapping, options by method, got 5
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be a mapping, {what}, got {in_line(values)}")
    return values


def check_path(name: str, path: Any) -> Path:
    """The path as a ``Path``; raises ``ValueError`` for anything but a text or a ``Path``.

    >>> check_path("path", None)
    Traceback (most recent call last):
    ValueError: path must be a path, got None
    """
    if not isinstance(path, str | Path):
        raise ValueError(f"{name} must be a path, got {in_line(path)}")
    return Path(path)


def check_switch(name: str, value: Any) -> bool | None:
    """True, False or None, as it is; anything else raises ``ValueError``."""
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} must be True, False or None, got {in_line(value)}")
    return value
