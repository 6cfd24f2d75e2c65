"""Whether heads do more harm than random ones: a rank test over sets of heads, a paired test over examples.

Two questions, each with a p-value of its own. *Are these heads beyond other sets of heads?* The share of random sets
that do at least as much harm says so, however many examples there are. *Would they be so on other examples?* A test
over the examples says so, whichever sets were drawn. Heads that do no more harm than random ones have either p below
.01 in one case in a hundred, and ``p``, the larger of the two, no more often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import betaincinv, logsumexp

from cs_heads.analysis.random_heads import Mask
from cs_heads.experiment.protocol import ExperimentLike, measured
from cs_heads.record import Proportion, Record

Scores = Float[np.ndarray, " example"]

N_RANDOM = 250
"""Random sets."""
MAX_P = 0.01
MIN_MARGIN = 0.10
"""Loss beyond that of random heads, at least."""

# Evaluations of each example by all sets together: in the first round, and at most, those by which the least set was
# chosen among them. Of few examples each set may have all the same this many on average.
_FIRST, _MOST, _MOST_OF_SET = 4, 20, 3
# How many times more examples a set has in the next round.
_MORE = 1.15
# The sets that seem to do most harm are told apart for surer: how many, how sure, and by how many examples at a time.
_DOUBTED, _SURE, _STEP = 3, 0.05, 8
# What is bet on a set doing less harm, of what a whole answer lost costs and at most of what could be lost; and on the
# mean of all.
_BET, _ALL, _BETS = 0.6, 0.95, np.arange(0.05, 1, 0.1)
# How many sets the mean of all examples weighs as much as, where what is lost of one is told.
_PRIOR = 4
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RandomComparison(Record):
    """Heads beside random sets of heads.

    Attributes:
        drops: The drop of each set, on those examples that it was measured on.
        drop: Their mean drop, from the first round alone: later ones measure harmful sets on more examples.
        n_as_harmful: Sets that are not known to do less harm than the heads.
        p_sets: p-value over sets of heads: ``(1 + n_as_harmful) / (1 + len(drops))``, and more where sets were settled
            before they had all examples (``_mistaken``).
        p_examples: p-value over examples.
        stopped: Whether sets were left unsettled, as the p over examples or the mean drop spoke against the heads.
        n_untold: Sets as harmful that had not all examples yet when as many evaluations as are allowed were made.
        like: In what the sets are like the heads, in words.
        spent: Example-evaluations.
    """

    drops: tuple[float, ...]
    drop: float
    n_as_harmful: int
    p_sets: Proportion
    p_examples: Proportion
    like: str = " of the same layers"
    spent: int = 0
    stopped: bool = False
    n_untold: int = 0

    @property
    def is_beyond_sets(self) -> bool:
        """Whether p over sets is below .01, or where there are too few sets for that, all do less harm."""
        return self.p_sets < MAX_P or self.n_as_harmful == 0

    @property
    def is_beyond(self) -> bool:
        """Whether both p-values speak for the heads."""
        return self.is_beyond_sets and self.p_examples < MAX_P

    @property
    def most_as_harmful(self) -> float:
        """The share of all such sets that do as much harm, at most (95 %): Clopper and Pearson's upper bound.

        It is larger where sets were settled early, as ``p_sets`` is.

        >>> round(RandomComparison((0.0,) * 250, 0.0, 0, 1 / 251, 0.001).most_as_harmful, 4)
        0.0119
        """
        n, k = len(self.drops), self.n_as_harmful
        bound = float(betaincinv(k + 1, n - k, 0.95)) if k < n else 1.0
        return min(1.0, bound * max(1.0, self.p_sets * (1 + n) / (1 + k)))


def most_of_random_sets(n_sets: int, n_examples: int, least: int = 0) -> int:
    """What ``compare_with_random`` may take at most, where the choice of the least set took ``least``."""
    return min(n_sets * n_examples, max(_MOST * n_examples - least, _MOST_OF_SET * n_sets))


@dataclass(frozen=True, eq=False)
class RandomSets:
    """Random sets of heads, with what is measured of them: at first each on a few examples, each under as many sets.

    Attributes:
        masks: The sets.
        losable: Examples that can be lost.
        orders: The examples of each set, in the order in which it has them.
        turns: Which sets share an order.
        first: Scores of each set on its first examples; the others are NaN.
        scores: The same, and what ``compare_with_random`` adds.
    """

    masks: Bool[np.ndarray, "set layer head"]
    losable: Bool[np.ndarray, " example"]
    orders: Int[np.ndarray, "set example"]
    turns: Int[np.ndarray, " set"]
    first: Float[np.ndarray, "set example"]
    scores: Float[np.ndarray, "set example"]

    @property
    def mean(self) -> Scores:
        """The mean score of each example with random heads off, by the first examples of each set."""
        return np.nanmean(self.first, axis=0)


def first_round(experiment: ExperimentLike, sets: list[Mask], intact: Scores, seed: int = 0) -> RandomSets:
    """Measure random sets on the first few examples of each.

    Args:
        experiment: On the task of the heads.
        sets: Different random sets.
        intact: Score of each example with nothing off.
        seed: Draws which examples a set has first.
    """
    n_sets, n = len(sets), len(intact)
    # A wrong answer can only be won. Where none is by luck, the sets do without.
    losable = (intact > 0) | (experiment.chance > 0)
    masks, (orders, turns), scores = np.stack(sets), _orders(n_sets, losable, seed), np.full((n_sets, n), np.nan)
    asked = orders[:, : _first(n_sets, n)]
    np.put_along_axis(scores, asked, measured(experiment, masks, asked), axis=1)
    return RandomSets(masks, losable, orders, turns, scores, scores.copy())


def compare_with_random(
    experiment: ExperimentLike,
    sets: RandomSets,
    intact: Scores,
    ablated: Scores,
    *,
    like: str = " of the same layers",
    least: int = 0,
) -> RandomComparison:
    """Compare heads with random sets, on as few examples as tell.

    The first round tells which examples are easily lost. A set is settled once bets on its doing less harm than the
    heads do on all examples have won enough, where what an easy example says counts less. Where the first round speaks
    for the heads, the others get more examples, until all are settled, have had all examples, or too much is spent.
    Where none is left, the three that seem to do most harm go on until little doubt is left.

    Args:
        experiment: On the task of the heads.
        sets: The random sets after their first round; what is measured here is added.
        intact: Score of each example with nothing off.
        ablated: The same with the heads off.
        like: In what the sets are like the heads, in words.
        least: Example-evaluations that the choice of the least set took, which these sets do without.
    """
    masks, losable, orders, scores = sets.masks, sets.losable, sets.orders, sets.scores
    (n_sets, n), mistaken = scores.shape, _mistaken(len(masks))
    most, full = most_of_random_sets(n_sets, n, least), float((intact - ablated).sum())
    apart = _easily_lost(intact - sets.first, losable, sets.turns)

    def seen() -> Int[np.ndarray, " set"]:
        return (~np.isnan(scores)).sum(axis=1)

    def ask(places: Int[np.ndarray, " set"], more: int) -> bool:
        """Measure so many more examples of these sets; False where none is left, or too much would be spent."""
        has = seen()
        pairs = np.array([(i, j) for i in places for j in orders[i, has[i] : has[i] + more]]).reshape(-1, 2)
        if not len(pairs) or has.sum() + len(pairs) > most:
            return False
        scores[tuple(pairs.T)] = measured(experiment, masks[pairs[:, 0]], pairs[:, 1:])[:, 0]
        return True

    def is_less(places: Int[np.ndarray, " set"], mistaken: float) -> Bool[np.ndarray, " set"]:
        """Whether sets do less harm than the heads: for certain where they had all examples, else by bets."""
        harm = np.where(losable, intact - scores[places] - apart[places], np.nan)
        harm = np.take_along_axis(harm, orders[places], axis=1)
        most = 1.0 - np.minimum(apart[places].min(axis=1, keepdims=True), 0.0)
        won = _won(harm, full, int(losable.sum()), most).max(axis=1)
        less = (scores[places] - ablated).sum(axis=1) > _ROUNDING
        return np.where(np.isnan(scores[places]).any(axis=1), won >= -np.log(mistaken), less)

    first = _first(n_sets, n)
    drop, p_examples = float(np.mean(intact - sets.mean)), betting_p(sets.mean - ablated)
    left = np.flatnonzero(~is_less(np.arange(n_sets), mistaken))
    margin = (intact - ablated).mean() - drop
    against = p_examples >= MAX_P or margin < MIN_MARGIN * (intact.mean() - experiment.chance) - _ROUNDING
    has = first
    while not against and len(left):
        more = min((most - int(seen().sum())) // len(left), int(np.ceil(has * (_MORE - 1))))
        if not ask(left, more):
            break
        has += more
        left = left[~is_less(left, mistaken)]
    early = bool((np.delete(seen(), left) < n).any())
    stopped = bool(against) and bool(len(left)) and first < n
    if not stopped and not len(left):
        left = np.argsort(-np.nanmean(intact - scores, axis=1))[:_DOUBTED]
        while len(left := left[~is_less(left, _SURE)]) and ask(left, _STEP):
            pass
    return RandomComparison(
        drops=tuple(np.nanmean(intact - scores, axis=1).tolist()),
        drop=drop,
        n_as_harmful=len(left),
        p_sets=min(1.0, (1 + len(left)) / (1 + n_sets) / (1 - (mistaken if early else 0.0))),
        p_examples=p_examples,
        like=like,
        spent=int(seen().sum()),
        stopped=stopped,
        n_untold=0 if stopped else int((seen()[left] < n).sum()),
    )


def _mistaken(n_sets: int) -> float:
    """With what probability, at most, a set that does as much harm may be settled as one that does less.

    Bets on less harm win ``1 / _mistaken`` times the stake no more often. A p-value that divides by ``1 - _mistaken``
    allows for that, and is still below .01 where all of 105 sets or more are settled.
    """
    return max(0.05, 1 - 102 / (1 + n_sets))


def _won(
    harm: Float[np.ndarray, "set step"], full: float, n: int, most: Float[np.ndarray, "set 1"]
) -> Float[np.ndarray, "set step"]:
    """What bets on less harm than ``full`` on ``n`` examples have won, as a logarithm; NaN is none of these examples.

    ``most`` is the largest harm that an example can have.

    A set that does as much harm does on average, on those of the examples that are still to be drawn, what is missing,
    or more. Who bets on less after each draw gains nothing on average, and ever has ``x`` times his stake with
    probability ``1 / x`` at most (Waudby-Smith and Ramdas, NeurIPS 2020, on draws without replacement).
    """
    drawn, done = ~np.isnan(harm), np.nan_to_num(harm)
    left = n - np.cumsum(drawn, axis=1) + drawn
    missing = np.minimum((full - np.cumsum(done, axis=1) + done) / np.maximum(left, 1), 1 - _ROUNDING)
    stake = np.minimum(_BET / (1 - missing), _ALL / (most - missing))
    return np.cumsum(drawn * np.log1p(stake * (missing - done)), axis=1)


def _easily_lost(
    harm: Float[np.ndarray, "set example"], losable: Bool[np.ndarray, " example"], turns: Int[np.ndarray, " set"]
) -> Float[np.ndarray, "set example"]:
    """How much more easily each example is lost than others, by the first round of other sets; on average nothing.

    The harm of a set less this is the same on all examples together, and varies less from one to the next. It is told
    by sets of other turns, which have the examples in another order, so it says nothing of which a set has first.
    """
    lost, seen = np.nan_to_num(harm), ~np.isnan(harm)
    apart = np.zeros(harm.shape)
    for others in (turns != each for each in range(turns[-1] + 1)):
        if others.any() and losable.any():
            mean = lost[others].sum() / seen[others].sum()
            expected = (lost[others].sum(axis=0) + _PRIOR * mean) / (seen[others].sum(axis=0) + _PRIOR)
            apart[~others] = expected - expected[losable].mean()
    return apart


def _first(n_sets: int, n: int) -> int:
    return min(n, -(-_FIRST * n // n_sets))


def _orders(
    n_sets: int, losable: Bool[np.ndarray, " example"], seed: int
) -> tuple[Int[np.ndarray, "set example"], Int[np.ndarray, " set"]]:
    """The order in which each set has the examples: at random, but after the first few those come last that lose none.

    Sets of one turn, which is given as well, share the examples of one order out, until it is at its end.
    """
    n = len(losable)
    first = _first(n_sets, n)
    starts = np.arange(n_sets) * first
    turns = starts // n
    shuffled = np.random.default_rng(seed).permuted(np.tile(np.arange(n), (turns[-1] + 1, 1)), axis=1)
    orders = shuffled[turns[:, None], (starts[:, None] + np.arange(n)) % n]
    rest = orders[:, first:]
    rest[:] = np.take_along_axis(rest, np.argsort(~losable[rest], axis=1, kind="stable"), axis=1)
    return orders, turns


def betting_p(differences: Scores) -> float:
    """The p-value of a mean of zero or less of independent differences in [-1, 1], whatever their distributions.

    Who stakes shares of 1 on every difference, ``1 + share × difference`` times what he has, gains nothing on average
    where the mean is zero or less, and then has ``1 / p`` times as much in the end with probability p at most. The
    shares are several, each of a part of the stake (Waudby-Smith and Ramdas, Journal of the Royal Statistical Society B
    86, 2024). A permutation of signs has no such guarantee where differences are skewed.

    >>> round(betting_p(np.repeat([0.0, 1.0], [10, 10])), 4)
    0.0054
    """
    logs = np.log1p(_BETS[:, None] * differences).sum(axis=1)
    return float(min(1.0, np.exp(np.log(len(_BETS)) - logsumexp(logs))))
