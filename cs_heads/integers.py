"""The check of every argument that counts something, asked before anything is read, drawn or run."""

from __future__ import annotations

from numbers import Integral
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
