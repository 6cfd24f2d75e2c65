"""The check of every argument that is a number, asked before anything is read, drawn or run."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


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
    """As ``check_integer``, with a bound that is so far away that only what exceeds it is told of it.

    >>> check_within("k", 0, 1, MAX_HEADS)
    Traceback (most recent call last):
    ValueError: k must be an integer of 1 or more, got 0
    """
    return check_integer(name, check_integer(name, value, least), least, most)


MAX_HEADS = 10**6
"""Layers, or heads of a layer or of a model, at most: no model comes near."""

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
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else float("nan")
    if not 0 < number < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r:.80}")
    return number
