"""Random heads that found ones are held against: of the same layers, and none of those found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from cs_heads.heads import Head, HeadGrid, HeadLike


def random_sets(
    grid: HeadGrid,
    found: Bool[np.ndarray, "layer head"],
    apart: Bool[np.ndarray, "layer head"],
    n_sets: int,
    rng: np.random.Generator,
) -> list[Bool[np.ndarray, "layer head"]]:
    """Sets of random heads like ``found``, without ``apart``, different while the grid has others to offer.

    They have as many heads in each layer as ``found``, none of them found, but none in a layer that they would use up
    (``used_up``): heads of other layers stand for these. Where other layers have too few, the rest comes from those
    used up, and from ``apart`` where no other head is left.
    """
    layers = used_up(found, apart)
    sets: list[Bool[np.ndarray, "layer head"]] = []
    for _ in range(n_sets):
        for _ in range(20):
            mask = _alike(grid, found, apart, layers, rng)
            if not any((mask == other).all() for other in sets):
                break
        sets.append(mask)
    return sets


def used_up(found: Bool[np.ndarray, "layer head"], apart: Bool[np.ndarray, "layer head"]) -> list[int]:
    """Layers of ``found`` with no more other heads to draw than it has: these would all be in every random set."""
    chosen, free = found.sum(axis=1), (~(found | apart)).sum(axis=1)
    return np.flatnonzero((chosen > 0) & (chosen >= free)).tolist()


def used_up_notes(
    grid: HeadGrid, sets: Sequence[Sequence[HeadLike]], apart: Sequence[HeadLike] = ()
) -> tuple[str, ...]:
    """A note where random sets like one of ``sets`` would use up layers."""
    layers = sorted({layer for heads in sets for layer in used_up(grid.mask(heads), grid.mask(apart))})
    if not layers:
        return ()
    named = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
    return (
        f"random sets have heads of other layers, as far as there are any, in place of {named}: "
        "they would take all that the heads leave there",
    )


def _alike(
    grid: HeadGrid,
    found: Bool[np.ndarray, "layer head"],
    apart: Bool[np.ndarray, "layer head"],
    used: Sequence[int],
    rng: np.random.Generator,
) -> Bool[np.ndarray, "layer head"]:
    """As many random heads in each layer as ``found`` has, in place of layers that are used up of others."""
    mask = np.zeros(grid.shape, dtype=bool)
    for layer, row in enumerate(found):
        if layer not in used:
            free = np.flatnonzero(~(row | apart[layer]))
            mask[layer, rng.choice(free, size=int(row.sum()), replace=False)] = True
    rest = np.isin(np.arange(grid.n_layers), used)[:, None]
    for fit in (~(found | apart | rest), ~(found | apart), ~found):
        free = np.flatnonzero((fit & ~mask).ravel())
        short = min(int(found.sum() - mask.sum()), len(free))
        if short:
            mask.ravel()[rng.choice(free, size=short, replace=False)] = True
    return mask


def random_orders(
    grid: HeadGrid, heads: Sequence[Head], apart: Sequence[HeadLike], n_sets: int, rng: np.random.Generator
) -> list[list[Head]]:
    """Sets as ``random_sets`` gives them, each in an order in which a head is of the layer of the one it stands for.

    So the first k of each are like the first k of ``heads``.
    """
    sets = random_sets(grid, grid.mask(heads), grid.mask(apart), n_sets, rng)
    return [_like(heads, [grid.head(int(i)) for i in np.flatnonzero(mask)], rng) for mask in sets]


def _like(heads: Sequence[Head], random: Sequence[Head], rng: np.random.Generator) -> list[Head]:
    """Random heads in an order in which each, where there is one, is of the layer of the head it stands for."""
    left = [random[i] for i in rng.permutation(len(random))]
    order = []
    for head in heads:
        order.append(next((other for other in left if other.layer == head.layer), left[0]))
        left.remove(order[-1])
    return order
