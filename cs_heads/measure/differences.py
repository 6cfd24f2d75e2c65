"""In what one study differs from another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Fields of which a study has another value, those inside a field by their path; None is one that is not there."""
    for field in (*here, *(field for field in there if field not in here)):
        one, other = there.get(field), here.get(field)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from ((f"{field}.{inner}", *values) for inner, *values in differences(one, other))
        elif one != other or (field in there) != (field in here):
            yield field, one, other
