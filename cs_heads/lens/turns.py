"""One thread at a time on a model: hooks that one puts on it would change what another measures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, get_ident
from typing import Any
from weakref import WeakKeyDictionary

_TURN = Condition()
# By model: the thread whose turn it is, and how many blocks it is in. By waiting thread: the model it waits for.
_HELD: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
_AWAITED: dict[int, Any] = {}

_PATIENCE = 10.0
"""Seconds of waiting after which a thread says so."""


@contextmanager
def alone(model: Any) -> Iterator[None]:
    """Keep other threads from hooking, casting or measuring a model inside the ``with`` block: they wait for its end.

    Blocks of one thread may be nested. It is held by all of this library that changes how a model runs, and for a whole
    call of an experiment; what calls the model itself in another thread is not held back.

    Args:
        model: The model, or the ``ModelInfo`` of one on workers. Bridges around one Hugging Face model take turns.

    Raises:
        RuntimeError: The thread whose turn it is waits for a model that this thread holds: both would wait forever.
    """
    key, me = getattr(model, "original_model", model), get_ident()
    patience: float | None = _PATIENCE
    with _TURN:
        while _holder(key) not in (None, me):
            _check_no_circle(key, me)
            _AWAITED[me] = key
            try:
                notified = _TURN.wait(patience)
            finally:
                del _AWAITED[me]
            if not notified:
                patience = None
                warnings.warn(
                    "waiting for a model that another thread holds: a thread that is joined inside a with block that "
                    "holds it, as of cs.ablated, never ends",
                    stacklevel=4,
                )
        _HELD[key] = me, _HELD.get(key, (me, 0))[1] + 1
    try:
        yield
    finally:
        with _TURN:
            holder, depth = _HELD.pop(key)
            if depth > 1:
                _HELD[key] = holder, depth - 1
            else:
                _TURN.notify_all()


def _holder(model: Any) -> int | None:
    return _HELD[model][0] if model in _HELD else None


def _check_no_circle(model: Any, me: int) -> None:
    """Refuse to wait for a thread that waits, perhaps by way of others, for this one."""
    holder = _holder(model)
    while holder in _AWAITED:
        holder = _holder(_AWAITED[holder])
        if holder == me:
            raise RuntimeError(
                "two threads hold a model each and wait for that of the other: let all threads take the models in the "
                "same order, or leave the with block of one before another is measured"
            )
