"""How far two rankings name the same heads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from scipy.stats import spearmanr

from cs_heads.ranking import HeadRanking


def overlap(first: HeadRanking, second: HeadRanking, k: int) -> float:
    """Share of the top ``k`` heads that two rankings have in common."""
    return len({*first.top(k)} & {*second.top(k)}) / k


def rank_biased_overlap(first: Sequence[Hashable], second: Sequence[Hashable], persistence: float = 0.9) -> float:
    """Rank-biased overlap of two lists of the same length without repeats, in [0, 1], extrapolated past their end.

    The mean overlap at depths 1, 2, ..., of which depth d weighs ``persistence ** (d - 1)``; beyond the lists
    the overlap at their end is taken to hold (Webber, Moffat and Zobel, *A Similarity Measure for Indefinite
    Rankings*, 2010, equation 30). Lists of unlike length or with repeats, and a persistence outside (0, 1), raise
    ``ValueError``.

    >>> rank_biased_overlap("abc", "abc"), rank_biased_overlap("abc", "xyz")
    (1.0, 0.0)
    >>> round(rank_biased_overlap("ab", "ba", persistence=0.5), 3)
    0.5
    """
    if not 0 < persistence < 1:
        raise ValueError(f"persistence must lie between 0 and 1, got {persistence}")
    if len(first) != len(second) or not first or len({*first}) < len(first) or len({*second}) < len(second):
        raise ValueError(
            f"first and second must be lists of the same length without repeats, got {len(first)} and {len(second)}"
        )
    depths = range(1, len(first) + 1)
    shared = np.array([len({*first[:depth]} & {*second[:depth]}) / depth for depth in depths])
    weights = persistence ** np.array(depths)
    return float((1 - persistence) / persistence * (shared * weights).sum() + shared[-1] * weights[-1])


def spearman(first: HeadRanking, second: HeadRanking) -> float | None:
    """Spearman's correlation of importance over the heads to which both rankings give one beyond ±1e-5.

    Below that lies what only breaks ties. Heads that the annealed method does not rank enter by importance, too.
    None where these are fewer than three, or all alike in one ranking: there is no order to compare.
    """
    shared = (np.abs(first.importance) > 1e-5) & (np.abs(second.importance) > 1e-5)
    a, b = first.importance[shared], second.importance[shared]
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(spearmanr(a, b).statistic)
