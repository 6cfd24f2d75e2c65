"""How fast a device multiplies matrices."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from time import perf_counter

import torch

# Side of the matrices whose product is timed, and how often: enough to keep a device busy.
_SIDE = {"cpu": 1024}
_OTHER_SIDE = 8192
_PRODUCTS = 4

# They are smaller where so many seconds would not do: a processor without bfloat16 units is a thousand times slower.
_LEAST_SIDE, _LONG = 256, 0.02

LARGE = 50_000_000
"""Weights from which on products are what a forward takes."""


@cache
def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a matrix product, as large as is done in a fiftieth of a second or so: the fastest of a few.

    It is timed once in a process, so that all its calls decide alike.
    """
    side, largest = _LEAST_SIDE, _SIDE.get(device.type, _OTHER_SIDE)
    while True:
        one, other = torch.randn(2, side, side, device=device, dtype=torch.float32).to(dtype)
        times = [_now(device)]
        for _ in range(_PRODUCTS):
            one @ other
            times.append(_now(device))
        seconds = min(after - before for before, after in pairwise(times))
        if side >= largest or seconds > _LONG:
            return 2 * side**3 / seconds
        side *= 2


def _now(device: torch.device) -> float:
    """The time at which a device has done all that it was given, in seconds."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return perf_counter()
