"""How a call measures."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm


def progress_bar(total: int, unit: str, progress: bool | None, done: int = 0) -> Any:
    """A bar over ``total`` units, ``done`` of them before it begins; ``progress`` None: in notebooks and terminals."""
    # disable=None: no bar where standard error is a file.
    return tqdm(total=total, initial=done, unit=unit, disable=None if progress is None else not progress)
