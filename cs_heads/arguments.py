"""What arguments are: checks (numbers, lists, mappings, paths) made before anything is run, descriptions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


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


def check_integer(name: str, value: Any, least: int, most: int | None = None, why: str = "") -> int:
    """The value as an ``int``; raises ``ValueError`` where it is no integer of ``least`` or more, up to ``most``.

    NumPy's integers are integers; 5.0 and a truth value are none. ``why`` says in the message what the bounds are.

    >>> check_integer("k", 9, 1, 8, "the heads of the grid")
    Traceback (most recent call last):
    ValueError: k must be an integer in 1..8, the heads of the grid; got 9
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        allowed = f"of {least} or more" if most is None else f"in {least}..{most}"
        raise ValueError(f"{name} must be an integer {allowed}{f', {why};' if why else ','} got {value!r:.80}")
    return int(value)


def check_within(name: str, value: Any, least: int, most: int) -> int:
    """As ``check_integer``; the message names ``most`` only where the value exceeds it.

    >>> check_within("k", 0, 1, MAX_HEADS)
    Traceback (most recent call last):
    ValueError: k must be an integer of 1 or more, got 0
    """
    return check_integer(name, check_integer(name, value, least), least, most)


MAX_HEADS = 10**6
"""Layers, or heads of a layer or of a model, at most: no model comes near."""

WEIGHT_BY_MASKS, WEIGHT_BY_GRADIENTS = 3.0, 1.5
"""What the mean loss of other tasks counts beside the own one where tasks are searched together. After a screen by
gradients more is measured of what sets take from the others, and less of it is left out as doubtful."""

MAX_BUDGET = 10**12
"""Example-evaluations at most, which would take a lifetime."""

MAX_SEED = 2**31 - 1
"""The largest seed that every random generator in use takes."""


def check_seed(seed: Any) -> int:
    """The seed as an ``int``; raises ``ValueError`` where it is no integer of 0 or more, or too large.

    >>> check_seed(2**70)
    Traceback (most recent call last):
    ValueError: seed must be an integer in 0..2147483647, got 1180591620717411303424
    """
    return check_within("seed", seed, 0, MAX_SEED)


def check_share(name: str, value: Any) -> float:
    """The value as a ``float``; raises ``ValueError`` where it is no number between 0 and 1, both excluded."""
    if not fits(value, float) or not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r:.80}")
    return float(value)


def check_weight(name: str, value: Any) -> float:
    """The value as a ``float``; raises ``ValueError`` where it is no finite number of 0 or more."""
    if not fits(value, float) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite number of 0 or more, got {in_line(value)}")
    return float(value)


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """What ends an error where a word that is known looks like one that is not; nothing where none does.

    >>> did_you_mean("anealed", ["annealed", "css"]), did_you_mean("plural", ["demo/plural", "everyday/plural"])
    ("; did you mean 'annealed'?", "; did you mean 'demo/plural' or 'everyday/plural'?")
    """
    if not isinstance(word, str):
        return ""
    # Dashes that flags begin with make none like another.
    plain = {each.lstrip("-"): each for each in known}
    near = [each for each in plain if each.endswith(f"/{word}")] or get_close_matches(word.lstrip("-"), plain, n=1)
    return f"; did you mean {' or '.join(repr(plain[each]) for each in near)}?" if near else ""


def check_one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise ``ValueError`` where an argument is none of the words allowed.

    >>> check_one_of("order", "AB", ("both", "ABBA"))
    Traceback (most recent call last):
    ValueError: order must be one of both, ABBA, got 'AB'; did you mean 'ABBA'?
    """
    if value not in (allowed := tuple(allowed)):
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}{did_you_mean(value, allowed)}")


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
        named = isinstance(value, Mapping)
        return named and all(fits(key, inside[0]) and fits(item, inside[1]) for key, item in value.items())
    if kind is Literal:
        return value in inside
    # Any, and what has no class to ask for, is not looked at.
    return hint is Any or not inspect.isclass(hint) or isinstance(value, hint)


def _said(hint: Any, many: bool = False) -> str:
    """A type in words."""
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        # A path may be given as a text.
        return " or ".join(_said(one, many) for one in inside if not (one is str and Path in inside))
    if kind is Literal:
        return f"one of {', '.join(map(str, inside))}"
    if kind is Sequence:
        return f"a list of {_said(inside[0], many=True)}"
    if kind is Mapping:
        return "these by name"
    if hint in _WORDS:
        return _WORDS[hint][many]
    return f"a {getattr(hint, '__name__', hint)}"


@dataclass(frozen=True)
class Option:
    """One keyword of a call: its name, its type, its default value, and a sentence that explains it.

    ``default`` is ``inspect.Parameter.empty`` where a value is required.
    """

    name: str
    type: Any
    default: Any = None
    help: str = ""

    @property
    def types(self) -> tuple[Any, ...]:
        """The types that a value may have: the members of a union, or the type itself."""
        return get_args(self.type) or (self.type,)

    @property
    def required(self) -> bool:
        """Whether there is no default value."""
        return self.default is inspect.Parameter.empty


def described(documented: Any, section: str = "Args") -> dict[str, str]:
    """The entries of one section of a Google-style docstring.

    Args:
        documented: A function or a class, or the docstring itself.
        section: The title of the section, without its colon.

    Returns:
        By the name of each entry its text, on one line and without the backticks of literals.
    """
    said = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    _, _, text = said.partition(f"\n{section}:\n")
    text = re.split(r"\n(?=\S)", text)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*|\n$)*)", text, flags=re.MULTILINE)
    return {name: " ".join(entry.replace("``", "").split()) for name, entry in entries}
