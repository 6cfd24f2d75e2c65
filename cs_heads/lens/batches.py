"""Rows of unlike length, run in batches that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from cs_heads.lens.model import device_of


@dataclass
class Room:
    """Padded tokens of one forward at most; what did not fit into memory is not tried again.

    >>> Room(4096).tokens
    4096
    """

    tokens: int


def room_for(model: Any, batch_tokens: int | Room | None, by_device: Mapping[str, int]) -> Room:
    """What runs of a model begin with: the room or the tokens given, else those of its kind of device."""
    if isinstance(batch_tokens, Room):
        return batch_tokens
    return Room(batch_tokens or by_device.get(device_of(model).type, by_device["cpu"]))


def run_in_batches(lengths: Sequence[int], room: Room, run: Callable[[Int[np.ndarray, " n"]], None]) -> None:
    """Call ``run`` with row numbers until every row had its turn, at most ``room.tokens`` padded tokens at a time.

    Rows go longest first, so that rows of like length share a batch. A batch that does not fit into memory is halved
    and run again, and the room made smaller for the calls that share it; a single row that does not fit raises
    ``MemoryError``.
    """
    width = np.asarray(lengths)
    order = np.argsort(-width, kind="stable")
    done = 0
    while done < len(order):
        batch = order[done : done + max(1, room.tokens // int(width[order[done]]))]
        try:
            run(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise MemoryError(f"a row of {width[batch[0]]} tokens does not fit into memory by itself") from error
            room.tokens = len(batch) * int(width[batch[0]]) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            continue
        done += len(batch)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of the device or the machine, does not suffice."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory")
    )
