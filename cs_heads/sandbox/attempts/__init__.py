"""Attempts to get out of the sandbox, and to do harm in it.

Each function of these modules is run inside as text, with ``bait`` laid out by ``self_check``; it raises unless it did
the harm that its docstring names. So it imports what it needs by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

Attempt = Callable[[dict[str, Any]], None]

_MODULES = ("files", "kernel", "processes", "network", "excess", "fakes")


def attempts() -> list[Attempt]:
    """Every attempt there is."""
    modules = [import_module(f"{__name__}.{name}") for name in _MODULES]
    return [
        each
        for module in modules
        for each in vars(module).values()
        if inspect.isfunction(each) and each.__module__ == module.__name__
    ]
