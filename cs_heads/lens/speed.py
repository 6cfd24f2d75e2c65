"""How fast a model reads."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import torch

from cs_heads.lens.model import context_length, device_of
from cs_heads.lens.score import Reads, read_tokens

# Tokens of the examples whose time is taken.
_LENGTH = 32

# Examples of one forward, by device: enough to keep it busy.
_ROWS = {"cpu": 8, "cuda": 256}

# Forwards whose time is taken; the fastest counts, as others run on the machine too.
_FORWARDS = 2


def example_length(model: Any) -> int:
    """Tokens of the examples that ``tokens_per_second`` runs: 32, or as many as the model takes."""
    return min(_LENGTH, context_length(model) or _LENGTH)


def tokens_per_second(model: Any, fused: bool) -> float:
    """Tokens that the model reads in a second, in forwards of some examples that are scored at the end."""
    length = example_length(model)
    n_rows = _ROWS.get(device_of(model).type, _ROWS["cpu"])
    tokens = torch.zeros(n_rows, length, dtype=torch.long)
    rows = np.arange(n_rows)
    reads = Reads(rows, np.full(n_rows, length - 1), np.zeros(n_rows, dtype=np.int64))
    seconds = []
    # The first warms up.
    for _ in range(1 + _FORWARDS):
        start = perf_counter()
        read_tokens(model, tokens, torch.ones_like(tokens), reads, fused=fused)
        seconds.append(perf_counter() - start)
    return n_rows * length / min(seconds[1:])
