"""What the intact model does below the first ablated layer, kept so that masks can start there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from cs_heads.engine.layout import Layout
from cs_heads.engine.plan import free_memory
from cs_heads.lens.forward import Resumed, recorded
from cs_heads.lens.model import HookedModel, device_of, dtype_of

Place = tuple[tuple[int, int], int, int]
"""Where tokens of a row stand: sequence (example, continuation), first token, how many."""

# The intact run must be paid back this many times by the layers it saves.
_WORTH = 1.5

# Share of the free memory that residual streams may fill.
_SHARE = 0.1


class Residuals:
    """Residual streams of the intact model at some layers, one vector ``[d_model]`` a token of a layout."""

    def __init__(self, layout: Layout, layers: Sequence[int]) -> None:
        self.layers = list(layers)
        self._n_tokens = layout.n_tokens
        self._ids = layout.ids()
        self._stored: dict[int, Tensor] = {}

    @contextmanager
    def recording(self, model: HookedModel, places: Sequence[Place]) -> Iterator[None]:
        """Store what enters each layer, from the rows at ``places``, inside the ``with`` block."""
        row = torch.from_numpy(np.repeat(np.arange(len(places)), [n for _, _, n in places]))
        position = torch.from_numpy(np.concatenate([np.arange(n) for _, _, n in places]))
        ids = torch.from_numpy(np.concatenate([self._numbers(place) for place in places]))

        def record(layer: int, residual: Tensor) -> None:
            if layer not in self._stored:
                self._stored[layer] = residual.new_empty(self._n_tokens, residual.shape[2])
            at = residual.device
            self._stored[layer][ids.to(at)] = residual[row.to(at), position.to(at)]

        with recorded(model, self.layers, record):
            yield

    def start(self, layer: int, places: Sequence[Place], width: int) -> Resumed:
        """What rows at ``places``, padded to ``width``, start from at ``layer``."""
        ids = np.zeros((len(places), width), dtype=np.int64)
        for row, place in enumerate(places):
            ids[row, : place[2]] = self._numbers(place)
        stored = self._stored[layer]
        return Resumed(layer, stored[torch.from_numpy(ids).to(stored.device)])

    def _numbers(self, place: Place) -> Int[np.ndarray, " pos"]:
        sequence, start, n = place
        return self._ids[sequence][start : start + n]


def layers_to_store(
    model: HookedModel, first: Int[np.ndarray, " mask"], tokens: Sequence[int], intact_tokens: int
) -> list[int]:
    """Layers at which masks may start: none where the intact run costs more than it saves.

    ``first`` is the first layer each mask touches, ``tokens`` what it runs. Where memory does not hold
    all the layers, they are thinned out evenly, and a mask starts at the last one before its own.
    """
    layers = np.unique(first[first > 0])
    if not len(layers) or float(np.dot(first, tokens)) <= _WORTH * intact_tokens * layers[-1]:
        return []
    n_bytes = intact_tokens * model.cfg.d_model * dtype_of(model).itemsize
    n = min(len(layers), int(_SHARE * free_memory(device_of(model)) / n_bytes))
    chosen = layers[np.linspace(0, len(layers) - 1, n).round().astype(int)]
    return [int(layer) for layer in chosen]
