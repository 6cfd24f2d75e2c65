"""Rows of a data set of the hub, through ``datasets``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

Row = dict[str, Any]


@contextmanager
def quietly(*more: str) -> Iterator[None]:
    """Run ``datasets`` and the hub's client, and ``more`` loggers, without their log and their bars."""
    import datasets

    # The hub's client tells of each of its tries to reach it, for half a minute.
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub", *more)]
    levels = [logger.level for logger in loggers]
    bars = datasets.is_progress_bar_enabled()
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        datasets.disable_progress_bars()
        yield
    finally:
        if bars:
            datasets.enable_progress_bars()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def hub_rows(dataset: str, part: str | None, splits: Iterable[str], most: int | None = None) -> list[Row]:
    """The rows of some splits of a data set, one split after another; with ``most``, read as a stream up to so many.

    A data set that cannot be reached, or a missing ``datasets``, raises ``ValueError`` saying what to do.
    """
    try:
        import datasets
    except ImportError as error:
        raise ValueError("data from the hub need datasets: pip install 'cs-heads[datasets]'") from error
    try:
        with quietly():
            found: list[Row] = []
            for split in splits:
                rows = datasets.load_dataset(dataset, part, split=split, streaming=most is not None)
                found += [dict(row) for row in islice(rows, most)]
        return found
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
        name = dataset if part is None else f"{dataset}/{part}"
        raise ValueError(
            f"data set {name!r} could not be had from the hub ({reason}); name files of your own with data_files="
        ) from error
