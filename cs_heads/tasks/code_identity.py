"""What tells one function from another: its code, and all that its code reads."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from re import Pattern
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from cs_heads.tasks.example import hash_of

# Where functions and classes are told by their names: Python itself, and packages that are installed.
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def identity_of(function: Callable[..., Any]) -> str:
    """A function's name and a hash of its bytecode, constants, defaults and the values of all names it reads.

    Functions of your own that it calls are part of it; those of installed packages, and their classes and modules,
    are told by name. Two functions of one source, made with other values, differ; so may the same function under
    another version of Python. A function that reads something that cannot be told, or is itself no function with
    code, raises ``ValueError`` naming it.

    >>> make = lambda least: lambda example, text: float(len(text) > least)
    >>> identity_of(make(0)) == identity_of(make(0)), identity_of(make(0)) == identity_of(make(5))
    (True, False)
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if not isinstance(function, FunctionType | partial):
        raise _untold(name, "has no code to tell it by")
    return f"{name}/{hash_of(_told(function, name, name, []))}"


def _untold(scorer: str, why: str) -> ValueError:
    return ValueError(f"scorer {scorer!r} {why}: give an object with identity and __call__ (Scorer)")


def _told(value: Any, name: str, scorer: str, above: list[Any]) -> Any:  # noqa: PLR0911, PLR0912 - one kind a line
    """A value as JSON-ready content; ``above`` are the values it was found in."""
    if value is None or isinstance(value, bool | int | float | str | bytes | complex) or value is Ellipsis:
        return [type(value).__name__, repr(value)]
    if any(value is other for other in above):
        return ["itself", next(i for i, other in enumerate(above) if other is value)]
    above = [*above, value]

    def told(inner: Any, name: str = name) -> Any:
        return _told(inner, name, scorer, above)

    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(told, value)]
    if isinstance(value, set | frozenset):
        return [type(value).__name__, *sorted(map(told, value), key=repr)]
    if isinstance(value, Mapping):
        return ["mapping", *([told(key), told(inner)] for key, inner in value.items())]
    if isinstance(value, Pattern):
        return ["pattern", told(value.pattern), value.flags]
    if isinstance(value, partial):
        return ["partial", told(value.func), told(value.args), told(value.keywords)]
    if isinstance(value, CodeType):
        return ["code", value.co_code.hex(), list(value.co_names), told(value.co_consts)]
    if isinstance(value, ModuleType):
        return ["module", value.__name__]
    if isinstance(value, type | BuiltinFunctionType) or _is_installed(value):
        if not _is_installed(value):
            raise _untold(scorer, f"reads {name!r}, a class of your own, which cannot be told from another")
        return ["named", str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", name))]
    if isinstance(value, FunctionType):
        return ["function", told(value.__code__), *([n, told(inner, n)] for n, inner in _read_by(value).items())]
    if is_dataclass(value):
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        return ["dataclass", type(value).__module__, type(value).__qualname__, told(values)]
    raise _untold(scorer, f"reads {name!r}, a {type(value).__name__}, which cannot be told from another")


def _read_by(function: FunctionType) -> dict[str, Any]:
    """By name, what a function reads that is not in its code: closure, defaults and globals."""
    read: dict[str, Any] = {
        "its defaults": function.__defaults__,
        "its keyword defaults": function.__kwdefaults__,
    }
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            read[name] = cell.cell_contents
        except ValueError:  # not yet filled
            read[name] = None
    for name in sorted(_globals_of(function.__code__)):
        # What is not there is a builtin, or will fail.
        if name in function.__globals__:
            read[f"global {name}"] = function.__globals__[name]
    return read


def _globals_of(code: CodeType) -> set[str]:
    """Names that code, and what is defined in it, looks up in its module."""
    own = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_globals_of(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _is_installed(value: Any) -> bool:
    """Whether a function or class is of Python itself or of a package that is installed."""
    if isinstance(value, FunctionType):
        return value.__code__.co_filename.startswith((*_INSTALLED, "<frozen"))
    if isinstance(value, BuiltinFunctionType):
        return True
    if isinstance(value, type):
        module = sys.modules.get(value.__module__)
        file = getattr(module, "__file__", None)
        return (
            module is not None
            and value.__module__ != "__main__"
            and (file is None or str(Path(file)).startswith(_INSTALLED) or value.__module__.split(".")[0] == "cs_heads")
        )
    return False
