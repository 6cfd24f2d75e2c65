"""95 % intervals of what heads take from a task: for answers right or wrong by score intervals, else by bootstrap."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy.stats import DegenerateDataWarning, binomtest, bootstrap, sem
from scipy.stats import t as student

Scores = Float[np.ndarray, "_"]
Interval = tuple[float, float]
UNKNOWN: Interval = (float("nan"), float("nan"))

_RESAMPLES = 2000
# Numbers that a bootstrap holds at once, for each of its arrays.
_AT_ONCE = 1_000_000
# Of a difference: less is rounding.
_NOTHING = 1e-9


@dataclass(frozen=True)
class _Estimate:
    """A number and how far its interval reaches below and above it."""

    value: float
    below: float
    above: float


def paired_intervals(
    parts: Sequence[tuple[Scores, Scores]], chance: float, seed: int = 0
) -> tuple[Interval, Interval, Interval]:
    """The intervals of a task's drop, of its relative drop, and of its share lost above ``chance``.

    ``parts`` hold the scores of their examples with no head off and with heads off, in the same order; the task is the
    mean of its parts. Where all scores are 0 or 1 the drop's interval is Newcombe's for paired proportions
    (Statistics in Medicine 17, 1998, method 10: Wilson intervals, squared and added), and those of the ratios recover
    their variances from the same ones (Donner and Zou, Statistical Methods in Medical Research 21, 2012): they have a
    width where nothing changes too. Else they are percentile bootstraps over the examples of each part (2,000
    resamples drawn with ``seed``); where no resample differs from the sample, a bound lies as far off as Wilson's of
    none in so many examples. A bound that cannot be told is NaN, as those of a ratio where the baseline may be
    no better than chance.

    >>> drop, _, _ = paired_intervals([(np.ones(20), np.ones(20))], 0.0)
    >>> round(drop[0], 3), round(drop[1], 3)
    (-0.161, 0.161)
    """
    if all(np.isin(side, (0.0, 1.0)).all() for pair in parts for side in pair):
        return _by_score(parts, chance)
    if any(len(intact) < 2 for intact, _ in parts):
        return UNKNOWN, UNKNOWN, UNKNOWN
    return _by_bootstrap(parts, chance, seed)


def _by_score(parts: Sequence[tuple[Scores, Scores]], chance: float) -> tuple[Interval, Interval, Interval]:
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
    return drop, _ratio(intact, off, r, 0.0), _ratio(intact, off, r, chance)


@lru_cache(maxsize=4096)
def wilson_interval(count: int, n: int) -> Interval:
    """The 95 % Wilson interval of a share of ``n``."""
    found = binomtest(count, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def mean_interval(scores: Scores) -> Interval:
    """The 95 % interval of a mean score: Wilson's where all are 0 or 1, else that of Student's t; NaN for one example.

    >>> low, high = mean_interval(np.repeat([0.2, 0.6], 20))
    >>> round(low, 3), round(high, 3)
    (0.335, 0.465)
    """
    if np.isin(scores, (0.0, 1.0)).all():
        return wilson_interval(int(scores.sum()), len(scores))
    if len(scores) < 2:
        return UNKNOWN
    mean, reach = float(scores.mean()), float(student.ppf(0.975, len(scores) - 1) * sem(scores))
    return mean - reach, mean + reach


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
    """Of the share lost: 1 less the ratio of the scores above chance."""
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


def _by_bootstrap(
    parts: Sequence[tuple[Scores, Scores]], chance: float, seed: int
) -> tuple[Interval, Interval, Interval]:
    def statistics(*chosen: np.ndarray, axis: int = -1) -> np.ndarray:
        pairs = [(intact[i].mean(axis), off[i].mean(axis)) for (intact, off), i in zip(parts, chosen, strict=True)]
        intact, off = np.mean(pairs, axis=0)
        shares = [
            np.divide(intact - off, intact - least, out=np.full_like(intact, np.nan), where=intact > least)
            for least in (0.0, chance)
        ]
        return np.stack([intact - off, *shares])

    with warnings.catch_warnings():
        # A resample no better than chance has no share, and the bound is NaN, as said above.
        warnings.simplefilter("ignore", DegenerateDataWarning)
        found = bootstrap(
            tuple(np.arange(len(intact)) for intact, _ in parts),
            statistics,
            method="percentile",
            n_resamples=_RESAMPLES,
            batch=max(1, _AT_ONCE // sum(len(intact) for intact, _ in parts)),
            vectorized=True,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    intact, off = (float(np.mean([pair[side].mean() for pair in parts])) for side in (0, 1))
    reach = float(np.sqrt(sum(wilson_interval(0, len(pair[0]))[1] ** 2 for pair in parts))) / len(parts)

    def bounds(place: int, scale: float) -> Interval:
        low, high, value = float(found.low[place]), float(found.high[place]), (intact - off) / scale
        if abs(value - low) < _NOTHING:
            low = value - reach / scale
        if abs(high - value) < _NOTHING:
            high = value + min(reach, off) / scale  # no more than all can be lost
        return low, high

    if intact <= chance:
        return bounds(0, 1.0), bounds(1, intact) if intact else UNKNOWN, UNKNOWN
    return bounds(0, 1.0), bounds(1, intact), bounds(2, intact - chance)
