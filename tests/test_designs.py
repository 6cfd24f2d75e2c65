from math import floor

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cs_heads.designs import bernoulli, check_masks, explicit, single, stratified
from cs_heads.units import Grid, Head

GRID = Grid(4, 8)
grids = st.builds(Grid, st.integers(1, 8), st.integers(1, 8))
percents = st.integers(1, 99)


@given(grids, percents, st.integers(1, 60), st.integers(0, 5))
def test_stratified_masks_ablate_the_floor_of_their_density_and_every_head_equally_often(grid, percent, n_masks, seed):
    """Give or take one."""
    n_off = percent * grid.size // 100
    assume(n_off)
    masks = stratified(grid, n_masks, percent / 100, seed)
    assert set(masks.sum(axis=(1, 2))) == {n_off}
    assert np.ptp(masks.sum(axis=0)) <= 1


def test_the_floor_is_that_of_the_written_density_not_of_its_float():
    assert floor(0.29 * 100) == 28
    assert stratified(Grid(10, 10), 3, 0.29).sum(axis=(1, 2)).tolist() == [29, 29, 29]


def test_bernoulli_masks_ablate_each_head_with_the_probability_asked_for():
    design = bernoulli(GRID, 4000, 0.1, seed=0)
    spread = np.sqrt(0.1 * 0.9 / 4000)
    assert np.abs(design.mean(axis=0) - 0.1).max() < 5 * spread


def test_bernoulli_heads_are_ablated_independently_of_each_other():
    off = bernoulli(GRID, 4000, 0.3, seed=0).reshape(4000, -1)
    together = np.corrcoef(off.T)[~np.eye(GRID.size, dtype=bool)]
    assert np.abs(together).max() < 5 / np.sqrt(4000)


@pytest.mark.parametrize("design", [bernoulli, stratified])
def test_a_seed_gives_one_design_bool_row_by_layer_by_head(design):
    masks, again, others = (design(GRID, 30, 0.2, seed=seed) for seed in (3, 3, 4))
    assert (masks.dtype, masks.shape) == (bool, (30, 4, 8))
    assert np.array_equal(masks, again)
    assert not np.array_equal(masks, others)


@pytest.mark.parametrize("design", [bernoulli, stratified])
def test_a_density_that_ablates_no_head_is_refused(design):
    with pytest.raises(ValueError, match=r"density 0.03 ablates no head: .* 32 heads, .* at least 0.0312"):
        design(GRID, 10, 0.03)


@pytest.mark.parametrize("design", [bernoulli, stratified])
@pytest.mark.parametrize("density", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_density_lies_between_none_and_all(design, density):
    with pytest.raises(ValueError, match=rf"density must lie between 0 and 1, got {density}"):
        design(GRID, 10, density)


@given(grids)
def test_single_masks_ablate_each_head_alone_in_the_order_of_the_grid(grid):
    masks = single(grid)
    assert [np.argwhere(mask).tolist() for mask in masks] == [[[head.layer, head.head]] for head in grid]


def test_explicit_masks_ablate_the_groups_named():
    masks = explicit(Grid(2, 3), [["L0H1", Head(1, 2)], [], [(1, 0)]])
    assert masks.tolist() == [
        [[False, True, False], [False, False, True]],
        [[False, False, False], [False, False, False]],
        [[False, False, False], [True, False, False]],
    ]


@pytest.mark.parametrize("shape", [(2, 8, 4), (2, 4, 9), (3, 4), (8,), (1, 1, 4, 8)])
def test_masks_of_another_grid_are_refused(shape):
    with pytest.raises(ValueError, match=r"layer, head = \(4, 8\), got shape .* the masks are of another grid"):
        check_masks(GRID, np.zeros(shape, dtype=bool))
