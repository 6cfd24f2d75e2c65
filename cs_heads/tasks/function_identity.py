"""What tells one function from another: its code, and all that its code reads."""

from __future__ import annotations

import abc
import builtins
import copyreg
import functools
import gc
import hashlib
import json
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field
from enum import EnumMeta
from functools import cached_property, reduce
from re import Pattern
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, ForwardRef, Generic, NewType, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar, get_args

import numpy as np

from cs_heads.tasks.example import hash_of
from cs_heads.tasks.function_reads import (
    UnidentifiableError,
    annotations_of,
    check_named,
    contents_of,
    globals_of,
    holds_finders,
    is_installed,
    is_installed_module,
    named_in,
)

OF_PYTHON = {
    *("__dict__", "__weakref__", "__module__", "__annotations__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "__firstlineno__", "__static_attributes__", "_abc_impl"),
}
"""What a class has beside what its author wrote: nothing that it does, and some of it other in each process."""
# What an object of a class of the user's own holds as one of these builtins.
_CONTENT: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__index__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
# Bases by which an object holds nothing more.
_EMPTY_BASES = (object, Generic, Protocol, *_CONTENT)
_HEAP_TYPE = 1 << 9
"""Flag of a class that was made by a class statement, and is no part of the interpreter."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_KEYS = type(functools.cmp_to_key(max))
_VIEWS: tuple[type[Collection[Any]], ...] = (type({}.keys()), type({}.values()), type({}.items()))
# A function of `functools.singledispatch`: by what stands in its registry, and what its author set on it.
_DISPATCHING = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
_OF_DISPATCHING = ("register", "dispatch", "registry", "_clear_cache", "__wrapped__")
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
# Those behind functions such as `random.choice`, which count by name as all of Python's own.
_SHARED_GENERATORS = (random.random.__self__, np.random.random_sample.__self__)  # type: ignore[attr-defined]
# Values identified by how Python writes them, and how deep containers of them may lie in one another: what holds
# itself has no end.
_PLAIN = {str, int, float, bool, type(None)}
_PLAIN_DEPTH = 3
# What pydantic makes of a class that its author wrote.
_OF_PYDANTIC = {
    *("__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__", "__pydantic_complete__"),
    *("__pydantic_setattr_handlers__", "__pydantic_parent_namespace__", "__signature__"),
}

Reads: TypeAlias = list[tuple[str, str]]
"""What a function reads: names, each with a hash of its value; the last is the function itself."""


def identity_of(function: Callable[..., Any]) -> str:
    """A function's name and a hash of its code, constants, defaults, annotations and the values of all names it reads.

    Functions, classes and objects of your own modules are part of it by what they are, whatever they call in turn;
    those of Python and of installed packages are identified by name. Two functions of one source, made with other
    values, differ; so may the same function under another version of Python. Files and environment variables that it
    reads are no part of it, nor is what ``functools.cache``, ``lru_cache`` and ``cached_property`` have kept. One that
    reads what cannot be identified, such as ``eval`` or a random generator, raises ``ValueError`` naming it.

    >>> make = lambda least: lambda example, text: float(len(text) > least)
    >>> identity_of(make(0)) == identity_of(make(0)), identity_of(make(0)) == identity_of(make(5))
    (True, False)
    """
    return "/".join(reads_of(function)[-1])


def reads_of(function: Callable[..., Any]) -> Reads:
    """All that a function and what it calls read, what is read by a value before that value; refuses as above."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    identities = _Identities()
    try:
        whole = hash_of(identities(function, name))
        return [*identities.reads, (name, whole)]
    except UnidentifiableError as error:
        why = str(error)
    except RecursionError:
        why = "reads what is nested too deeply to be identified"
    raise ValueError(f"scorer {name!r} {why}: give an object with identity and __call__ (Scorer)")


class _Identities:
    """Values as JSON-ready content, alike in every process; what was read before is represented by its hash."""

    def __init__(self, known: Mapping[int, tuple[Any, str]] | None = None, above: Iterable[Any] = ()) -> None:
        # The values themselves too, since an id is taken again once its object is gone.
        self._known = dict(known or {})
        self._above = list(above)
        self.reads: Reads = []

    def __call__(self, value: Any, name: str) -> Any:  # noqa: PLR0911 - one kind a line
        kind = type(value)
        if value is None or value is Ellipsis or value is NotImplemented or kind in (bool, float, complex, str):
            return [kind.__name__, repr(value)]
        if kind is int:
            return ["int", hex(value)]
        if kind in (bytes, bytearray):
            return [kind.__name__, hashlib.sha256(value).hexdigest()]
        if kind is tuple:
            return ["tuple", *(self(inner, name) for inner in value)]
        if kind is Pattern:
            return ["pattern", self(value.pattern, name), value.flags]
        if id(value) in self._known:
            return self._known[id(value)][1]
        for up, other in enumerate(reversed(self._above)):
            if other is value:
                return ["itself", up]
        self._above.append(value)
        try:
            identity = hash_of(self._compound(value, name))
        finally:
            self._above.pop()
        self._known[id(value)] = value, identity
        return identity

    def _compound(self, value: Any, name: str) -> list[Any]:  # noqa: PLR0911 - one kind a line
        check_named(value, name)
        for stream in ("stdin", "stdout", "stderr"):
            if value is getattr(sys, stream):
                return ["stream", stream]
        kind = type(value)
        plain = _plain_text(value)
        if plain is not None:
            return ["plain", kind.__name__, hashlib.sha256(plain.encode()).hexdigest()]
        if kind is list:
            return ["list", *(self(inner, name) for inner in value)]
        if kind in (set, frozenset):
            # In the order of their hashes, each as if it were the first: the order of a set is other in each process.
            each = [_Identities(self._known, self._above)(inner, name) for inner in value]
            return [kind.__name__, *sorted(each, key=repr)]
        if kind in (dict, MappingProxyType):
            return ["mapping", *([self(key, name), self(inner, _inner(name, key))] for key, inner in value.items())]
        if isinstance(value, CodeType):
            return self._code(value, name)
        if isinstance(value, ModuleType):
            if is_installed_module(value):
                return ["module", value.__name__]
            return ["own module", self._named(contents_of(vars(value)), value.__name__)]
        if isinstance(value, type):
            return _installed_name(value) or self._class(value, name)
        if isinstance(value, FunctionType):
            return _installed_name(value) or self._parts(value, name) or self._function(value, name)
        return self._part_of_class(value, name) or self._object(value, name)

    def _named(self, values: Mapping[str, Any], name: str = "") -> list[Any]:
        """Values by their names, which errors say."""
        return [[key, self._read(value, _inner(name, key))] for key, value in values.items()]

    def _read(self, value: Any, name: str) -> Any:
        identity = self(value, name)
        self.reads.append((name, hash_of(identity)))
        return identity

    def _code(self, code: CodeType, name: str) -> list[Any]:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        caught = getattr(code, "co_exceptiontable", b"")
        steps = code.co_code.hex(), caught.hex()
        return ["code", code.co_name, *counts, *map(list, names), *steps, self(code.co_consts, name)]

    def _function(self, function: FunctionType, name: str) -> list[Any]:
        read = {"its defaults": function.__defaults__, "its keyword defaults": function.__kwdefaults__}
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                if not holds_finders(cell):
                    read[free] = cell.cell_contents
            except ValueError:  # not yet filled
                read[free] = None
        # A wrapper of an installed package reads its module by name; what it wraps is in its closure.
        if not is_installed(function.__code__.co_filename):
            read |= {f"global {key}": value for key, value in globals_of(function).items()}
        return [
            "function",
            self(function.__code__, name),
            [[key, self._read(value, key.removeprefix("global "))] for key, value in read.items()],
            self._named(vars(function), name),
            self._annotations(function, function.__globals__),
        ]

    def _annotations(self, value: Any, namespace: dict[str, Any]) -> list[Any]:
        """Those of a function or class, which it may read when it is called."""
        return [[key, self._annotation(hint, namespace, key)] for key, hint in annotations_of(value).items()]

    def _annotation(self, hint: Any, namespace: dict[str, Any], name: str) -> list[Any]:
        """By value; of what stands in it as text, the names that are read when types are made of it.

        What it names is seldom read: where that cannot be identified, its name is enough.
        """
        text = getattr(hint, "__forward_arg__", hint)
        inner = [self._annotation(part, namespace, name) for part in get_args(hint)]
        try:
            read = self._named(named_in(text, namespace)) if isinstance(text, str) else []
            return [self(hint, name), read, inner]
        except UnidentifiableError:
            named = text if isinstance(text, str) else getattr(hint, "__qualname__", type(hint).__qualname__)
            return ["unidentified", named, inner]

    def _class(self, value: type, name: str) -> list[Any]:
        own = {
            key: inner for key, inner in vars(value).items() if key not in OF_PYTHON and not _is_generated(value, key)
        }
        bases = [self(base, base.__qualname__) for base in value.__bases__]
        annotations = self._annotations(value, vars(sys.modules.get(value.__module__, builtins)))
        told = [self(type(value), name), bases, self._named(own, value.__qualname__), annotations]
        registered = _registered_with(value)
        if registered:
            told.append(self._read(frozenset(registered), f"{value.__qualname__}.register"))
        return ["class", value.__qualname__, *told]

    def _part_of_class(self, value: Any, name: str) -> list[Any] | None:  # noqa: PLR0911 - one kind a line
        """Methods, descriptors and fields; None for any other value."""
        kind = type(value).__name__
        if isinstance(value, MethodType):
            return [kind, self(value.__func__, name), self(value.__self__, f"{name}.__self__")]
        if isinstance(value, BuiltinFunctionType | MethodWrapperType):
            owner = value.__self__
            if owner is None or isinstance(owner, ModuleType):
                found = _installed_name(value)
                if found is None and _is_in_installed(value, value.__name__):
                    return ["named", value.__name__]
                return found or _refuse(value, name)
            return [kind, value.__name__, self(owner, f"{name}.__self__")]
        if isinstance(value, MethodDescriptorType | WrapperDescriptorType | ClassMethodDescriptorType):
            return [kind, value.__name__, self(value.__objclass__, name)]
        if isinstance(value, GetSetDescriptorType | MemberDescriptorType):
            return [kind, value.__name__]
        if isinstance(value, property):
            return [kind, *(self(part, name) for part in (value.fget, value.fset, value.fdel, value.__doc__))]
        if isinstance(value, staticmethod | classmethod):
            return [kind, self(value.__func__, name)]
        if isinstance(value, cached_property):
            return [kind, self(value.func, name)]
        if isinstance(value, Field):
            told = [self(getattr(value, slot), name) for slot in value.__slots__ if slot != "type"]
            return [kind, *told, self._annotation(value.type, {}, name)]
        return self._parts(value, name)

    def _parts(self, value: Any, name: str) -> list[Any] | None:
        """Objects identified by something else than a pickle; None for any other."""
        parts = _parts_of(value, name)
        if parts is None:
            return None
        return ["parts", self(type(value), name), *(self(part, name) for part in parts)]

    def _object(self, value: Any, name: str) -> list[Any]:
        """An object by its class and by what it holds: of one's own classes all of that, else what a pickle has."""
        kind = type(value)
        told = ["object", self(kind, name)]
        if not _installed_name(kind):
            slots = [slot for base in kind.__mro__ for slot in _slots(base) if hasattr(value, slot)]
            held = {**getattr(value, "__dict__", {}), **{slot: getattr(value, slot) for slot in slots}}
            held = {key: inner for key, inner in held.items() if not _is_cached(kind, key)}
            content = [read(value) for base, read in _CONTENT.items() if isinstance(value, base)]
            told += [self._named(held, name), self(content, name)]
            bases = [base for base in kind.__mro__ if base not in _EMPTY_BASES and not _is_written(base)]
            if not bases or isinstance(value, set | frozenset):
                return told
        return [*told, *self._pickled(value, name)]

    def _pickled(self, value: Any, name: str) -> list[Any]:
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # whatever a class of others raises for what it cannot pickle
            reducing = copyreg.dispatch_table.get(type(value))
            parts = reducing(value) if reducing else _refuse(value, name)
        if isinstance(parts, str):
            # A global of its module: one's own functions stand in there, too, behind a wrapper.
            if hasattr(value, "__wrapped__"):
                return [self(value.__wrapped__, name), self._named(vars(value), name)]
            if isinstance(value, TypeVar | ParamSpec):
                constraints = getattr(value, "__constraints__", ())
                return ["type variable", parts, self(value.__bound__, name), self(constraints, name)]
            if isinstance(value, NewType):
                return ["new type", parts, self(value.__supertype__, name)]
            return [parts] if _is_in_installed(value, parts) else _refuse(value, name)
        make, arguments, state, items, pairs = (*parts, None, None, None)[:5]
        return [self(part, name) for part in (make, arguments, state, list(items or ()), list(pairs or ()))]


def _refuse(value: Any, name: str) -> NoReturn:
    raise UnidentifiableError(f"reads {name!r}, a {type(value).__qualname__}, which cannot be identified")


def _is_in_installed(value: Any, name: str) -> bool:
    """Whether a value stands under this name in a module of Python or of an installed package."""
    first = (sys.modules.get(str(module)) for module in (getattr(value, "__module__", None), type(value).__module__))
    if any(is_installed_module(home) and getattr(home, name, None) is value for home in first):
        return True
    loaded = list(sys.modules.values())
    return any(getattr(home, "__dict__", {}).get(name) is value and is_installed_module(home) for home in loaded)


def _inner(name: str, key: Any) -> str:
    return f"{name}.{key}" if isinstance(key, str) else name


def _is_cached(kind: type, name: str) -> bool:
    """Whether an attribute of an object of this class is what a ``cached_property`` has kept."""
    return isinstance(next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None), cached_property)


def _is_written(kind: type) -> bool:
    """Whether a class is one's own; one of C, wherever it is found, holds what no attribute shows."""
    return not _installed_name(kind) and ("__slots__" in vars(kind) or kind.__dictoffset__ != 0)


def _slots(kind: type) -> tuple[str, ...]:
    """The names of a class's slots, as its objects have them."""
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    hidden = f"_{kind.__name__.lstrip('_')}"
    return tuple(f"{hidden}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names)


def _installed_name(value: Any) -> list[Any] | None:
    """Module and name of what stands under that name in Python itself or in an installed package; else None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, type) and not value.__flags__ & _HEAP_TYPE:
        return ["named", module, name]
    if isinstance(value, FunctionType) and not is_installed(value.__code__.co_filename):
        return None
    home = sys.modules.get(str(module))
    if not name or not is_installed_module(home):
        return None
    found = reduce(lambda place, part: getattr(place, part, None), name.split("."), home)
    return ["named", module, name] if found is value else None


# Objects of Python and of common packages that a pickle does not tell apart, or not in every process.


def _parts_of(value: Any, name: str) -> list[Any] | None:  # noqa: PLR0911 - one kind a line
    """What tells an object from another of its class, whatever process it is in; None where its pickle does.

    A tensor by type, shape and bytes, on any device. Whether a lock is taken is no part.
    A random generator raises ``UnidentifiableError``.
    """
    if isinstance(value, _LOCKS):
        return []
    if isinstance(value, _KEYS):
        return [part for part in gc.get_referents(value) if part is not type(value)]
    if isinstance(value, _VIEWS):
        return list(value)
    if isinstance(value, FunctionType) and value.__code__ is _DISPATCHING:
        own = {key: inner for key, inner in vars(value).items() if key not in _OF_DISPATCHING}
        return [dict(value.registry), own]  # type: ignore[attr-defined]
    if isinstance(value, ForwardRef):
        return [value.__forward_arg__]
    if any(value is shared for shared in _SHARED_GENERATORS):
        return []
    if isinstance(value, _GENERATORS) or _is_of(value, "torch", "Generator"):
        raise UnidentifiableError(
            f"reads {name!r}, a {type(value).__qualname__}, which is another after each draw (make it inside the "
            "function, from a seed)"
        )
    if _is_of(value, "torch", "device"):
        return []
    if _is_of(value, "torch", "Tensor"):
        return _of_tensor(value, name)
    if _is_of(value, "pydantic", "Decorator"):
        return [value.cls_var_name, value.func, value.info]
    if _is_of(value, "transformers", "PreTrainedTokenizerBase") and hasattr(value, "backend_tokenizer"):
        return _of_tokenizer(value)
    if _is_of(value, "transformers", "GenerationConfig"):
        # It keeps a hash of its texts, which is another in each process.
        return [{key: inner for key, inner in vars(value).items() if key != "_original_object_hash"}]
    return None


def _of_tokenizer(value: Any) -> list[Any]:
    """One of transformers; padding and truncation are set at each call, and warnings once given are remembered."""
    told = json.loads(value.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}
    held = {key: inner for key, inner in vars(value).items() if key not in ("_tokenizer", "deprecation_warnings")}
    return [told, held]


def _plain_text(value: Any) -> str | None:
    """A list, set or dictionary of texts and numbers as Python writes it; None for any other value.

    What tells 100,000 words at once: each by itself would take a second, before and after every batch of scores.
    """
    try:
        if type(value) in (set, frozenset):
            # Sorted, since the order of a set is other in each process.
            return repr(sorted(map(repr, value))) if _PLAIN.issuperset(map(type, value)) else None
        return repr(value) if type(value) in (list, dict) and _is_plain(value, _PLAIN_DEPTH) else None
    except ValueError:  # an integer of thousands of digits
        return None


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is dict:
        value = [*value.keys(), *value.values()]
    elif kind not in (list, tuple):
        return kind in _PLAIN
    others = set(map(type, value)) - _PLAIN
    if not others:
        return True
    return depth > 0 and others <= {list, tuple, dict} and all(_is_plain(inner, depth - 1) for inner in value)


def _registered_with(owner: type) -> list[type]:
    """The classes that an abstract class takes for its own by ``register``; no attribute of it holds them."""
    if not isinstance(owner, abc.ABCMeta):
        return []
    registry = abc._get_dump(owner)[0]  # type: ignore[attr-defined]
    return [kind for kind in (weak() for weak in registry) if kind is not None]


def _is_generated(owner: type, name: str) -> bool:
    """Whether Python or a package has put this attribute into a class, made of what else is in there."""
    if isinstance(owner, EnumMeta):
        return name == "_value2member_map_"  # keeps combinations of flags, too, once they are asked for
    return name in _OF_PYDANTIC and "__pydantic_decorators__" in vars(owner)


def _is_of(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class of a package, which need not be installed."""
    bases = ((str(base.__module__).partition(".")[0], base.__name__) for base in type(value).__mro__)
    return (module, name) in bases


def _of_tensor(value: Any, name: str) -> list[Any]:
    try:
        if value.is_quantized:  # its bytes are no numbers without a scale
            raise TypeError
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        content = flat.view(sys.modules["torch"].uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):
        raise UnidentifiableError(f"reads {name!r}, a tensor whose numbers cannot be read") from None
    return [str(value.dtype), tuple(value.shape), content, vars(value)]
