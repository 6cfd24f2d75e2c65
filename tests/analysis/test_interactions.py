"""What heads do beside each other: exact over all subsets, on worlds where it is known."""

from itertools import permutations

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.analysis.interactions import Interactions
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(4, 4)
A, B, C, FILLER = Head(0, 1), Head(1, 2), Head(2, 3), Head(3, 0)


class Overlapping(Planted):
    """A world in which A and B take the same examples, as two steps of one path do."""

    def __call__(self, masks, examples=None):
        return super().__call__(masks & ~(self.grid.mask([B]) & masks[:, A.layer, A.head][:, None, None]), examples)


class Coins(Planted):
    """A world whose examples are thrown anew for each mask, by its own seed."""

    def __init__(self, seed):
        super().__init__(GRID, {A: 0.2, B: 0.2})
        self.seed = seed

    def _thresholds(self, masks):
        return np.stack([np.random.default_rng([self.seed, *np.packbits(m)]).random(self.n_examples) for m in masks])


def test_shapley_values_are_means_over_all_orders_and_sum_to_the_harm_of_all():
    world = Planted(GRID, {A: 0.3, B: 0.1}, groups={(B, C): 0.2, (A, B, C): 0.1})
    found = cs.interactions(None, world, [A, B, C, FILLER])
    harm = {frozenset(heads): 0.0 for heads in [()]}
    for row, mean in zip(found.subsets, found.harm, strict=True):
        harm[frozenset(head for head, off in zip(found.heads, row, strict=True) if off)] = mean
    assert harm[frozenset([A, B])] == pytest.approx(0.4)
    gains = {head: [] for head in found.heads}
    for order in permutations(found.heads):
        for place, head in enumerate(order):
            gains[head].append(harm[frozenset(order[: place + 1])] - harm[frozenset(order[:place])])
    table = found.shapley().set_index("head")
    for head, each in gains.items():
        assert table.loc[str(head), "shapley"] == pytest.approx(np.mean(each))
        assert table.loc[str(head), "alone"] == pytest.approx(harm[frozenset([head])])
        assert table.loc[str(head), "last"] == pytest.approx(
            harm[frozenset(found.heads)] - harm[frozenset(found.heads) - {head}]
        )
    assert table["shapley"].sum() == pytest.approx(harm[frozenset(found.heads)])
    assert found.spent == 16 * world.n_examples == world.spent


def test_heads_that_stand_in_for_each_other_are_backups_and_a_filler_has_no_partner():
    found = cs.interactions(None, Planted(GRID, {C: 0.2}, groups={(A, B): 0.5}), [A, B, C, FILLER])
    pairs = found.pairs().set_index(["first", "second"])
    assert pairs.loc[("L0H1", "L1H2"), "beyond the sum"] == pytest.approx(0.5)
    assert pairs["kind"].to_dict() == {pair: "backup" if pair == ("L0H1", "L1H2") else "" for pair in pairs.index}
    assert found.least == (A, B, C)
    assert "L0H1 and L1H2: backup" in found._repr_html_()


def test_heads_that_take_the_same_overlap_and_one_of_them_is_enough():
    found = cs.interactions(None, Overlapping(GRID, {A: 0.5, B: 0.5}), [A, B, FILLER])
    assert found.pairs()["kind"].tolist() == ["overlap", "", ""]
    assert found.least in ((A,), (B,))
    assert found.to_frame()["drop"].tolist() == pytest.approx([0, 0.5, 0.5, 0.5, 0, 0.5, 0.5, 0.5])


def test_what_no_example_varies_in_has_an_interval_and_rounding_makes_no_pair():
    lost = np.repeat([[0.0], [1.0]], 40, axis=1)
    [row] = Interactions((A,), np.array([[False], [True]]), lost).shapley().to_dict("records")
    assert row["low"] < row["shapley"] == 1
    # Each takes a share of every answer, which sum up to nothing but rounding.
    subsets = (np.arange(8)[:, None] >> np.arange(3)) % 2 == 1
    drops = np.repeat(subsets @ np.array([[0.1], [0.2], [0.3]]), 40, axis=1)
    assert Interactions((A, B, C), subsets, drops).pairs()["kind"].tolist() == [""] * 3


def test_coins_make_no_pair_of_heads_that_do_nothing_together():
    named = [cs.interactions(None, Coins(seed), [A, B, FILLER]).pairs()["kind"].tolist() for seed in range(20)]
    assert sum(kinds != [""] * 3 for kinds in named) <= 3


def test_of_as_many_heads_the_least_set_has_those_that_surely_add():
    """A filler whose effect is now one, now the other way takes a little more, as it happens."""
    subsets = (np.arange(8)[:, None] >> np.arange(3)) % 2 == 1
    luck = np.tile([1.0, -1.0], 20)
    means = [0, 0.5, 0.3, 0.8, 0, 0.81, 0.3, 0.82]
    drops = np.stack([mean + filler * luck for mean, (_, _, filler) in zip(means, subsets, strict=True)])
    found = Interactions((A, B, FILLER), subsets, drops, spent=0, provenance={})
    assert (found.shapley()["low"] > 0).tolist() == [True, True, False]
    assert found.harm[5] > found.harm[3] >= 0.9 * found.harm[7]
    assert found.least == (A, B)
