"""The waist of the library: what a method may ask, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from einops import repeat
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.arguments import in_line
from cs_heads.tasks import Task
from cs_heads.tasks.responses import RESPONSES
from cs_heads.units import Grid

# What a mean of zeros and ones may lie outside of [0, 1].
_ROUNDING = 1e-6

Masks = Shaped[np.ndarray, "..."]
"""Masks (bool, True = ablated) or gates (float, 0 to 1) as a user gives them: ``[row, layer, head]``, or one alone."""
Rows = Shaped[np.ndarray, "row layer head"]
"""The same, a row each."""
Gates = Float[np.ndarray, "row layer head"]
"""What each head's z is multiplied by."""
Examples = Int[np.ndarray, "row k"] | None
"""Each row's own example indices; None: all of them in every row."""
Scores = Float[np.ndarray, "row k"]
"""One number for each example of each row."""
Measures = Callable[[Rows, Examples], Scores]
"""What gives one number for each example of each row, with the row's heads off."""


class ExperimentLike(ABC):
    """Anything that says how examples go with heads off: a model, a planted truth, a remote service.

    A subclass has ``grid`` and ``n_examples`` and answers calls; all else has a default.

    Attributes:
        grid: Layers × heads.
        n_examples: Number of examples.
        name: That of its task.
        chance: The score of guessing.
        preparation: Example-evaluations that it runs before its first mask.
        task: The task; None where it has none.
        responses: What it can be asked for: the score, and what else ``respond`` gives.
    """

    grid: Grid
    n_examples: int
    name: str = "control"
    chance: float = 0.0
    preparation: int = 0
    task: Task | None = None
    responses: tuple[str, ...] = ("score",)

    @abstractmethod
    def __call__(self, masks: Rows, examples: Examples = None) -> Scores:
        """Scores in [0, 1] of each row's examples with the row's heads off.

        Args:
            masks: True where a head is ablated.
            examples: Each row's own example indices; None: all examples in every row.
        """

    def respond(self, masks: Masks, examples: Examples, response: str) -> Scores:
        """One of the responses other than the score."""
        raise NotImplementedError

    def baseline(self) -> Float[np.ndarray, " example"]:
        """Score of each example with no further head off, from the same code path."""
        return self(np.zeros((1, *self.grid.shape), dtype=bool))[0]

    def provenance(self) -> dict[str, Any]:
        """Where its answers come from; JSON-ready."""
        return {}

    @property
    def off(self) -> Bool[np.ndarray, "layer head"]:
        """Heads that are off under every mask."""
        return np.zeros(self.grid.shape, dtype=bool)


class GradientExperiment(ExperimentLike):
    """An experiment that may also give gradients of probabilities in gates."""

    @property
    @abstractmethod
    def has_gradients(self) -> bool:
        """Whether there are gradients."""

    @abstractmethod
    def probability_gradients(self, gates: Gates, examples: Int[np.ndarray, "row k"], *, keep: str) -> Gates:
        """The gradient of the mean probability of each row's answers in the row's gates.

        Args:
            gates: What each head is multiplied by.
            examples: The examples of each row.
            keep: A name under which the gradients are kept.
        """


def check_is_experiment(name: str, experiment: Any) -> None:
    """Raise ``ValueError`` for what is no experiment, such as the name of a model."""
    if not isinstance(experiment, ExperimentLike):
        raise ValueError(f"{name} must be an Experiment, or a subclass of ExperimentLike, got {in_line(experiment)}")


def measured(experiment: ExperimentLike, masks: Rows, examples: Examples = None, response: str = "score") -> Scores:
    """What an experiment answers, one number for each example of each row.

    Scores and probabilities must be in [0, 1], margins finite; anything else raises ``ValueError``.
    """
    answer: Any = experiment(masks, examples) if response == "score" else experiment.respond(masks, examples, response)
    numbers = np.asarray(answer, dtype=float)
    kind = {"score": "scores", "margin": "margins"}.get(response, "probabilities")
    wanted = (len(masks), experiment.n_examples if examples is None else examples.shape[1])
    if numbers.shape != wanted:
        raise ValueError(f"the experiment must answer with {kind} [row, k] = {wanted}, got shape {numbers.shape}")
    if response == "margin":
        allowed, good = "that are finite", np.isfinite(numbers)
    else:
        allowed, good = "in 0..1", (numbers >= -_ROUNDING) & (numbers <= 1 + _ROUNDING)
    if not good.all():
        row, place = np.argwhere(~good)[0]
        of = f"for example {place if examples is None else examples[row, place]} of {experiment.name!r}"
        raise ValueError(f"the experiment must answer with {kind} {allowed}, got {numbers[row, place]} {of}")
    return numbers


def responding(experiment: ExperimentLike, response: str) -> Measures:
    """What measures a response of an experiment (``measured``).

    An unknown response, or one other than the score where an experiment has no other, as on a
    task that a scorer judges, raises ``ValueError``; nothing is measured before.
    """
    check_response(response)
    check_response(response, experiment.responses, f" for {experiment.name!r}, which has no other")
    return partial(measured, experiment, response=response)


def check_response(response: str, allowed: Sequence[str] = tuple(RESPONSES), of: str = "") -> None:
    """Raise ``ValueError`` unless the response is one of those allowed; ``of`` says for what they are."""
    if response not in allowed:
        one_of = "one of " if len(allowed) > 1 else ""
        raise ValueError(f"response must be {one_of}{', '.join(map(repr, allowed))}{of}, got {response!r}")


def check_examples(n_examples: int, n_rows: int, examples: Examples) -> Int[np.ndarray, "row k"]:
    """Each row's example indices, None being all; indices outside the task raise ``ValueError``."""
    if not n_rows:
        raise ValueError("masks must hold at least one row")
    if examples is None:
        return repeat(np.arange(n_examples), "example -> row example", row=n_rows)
    examples = np.asarray(examples)
    if examples.ndim != 2 or len(examples) != n_rows or not np.issubdtype(examples.dtype, np.integer):
        raise ValueError(
            f"examples must be integers [row, k] with {n_rows} rows, got {examples.dtype} {examples.shape}"
        )
    if examples.size and not (examples.min() >= 0 and examples.max() < n_examples):
        raise ValueError(f"examples must be in 0..{n_examples - 1}, got {examples.min()}..{examples.max()}")
    return examples


def preparation_of(*experiments: ExperimentLike) -> int:
    """Example-evaluations that experiments run before their first mask."""
    return sum(experiment.preparation for experiment in experiments)
