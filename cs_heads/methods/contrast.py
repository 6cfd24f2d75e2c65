"""What masks take from a task beyond what they take from its controls, on one scale.

A **loss** is the share of the score above chance that is lost. The **contrast** is the loss of the task minus the mean
loss of its controls under the same mask: what a mask does to every task alike (universal heads, groups of heads that
stand in for each other, a model that breaks) cancels in it, without anybody naming those heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.arguments import in_line
from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.experiment.protocol import ExperimentLike, chance_of, measured, name_of, preparation_of
from cs_heads.methods.controls import Controls, TaskLoss, intact_scores
from cs_heads.ranking import normal_interval

PLENTY = 4
"""Masks a head from which on least squares need no help from most heads doing nothing."""


class Scores:
    """The scores of a task, on the same examples under every mask (None: all of them)."""

    unit = "points of score"
    notes: tuple[str, ...] = ()

    def __init__(self, experiment: ExperimentLike, examples: Int[np.ndarray, " n"] | None = None) -> None:
        self.experiment, self.examples = experiment, examples
        self.a_mask = experiment.n_examples if examples is None else len(examples)
        self.provenance: dict[str, Any] = {}

    def __call__(self, masks: Bool[np.ndarray, "row layer head"]) -> Float[np.ndarray, "row example"]:
        """The score of every example with a row's heads off."""
        examples = None if self.examples is None else np.tile(self.examples, (len(masks), 1))
        return measured(self.experiment, masks, examples)

    def intact(self) -> Float[np.ndarray, " example"]:
        """The scores of the intact model, which runs for them as under any mask."""
        return self(np.zeros((1, *self.experiment.grid.shape), dtype=bool))[0]

    def mean(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, " row"]:
        """The mean over examples of scores, or of what was lost of them."""
        return np.asarray(scores.mean(axis=1))

    def interval(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, "row 2"] | None:
        """Its 95 % normal interval; none for a single example."""
        return normal_interval(scores.T) if self.a_mask > 1 else None


class Contrast:
    """What masks leave of a task less what they leave of its controls, on the same examples under every mask.

    As ``Scores``, but a score is minus the loss, 0 on the intact model, and the mean is that of the task less the mean
    over the controls of theirs.

    Making one runs the intact model on all examples of the task, whose mean score is a loss of 1, and on some of each
    control (``cost`` says how many in all). A task that it cannot do, or controls of which it can do none, raise
    ``BaselineTooLowError``. ``examples`` are those of the task under every mask; the controls give as many in all.
    """

    unit = "share of the score above chance, less that of the controls"

    def __init__(
        self,
        experiment: ExperimentLike,
        controls: Sequence[ExperimentLike],
        examples: Int[np.ndarray, " n"],
        seed: int,
    ) -> None:
        intact, _ = intact_scores(experiment)
        chance = chance_of(experiment)
        self.task = TaskLoss(name_of(experiment), experiment, np.arange(experiment.n_examples), intact, chance)
        # Of their own: what controls draw changes no draw of the method.
        self.controls = Controls(controls, np.random.default_rng([seed, 1]))
        self.notes = left_out_notes(self.controls.left_out, self.controls.names)
        self.examples, self.drawn = examples, self.controls.sample(len(examples))
        self._of = self.controls.of(self.drawn)
        self.a_mask = len(self.examples) + len(self.drawn)
        self.provenance = {"controls": self.controls.names, "control_examples_a_mask": len(self.drawn)}

    @staticmethod
    def cost(experiment: ExperimentLike, controls: Sequence[ExperimentLike]) -> int:
        """Example-evaluations of the intact runs, and of what the ablation runs before."""
        return preparation_of(experiment, *controls) + experiment.n_examples + Controls.cost(controls)

    def __call__(self, masks: Bool[np.ndarray, "row layer head"]) -> Float[np.ndarray, "row example"]:
        """Minus the loss of every example with a row's heads off: those of the task, then those of the controls."""
        own, others = (np.tile(examples, (len(masks), 1)) for examples in (self.examples, self.drawn))
        return 0.0 - np.concatenate([self.task(masks, own), self.controls(masks, others)], axis=1)

    def intact(self) -> Float[np.ndarray, " example"]:
        """Nothing is lost on the intact model, which has run."""
        return np.zeros(self.a_mask)

    def mean(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, " row"]:
        """The mean over the task's examples less the mean over controls of theirs, of scores or what was lost of them.

        Rounded so that what ties or cancels does so exactly, in whatever order it is summed.
        """
        return np.round(contrasted(*self._sides(scores))[0], 12) + 0.0

    def interval(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, "row 2"] | None:
        """Its 95 % normal interval; none where there is a single example of the task or of a control."""
        return contrasted(*self._sides(scores))[1]

    def _sides(
        self, scores: Float[np.ndarray, "row example"]
    ) -> tuple[Float[np.ndarray, "n row"], list[Float[np.ndarray, "_ row"]]]:
        own, others = scores[:, : len(self.examples)], scores[:, len(self.examples) :]
        return own.T, [others[:, self._of == task].T for task in range(len(self.controls.tasks))]


def contrasted(
    task: Float[np.ndarray, "_ *heads"], controls: Sequence[Float[np.ndarray, "_ *heads"]]
) -> tuple[Float[np.ndarray, "*heads"], Float[np.ndarray, "*heads 2"] | None]:
    """The mean over a task's examples, less the mean over controls of theirs.

    With the 95 % normal interval over examples; none where there is a single one of the task or of a control.
    """
    sides = [(1.0, task), *((-1 / len(controls), each) for each in controls)]
    mean = np.sum([weight * each.mean(axis=0) for weight, each in sides], axis=0)
    if min(len(each) for _, each in sides) < 2:
        return mean, None
    error = np.sqrt(sum(weight**2 * each.var(axis=0, ddof=1) / len(each) for weight, each in sides))
    return mean, np.stack([mean - 1.96 * error, mean + 1.96 * error], axis=-1)


def left_out_notes(left_out: Mapping[str, str], used: Sequence[str]) -> tuple[str, ...]:
    """A note for each control that the intact model cannot do; raises ``BaselineTooLowError`` where none is used."""
    if not used:
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in left_out.items())
        raise BaselineTooLowError(f"controls: the model can do none of them ({reasons}); use others, or none")
    return tuple(f"control {name!r} is left out: {reason}" for name, reason in left_out.items())


def check_experiments(experiment: ExperimentLike, controls: Any) -> None:
    """Raise ``ValueError`` for controls that are no list of experiments with the heads of the task's."""
    for control in _listed(controls, "experiments"):
        if not isinstance(control, ExperimentLike):
            raise ValueError(f"controls must be experiments on other tasks, got {control!r}")
        if control.grid != experiment.grid:
            raise ValueError(f"controls must have the grid of the experiment, {experiment.grid}, got {control.grid}")


def check_differentiable(experiment: Any, controls: Any = ()) -> None:
    """Raise ``ValueError`` unless experiments, with an answer to each example, have gradients in gates."""
    check_experiments(experiment, controls)
    for each in (experiment, *controls):
        if not hasattr(each, "gradients"):
            raise ValueError(f"experiment must be an Experiment on a model, which has gradients, got {in_line(each)}")
        _ = each.answers
    for control in controls:
        if control.task.role == "confirming":
            name = control.task.name
            raise ValueError(
                f"controls must not be the confirming side of a split, as {name!r} is: no search may see it"
            )


def _listed(controls: Any, what: str) -> Sequence[Any]:
    if isinstance(controls, str) or not isinstance(controls, Sequence):
        raise ValueError(f"controls must be a list of {what}, got {controls!r}"[:300])
    return controls
