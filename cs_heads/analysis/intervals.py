"""95 % intervals of shares, means, and of what is lost between two runs on the same examples.

Of answers right or wrong they are score intervals, else Gaffke's, which cover as often where numbers are skewed and
few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from jaxtyping import Float

Scores = Float[np.ndarray, "_"]
Interval = tuple[float, float]
UNKNOWN: Interval = (float("nan"), float("nan"))

# Draws of weights, and numbers that are held of them at once.
_DRAWS, _AT_ONCE = 2000, 1_000_000
_TAILS, _ROUNDING = (0.025, 0.975), 1e-9


@dataclass(frozen=True)
class _Estimate:
    """A number and how far its interval reaches below and above it."""

    value: float
    below: float
    above: float


def paired_intervals(parts: Sequence[tuple[Scores, Scores]], chance: float, seed: int = 0) -> tuple[Interval, Interval]:
    """The intervals of a task's drop, and of its loss above ``chance``.

    Where all scores are 0 or 1 the drop's interval is Newcombe's for paired proportions (Statistics in Medicine 17,
    1998, method 10: Wilson intervals, squared and added), and that of the ratio recovers its variance from the same
    ones (Donner and Zou, Statistical Methods in Medical Research 21, 2012): they have a width where nothing changes
    too. Else they are Gaffke's (``mean_interval``): to the examples of each part comes one that loses all, for the
    upper bounds, or gains all, for the lower ones.

    Args:
        parts: Scores of the examples of each part with no head off and with heads off, in the same order; the task is
            the mean of its parts.
        chance: The score of guessing.
        seed: Draws the weights.

    Returns:
        Two intervals. A bound that is not known is NaN, as those of the loss where the baseline may be no better than
        chance.

    >>> drop, _ = paired_intervals([(np.ones(20), np.ones(20))], 0.0)
    >>> round(drop[0], 3), round(drop[1], 3)
    (-0.161, 0.161)
    """
    if all(np.isin(side, (0.0, 1.0)).all() for pair in parts for side in pair):
        return _by_score(parts, chance)
    return _by_weights(parts, chance, seed)


def _by_score(parts: Sequence[tuple[Scores, Scores]], chance: float) -> tuple[Interval, Interval]:
    intact, off = (_mean([_proportion(int(pair[side].sum()), len(pair[side])) for pair in parts]) for side in (0, 1))
    # Correlation of the two means, from that of each part.
    spread = np.array([(np.std(a), np.std(b)) for a, b in parts]) / np.sqrt([[len(a)] for a, _ in parts])
    shared = np.array([_correlation(a, b) for a, b in parts]) * spread.prod(axis=1)
    total = np.sqrt((spread**2).sum(axis=0)).prod()
    r = float(shared.sum() / total) if total else 0.0
    drop = (
        intact.value - off.value - _added(intact.below, off.above, r),
        intact.value - off.value + _added(intact.above, off.below, r),
    )
    return drop, _ratio(intact, off, r, chance)


@lru_cache(maxsize=4096)
def wilson_interval(count: int, n: int) -> Interval:
    """The 95 % Wilson interval of a share of ``n``."""
    from scipy.stats import binomtest

    found = binomtest(count, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def mean_interval(scores: Scores) -> Interval:
    """The 95 % interval of a mean score: Wilson's where all are 0 or 1, else Gaffke's.

    Gaffke's bounds are quantiles of the mean with random weights, those of a Bayesian bootstrap, of the scores and one
    more: 0 for the lower bound, 1 for the upper one. No distribution of numbers in [0, 1] is known of which they cover
    less than they should, whatever the number of examples, though that is proved for special cases only (Learned-Miller
    and Thomas, arXiv 1905.06208).

    >>> low, high = mean_interval(np.repeat([0.2, 0.6], 20))
    >>> bool(0.32 < low < 0.34), bool(0.47 < high < 0.49)
    (True, True)
    """
    if np.isin(scores, (0.0, 1.0)).all():
        return wilson_interval(int(scores.sum()), len(scores))
    lower, upper = _weighted(scores[None], np.array([[0.0], [1.0]]), np.random.default_rng(0))
    return float(np.quantile(lower, _TAILS[0])), float(np.quantile(upper, _TAILS[1]))


def difference_interval(
    values: Float[np.ndarray, " example"], outside: float = 0.05, unit: float = 0.0
) -> tuple[float, float, float]:
    """A mean of numbers of either sign and its interval by Student's t.

    Args:
        values: One number an example.
        outside: What the interval leaves out, as .05 for 95 %.
        unit: What one more example may differ by, as 1 where an answer is lost or not: where all numbers are alike, the
            interval reaches as far as Wilson's of a share of which no case was seen. 0 where that is not known.

    Returns:
        The mean, and the two bounds.
    """
    from scipy.stats import norm, t

    n, mean = len(values), float(values.mean())
    unseen = float(norm.isf(outside / 2)) ** 2
    if np.ptp(values) < _ROUNDING:
        return mean, mean - unit * unseen / (n + unseen), mean + unit * unseen / (n + unseen)
    reach = float(t.isf(outside / 2, n - 1) * values.std(ddof=1)) / n**0.5
    return mean, mean - reach, mean + reach


drop_interval = partial(difference_interval, unit=1.0)
"""The same of what right answers are lost by."""


def _proportion(n_right: int, n: int) -> _Estimate:
    low, high = wilson_interval(n_right, n)
    # Rounding must not leave the estimate outside.
    return _Estimate(n_right / n, max(0.0, n_right / n - low), max(0.0, high - n_right / n))


def _mean(parts: Sequence[_Estimate]) -> _Estimate:
    """Of estimates that know nothing of each other."""
    return _Estimate(
        float(np.mean([part.value for part in parts])),
        float(np.sqrt(np.sum([part.below**2 for part in parts]))) / len(parts),
        float(np.sqrt(np.sum([part.above**2 for part in parts]))) / len(parts),
    )


def _correlation(intact: Scores, off: Scores) -> float:
    """Newcombe's phi, nearer to nought where it is positive; 0 where all answers of a side are alike."""
    n, both = len(intact), float(intact @ off)
    right, left = float(intact.sum()), float(off.sum())
    scale = np.sqrt(right * (n - right) * left * (n - left))
    found = both * (n - right - left + both) - (right - both) * (left - both)
    return float((max(found - n / 2, 0.0) if found > 0 else found) / scale) if scale else 0.0


def _added(one: float, other: float, r: float) -> float:
    """How far a difference reaches, from how far its two sides do."""
    return float(np.sqrt(max(0.0, one**2 - 2 * r * one * other + other**2)))


def _ratio(intact: _Estimate, off: _Estimate, r: float, chance: float) -> Interval:
    """Of the loss: 1 less the ratio of the scores above chance."""
    bottom, top = intact.value - chance, off.value - chance
    if bottom <= intact.below:
        return UNKNOWN

    def root(side: int) -> float:
        """The ratio whose product with the intact score lies just inside the interval of the difference."""
        reach = off.below if side < 0 else off.above
        for sign in (1, -1):
            other = intact.above if side * sign < 0 else intact.below
            square, half = bottom**2 - other**2, bottom * top - r * reach * other
            if not square:
                continue
            found = (half + side * np.sqrt(max(0.0, half**2 - square * (top**2 - reach**2)))) / square
            if found * sign >= 0:
                return float(found)
        return float("nan")

    return 1 - root(1), 1 - root(-1)


def _weighted(
    scores: Float[np.ndarray, "side example"], extra: Float[np.ndarray, "bound side"], rng: np.random.Generator
) -> Float[np.ndarray, "bound side draw"]:
    """Means, by weights drawn uniformly among all that sum to 1, of the scores of examples and of one more."""
    n = scores.shape[1]
    found = []
    for start in range(0, _DRAWS, size := max(1, _AT_ONCE // (n + 1))):
        weights = rng.standard_exponential((min(size, _DRAWS - start), n + 1))
        weights /= weights.sum(axis=1, keepdims=True)
        found.append(scores @ weights[:, :-1].T + extra[..., None] * weights[:, -1])
    return np.concatenate(found, axis=-1)


def _by_weights(parts: Sequence[tuple[Scores, Scores]], chance: float, seed: int) -> tuple[Interval, Interval]:
    rng = np.random.default_rng(seed)
    # For the lower bounds an example more is wrong and, with the heads off, right; for the upper ones the reverse.
    extra = np.array([[0.0, 1.0], [1.0, 0.0]])
    means = np.mean([_weighted(np.stack(pair), extra, rng) for pair in parts], axis=0)
    intact, off = means[:, 0], means[:, 1]

    def bounds(above: Float[np.ndarray, "bound draw"]) -> Interval:
        # Of a baseline that may be no better than chance no share is known.
        if (above <= 0).any():
            return UNKNOWN
        low, high = (float(np.quantile(*each)) for each in zip((intact - off) / above, _TAILS, strict=True))
        return low, high

    return bounds(np.ones_like(intact)), bounds(intact - chance)
