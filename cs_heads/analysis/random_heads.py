"""Random heads that found ones are compared with: of the same layers, and none of those found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool

from cs_heads.units import Grid, HeadLike, Unit

Mask: TypeAlias = Bool[np.ndarray, "layer head"]
"""True where a head is in a set."""

# Sets drawn in a row that are known already, before all there are count as known.
_REPEATS = 1000


def random_sets(grid: Grid, found: Mask, exclude: Mask, n_sets: int, rng: np.random.Generator | int) -> list[Mask]:
    """Different sets of random heads like ``found``, without ``exclude``: as many as asked for, or all there are.

    They have as many heads in each layer as ``found``, none of them found, but none in a layer that they would use up
    (``used_up``): heads of other layers stand for these. Where other layers have too few, the rest comes from those
    used up, and from ``exclude`` where no other head is left. Where there are fewer such sets, further ones have heads
    of any layer.

    Args:
        grid: The grid.
        found: The heads that the sets are like.
        exclude: Heads that they do not have.
        n_sets: How many sets at most.
        rng: Draws them; a seed makes one.
    """
    rng, sets = np.random.default_rng(rng), dict[bytes, Mask]()
    for layers in (used_up(found, exclude), range(grid.n_layers)):
        repeats = 0
        while len(sets) < n_sets and repeats < _REPEATS:
            mask = _alike(grid, found, exclude, layers, rng)
            repeats = repeats + 1 if mask.tobytes() in sets else 0
            sets[mask.tobytes()] = mask
    return list(sets.values())


def used_up(found: Mask, exclude: Mask) -> list[int]:
    """Layers of ``found`` with no more other heads to draw than it has: these would all be in every random set."""
    chosen, free = found.sum(axis=1), (~(found | exclude)).sum(axis=1)
    return np.flatnonzero((chosen > 0) & (chosen >= free)).tolist()


def like_note(found: Mask, sets: Sequence[Mask]) -> str:
    """What a sentence on random sets may say: " of the same layers" where all are."""
    return " of the same layers" if (np.stack(sets).sum(axis=2) == found.sum(axis=1)).all() else ""


def drawn_notes(grid: Grid, found: Mask, exclude: Mask, sets: Sequence[Mask]) -> tuple[str, ...]:
    """What random sets had to take where the grid has too few other heads.

    Args:
        grid: The grid.
        found: The heads that the sets are like.
        exclude: Heads that they should not have.
        sets: The random sets.
    """
    drawn = np.stack(sets)
    n = int((drawn.sum(axis=2) != found.sum(axis=1)).any(axis=1).sum())
    taken = ", ".join(map(str, grid.units((drawn & exclude).any(axis=0))))
    word = f"{grid.word}s"
    of_others = f"{n} of {len(sets)} random sets have {word} of other layers: those of the {word} have too few others"
    apart = f"random sets have heads that were kept apart, for want of others: {taken}"
    return (*((of_others,) if n else ()), *((apart,) if taken else ()))


def _alike(grid: Grid, found: Mask, exclude: Mask, used: Sequence[int], rng: np.random.Generator) -> Mask:
    """As many random heads in each layer as ``found`` has, in place of layers that are used up of others."""
    mask = np.zeros(grid.shape, dtype=bool)
    for layer in np.setdiff1d(np.flatnonzero(found.any(axis=1)), used):
        free = np.flatnonzero(~(found[layer] | exclude[layer]))
        mask[layer, rng.choice(free, size=int(found[layer].sum()), replace=False)] = True
    rest = np.isin(np.arange(grid.n_layers), used)[:, None]
    for fit in (~(found | exclude | rest), ~(found | exclude), ~found):
        free = np.flatnonzero((fit & ~mask).ravel())
        short = min(int(found.sum() - mask.sum()), len(free))
        if short:
            mask.ravel()[rng.choice(free, size=short, replace=False)] = True
    return mask


def random_orders(
    grid: Grid, heads: Sequence[Unit], exclude: Sequence[HeadLike], n_sets: int, rng: np.random.Generator
) -> tuple[list[list[Unit]], tuple[str, ...]]:
    """Sets as ``random_sets`` gives them, each in order, over again where there are too few, and ``drawn_notes``.

    In each order a head is of the layer of the one it stands for, so that the first k are like the first k of
    ``heads``.
    """
    found, without = grid.mask(heads), grid.mask(exclude)
    sets = random_sets(grid, found, without, n_sets, rng)
    orders = [_like(heads, grid.units(mask), rng) for mask in islice(cycle(sets), n_sets)]
    return orders, drawn_notes(grid, found, without, sets) if sets else ()


def _like(heads: Sequence[Unit], random: Sequence[Unit], rng: np.random.Generator) -> list[Unit]:
    """Random heads in an order in which each, where there is one, is of the layer of the head it stands for."""
    left = [random[i] for i in rng.permutation(len(random))]
    order = []
    for head in heads:
        order.append(next((other for other in left if other.layer == head.layer), left[0]))
        left.remove(order[-1])
    return order


def orders_beside(
    grid: Grid, tops: Sequence[Sequence[Unit]], shared: Sequence[Unit], n_random: int, seed: int
) -> tuple[list[list[Unit]], tuple[str, ...]]:
    """Random orders like the heads of each method, in turn, and what is to be said of them, once."""
    rng, turns = np.random.default_rng(seed), len(tops)
    drawn = [random_orders(grid, top, shared, len(range(i, n_random, turns)), rng) for i, top in enumerate(tops)]
    orders = [drawn[number % turns][0][number // turns] for number in range(n_random)]
    return orders, tuple(dict.fromkeys(note for _, notes in drawn for note in notes))
