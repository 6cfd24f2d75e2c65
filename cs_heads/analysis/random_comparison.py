"""Whether heads do more harm than random ones: a rank test over sets of heads, a paired test over examples.

Two questions, each with a p-value of its own. *Are these heads beyond other sets of heads?* The share of random sets
that do at least as much harm says so, however many examples there are. *Would they be so on other examples?* A test
over the examples says so, whichever sets were drawn. Heads that do no more harm than random ones have either p below .01
in one case in a hundred, and ``p``, the larger of the two, no more often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import bdtrc, logsumexp

from cs_heads.analysis.random_heads import Mask
from cs_heads.experiment.protocol import ExperimentLike, measured
from cs_heads.experiment.together import Asked

Scores = Float[np.ndarray, " example"]

N_RANDOM = 125
"""Random sets, so that none of them doing as much harm is p < .01."""
MAX_P = 0.01
MIN_MARGIN = 0.10
"""Relative drop beyond that of random heads, at least."""

# A set that does as much harm is taken for one that does less with this probability at most: evidence by betting that
# is 1 / _MISTAKEN has settled it. The p-value allows for that.
_MISTAKEN = 0.2
_SETTLED = float(np.log(1 / _MISTAKEN))
_BET = 0.75
# What is bet in the test over examples, as shares of what could be lost.
_BETS = np.array([0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95])
# Examples of a set in the first round: as many as make 6 evaluations of each example, and 4 at least.
_FIRST, _LEAST = 6, 4
# How many times more examples a set has in the next round; and the set that seems to do more harm than the heads.
_MORE, _MANY_MORE = 1.3, 3.0
# Evaluations of each example by all sets together at most; what is not settled then counts as harmful.
_MOST = 30
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RandomComparison:
    """Heads beside random sets of heads.

    Attributes:
        drops: The drop of each set, on those examples that it was measured on.
        drop: Their mean drop, from the first round alone: later ones measure harmful sets on more examples.
        n_as_harmful: Sets that are not known to do less harm than the heads.
        p_sets: p-value over sets of heads: ``(1 + n_as_harmful) / (1 + len(drops))``, and divided by .8 where sets were
            settled before they had all examples, for one in five that do as much harm may be taken for harmless.
        p_examples: p-value over examples.
        like: In what the sets are like the heads, in words.
        spent: Example-evaluations.
    """

    drops: tuple[float, ...]
    drop: float
    n_as_harmful: int
    p_sets: float
    p_examples: float
    like: str = " of the same layers"
    spent: int = 0

    @property
    def p(self) -> float:
        """The larger of both."""
        return max(self.p_sets, self.p_examples)

    @property
    def is_beyond_sets(self) -> bool:
        """Whether p over sets is below .01, or where there are too few sets for that, all do less harm."""
        return self.p_sets < MAX_P or self.n_as_harmful == 0


def most_evaluations(n_sets: int, n_examples: int) -> int:
    """What ``compare_with_random`` may take at most."""
    return n_sets * n_examples if n_sets <= _MOST else n_examples * _MOST + n_sets * _LEAST


def first_round(
    experiment: ExperimentLike, sets: list[Mask], intact: Scores, ablated: Scores, seed: int = 0
) -> Asked:
    """What ``compare_with_random`` measures first, for ``measure_together``."""
    n = _n_first(len(sets), len(intact))
    return Asked(experiment, np.stack(sets), _orders(len(sets), intact, ablated, np.random.default_rng(seed))[:, :n])


def compare_with_random(
    experiment: ExperimentLike,
    sets: list[Mask],
    intact: Scores,
    ablated: Scores,
    *,
    like: str = " of the same layers",
    seed: int = 0,
) -> RandomComparison:
    """Compare heads with random sets, on as few examples as tell.

    In a first round each set is measured on a few examples, and each example under as many sets. Sets that clearly do
    less harm than the heads on the same examples are settled. If the test over examples and the mean drop speak for the
    heads, the other sets get more examples, until all are settled, or one that has had them all does as much harm.

    Args:
        experiment: On the task of the heads.
        sets: Different random sets.
        intact: Score of each example with nothing off.
        ablated: The same with the heads off.
        like: In what the sets are like the heads, in words.
        seed: Draws which examples a set has first.
    """
    n_sets, n = len(sets), len(intact)
    rng, masks, rows = np.random.default_rng(seed), np.stack(sets), np.arange(n_sets)
    orders, first = _orders(n_sets, intact, ablated, rng), _n_first(n_sets, n)
    scores = np.full((n_sets, n), np.nan)
    has, wanted, is_open = np.zeros(n_sets, dtype=int), np.full(n_sets, first), np.ones(n_sets, dtype=bool)
    drop, p_examples = 0.0, 1.0
    while True:
        for start, stop in np.unique(np.stack([has, wanted], axis=1)[wanted > has], axis=0).tolist():
            asking = np.flatnonzero((has == start) & (wanted == stop))
            examples = orders[asking, start:stop]
            scores[asking[:, None], examples] = measured(experiment, masks[asking], examples)
        if not has.any():
            drop, p_examples = float(np.mean(intact - np.nanmean(scores, axis=0))), _paired_p(scores, ablated, rng)
        has = wanted.copy()
        more = scores - ablated
        settled = np.where(has < n, np.nansum(np.log1p(_BET * more), axis=1) >= _SETTLED, np.nansum(more, axis=1) > _ROUNDING)
        is_open &= ~settled
        growing = is_open & (has < n)
        beyond = p_examples < MAX_P and (intact - ablated).mean() - drop >= MIN_MARGIN * intact.mean() - _ROUNDING
        if not beyond or not growing.any() or (is_open & (has == n)).any():
            break
        mean = np.where(growing, np.nansum(more, axis=1) / has, np.inf)
        leader = rows == mean.argmin()
        wanted = np.where(
            leader if mean.min() <= 0 else growing,
            np.minimum(n, np.ceil(has * (_MANY_MORE if mean.min() <= 0 else _MORE)).astype(int)),
            has,
        )
        if wanted.sum() > most_evaluations(n_sets, n):
            break
    n_as_harmful = int(is_open.sum())
    mistaken = _MISTAKEN if (~is_open & (has < n)).any() else 0.0
    return RandomComparison(
        drops=tuple(np.nanmean(intact - scores, axis=1).tolist()),
        drop=drop,
        n_as_harmful=n_as_harmful,
        p_sets=min(1.0, (1 + n_as_harmful) / (1 + n_sets) / (1 - mistaken)),
        p_examples=p_examples,
        like=like,
        spent=int(has.sum()),
    )


def _n_first(n_sets: int, n: int) -> int:
    return min(n, max(_LEAST, -(-_FIRST * n // n_sets)))


def _orders(n_sets: int, intact: Scores, ablated: Scores, rng: np.random.Generator) -> Int[np.ndarray, "set example"]:
    """The order in which each set has the examples.

    Each has the share of examples that the heads take, and of those that they leave, from the first few on: these are
    ranked by what is known of them, and gone through in steps of the golden ratio.
    """
    n = len(intact)
    ranked = np.lexsort((rng.random(n), intact, ablated))
    steps = np.argsort(np.argsort(np.arange(n) * (np.sqrt(5) - 1) / 2 % 1))
    starts = np.arange(n_sets) * _n_first(n_sets, n)
    return ranked[steps][(starts[:, None] + np.arange(n)) % n]


def _paired_p(scores: Float[np.ndarray, "set example"], ablated: Scores, rng: np.random.Generator) -> float:
    """The p-value over examples, from the sets that each was measured with (others are NaN).

    Where all scores are 0 or 1 it is McNemar's exact test of the heads against one of an example's sets, drawn at random;
    else that of bets on the mean of its sets less the score with the heads.
    """
    known = ~np.isnan(scores)
    if not np.isin(scores[known], (0, 1)).all() or not np.isin(ablated, (0, 1)).all():
        return betting_p(np.nanmean(scores, axis=0) - ablated)
    one = np.where(known, rng.random(scores.shape), -1.0).argmax(axis=0)
    less = scores[one, np.arange(len(ablated))] - ablated
    for_heads, against = int((less > 0).sum()), int((less < 0).sum())
    return float(bdtrc(for_heads - 1, for_heads + against, 0.5)) if for_heads else 1.0


def betting_p(differences: Scores) -> float:
    """The p-value of a mean of zero or less of independent differences in [-1, 1], whatever their distributions.

    Who stakes shares of 1 on every difference, ``1 + share × difference`` times what he has, gains nothing on average
    where the mean is zero or less, and then has ``1 / p`` times as much in the end with probability p at most. The
    shares are several, each of a part of the stake (Waudby-Smith and Ramdas, Journal of the Royal Statistical Society B
    86, 2024). A permutation of signs has no such guarantee where differences are skewed.

    >>> round(betting_p(np.repeat([0.0, 1.0], [10, 10])), 4)
    0.0065
    """
    logs = np.log1p(_BETS[:, None] * differences).sum(axis=1)
    return float(min(1.0, np.exp(np.log(len(_BETS)) - logsumexp(logs))))
