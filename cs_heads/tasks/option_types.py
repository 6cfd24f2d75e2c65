"""Are a task's options of the types that its loader names? Asked in one place, before anything is read or drawn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_WORDS: dict[Any, tuple[str, str]] = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "truth values"),
    Path: ("a path", "paths"),
    NoneType: ("None", "Nones"),
}


def check_options(load: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` naming the first option that is not of the type its loader's keyword has."""
    while isinstance(load, partial):
        load = load.func
    hints = get_type_hints(load)
    for name, value in options.items():
        check_type(name, value, hints.get(name, Any))


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise ``ValueError`` where an argument is not of a type; one that stands for many texts is not one text.

    >>> check_type("choices", "four", int | None)
    Traceback (most recent call last):
    ValueError: choices must be an integer or None, got 'four'
    """
    if not fits(value, hint):
        raise ValueError(f"{name} must be {_said(hint)}, got {value!r:.80}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, items included; a truth value is no number, and a text no list of texts."""
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, one) for one in inside)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if kind is Sequence:
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return listed and all(fits(item, inside[0]) for item in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(
            fits(key, inside[0]) and fits(item, inside[1]) for key, item in value.items()
        )
    if kind is Literal:
        return value in inside
    # Any, and what has no class to ask for, is not looked at.
    return hint is Any or not inspect.isclass(hint) or isinstance(value, hint)


def _said(hint: Any, many: bool = False) -> str:
    """A type in words."""
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        # A path may be given as a text.
        kinds = [one for one in inside if not (one is str and Path in inside)]
        return " or ".join(_said(one, many) for one in kinds)
    if kind is Literal:
        return f"one of {', '.join(map(str, inside))}"
    if kind is Sequence:
        return f"a list of {_said(inside[0], many=True)}"
    if kind is Mapping:
        return "these by name"
    if hint in _WORDS:
        return _WORDS[hint][many]
    return f"a {getattr(hint, '__name__', hint)}"
