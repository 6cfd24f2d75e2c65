"""What a function reads by name, and what of that belongs to Python or to an installed package."""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

# Python's own folders, and this library's: where it is used from a checkout, its version is still what tells it.
_FOLDERS = tuple(
    f"{folder}/" for folder in (*map(sysconfig.get_path, ("stdlib", "platstdlib")), Path(__file__).parents[1])
)
_PACKAGES = ("/site-packages/", "/dist-packages/")

# What reads names that are made at run time, or runs code that is; modules that have some of it.
_BY_ANY_NAME = (
    *(globals, eval, exec, compile, __import__, sys.modules),
    *(importlib.import_module, importlib.reload, importlib.__import__),
)
_HOLDERS = (
    *("builtins", "importlib", "importlib.machinery", "importlib.util"),
    *("inspect", "pkgutil", "pydoc", "runpy", "sys"),
)
_FINDERS = (
    *("pkgutil.resolve_name", "pydoc.locate", "runpy.run_module", "runpy.run_path"),
    *("importlib.util.find_spec", "importlib.util.spec_from_file_location", "importlib.util.module_from_spec"),
    *("_frozen_importlib_external.spec_from_file_location", "_frozen_importlib.module_from_spec"),
    *("_frozen_importlib_external.SourceFileLoader", "inspect.getmodule"),
)
# What Python itself keeps in a module.
_OF_PYTHON = {
    *("__name__", "__file__", "__spec__", "__loader__", "__builtins__", "__cached__", "__package__", "__path__"),
    *("__annotate__", "__conditional_annotations__", "__warningregistry__"),
}
# Attributes by which code comes to globals, builtins or classes that it does not name.
_OTHER_GLOBALS = {"__globals__", "__builtins__", "__subclasses__", "f_globals", "f_builtins"}
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_NO_STEPS = ("EXTENDED_ARG", "NOP", "CACHE")


class UnidentifiableError(Exception):
    """What a function reads cannot be identified; its text says what that is."""


def check_named(value: Any, name: str) -> None:
    """Raise ``UnidentifiableError`` for what reads names that are made at run time."""
    if type(value) is attrgetter:
        named = {part for argument in value.__reduce__()[1] for part in argument.split(".")}
        if named & _OTHER_GLOBALS:
            raise UnidentifiableError(f"reads {name!r}, by which it may read anything")
    home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if any(value is other for other in _BY_ANY_NAME) or home in _FINDERS:
        raise UnidentifiableError(f"reads {name!r}, by which it may read anything")


def is_installed(file: str) -> bool:
    """Whether a file of code is Python's own, or of an installed package."""
    file = file.replace("\\", "/")
    return file.startswith((*_FOLDERS, "<frozen")) or any(folder in file for folder in _PACKAGES)


def is_installed_module(module: ModuleType | None) -> bool:
    """Whether a module is Python's own, or of an installed package."""
    if module is None or module.__name__ == "__main__":
        return False
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return _is_installed_at(getattr(module, "__file__", None) or origin, getattr(module, "__path__", ()))


def _is_installed_at(origin: str | None, folders: Iterable[str]) -> bool:
    """Whether a module of this file is installed; a package without a file by the folders it has."""
    if origin is not None:
        return origin in ("built-in", "frozen") or is_installed(str(origin))
    places = [f"{folder}/" for folder in folders]
    return bool(places) and all(map(is_installed, places))


def globals_of(function: FunctionType) -> dict[str, Any]:
    """By name, the values that a function and what is defined in it read from modules.

    Of a module of the user's own these are the attributes that the code names; the module itself where it is used in
    another way. A name that is not there is a builtin, or will fail.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells if holds_finders(cell)}
    return dict(sorted(dict(_reads(function.__code__, function.__globals__, held)).items()))


def holds_finders(cell: CellType) -> bool:
    """Whether a closed-over value is a module with functions that read names made at run time.

    What is read of it is then among ``globals_of`` the function.
    """
    try:
        return _is_holder(cell.cell_contents)
    except ValueError:  # not yet filled
        return False


def named_in(text: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """By name, the values that an annotation written as text reads from its module, where they are there."""
    try:
        code = compile(text, "<annotation>", "eval")
    except (SyntaxError, ValueError):
        return {}
    return dict(sorted(dict(_reads(code, namespace, {})).items()))


def annotations_of(value: Any) -> dict[str, Any]:
    """The annotations of a function or class, not those of its bases."""
    try:
        return inspect.get_annotations(value)
    except NameError:  # Python 3.14 makes them when they are read: of names for type checkers alone it cannot
        return {"__annotate__": value.__annotate__}


def contents_of(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """By name, all that a module defines, without what Python itself keeps there."""
    return {name: value for name, value in sorted(namespace.items()) if not _is_of_python(name)}


def _is_of_python(name: str) -> bool:
    # Underscores alone are what a notebook calls its last results.
    return name in _OF_PYTHON or not name.strip("_")


def _reads(code: CodeType, namespace: dict[str, Any], held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """``held`` are modules that hold finders, by the names under which the functions around it have them."""
    _check_attributes(code)
    held = dict(held)
    steps = list(_steps(code))
    for place, step in enumerate(steps):
        following = steps[place + 1 :]
        if step.opname in _LOADS:
            name = str(step.argval)
            if name in namespace:
                yield _attribute(name, namespace[name], following)
            elif name == "globals":
                yield from contents_of(namespace).items()
            elif hasattr(builtins, name):
                check_named(getattr(builtins, name), name)
        elif step.opname == "IMPORT_NAME":
            level, names = (before.argval for before in steps[place - 2 : place])
            yield from _imported("." * level + step.argval, names, namespace)
            if level == 0:
                held |= _held(step.argval, names, following)
        elif _is_local(step, code) and step.argval in held:
            yield _attribute(step.argval, held[step.argval], following)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner, namespace, held)


def _is_local(step: dis.Instruction, code: CodeType) -> bool:
    """Whether a step reads a name of the function or of one around it."""
    if step.opname.startswith("LOAD_FAST"):
        # From Python 3.13 on this also hands on to a function inside what that closes over.
        return step.argval not in (*code.co_cellvars, *code.co_freevars)
    return step.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")


def _check_attributes(code: CodeType) -> None:
    # Constants too: `getattr` and `attrgetter` take such names as texts, and `globals()` has `__builtins__`.
    for name in (*code.co_names, *code.co_consts):
        if isinstance(name, str) and not _OTHER_GLOBALS.isdisjoint(name.split(".")):
            raise UnidentifiableError(f"reads {name!r}, by which it may read anything")


def _steps(code: CodeType) -> Iterator[dis.Instruction]:
    """Its instructions, one for each name that is read or set."""
    for step in dis.get_instructions(code):
        if isinstance(step.argval, tuple) and "_FAST_" in step.opname:  # two in one, from Python 3.13 on
            for opname, name in zip(re.findall("LOAD_FAST|STORE_FAST", step.opname), step.argval, strict=True):
                yield step._replace(opname=opname, argval=name)
        elif step.opname not in _NO_STEPS:
            yield step


def _is_holder(value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__ in _HOLDERS


def _held(name: str, attributes: Sequence[str] | None, following: Sequence[dis.Instruction]) -> dict[str, Any]:
    """The modules that hold finders which an import inside a function sets names to."""
    top = name.partition(".")[0]
    if not any(top == holder.partition(".")[0] for holder in _HOLDERS):
        return {}
    try:
        found: Any = importlib.import_module(top if attributes is None else name)
    except ImportError:
        return {}
    module, held = found, {}
    for step in following:
        if step.opname == "IMPORT_FROM":
            # `import a.b as c` goes from module to module, `from a import b, c` stays with the first.
            found = getattr(found if attributes is None else module, step.argval, None)
        elif step.opname.startswith("STORE_"):
            held[step.argval] = found
            if attributes is None:
                break
        elif step.opname not in ("SWAP", "ROT_TWO", "POP_TOP"):
            break
    return {name: value for name, value in held.items() if _is_holder(value)}


def _attribute(name: str, value: Any, following: Sequence[dis.Instruction]) -> tuple[str, Any]:
    """A value and its name, or of a module the attribute that is looked up at once."""
    for step in takewhile(lambda step: step.opname in ("LOAD_ATTR", "LOAD_METHOD"), following):
        followed = isinstance(value, ModuleType) and (_is_holder(value) or not is_installed_module(value))
        if not followed or not hasattr(value, step.argval):
            break
        name, value = f"{name}.{step.argval}", getattr(value, step.argval)
    if value is builtins:
        raise UnidentifiableError(f"reads {name!r}, by which it may read anything")
    check_named(value, name)
    return name, value


def _is_installed_name(name: str) -> bool:
    """Whether a module that need not be loaded yet is installed; raises ``ImportError`` where there is none."""
    if name in sys.modules:
        return is_installed_module(sys.modules[name])
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ImportError(name)
    return _is_installed_at(spec.origin, spec.submodule_search_locations or ())


def _imported(name: str, attributes: Sequence[str] | None, namespace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What an import inside a function reads; nothing of an installed package, or where the import will fail."""
    try:
        name = importlib.util.resolve_name(name, str(namespace.get("__package__") or ""))
        top = name.partition(".")[0]
        if _is_installed_name(top):
            # Of an installed module, too, names may be read that are made at run time.
            for attribute in attributes or () if name in _HOLDERS else ():
                check_named(getattr(importlib.import_module(name), attribute, None), attribute)
            return
        module = importlib.import_module(name)
    except ImportError:
        return
    if attributes is None:
        yield from ((f"import {one}", sys.modules[one]) for one in {top, name})
    for attribute in attributes or ():
        if not hasattr(module, attribute):
            try:
                importlib.import_module(f"{name}.{attribute}")
            except ImportError:
                continue
        # Told from a global `name` of another module, of which `attribute` is read.
        yield f"from {name} import {attribute}", getattr(module, attribute)
