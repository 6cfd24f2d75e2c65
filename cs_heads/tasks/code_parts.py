"""What tells apart objects of Python and of common packages that a pickle does not tell, or not in every process."""

from __future__ import annotations

import abc
import functools
import gc
import json
import random
import sys
import threading
from collections.abc import Collection
from enum import EnumMeta
from types import FunctionType
from typing import Any, ForwardRef

import numpy as np

from cs_heads.tasks.code_reads import UnidentifiableError

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_KEYS = type(functools.cmp_to_key(max))
_VIEWS: tuple[type[Collection[Any]], ...] = (type({}.keys()), type({}.values()), type({}.items()))
# A function of `functools.singledispatch`: by what stands in its registry, and what its author set on it.
_DISPATCHING = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
_OF_DISPATCHING = ("register", "dispatch", "registry", "_clear_cache", "__wrapped__")
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
# Those behind functions such as `random.choice`, which count by name as all of Python's own.
_SHARED_GENERATORS = (random.random.__self__, np.random.random_sample.__self__)  # type: ignore[attr-defined]
# Values that are told by how Python writes them, and how deep containers of them may lie in one another: what holds
# itself has no end.
_PLAIN = {str, int, float, bool, type(None)}
_PLAIN_DEPTH = 3
# What pydantic makes of a class that its author wrote.
_OF_PYDANTIC = {
    *("__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__", "__pydantic_complete__"),
    *("__pydantic_setattr_handlers__", "__pydantic_parent_namespace__", "__signature__"),
}


def parts_of(value: Any, name: str) -> list[Any] | None:  # noqa: PLR0911 - one kind a line
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
    """One of transformers; how it pads and cuts is told to it at each call, and warnings once given are remembered."""
    told = json.loads(value.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}
    held = {key: inner for key, inner in vars(value).items() if key not in ("_tokenizer", "deprecation_warnings")}
    return [told, held]


def plain_text(value: Any) -> str | None:
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


def registered_with(owner: type) -> list[type]:
    """The classes that an abstract class takes for its own by ``register``; no attribute of it holds them."""
    if not isinstance(owner, abc.ABCMeta):
        return []
    registry = abc._get_dump(owner)[0]  # type: ignore[attr-defined]
    return [kind for kind in (weak() for weak in registry) if kind is not None]


def is_generated(owner: type, name: str) -> bool:
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
