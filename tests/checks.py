"""Types and shapes checked at run time for a fraction of what jaxtyping's own wrapper takes.

That wrapper binds the signature of each call, and has beartype check the arguments twice: two thirds of the time of
the tests. Here beartype checks a function once, and one that names a shape does so in a context of jaxtyping's, in
which an axis has one length.
"""

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import update_wrapper, wraps
from types import CodeType, FunctionType
from typing import Any, ParamSpecArgs, ParamSpecKwargs, get_args, get_type_hints

from jaxtyping import AbstractArray, jaxtyped

_CHECKED: dict[CodeType, Callable] = {}
"""What checks a function inside another, by the code of that function."""


def checked(given: Any = None, *, typechecker: Callable) -> Any:
    """In place of ``jaxtyped``: the same checks of a function, or of the fields of a dataclass."""
    if given is None:
        return lambda decorated: checked(decorated, typechecker=typechecker)
    if inspect.isclass(given):
        if is_dataclass(given) and "__init__" in vars(given):
            given.__init__ = checked(given.__init__, typechecker=typechecker)
        return given
    if not inspect.isfunction(given) or inspect.isgeneratorfunction(given) or not (hints := _hints(given)):
        return jaxtyped(given, typechecker=typechecker)
    function = _checked_again(given, typechecker) if "<locals>" in given.__qualname__ else typechecker(given)
    if not any(map(_names_shape, hints)):
        return function

    @wraps(function)
    def in_context(*arguments: Any, **named: Any) -> Any:
        with jaxtyped("context"):
            return function(*arguments, **named)

    return in_context


def _hints(function: Callable) -> list[Any]:
    """Its annotations; none where it has one that beartype cannot read: a name that is not there yet, ``P.args``."""
    try:
        hints = [*get_type_hints(function, include_extras=True).values()]
    except NameError:
        return []
    return [] if any(isinstance(hint, ParamSpecArgs | ParamSpecKwargs) for hint in hints) else hints


def _checked_again(given: FunctionType, typechecker: Callable) -> Callable:
    """A function inside another, which is new in each call of that: what checks it is written once, by its code."""
    if given.__code__ not in _CHECKED:
        _CHECKED[given.__code__] = typechecker(given)
        return _CHECKED[given.__code__]
    known = _CHECKED[given.__code__]
    # Where no argument has a type to check, beartype gives the function itself.
    if "__beartype_func" not in (known.__kwdefaults__ or {}):
        return given
    parts = (known.__code__, known.__globals__, known.__name__, known.__defaults__, known.__closure__)
    again = update_wrapper(FunctionType(*parts), given)
    again.__kwdefaults__ = known.__kwdefaults__ | {"__beartype_func": given}
    return again


def _names_shape(hint: Any) -> bool:
    """Whether a type is an array of a shape, or holds one."""
    return (inspect.isclass(hint) and issubclass(hint, AbstractArray)) or any(map(_names_shape, get_args(hint)))
