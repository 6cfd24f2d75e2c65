"""What ablating heads takes from a task, and what it takes from its controls.

A **loss** is the share of the score above chance that is lost: (baseline - score) / (baseline - chance). On this scale
tasks of different baselines and chances can be compared. Below chance it is above 1, and below 0 where ablation helps;
means and differences take each loss within 0..1, so that no gain hides a loss. All come with 95 % intervals: for
answers right or wrong score intervals, else Gaffke's, which cover as often where numbers are skewed and few.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from cs_heads.analysis.intervals import UNKNOWN, Interval, Scores, paired_intervals
from cs_heads.arguments import check_seed
from cs_heads.experiment.baseline import baseline_too_low
from cs_heads.record import Proportion, Record

SHARED = 0.5
"""The share of the own loss that a control loses at most where heads are specific, and kin at least where heads serve
the skill in other words."""
MAX_CONTROL = 1 / 3
"""Mean control loss as a share of the own loss, at most, for *specific*."""


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
        too_low: Why the task cannot show a drop, where its baseline does not allow one (None: it can): its loss is NaN
            then, for it would be nothing but noise.
        loss_interval: That of ``loss``.
    """

    _written = (
        *("task", "n_examples", "chance", "baseline", "score", "drop", "interval"),
        *("loss", "loss_interval", "too_low"),
    )

    task: str
    n_examples: int
    chance: Proportion
    baseline: Proportion
    score: Proportion
    interval: Interval
    too_low: str | None = None
    loss_interval: Interval = UNKNOWN

    @property
    def drop(self) -> float:
        """Baseline minus score."""
        return self.baseline - self.score

    @property
    def loss(self) -> float:
        """Drop as a share of what the baseline has above chance; NaN where the baseline is too low to show one."""
        # Rounded, so that exactly a tenth is not less than .1.
        return round(self.drop / self.above_chance, 12)

    @property
    def above_chance(self) -> float:
        """What the baseline has above chance; NaN where that is too little to show a drop."""
        return self.baseline - self.chance if self.baseline > self.chance and not self.too_low else np.nan


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

    >>> task_drop("t", 0.0, [(np.ones(40), np.repeat([1.0, 0.0], 20))]).loss
    0.5
    """
    check_seed(seed)
    chances = [chance] * len(parts) if isinstance(chance, int | float) else list(chance)
    baseline, score = (float(np.mean([pair[side].mean() for pair in parts])) for side in (0, 1))
    if low is None:
        low = [baseline_too_low(None, intact, guess) for (intact, _), guess in zip(parts, chances, strict=True)]
    of = ("part {} of {}: " if len(parts) > 1 else "").format
    named = [f"{of(number, len(parts))}{reason}" for number, reason in enumerate(low, start=1) if reason]
    mean = float(np.mean(chances))
    interval, share = paired_intervals(parts, mean, seed)
    return TaskDrop(
        task=name,
        n_examples=sum(len(intact) for intact, _ in parts),
        chance=mean,
        baseline=baseline,
        score=score,
        interval=interval,
        too_low="; ".join(named) or None,
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


def marked(loss: float) -> str:
    """A loss of a table, which is not cut: below chance it is above 1, and has an arrow.

    >>> marked(0.8), marked(2.231)
    ('0.80', '2.23↓')
    """
    return f"{loss:.2f}{'↓' if loss > 1 else ''}"


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


def weighted_sum(losses: Sequence[Loss], weights: Sequence[float]) -> Loss:
    """The weighted sum of independent losses.

    How far each interval reaches is squared, weighted and added (method of variance estimates recovery: Zou and Donner,
    Statistics in Medicine 27, 2008), so that a sum keeps the width of losses at the border, where nothing or
    everything is lost.

    >>> print(weighted_sum([Loss(0.5, 0.4, 0.6), Loss(0.0, -0.1, 0.1)], [1.0, -1.0]))
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

    Controls whose baseline is too low have no part in it. ``matched`` are those in the form of the task. Tasks are
    independent, each a sample of examples; intervals are those of these samples.

    >>> Specificity(Loss(0.9, 0.8, 1.0), {"past": Loss(0.1, 0.0, 0.2), "copying": Loss(0.3, 0.2, 0.4)})
    Specificity(own loss 0.90 (+0.80 to +1.00), 2 controls 0.20 (+0.13 to +0.27) on average; most: copying 0.30)
    """

    _written = ("own", "controls", "mean", "worst", "difference", "shared_with", "matched")

    own: Loss
    controls: Mapping[str, Loss]
    matched: tuple[str, ...] = ()

    def __repr__(self) -> str:
        n = len(self.controls)
        others = f"{n} controls {self.mean} on average" if n > 1 else f"1 control {self.mean}"
        return f"Specificity(own loss {self.own}, {others}; most: {self.worst_control} {self.worst.loss:.2f})"

    @classmethod
    def of(cls, own: TaskDrop, controls: Iterable[TaskDrop], matched: Collection[str] = ()) -> Specificity | None:
        """That of what heads take from each task; None where none of these losses can be compared.

        Args:
            own: What they take from their own task.
            controls: What they take from each control.
            matched: Names of the controls in the form of the task.
        """
        losses = {drop.task: loss for drop in controls if (loss := loss_of(drop)) is not None}
        loss, in_form = loss_of(own), tuple(name for name in losses if name in matched)
        return Specificity(loss, losses, in_form) if loss is not None and losses else None

    @property
    def own_counted(self) -> str:
        """The own loss in words; what falls below chance counts as all of it, as in every mean."""
        return f"{self.own}, counted as 1.00" if self.own.loss > 1 else str(self.own)

    @property
    def mean(self) -> Loss:
        """The mean over controls, each within 0..1, which weigh the same however many examples they have."""
        return weighted_sum(
            [one.within for one in self.controls.values()], [1 / len(self.controls)] * len(self.controls)
        )

    @property
    def by_form(self) -> Specificity:
        """This, or the same of the controls in the form of the task alone, if several and losing more on average.

        What carries the worked examples of all of these would be hidden in a mean with tasks of other forms.
        """
        matched = {name: one for name, one in self.controls.items() if name in self.matched}
        alone = Specificity(self.own, matched)
        return alone if len(matched) > 1 and alone.mean.loss > self.mean.loss else self

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
    def is_mean_little(self) -> bool:
        """Whether the mean control loss is at most a third of the own loss."""
        # A third of .6 is no less than .2, whatever the rounding.
        return self.mean.loss <= MAX_CONTROL * self.own.within.loss + 1e-9

    @property
    def difference(self) -> Loss:
        """Own loss, within 0..1, minus mean control loss."""
        return weighted_sum([self.own.within, self.mean], [1.0, -1.0])

    @property
    def shared_with(self) -> tuple[str, ...]:
        """The controls that by their intervals lose more than half of the own loss; none where that may be nothing."""
        if self.own.low <= 0:
            return ()
        return tuple(name for name, one in self.controls.items() if self.beyond_half(one).low > 0)

    def beyond_half(self, other: Loss) -> Loss:
        """What another task loses beyond half of the own loss; unlike their ratio it has bounds wherever they have."""
        return weighted_sum([other.within, self.own.within], [1.0, -SHARED])

    def to_dict(self) -> dict[str, Any]:
        """Every loss with its interval, and the controls named, JSON-ready."""
        record = super().to_dict()
        return {**record, "worst": {"control": self.worst_control, **record["worst"]}}
