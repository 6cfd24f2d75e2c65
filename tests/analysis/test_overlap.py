"""Heads in common, held against luck: exact probabilities against enumeration and simulation. Orders, by definition."""

import json
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from cs_heads.analysis.overlap import head_overlap, rank_biased_overlap, spearman
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, Head

GRID = Grid(2, 4)


def placings(heads) -> list[list[Head]]:
    """Every place in their layers that the heads could have."""
    heads = [GRID.resolve(head) for head in heads]
    rows = [list(combinations(range(4), sum(h.layer == layer for h in heads))) for layer in range(2)]
    return [[Head(0, a) for a in top] + [Head(1, b) for b in low] for top, low in product(*rows)]


def by_enumeration(first, second, statistic) -> tuple[float, float]:
    """Mean and chance of as much, over every place the two sets could have."""
    sets = product(placings(first), placings(second))
    values = np.array([statistic(one, other) for one, other in sets])
    return values.mean(), (values >= statistic(first, [GRID.resolve(head) for head in second])).mean()


def heads_shared(first, second):
    return len({*map(GRID.resolve, first)} & {*second})


def groups_shared(first, second):
    return len({(h.layer, h.head // 2) for h in map(GRID.resolve, first)} & {(h.layer, h.head // 2) for h in second})


def test_key_value_heads_say_how_many_groups_there_are_and_not_how_large():
    """Eight heads on two key/value heads are two groups of four."""
    pair = head_overlap({"a": ["L0H0"], "b": ["L0H3"]}, grid=Grid(1, 8), n_key_value_heads=2).pairs[0]
    assert (pair.heads, pair.groups) == (0, 1)


def test_no_number_of_draws_shows_that_luck_cannot_do_it():
    """The sets as they are count as one draw (Phipson and Smyth 2010)."""
    heads = [Head(layer, 0) for layer in range(16)]
    grid = Grid(16, 16)
    pair = head_overlap({"a": heads, "b": heads}, grid=grid, n_key_value_heads=8, n_permutations=99).pairs[0]
    assert pair.p_groups == 1 / 100


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["L0H0", "L0H1", "L1H2"], ["L0H1", "L1H2", "L1H3"]),
        (["L0H0"], ["L0H0"]),
        (["L0H0", "L0H3"], ["L1H0", "L1H3"]),
        (["L0H0", "L0H1", "L0H2", "L0H3"], ["L0H1", "L0H2"]),
    ],
)
def test_probabilities_are_those_of_every_place_the_heads_could_have(first, second):
    found = head_overlap({"a": first, "b": second}, grid=GRID, n_key_value_heads=2, n_permutations=4000, seed=1).pairs[
        0
    ]
    mean, p = by_enumeration(first, second, heads_shared)
    assert found.expected_heads == pytest.approx(mean)
    assert found.p_heads == pytest.approx(p)
    mean, p = by_enumeration(first, second, groups_shared)
    assert found.expected_groups == pytest.approx(mean, abs=0.05)
    # Three standard errors of a share of 4,000 draws.
    assert found.p_groups == pytest.approx(p, abs=3 * np.sqrt(0.25 / 4000))


def test_which_ranking_is_named_first_is_all_the_same():
    """Two heads of one group are held against two heads of two groups."""
    grid = Grid(4, 8)
    sets = {"a": ["L0H0", "L0H1", "L2H4"], "b": ["L0H1", "L0H6", "L2H5"]}
    there = head_overlap(sets, grid=grid, n_key_value_heads=4, seed=1).pairs[0]
    back = head_overlap(dict(reversed(sets.items())), grid=grid, n_key_value_heads=4, seed=2).pairs[0]
    assert there.p_heads == pytest.approx(back.p_heads)
    # Four standard errors of a difference of two shares of 9,999 draws.
    assert there.p_groups == pytest.approx(back.p_groups, abs=4 * np.sqrt(2 * 0.25 / 9999))
    assert there.expected_groups == pytest.approx(back.expected_groups, abs=0.05)


def test_the_result_is_json_and_says_where_it_is_from():
    one = replace(ranking([[0, 2, 0, 0], [0, 0, 0, 1]]), provenance={"model": {"name": "tiny"}})
    record = json.loads(json.dumps(head_overlap({"a": one, "b": ["L0H1"]}, k=2, seed=4).to_dict()))
    assert record["heads"] == {"a": ["L0H1", "L1H3"], "b": ["L0H1"]}
    assert record["pairs"][0]["heads"] == 1
    assert record["pairs"][0]["p_groups"] is None
    assert record["provenance"]["found"] == {"a": {"model": {"name": "tiny"}}}
    assert record["provenance"]["seed"] == 4


def test_rankings_give_their_top_heads_and_their_grid():
    one = ranking([[0, 2, 0, 0], [0, 0, 0, 1]])
    found = head_overlap({"a": replace(one, provenance={"model": {"key_value_heads": 2}}), "b": one}, k=2)
    assert found.heads["a"] == (Head(0, 1), Head(1, 3))
    assert found.pairs[0].heads == found.pairs[0].groups == 2
    assert found.n_groups == 4


def test_false_discoveries_are_counted_over_all_pairs():
    grid = Grid(8, 8)
    same = [grid.unit(i) for i in (3, 17, 29, 44)]
    sets = {"a": same, "b": same, "c": [grid.unit(i) for i in (1, 18, 31, 46)]}
    found = head_overlap(sets, grid=grid)
    frame = found.to_frame().set_index(["first", "second"])
    # The smallest of three p-values is multiplied by three, the others are 1.
    assert frame.loc[("a", "b"), "q_heads"] == pytest.approx(3 * frame.loc[("a", "b"), "p_heads"])
    assert frame.loc[("a", "c"), "q_heads"] == 1
    assert not [column for column in frame if "groups" in column]
    assert found.matrix().loc["a"].tolist() == [4, 4, 0]
    assert np.isnan(found.matrix("p_heads").loc["a", "a"])


# How alike two orders are


def ranking(importance) -> HeadRanking:
    return HeadRanking("css", np.array(importance, dtype=float), spent=0)


def by_definition(first, second, p, depth=4000):
    """The infinite sum, term by term, with the overlap at the end of the lists held for ever."""
    total, shared = 0.0, 0.0
    for d in range(1, depth + 1):
        if d <= len(first):
            shared = len(set(first[:d]) & set(second[:d])) / d
        total += (1 - p) * p ** (d - 1) * shared
    return total


@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(1, 8), st.sampled_from([0.5, 0.9, 0.98]))
def test_rank_biased_overlap_is_the_infinite_sum_of_its_definition(first, second, n, p):
    found = rank_biased_overlap(first[:n], second[:n], p)
    assert found == pytest.approx(by_definition(first[:n], second[:n], p), abs=1e-6)


def test_spearman_is_over_heads_with_an_importance_in_both():
    first, second = [[5, 0, 3, 1, 2, 7]], [[4, 9, 3, 2, 0, 8]]
    expected = spearmanr([5, 3, 1, 7], [4, 3, 2, 8]).statistic
    assert spearman(ranking(first), ranking(second)) == pytest.approx(expected)


def test_what_breaks_ties_is_no_importance_to_spearman():
    greedy = ranking([[5, 1e-6, 3, 1, -1e-6, 7]])
    assert spearman(greedy, ranking([[4, 9, 3, 2, 8, 5]])) == pytest.approx(spearmanr([5, 3, 1, 7], [4, 3, 2, 5])[0])


@pytest.mark.parametrize("second", [[[0, 0, 1, 1]], [[2, 2, 2, 2]], [[0, 0, 0, 0]]])
def test_where_there_is_no_order_to_compare_spearman_is_unknown(second):
    assert np.isnan(spearman(ranking([[1, 2, 3, 4]]), ranking(second)))
