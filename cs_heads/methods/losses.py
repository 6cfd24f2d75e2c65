"""What masks take from a task and from its controls, on one scale.

A **loss** is the share of the score above chance that is lost, or of the probability of right answers above chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.experiment.baseline import BaselineTooLowError, baseline_too_low, few_correct, is_continuous
from cs_heads.experiment.protocol import ExperimentLike, measured
from cs_heads.experiment.shared_forwards import Call, measure_together
from cs_heads.tasks.splits import MIN_CORRECT

Masks = Bool[np.ndarray, "row layer head"]
Places = Int[np.ndarray, "row k"]

CLEAR, SHARED, LARGE = 4.0, 0.5, 0.4
"""How clear an effect on both sides must be, and how large that on the controls beside the task's, for heads to be
shared; and from where on rows with them off say nothing of other heads."""
EXACT = 1e-6
"""Standard error of what does not vary at all, which keeps z finite."""
# Mean probability of right answers above guessing below which scores say more.
_LEAST_ABOVE = 0.1
PLENTY = 4
"""Masks a head from which on least squares need no help from most heads doing nothing."""


@dataclass(frozen=True, eq=False)
class TaskLoss:
    """The losses of one task, on some of its examples.

    ``examples`` are these, in order, ``intact`` their scores on the intact model. ``n_right`` is the number of right
    answers among all examples asked, None where scores are on a scale of their own. What is lost is the ``response``,
    also where ``intact`` and others speak of scores.
    """

    experiment: ExperimentLike
    examples: Int[np.ndarray, " example"]
    intact: Float[np.ndarray, " example"]
    n_right: int | None = None
    response: str = "score"

    @classmethod
    def of(
        cls,
        experiment: ExperimentLike,
        *,
        asked: Int[np.ndarray, " example"] | None = None,
        least: int = MIN_CORRECT,
        all_from: float = np.inf,
    ) -> TaskLoss:
        """The losses of the examples that the intact model answers right; it runs on those asked.

        Args:
            experiment: The task.
            asked: The examples on which the model runs, in order (None: all).
            least: Right answers at least.
            all_from: Chance from which on all examples asked are used, and not the right answers alone.

        Raises:
            BaselineTooLowError: The model answers too few of them right, or its score is too near to guessing.
        """
        chance, nothing_off, rows = experiment.chance, *_intact(experiment, asked)
        scores = measured(experiment, nothing_off, rows)[0]
        continuous = is_continuous(scores, experiment)
        # A score above .5 is a right answer.
        right = scores if continuous else (scores > 0.5).astype(float)
        reason = baseline_too_low(experiment, right, chance, least)
        if reason:
            raise BaselineTooLowError(reason)
        # Of continuous scores an example that has none has nothing to lose.
        used = np.arange(len(scores)) if chance >= all_from else np.flatnonzero(right > 0)
        examples = used if asked is None else asked[used]
        task = cls(experiment, examples, scores[used], None if continuous else int(right.sum()))
        if task.above_guess <= 0.01:
            raise BaselineTooLowError(f"the intact model's mean score is {task.above_guess:+.3f} above guessing")
        return task

    def by_probability(self) -> TaskLoss:
        """The same with the probability of the right answer in place of the score.

        As it is where the experiment has none, or its mean is less than .1 above guessing.
        """
        if "probability" not in self.experiment.responses:
            return self
        intact = measured(self.experiment, *_intact(self.experiment, self.examples), "probability")[0]
        made = replace(self, intact=intact, response="probability")
        return made if made.above_guess > _LEAST_ABOVE else self

    @property
    def matched(self) -> bool:
        """Whether it is asked in the form of another task."""
        return self.experiment.task is not None and self.experiment.task.matched

    @property
    def n_examples(self) -> int:
        """How many examples there are."""
        return len(self.examples)

    @property
    def guess(self) -> float:
        """The score of guessing."""
        return self.experiment.chance

    @property
    def level(self) -> float:
        """The mean intact score."""
        return float(self.intact.mean())

    @property
    def above_guess(self) -> float:
        """The mean intact score above guessing, which is a loss of 1."""
        return self.level - self.guess

    @property
    def all_lost(self) -> float:
        """A loss of 1 as score lost, on average over all examples, also those that are not used."""
        return self.n_examples / self.experiment.n_examples * self.above_guess

    @property
    def most(self) -> float:
        """The loss where the score falls to 0."""
        return self.level / self.above_guess

    @property
    def notes(self) -> tuple[str, ...]:
        """A note where few examples are answered right."""
        return () if self.n_right is None else few_correct(self.n_right, self.experiment)

    def __call__(self, masks: Masks, places: Places) -> Float[np.ndarray, "row k"]:
        """The loss of each row's examples, by their places in ``examples``, with the row's heads off."""
        answers = measured(self.experiment, masks, self.examples[places], self.response)
        return np.asarray((self.intact[places] - answers) / self.above_guess)

    def asked(self, masks: Masks, places: Places) -> Call:
        """What the losses are made of, for ``measure_together``."""
        return Call(self.experiment, masks, self.examples[places])


def able(
    experiments: Sequence[ExperimentLike], asked: Sequence[Int[np.ndarray, " example"]] | None = None, **more: Any
) -> tuple[dict[int, TaskLoss], dict[int, str]]:
    """The tasks that the intact model can do (``TaskLoss.of``), by their place, and why not the others.

    Args:
        experiments: The tasks.
        asked: The examples of each on which the model runs (None: all).
        more: Of ``TaskLoss.of``.
    """
    sides = [*zip(experiments, [None] * len(experiments) if asked is None else asked, strict=True)]
    measure_together([Call(experiment, *_intact(experiment, some)) for experiment, some in sides])
    tasks, left_out = {}, {}
    for place, (experiment, some) in enumerate(sides):
        try:
            tasks[place] = TaskLoss.of(experiment, asked=some, **more)
        except BaselineTooLowError as error:
            left_out[place] = str(error)
    return tasks, left_out


def _intact(experiment: ExperimentLike, asked: Int[np.ndarray, " example"] | None) -> tuple[np.ndarray, Any]:
    """The mask with nothing off, and the examples asked under it."""
    return np.zeros((1, *experiment.grid.shape), dtype=bool), None if asked is None else asked[None]


@dataclass(frozen=True)
class BothEffects:
    """What heads take from the task and from its controls, as losses, each with a standard error.

    A 95 % interval reaches ``reach`` of these to both sides.
    """

    task: float
    task_error: float
    controls: float = 0.0
    controls_error: float = 0.0
    reach: float = 1.96

    @property
    def z(self) -> float:
        """By how many standard errors the task loses more than its controls."""
        return (self.task - self.controls) / max(float(np.hypot(self.task_error, self.controls_error)), EXACT)

    def are_shared(self, weight: float = 1.0, clear: float = CLEAR) -> bool:
        """Whether the heads surely take something from both, and from the controls more than half of the task's.

        Where controls have a ``weight`` below 1, it must be so much more. Both effects are more than ``clear`` times
        their errors.
        """
        sure = self.task > clear * self.task_error > 0 and self.controls > clear * self.controls_error > 0
        return sure and self.outweighed(weight)

    def outweighed(self, weight: float) -> bool:
        """Whether the controls lose more than half of what the task does, at a weight of 1 at most."""
        return min(weight, 1.0) * self.controls > SHARED * self.task

    @property
    def are_large(self) -> bool:
        """Whether they take so much that rows in which they are off say nothing of other heads."""
        return min(self.task, self.controls) > LARGE

    def to_dict(self) -> dict[str, Any]:
        """Both losses with their 95 % intervals, as ``HeadRanking.shared_effects`` has them."""
        task, controls = self.reach * self.task_error, self.reach * self.controls_error
        return {
            "task": self.task,
            "controls": self.controls,
            "task_interval": [self.task - task, self.task + task],
            "controls_interval": [self.controls - controls, self.controls + controls],
        }
