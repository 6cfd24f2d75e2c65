"""One thread at a time on a model: hooks that one puts on it would change what another measures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

_LOCKS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_MAKING = Lock()

_PATIENCE = 10.0
"""Seconds of waiting after which a thread says so."""


@contextmanager
def alone(model: Any) -> Iterator[None]:
    """Keep other threads from hooking, casting or measuring a model inside the ``with`` block: they wait for its end.

    Blocks of one thread may be nested. It is held by all of this library that changes how a model runs, and for a whole
    call of an experiment; what calls the model itself in another thread is not held back.

    Args:
        model: The model, or the ``ModelInfo`` of one on workers. Bridges around one Hugging Face model take turns.
    """
    with _MAKING:
        lock = _LOCKS.setdefault(getattr(model, "original_model", model), RLock())
    if not lock.acquire(timeout=_PATIENCE):
        warnings.warn(
            "waiting for a model that another thread holds: a thread that is joined inside a with block that holds it, "
            "as of cs.ablated, never ends, nor do two threads that each wait for the model of the other",
            stacklevel=4,
        )
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
