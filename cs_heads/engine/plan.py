"""How many tokens one forward takes, and how fast a model reads on its device."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from time import perf_counter

import numpy as np
import psutil
import torch
from torch import Tensor

from cs_heads.lens.batches import default_tokens
from cs_heads.lens.casts import InDtype, can_be_cast
from cs_heads.lens.forward import logits_at, pad
from cs_heads.lens.logprobs import Reads, token_logprobs
from cs_heads.lens.model import HookedModel, context_length, device_of, devices_of, dtype_of, evaluating
from cs_heads.lens.timing import LARGE, matrix_rate
from cs_heads.text import TokenIds
from cs_heads.units import Grid

_log = logging.getLogger(__name__)

# Share of the free memory that one forward is planned to take; stored prefixes and the allocator take some too.
_SHARE = 0.4
# What a token needs of it at most, in numbers of the widest layer; forwards that do not fit all the same are halved.
_ACTIVATIONS = 16

# Tokens of an example whose time is taken.
_PROBE_LENGTH = 32

# Examples of one forward whose time is taken, by device: enough to keep it busy.
_TIMED_ROWS = {"cpu": 8, "cuda": 256}

# Forwards whose time is taken; the fastest counts, as others run on the machine too.
_TIMED_FORWARDS = 2


# How much faster products must be in half precision.
_FASTER = 1.5

# Heads off in the rows that are tried, as a share; by how many nats the likeliest next token must lead for the decision
# to count, since rounding decides near ties; and the share of decisions that must be the same.
_TRIED_OFF, _LEAD, _ALIKE = 0.05, 0.1, 0.9

_sharers = 1


def share_memory(n: int) -> None:
    """Plan from now on with 1 / ``n`` of the free memory: ``n`` processes share the device."""
    global _sharers  # noqa: PLW0603
    _sharers = n


def token_budget(model: HookedModel) -> int:
    """Tokens of one forward: what the device is fast with, or less where memory is short.

    No clock is read: unless memory is short, the same model on the same machine is planned alike, so that results are
    the same bit for bit.
    """
    cfg = model.cfg
    widest = max(getattr(cfg, "d_mlp", None) or 0, cfg.d_model, cfg.n_heads * cfg.d_head)
    # A model that is split over devices needs memory on each.
    free = min(map(free_memory, devices_of(model)))
    fits = int(_SHARE * free / (_ACTIVATIONS * widest * dtype_of(model).itemsize))
    return max(1, min(fits, default_tokens(model, "scoring")))


def free_memory(device: torch.device) -> int:
    """Bytes that could still be allocated on a device; for another kind than CPU and CUDA, those of the machine."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // _sharers + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(psutil.virtual_memory().available) // _sharers


def faster_dtype(model: HookedModel, texts: Sequence[TokenIds]) -> str | None:
    """``"bfloat16"`` where forwards of a float32 model are faster in it and decide alike; None else.

    Faster: a large model, and large products on its device, by half; and there is room for the weights twice. Alike: of
    the likeliest next tokens after every token of some texts nine in ten are the same, near ties aside: of every second
    text, where random heads are off, and of the others. A clock is read: say ``compute_dtype`` where another machine
    must do the same.

    Args:
        model: The model.
        texts: Some texts, as tokens.
    """
    weights = sum(parameter.numel() for parameter in model.parameters())
    if dtype_of(model) != torch.float32 or weights < LARGE or not can_be_cast(model):
        return None
    if min(map(free_memory, devices_of(model))) < weights * 2 * torch.bfloat16.itemsize:
        return None
    device = device_of(model)
    if matrix_rate(device, torch.bfloat16) < _FASTER * matrix_rate(device, torch.float32):
        return None
    tokens, attention_mask = pad(texts)
    shape = len(texts), *Grid.from_model(model).shape
    gates = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) >= _TRIED_OFF).float()
    gates[::2] = 1

    def likeliest() -> tuple[Tensor, Tensor]:
        with evaluating(model):
            logits = logits_at(model, tokens, attention_mask, gates=gates)
        first, second = logits.topk(2).values.T
        return logits.argmax(dim=1), first - second > _LEAD

    exact, clear = likeliest()
    try:
        with InDtype(model, torch.bfloat16):
            same = (likeliest()[0] == exact).float()
    except RuntimeError as error:
        _log.info("forwards in bfloat16 are not used on %s: %r", model.cfg.model_name, error)
        return None
    ablated = (attention_mask.nonzero()[:, 0] % 2 == 1).to(clear.device)
    alike = torch.stack([same[clear & half].mean() for half in (ablated, ~ablated)]).min()
    # Also where no decision is clear, and the mean is not a number.
    if not alike >= _ALIKE:
        _log.info("forwards in bfloat16 are not used on %s: %.2f of next tokens alike", model.cfg.model_name, alike)
        return None
    return "bfloat16"


def peak_memory(device: torch.device) -> int:
    """Bytes used at most so far: reserved on a CUDA device, for others by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    # In kilobytes, but for one system.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def example_length(model: HookedModel) -> int:
    """Tokens of a probe's examples: 32, or as many as the model's context holds."""
    return min(_PROBE_LENGTH, context_length(model) or _PROBE_LENGTH)


def tokens_per_second(model: HookedModel, fused: bool) -> float:
    """Tokens that the model reads in a second, in forwards of some examples that are scored at the end."""
    n, length = _TIMED_ROWS.get(device_of(model).type, _TIMED_ROWS["cpu"]), example_length(model)
    tokens = torch.zeros(n, length, dtype=torch.long)
    last = Reads(np.arange(n), np.full(n, length - 1), np.zeros(n, dtype=int))
    seconds = []
    # The first warms up.
    for _ in range(1 + _TIMED_FORWARDS):
        start = perf_counter()
        token_logprobs(model, tokens, torch.ones_like(tokens), last, fused=fused)
        seconds.append(perf_counter() - start)
    return tokens.numel() / min(seconds[1:])
