"""What takes a model's time: single operations under PyTorch's profiler, and the speed of a large matrix product."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# Side of the matrices whose product is timed, and how often: enough to keep a device busy.
_SIDE = {"cpu": 2048}
_OTHER_SIDE = 8192
_PRODUCTS = 4

# They are smaller where so many seconds would not do: a processor without bfloat16 units is a thousand times slower.
_LEAST_SIDE, _LONG = 256, 0.02

LARGE = 50_000_000
"""Weights from which on products are what a forward takes."""


def operation_seconds(run: Callable[[], Any], device: torch.device) -> tuple[dict[str, float], int]:
    """Seconds of each operation of PyTorch in a call, without those inside it, and the FLOPs of matrix products."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities, with_flops=True, acc_events=True) as profiler:
        run()
        _now(device)
    events = profiler.key_averages()
    side = "self_cpu_time_total" if device.type == "cpu" else "self_device_time_total"
    return {event.key: getattr(event, side) / 1e6 for event in events}, sum(event.flops for event in events)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a matrix product, as large as is done in a fiftieth of a second or so: the fastest of a few."""
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
