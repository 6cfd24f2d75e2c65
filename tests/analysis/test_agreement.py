import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from cs_heads.analysis.overlap import rank_biased_overlap, spearman, top_overlap
from cs_heads.ranking import HeadRanking


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


def test_overlap_is_the_share_in_common():
    assert top_overlap(ranking([[4, 3, 2, 1]]), ranking([[4, 1, 2, 3]]), 2) == 0.5
    assert top_overlap(ranking([[4, 3, 2, 1]]), ranking([[1, 2, 3, 4]]), 2) == 0


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
