"""What ablating heads takes from a task, and what it takes from its controls.

A **loss** is the share of the score above chance that is lost: (baseline - score) / (baseline - chance). On this scale
tasks of different baselines and chances can be compared. Below chance it is above 1, and below 0 where ablation helps;
means and differences take each loss within 0..1, so that no gain hides a loss. All come with 95 % intervals: for
answers right or wrong score intervals, else Gaffke's, which cover as often where numbers are skewed and few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from cs_heads.arguments import check_seed
from cs_heads.experiment.baseline import baseline_too_low
from cs_heads.record import Proportion, Record

Scores = Float[np.ndarray, "_"]
Interval = tuple[float, float]
UNKNOWN: Interval = (float("nan"), float("nan"))

# Draws of weights, and numbers that are held of them at once.
_DRAWS, _AT_ONCE = 2000, 1_000_000
_TAILS = 0.025, 0.975

SHARED = 0.5
"""The share of the own loss that a control loses at most where heads are specific, and kin at least where heads serve
the skill in other words."""


@dataclass(frozen=True)
class TaskDrop(Record):
    """What ablating the heads does to one task, with 95 % intervals (``paired_intervals`` says which).

    Attributes:
        task: Its name.
        n_examples: Number of examples, of a suite those of all its parts.
        chance: The score of guessing.
        baseline: Score of the intact model.
        score: Score with the heads off.
        interval: That of ``drop``; here and below a bound that is not known is NaN.
        too_low: Why the task cannot show a drop, where its baseline does not allow one (None: it can): its relative
            drop and loss are NaN then, for they would be nothing but noise.
        relative_interval: That of ``relative_drop``.
        loss_interval: That of ``loss``.

    Raises:
        ValueError: A lower bound above its upper one.
    """

    _written = (
        *("task", "n_examples", "chance", "baseline", "score", "drop", "interval"),
        *("relative_drop", "relative_interval", "loss", "loss_interval", "too_low"),
    )

    task: str
    n_examples: int
    chance: Proportion
    baseline: Proportion
    score: Proportion
    interval: Interval
    too_low: str | None = None
    relative_interval: Interval = UNKNOWN
    loss_interval: Interval = UNKNOWN

    def __post_init__(self) -> None:
        for name in ("interval", "relative_interval", "loss_interval"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be a lower and an upper bound, got {low}, {high}")

    @property
    def drop(self) -> float:
        """Baseline minus score."""
        return self.baseline - self.score

    @property
    def relative_drop(self) -> float:
        """Drop as a share of the baseline; NaN where the baseline is too low to show one."""
        return self.drop / self.baseline if self.baseline and not self.too_low else float("nan")

    @property
    def loss(self) -> float:
        """Drop as a share of what the baseline has above chance; NaN where the baseline is too low to show one."""
        return self.drop / (self.baseline - self.chance) if self.baseline > self.chance and not self.too_low else np.nan


def task_drop(
    name: str,
    chance: float | Sequence[float],
    parts: Sequence[tuple[Scores, Scores]],
    seed: int = 0,
    low: Sequence[str | None] | None = None,
) -> TaskDrop:
    """The drop of a task, or of a suite: the mean of its parts, which weigh the same however many examples they have.

    Args:
        name: Of the task or suite.
        chance: The score of guessing, of each part, or of all.
        parts: Scores of the examples of each part with no head off and with the heads off, in the same order.
        seed: Draws intervals.
        low: By part why it is too low to show a drop, or None (None: by scores and chance alone); a suite is too low
            where one of its parts is.

    >>> task_drop("t", 0.0, [(np.ones(40), np.repeat([1.0, 0.0], 20))]).relative_drop
    0.5
    """
    check_seed(seed)
    chances = [chance] * len(parts) if isinstance(chance, int | float) else list(chance)
    baseline, score = (float(np.mean([pair[side].mean() for pair in parts])) for side in (0, 1))
    reasons = (
        [baseline_too_low(None, intact, guess) for (intact, _), guess in zip(parts, chances, strict=True)]
        if low is None
        else low
    )
    named = [
        reason if len(parts) == 1 else f"part {number} of {len(parts)}: {reason}"
        for number, reason in enumerate(reasons, start=1)
        if reason
    ]
    mean = float(np.mean(chances))
    interval, relative, share = paired_intervals(parts, mean, seed)
    return TaskDrop(
        task=name,
        n_examples=sum(len(intact) for intact, _ in parts),
        chance=mean,
        baseline=baseline,
        score=score,
        interval=interval,
        too_low="; ".join(named) or None,
        relative_interval=UNKNOWN if named else relative,
        loss_interval=UNKNOWN if named else share,
    )


@dataclass(frozen=True)
class Loss(Record):
    """A share of the score above chance that is lost, or a difference of two, with its 95 % interval.

    >>> print(Loss(0.5, 0.38, 0.61))
    0.50 (+0.38 to +0.61)
    """

    loss: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.loss <= self.high:
            raise ValueError(
                f"low, loss and high must be numbers in this order, got {self.low}, {self.loss}, {self.high}"
            )

    @property
    def within(self) -> Loss:
        """The loss within 0..1, as it counts in a mean; its interval reaches as far below and above it."""
        moved = min(max(self.loss, 0.0), 1.0) - self.loss
        return Loss(self.loss + moved, self.low + moved, self.high + moved)

    def __str__(self) -> str:
        # Nothing lost is no "-0.00".
        loss, low, high = (round(number, 2) + 0.0 for number in (self.loss, self.low, self.high))
        return f"{loss:.2f} ({low:+.2f} to {high:+.2f})"


def shared_line(effects: Mapping[str, Any]) -> str:
    """A shared head and what it takes from both sides, as in ``HeadRanking.shared_effects``.

    A head that takes nothing alone is one of a group, of which another is off, too, in some of the rows.

    >>> alone = {"task": 0.32, "task_interval": [0.2, 0.4], "controls": 0.3, "controls_interval": [0.2, 0.4]}
    >>> shared_line({"head": "L1H3", **alone, "most": "succession"})
    'L1H3 (alone: task 0.32 (+0.20 to +0.40), controls 0.30 (+0.20 to +0.40); most: succession)'
    """
    told = []
    if "among_others" in effects:
        own, others = (f"{effects['among_others'][side]:.2f}" for side in ("task", "controls"))
        told.append(f"among other heads: task {own}, controls {others}")
    if "task" in effects:
        own, others = (str(Loss(effects[side], *effects[f"{side}_interval"])) for side in ("task", "controls"))
        told.append(f"alone: task {own}, controls {others}")
    if "most" in effects:
        told.append(f"most: {effects['most']}")
    return f"{effects['head']} ({'; '.join(told)})" if told else str(effects["head"])


def loss_of(drop: TaskDrop) -> Loss | None:
    """The loss of a task; None where its baseline is too low, or may be no better than chance."""
    low, high = drop.loss_interval
    if np.isnan([drop.loss, low, high]).any():
        return None
    # Rounding must not leave the loss outside.
    return Loss(float(drop.loss), min(low, float(drop.loss)), max(high, float(drop.loss)))


def combined(losses: Sequence[Loss], weights: Sequence[float]) -> Loss:
    """The weighted sum of independent losses.

    How far each interval reaches is squared, weighted and added (method of variance estimates recovery: Zou and Donner,
    Statistics in Medicine 27, 2008), so that a sum keeps the width of losses at the border, where nothing or
    everything is lost.

    >>> print(combined([Loss(0.5, 0.4, 0.6), Loss(0.0, -0.1, 0.1)], [1.0, -1.0]))
    0.50 (+0.36 to +0.64)
    """
    value = sum(weight * one.loss for one, weight in zip(losses, weights, strict=True))
    below, above = 0.0, 0.0
    for one, weight in zip(losses, weights, strict=True):
        reach = one.loss - one.low, one.high - one.loss
        down, up = reach if weight > 0 else reach[::-1]
        below += (weight * down) ** 2
        above += (weight * up) ** 2
    return Loss(value, value - below**0.5, value + above**0.5)


@dataclass(frozen=True, repr=False)
class Specificity(Record):
    """What heads take from their ``own`` task, and from each control that can tell; all are losses.

    Controls whose baseline is too low have no part in it. Tasks are independent, each a sample of examples; intervals
    are those of these samples.

    >>> Specificity(Loss(0.9, 0.8, 1.0), {"past": Loss(0.1, 0.0, 0.2), "copying": Loss(0.3, 0.2, 0.4)})
    Specificity(own loss 0.90 (+0.80 to +1.00), 2 controls 0.20 (+0.13 to +0.27) on average; most: copying 0.30)
    """

    _written = ("own", "controls", "mean", "worst", "difference", "shared_with")

    own: Loss
    controls: Mapping[str, Loss]

    def __post_init__(self) -> None:
        if not self.controls:
            raise ValueError("controls must hold one loss or more")

    def __repr__(self) -> str:
        n = len(self.controls)
        others = f"{n} controls {self.mean} on average" if n > 1 else f"1 control {self.mean}"
        return f"Specificity(own loss {self.own}, {others}; most: {self.worst_control} {self.worst.loss:.2f})"

    @classmethod
    def of(cls, own: TaskDrop, controls: Iterable[TaskDrop]) -> Specificity | None:
        """That of what heads take from each task; None where none of these losses can be compared."""
        losses = {drop.task: loss for drop in controls if (loss := loss_of(drop)) is not None}
        loss = loss_of(own)
        return Specificity(loss, losses) if loss is not None and losses else None

    @property
    def mean(self) -> Loss:
        """The mean over controls, each within 0..1, which weigh the same however many examples they have."""
        return combined([one.within for one in self.controls.values()], [1 / len(self.controls)] * len(self.controls))

    @property
    def worst_control(self) -> str:
        """The control that loses most, the first of several."""
        return max(self.controls, key=lambda name: self.controls[name].loss)

    @property
    def worst(self) -> Loss:
        """The largest loss of a control.

        Its interval is that of the largest loss there is, whichever control has it, and not that of the one seen to
        lose most: which of many that is, is partly chance. The upper bound is the highest of all; the lower one
        the highest of bounds that hold for all controls at once (Bonferroni).
        """
        losses = list(self.controls.values())
        wider = float(ndtri(0.025 / len(losses)) / ndtri(0.025))
        return Loss(
            max(one.loss for one in losses),
            max(one.loss - wider * (one.loss - one.low) for one in losses),
            max(one.high for one in losses),
        )

    @property
    def difference(self) -> Loss:
        """Own loss, within 0..1, minus mean control loss."""
        return combined([self.own.within, self.mean], [1.0, -1.0])

    @property
    def shared_with(self) -> tuple[str, ...]:
        """The controls that by their intervals lose more than half of the own loss; none where that may be nothing."""
        if self.own.low <= 0:
            return ()
        return tuple(name for name, one in self.controls.items() if self.beyond_half(one).low > 0)

    def beyond_half(self, other: Loss) -> Loss:
        """What another task loses beyond half of the own loss; unlike their ratio it has bounds wherever they have."""
        return combined([other.within, self.own.within], [1.0, -SHARED])

    def to_dict(self) -> dict[str, Any]:
        """Every loss with its interval, and the controls named, JSON-ready."""
        record = super().to_dict()
        return {**record, "worst": {"control": self.worst_control, **record["worst"]}}


@dataclass(frozen=True)
class _Estimate:
    """A number and how far its interval reaches below and above it."""

    value: float
    below: float
    above: float


def paired_intervals(
    parts: Sequence[tuple[Scores, Scores]], chance: float, seed: int = 0
) -> tuple[Interval, Interval, Interval]:
    """The intervals of a task's drop, of its relative drop, and of its loss above ``chance``.

    Where all scores are 0 or 1 the drop's interval is Newcombe's for paired proportions (Statistics in Medicine 17,
    1998, method 10: Wilson intervals, squared and added), and those of the ratios recover their variances from the same
    ones (Donner and Zou, Statistical Methods in Medical Research 21, 2012): they have a width where nothing changes
    too. Else they are Gaffke's (``mean_interval``): to the examples of each part comes one that loses all, for the
    upper bounds, or gains all, for the lower ones.

    Args:
        parts: Scores of the examples of each part with no head off and with heads off, in the same order; the task is
            the mean of its parts.
        chance: The score of guessing.
        seed: Draws the weights.

    Returns:
        Three intervals. A bound that is not known is NaN, as those of a ratio where the baseline may be no better than
        chance.

    >>> drop, _, _ = paired_intervals([(np.ones(20), np.ones(20))], 0.0)
    >>> round(drop[0], 3), round(drop[1], 3)
    (-0.161, 0.161)
    """
    if all(np.isin(side, (0.0, 1.0)).all() for pair in parts for side in pair):
        return _by_score(parts, chance)
    return _by_weights(parts, chance, seed)


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


def _by_weights(
    parts: Sequence[tuple[Scores, Scores]], chance: float, seed: int
) -> tuple[Interval, Interval, Interval]:
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

    return bounds(np.ones_like(intact)), bounds(intact), bounds(intact - chance)
