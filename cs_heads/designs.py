"""Designs: which heads are off in which row.

A design is a bool array ``[row, layer, head]``, True = ablated (the paper's ``A_ij = 1``).
The same arguments and seed give the same design.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.arguments import check_integer, check_list, check_seed, check_share
from cs_heads.units import Grid, HeadLike, check_grid


def bernoulli(grid: Grid, n_masks: int, density: float, seed: int = 0) -> Bool[np.ndarray, "row layer head"]:
    """Ablate each head of each mask with probability ``density``, independently (the paper's CSB).

    Args:
        grid: Layers × heads of the model.
        n_masks: Rows of the design.
        density: Share of the heads that a mask ablates, between 0 and 1.
        seed: Seeds the draw.

    Returns:
        Masks, True = ablated; a mask may ablate no head at all.

    Raises:
        ValueError: A mask would ablate fewer than one head on average.

    >>> from cs_heads.units import Grid
    >>> bernoulli(Grid(4, 4), n_masks=200, density=0.25, seed=0).mean().round(2)
    np.float64(0.25)
    """
    check_seed(seed)
    _check(grid, n_masks, density)
    return np.random.default_rng(seed).random((n_masks, *grid.shape)) < density


def stratified(grid: Grid, n_masks: int, density: float, seed: int = 0) -> Bool[np.ndarray, "row layer head"]:
    """Ablate ``floor(density * n_heads)`` heads a mask, those off least often so far first (the paper's CSS).

    Ties are broken at random, so over the whole design any two heads are off equally often,
    give or take one.

    Args:
        grid: Layers × heads of the model.
        n_masks: Rows of the design.
        density: Share of the heads that a mask ablates, between 0 and 1.
        seed: Seeds the draw.

    Returns:
        Masks, True = ablated, every one with the same number of heads off.

    Raises:
        ValueError: A mask would ablate no head.

    >>> from cs_heads.units import Grid
    >>> design = stratified(Grid(4, 4), n_masks=8, density=0.25, seed=0)
    >>> design.sum(axis=(1, 2)), design.sum(axis=0).ravel()
    (array([4, 4, 4, 4, 4, 4, 4, 4]), array([2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]))
    """
    check_seed(seed)
    n_off = _check(grid, n_masks, density)
    rng = np.random.default_rng(seed)
    design = np.zeros((n_masks, grid.size), dtype=bool)
    times_off = np.zeros(grid.size, dtype=int)
    for row in design:
        chosen = np.lexsort((rng.random(grid.size), times_off))[:n_off]
        row[chosen] = True
        times_off[chosen] += 1
    return design.reshape(n_masks, *grid.shape)


def single(grid: Grid) -> Bool[np.ndarray, "row layer head"]:
    """Each head of the grid alone, one mask a head, in the order of the flat index.

    Args:
        grid: The grid of the model.

    Raises:
        ValueError: ``grid`` is no grid.

    >>> from cs_heads.units import Grid
    >>> single(Grid(2, 3)).shape
    (6, 2, 3)
    """
    check_grid(grid)
    return np.eye(grid.size, dtype=bool).reshape(grid.size, *grid.shape)


def explicit(grid: Grid, groups: Iterable[Sequence[HeadLike]]) -> Bool[np.ndarray, "row layer head"]:
    """One mask a group of heads; an empty group is the intact model.

    Args:
        grid: Layers × heads of the model.
        groups: The heads that each mask ablates.

    Returns:
        Masks, True = ablated, in the order of ``groups``.

    Raises:
        ValueError: What is no list of heads, or a head outside the grid.

    >>> from cs_heads.units import Grid
    >>> explicit(Grid(2, 3), [["L0H1", "L1H2"], []]).sum(axis=(1, 2))
    array([2, 0])
    """
    check_grid(grid)
    rows = [grid.mask(group) for group in check_list("groups", groups, "groups of heads")]
    return np.stack(rows) if rows else np.zeros((0, *grid.shape), dtype=bool)


def check_masks(grid: Grid, masks: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "row layer head"]:
    """Masks, or gates, as ``[row, layer, head]``: one alone gains a row axis.

    Args:
        grid: Layers × heads that they must be of.
        masks: Masks (bool, True = ablated), or gates (float, in 0..1) by which each head's z is multiplied.

    Returns:
        Bool where every head is wholly on or off, else float32 gates.

    Raises:
        ValueError: Another grid or dtype, or a gate outside 0..1.
    """
    masks = np.asarray(masks)
    if np.issubdtype(masks.dtype, np.floating):
        if not ((masks >= 0) & (masks <= 1)).all():
            raise ValueError(f"gates must be in 0..1, got {masks.min()}..{masks.max()}")
        masks = masks == 0 if ((masks == 0) | (masks == 1)).all() else masks.astype(np.float32)
    if masks.dtype not in (np.bool_, np.float32):
        raise ValueError(f"masks must be bool, True = ablated, or float gates in 0..1, got dtype {masks.dtype}")
    if masks.ndim == 2:
        masks = masks[None]
    if masks.ndim != 3 or masks.shape[1:] != grid.shape:
        wanted = f"[row, layer, head] with layer, head = {grid.shape}"
        raise ValueError(f"masks must be {wanted}, got shape {masks.shape}: the masks are of another grid")
    return masks


def _check(grid: Grid, n_masks: int, density: float) -> int:
    check_grid(grid)
    check_integer("n_masks", n_masks, 1)
    check_share("density", density)
    # Rounded first: 0.05 * 160 must be 8, not 7.999....
    n_off = int(np.floor(round(density * grid.size, 9)))
    if n_off < 1:
        least = f"a mask of this grid has {grid.size} heads, so density must be at least {1 / grid.size:.3g}"
        raise ValueError(f"density {density} ablates no head: {least}")
    return n_off


def different(
    masks: Shaped[np.ndarray, "row layer head"],
) -> tuple[Shaped[np.ndarray, "mask layer head"], Int[np.ndarray, " row"]]:
    """The different masks, or gates, in the order in which they first come, and the place of each row among them.

    Args:
        masks: The masks, some of them perhaps alike.

    >>> from cs_heads.units import Grid
    >>> grid = Grid(1, 2)
    >>> once, place = different(explicit(grid, [["L0H1"], ["L0H0"], ["L0H1"]]))
    >>> len(once), place.tolist()
    (2, [0, 1, 0])
    """
    numbers: dict[bytes, int] = {}
    place = np.array([numbers.setdefault(mask.tobytes(), len(numbers)) for mask in masks], dtype=int)
    _, first = np.unique(place, return_index=True)
    return masks[first], place


def as_gates(masks: Shaped[np.ndarray, "*rows layer head"]) -> Float[np.ndarray, "*rows layer head"]:
    """Gates, of masks: 0 where a head is off, 1 elsewhere; gates stay as they are.

    Args:
        masks: Masks (bool, True is off), or gates (float).
    """
    return 1.0 - masks if masks.dtype == np.bool_ else masks


def with_off(
    masks: Shaped[np.ndarray, "row layer head"], off: Bool[np.ndarray, "layer head"]
) -> Shaped[np.ndarray, "row layer head"]:
    """Masks, or gates, with more heads off in every row.

    Args:
        masks: Masks (bool, True = ablated), or gates (float).
        off: True where a head is off.

    Returns:
        New masks, True also where ``off`` is, or new gates, 0 where ``off`` is True.
    """
    return masks | off if masks.dtype == np.bool_ else np.where(off, np.float32(0), masks)


def mask_key(row: Shaped[np.ndarray, "layer head"]) -> bytes:
    """The key of a mask, eight heads a byte, or of gates, four bytes a head; equal ablations have equal keys.

    Args:
        row: A mask (bool, True is off), or gates (float).
    """
    if row.dtype != np.bool_ and not ((row == 0) | (row == 1)).all():
        return row.astype("<f4").tobytes()
    return np.packbits(row if row.dtype == np.bool_ else row == 0).tobytes()


def key_in_words(grid: Grid, key: bytes) -> tuple[str, int]:
    """The heads off under a key in words, those gated with their gate, and the number of those off.

    Args:
        grid: Layers × heads that the mask is of.
        key: What ``mask_key`` gave for a mask or gates.

    Returns:
        The heads whose gate is below 1, by name with spaces between, and how many have gate 0.

    >>> from cs_heads.units import Grid
    >>> grid = Grid(1, 2)
    >>> key_in_words(grid, mask_key(np.array([[0.0, 0.5]])))
    ('L0H0 L0H1×0.5', 1)
    """
    if len(key) == 4 * grid.size:
        gates = np.frombuffer(key, dtype="<f4")
    else:
        gates = 1.0 - np.unpackbits(np.frombuffer(key, dtype=np.uint8), count=grid.size)
    touched = [(grid.unit(int(index)), gates[index]) for index in np.flatnonzero(gates != 1)]
    return " ".join(f"{head}×{gate:.3g}" if gate else str(head) for head, gate in touched), int((gates == 0).sum())
