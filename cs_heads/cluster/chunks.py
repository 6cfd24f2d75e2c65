"""Pairs of mask and example cut into chunks, alike for any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int, Shaped

from cs_heads.designs import as_gates, first_layer, rows_by_mask

# So many chunks, where they are neither too small nor too large: enough for many workers to end together.
_CHUNKS = 32

Cost = Callable[[tuple[int, ...]], float]
"""What one mask on these examples takes, in tokens or texts."""


def cut(
    masks: Shaped[np.ndarray, "pair layer head"],
    examples: Int[np.ndarray, " pair"],
    cost: Cost,
    order: Sequence[tuple[int, ...]],
    *,
    least: float,
    most: float,
) -> list[Int[np.ndarray, " chunk"]]:
    """Numbers of the pairs of each chunk: whole masks, ``least`` to ``most`` of cost together.

    Masks whose first ablated layer is the same share a chunk, and those that begin first go first. A mask that costs
    more than ``most`` by itself is cut by examples, in the order of ``order[example]``, so that like beginnings stay
    together. Depends on what is wanted alone: which worker runs a chunk, and when, changes no number.
    """
    known: dict[tuple[int, ...], float] = {}

    def cost_of(pairs: list[int]) -> float:
        chosen = tuple(sorted(examples[pairs].tolist()))
        if chosen not in known:
            known[chosen] = float(cost(chosen))
        return known[chosen]

    parts: list[tuple[int, list[int], float]] = []
    for pairs in rows_by_mask(masks):
        for part in _split(pairs, examples, cost_of(pairs), order, most):
            parts.append((first_layer(as_gates(masks[pairs[0]]) != 1), part, cost_of(part)))
    parts.sort(key=lambda part: part[0])
    size = min(max(sum(part[2] for part in parts) / _CHUNKS, least), most)
    chunks: list[list[int]] = []
    filled = size
    for _, pairs, price in parts:
        if filled + price > size:
            chunks.append([])
            filled = 0.0
        chunks[-1] += pairs
        filled += price
    return [np.array(chunk) for chunk in chunks]


def _split(
    pairs: list[int], examples: Int[np.ndarray, " pair"], price: float, order: Sequence[tuple[int, ...]], most: float
) -> list[list[int]]:
    """The pairs of one mask, in parts where they cost too much together."""
    n = min(len(pairs), int(np.ceil(price / most)))
    if n <= 1:
        return [pairs]
    alike = sorted(pairs, key=lambda pair: (order[int(examples[pair])], int(examples[pair])))
    return [part.tolist() for part in np.array_split(alike, n)]
