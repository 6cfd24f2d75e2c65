"""Random heads that found ones are compared with: of the same layers, and none of those found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Int

from cs_heads.units import Grid, HeadLike, Unit

Mask: TypeAlias = Bool[np.ndarray, "layer head"]
"""True where a head is in a set."""


def random_sets(grid: Grid, found: Mask, exclude: Mask, n_sets: int, rng: np.random.Generator | int) -> list[Mask]:
    """Sets of random heads like ``found``, without ``exclude``, different while the grid has others to offer.

    They have as many heads in each layer as ``found``, none of them found, but none in a layer that they would use up
    (``used_up``): heads of other layers stand for these. Where other layers have too few, the rest comes from those
    used up, and from ``exclude`` where no other head is left.

    Args:
        grid: The grid.
        found: The heads that the sets are like.
        exclude: Heads that they do not have.
        n_sets: How many sets.
        rng: Draws them; a seed makes one.
    """
    rng, layers = np.random.default_rng(rng), used_up(found, exclude)
    sets: list[Mask] = []
    for _ in range(n_sets):
        for _ in range(20):
            mask = _alike(grid, found, exclude, layers, rng)
            if not any((mask == other).all() for other in sets):
                break
        sets.append(mask)
    return sets


def used_up(found: Mask, exclude: Mask) -> list[int]:
    """Layers of ``found`` with no more other heads to draw than it has: these would all be in every random set."""
    chosen, free = found.sum(axis=1), (~(found | exclude)).sum(axis=1)
    return np.flatnonzero((chosen > 0) & (chosen >= free)).tolist()


def like_note(found: Mask, sets: Sequence[Mask]) -> str:
    """What a sentence on random sets may say: " of the same layers" where all ``sets`` are, else nothing."""
    return " of the same layers" if all((mask.sum(axis=1) == found.sum(axis=1)).all() for mask in sets) else ""


def drawn_notes(grid: Grid, found: Mask, exclude: Mask, sets: Sequence[Mask]) -> tuple[str, ...]:
    """What random sets had to take where the grid has too few other heads, and how many differ.

    Args:
        grid: The grid.
        found: The heads that the sets are like.
        exclude: Heads that they should not have.
        sets: The random sets.
    """
    drawn = np.stack(sets)
    in_layer, free = drawn.sum(axis=2), ~(found | exclude)
    replaced = np.flatnonzero((in_layer < found.sum(axis=1)).any(axis=0))
    # Of these layers all that is left stands in each set.
    whole = np.flatnonzero(found.any(axis=1) & free.any(axis=1) & (drawn | ~free).all(axis=(0, 2)))
    taken = _named(grid, (drawn & exclude).any(axis=0))
    different = len(np.unique(drawn.reshape(len(sets), -1), axis=0))
    notes = []
    if len(replaced):
        some = ", as far as there are any," if in_layer[:, replaced].any() else ""
        notes.append(
            f"random sets have heads of other layers{some} in place of {_layers(replaced)}: "
            "they would take all that the heads leave there"
        )
    if len(whole):
        notes.append(f"every random set has all that the heads leave of {_layers(whole)}: there are no others to draw")
    if taken:
        notes.append(f"random sets have heads that were kept apart, for want of others: {taken}")
    if 2 * different <= len(sets):
        notes.append(f"only {different} of {len(sets)} random sets like {_named(grid, found)} are different")
    return tuple(notes)


def _layers(layers: Int[np.ndarray, " n"]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


def _named(grid: Grid, mask: Mask) -> str:
    return ", ".join(map(str, grid.units(mask)))


def _alike(grid: Grid, found: Mask, exclude: Mask, used: Sequence[int], rng: np.random.Generator) -> Mask:
    """As many random heads in each layer as ``found`` has, in place of layers that are used up of others."""
    mask = np.zeros(grid.shape, dtype=bool)
    for layer, row in enumerate(found):
        if layer not in used:
            free = np.flatnonzero(~(row | exclude[layer]))
            mask[layer, rng.choice(free, size=int(row.sum()), replace=False)] = True
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
    """Sets as ``random_sets`` gives them, each in order, and ``drawn_notes`` on them.

    In each order a head is of the layer of the one it stands for, so that the first k are like the first k of
    ``heads``.
    """
    found, without = grid.mask(heads), grid.mask(exclude)
    sets = random_sets(grid, found, without, n_sets, rng)
    orders = [_like(heads, grid.units(mask), rng) for mask in sets]
    return orders, drawn_notes(grid, found, without, sets) if sets else ()


def _like(heads: Sequence[Unit], random: Sequence[Unit], rng: np.random.Generator) -> list[Unit]:
    """Random heads in an order in which each, where there is one, is of the layer of the head it stands for."""
    left = [random[i] for i in rng.permutation(len(random))]
    order = []
    for head in heads:
        order.append(next((other for other in left if other.layer == head.layer), left[0]))
        left.remove(order[-1])
    return order
