"""A model that lacks some heads already: what carries a skill when those that carried it are gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from cs_heads.designs import check_masks, with_off
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.protocol import Examples, ExperimentLike, Gates, GradientExperiment, Masks, Rows, Scores
from cs_heads.tasks import Task
from cs_heads.units import HeadLike


class WithHeadsOff(GradientExperiment):
    """An experiment with some heads off under every mask; what it calls intact is the model without them.

    >>> from cs_heads.simulate import planted_world
    >>> world = planted_world("one_head", seed=0)
    >>> nothing_off = np.zeros((1, *world.grid.shape), dtype=bool)
    >>> bool(WithHeadsOff(world.task, world.planted)(nothing_off).mean() < world.task(nothing_off).mean() - 0.3)
    True
    """

    def __init__(self, experiment: ExperimentLike, heads: Sequence[HeadLike]) -> None:
        self.grid, self.n_examples = experiment.grid, experiment.n_examples
        self._off = experiment.grid.mask(heads) | experiment.off
        self.experiment: ExperimentLike = experiment.experiment if isinstance(experiment, WithHeadsOff) else experiment
        self.name, self.chance, self.task = experiment.name, experiment.chance, experiment.task
        self.preparation, self.responses = experiment.preparation, experiment.responses

    @property
    def off(self) -> Bool[np.ndarray, "layer head"]:
        """The heads that are off."""
        return self._off

    def __call__(self, masks: Masks, examples: Examples = None) -> Scores:
        """Scores with the row's heads off, and these."""
        return self.experiment(self.all_off(masks), examples)

    def all_off(self, masks: Masks) -> Rows:
        """Masks, or gates, with these heads off, too."""
        return with_off(check_masks(self.grid, masks), self.off)

    def respond(self, masks: Masks, examples: Examples = None, response: str = "probability") -> Scores:
        """One of the responses other than the score, with the row's heads off, and these."""
        return self.experiment.respond(self.all_off(masks), examples, response)

    def on(self, task: Task) -> WithHeadsOff:
        """The same on another task."""
        inner: Any = self.experiment
        return WithHeadsOff(inner.on(task), self.grid.units(self.off))

    @property
    def has_gradients(self) -> bool:
        """Whether the experiment has gradients of probabilities."""
        return isinstance(self.experiment, GradientExperiment) and self.experiment.has_gradients

    def probability_gradients(self, gates: Gates, examples: Int[np.ndarray, "row k"], *, keep: str) -> Gates:
        """Gradients of probabilities (``Experiment.probability_gradients``) under these gates, with these heads off."""
        assert isinstance(self.experiment, GradientExperiment)
        return self.experiment.probability_gradients(with_off(gates, self.off), examples, keep=keep)

    def provenance(self) -> dict[str, Any]:
        """That of the experiment, and the heads that are off, where there are any."""
        heads = list(map(str, self.grid.units(self.off)))
        return {**self.experiment.provenance(), **({"off": heads} if heads else {})}


def on_model(experiment: ExperimentLike) -> Experiment | None:
    """The experiment on a model that answers for one without some heads, or is that itself; None of other kinds."""
    experiment = experiment.experiment if isinstance(experiment, WithHeadsOff) else experiment
    return experiment if isinstance(experiment, Experiment) else None
