"""How many tokens one forward takes, found by a short probe of the model on its device."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs_heads.lens.model import context_length, device_of, devices_of
from cs_heads.lens.score import Reads, read_tokens

BATCH_TOKENS = {"cpu": 4096, "cuda": 131_072}
"""Tokens of one forward at most, by device: beyond these, forwards get no faster (``benchmarks/engine.py``)."""

_OTHER_DEVICES = 16_384

# Share of the free memory that one forward is planned to take; stored prefixes and the allocator take some too.
_SHARE = 0.4
_PROBE_ROWS, _PROBE_LENGTH = 4, 32


_sharers = 1


def share_memory(n: int) -> None:
    """Plan from now on with 1 / ``n`` of the free memory: so many processes plan on one device."""
    global _sharers  # noqa: PLW0603
    _sharers = n


def token_budget(model: Any, fused: bool) -> int:
    """Tokens of one forward: what the device is fast with, or less where memory is short.

    Four rows of 32 tokens, or as many as the context holds, run through the model while its memory is watched. No clock
    is read: unless memory is short, the same model on the same machine is planned alike, so that results are the same
    bit for bit.
    """
    device = device_of(model)
    length = min(_PROBE_LENGTH, context_length(model) or _PROBE_LENGTH)
    per_token = _peak_bytes(model, fused, length) / (_PROBE_ROWS * length)
    # A model that is split over devices needs memory on each.
    fits = int(_SHARE * min(map(free_memory, devices_of(model))) / per_token)
    return max(1, min(fits, BATCH_TOKENS.get(device.type, _OTHER_DEVICES)))


def free_memory(device: torch.device) -> int:
    """Bytes that could still be allocated on a device; for another kind than CPU and CUDA, those of the machine."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // _sharers + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available) // _sharers


def _peak_bytes(model: Any, fused: bool, length: int) -> int:
    tokens = torch.zeros(_PROBE_ROWS, length, dtype=torch.long)
    rows = np.arange(_PROBE_ROWS)
    reads = Reads(rows, np.full(_PROBE_ROWS, length - 1), np.zeros(_PROBE_ROWS, dtype=np.int64))
    with _LiveBytes() as live:
        read_tokens(model, tokens, torch.ones_like(tokens), reads, fused=fused)
    return max(1, live.peak)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors made inside the ``with`` block that are alive at once, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given | self._seen:
                self._watch(tensor.untyped_storage())
        self.peak = max(self.peak, self.now)
        return made

    def _watch(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        self.now += size
        self._seen.add(address)
        weakref.finalize(storage, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        self.now -= size
        self._seen.discard(address)
