"""The waist of the library: what a method may ask, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, Shaped

from cs_heads.arguments import in_line
from cs_heads.tasks.responses import RESPONSES
from cs_heads.units import Grid

# What a mean of zeros and ones may lie outside of [0, 1].
_ROUNDING = 1e-6

Measures = Callable[
    [Shaped[np.ndarray, "row layer head"], Int[np.ndarray, "row k"] | None],
    Float[np.ndarray, "row k"],
]
"""One number for each example of each row, with the row's heads off."""


@runtime_checkable
class ExperimentLike(Protocol):
    """Anything that says how examples go with heads off: a model, a planted truth, a remote service.

    ``masks`` are True where a head is ablated; ``examples`` are each row's own example indices, or
    None for all examples in every row; the scores returned lie in [0, 1], one an example of a row.
    """

    @property
    def grid(self) -> Grid:
        """Layers × heads."""

    @property
    def n_examples(self) -> int:
        """Number of examples."""

    def __call__(
        self, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Scores of each row's examples with the row's heads off."""


class LogprobExperiment(ExperimentLike, Protocol):
    """An experiment that also gives log-probabilities of the targets (nats per token), under masks or gates."""

    def logprob(
        self, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Mean log-probability of each example's target where ``__call__`` gives the score."""


def check_is_experiment(name: str, experiment: Any) -> None:
    """Raise ``ValueError`` for what is no experiment, such as the name of a model."""
    if not isinstance(experiment, ExperimentLike) or isinstance(experiment, type):
        raise ValueError(f"{name} must be an Experiment, or be asked like one, got {in_line(experiment)}")


def measured(
    experiment: ExperimentLike,
    masks: Shaped[np.ndarray, "row layer head"],
    examples: Int[np.ndarray, "row k"] | None = None,
) -> Float[np.ndarray, "row k"]:
    """What an experiment answers; anything else than a score in [0, 1] for each example of each row is refused."""
    return _checked(experiment, experiment(masks, examples), "scores", masks, examples)


def responding(experiment: ExperimentLike, response: str) -> Measures:
    """What measures a response of an experiment: ``measured`` for scores, else its ``respond``, checked alike.

    An unknown response, or one other than the score of an experiment without ``respond`` or on a task that a scorer
    judges, raises ``ValueError``; nothing is measured before.
    """
    check_response(response)
    if response == "score":
        return partial(measured, experiment)
    inner = experiment
    while hasattr(inner, "experiment"):  # without some of its heads
        inner = inner.experiment
    if not hasattr(inner, "respond"):
        check_response(response, ("score",), f" for {name_of(experiment)!r}, an experiment without respond()")
    if getattr(getattr(inner, "task", None), "scorer", None) is not None:
        check_response(response, ("score",), f" for task {name_of(experiment)!r}, which a scorer judges")
    respond: Callable[..., Any] = getattr(experiment, "respond")  # noqa: B009  # the protocol has none

    def responded(
        masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"] | None
    ) -> Float[np.ndarray, "row k"]:
        kind = "margins" if response == "margin" else "probabilities"
        return _checked(experiment, respond(masks, examples, response), kind, masks, examples)

    return responded


def check_response(response: str, allowed: Sequence[str] = tuple(RESPONSES), of: str = "") -> None:
    """Raise ``ValueError`` unless the response is one of those allowed; ``of`` says for what they are."""
    if response not in allowed:
        one_of = "one of " if len(allowed) > 1 else ""
        raise ValueError(f"response must be {one_of}{', '.join(map(repr, allowed))}{of}, got {response!r}")


def _checked(
    experiment: ExperimentLike,
    answer: Any,
    kind: str,
    masks: Shaped[np.ndarray, "row layer head"],
    examples: Int[np.ndarray, "row k"] | None,
) -> Float[np.ndarray, "row k"]:
    numbers = np.asarray(answer, dtype=float)
    wanted = (len(masks), experiment.n_examples if examples is None else examples.shape[1])
    if numbers.shape != wanted:
        raise ValueError(f"the experiment must answer with {kind} [row, k] = {wanted}, got shape {numbers.shape}")
    bounded = kind != "margins"
    low, high = (-_ROUNDING, 1 + _ROUNDING) if bounded else (-np.finfo(float).max, np.finfo(float).max)
    if (wrong := np.argwhere(~((numbers >= low) & (numbers <= high)))).size:
        row, place = wrong[0]
        allowed = "in 0..1" if bounded else "that are finite"
        example = place if examples is None else examples[row, place]
        of = f"for example {example} of {name_of(experiment)!r}"
        raise ValueError(f"the experiment must answer with {kind} {allowed}, got {numbers[row, place]} {of}")
    return numbers


def preparation_of(*experiments: object) -> int:
    """Example-evaluations that experiments run before their first mask; 0 for those that do not say, and for None.

    >>> preparation_of(object(), None)
    0
    """
    return sum(int(getattr(experiment, "preparation", 0)) for experiment in experiments)


def provenance_of(experiment: object) -> dict[str, Any]:
    """What an experiment says of its origin; nothing where it does not say, or is None."""
    origin: dict[str, Any] = getattr(experiment, "provenance", dict)()
    return origin


def check_examples(n_examples: int, n_rows: int, examples: Int[np.ndarray, "row k"] | None) -> Int[np.ndarray, "row k"]:
    """Each row's example indices, None being all; indices outside the task raise ``ValueError``."""
    if not n_rows:
        raise ValueError("masks must hold at least one row")
    if examples is None:
        return np.tile(np.arange(n_examples), (n_rows, 1))
    examples = np.asarray(examples)
    if examples.ndim != 2 or len(examples) != n_rows or not np.issubdtype(examples.dtype, np.integer):
        raise ValueError(
            f"examples must be integers [row, k] with {n_rows} rows, got {examples.dtype} {examples.shape}"
        )
    if examples.size and not (examples.min() >= 0 and examples.max() < n_examples):
        raise ValueError(f"examples must be in 0..{n_examples - 1}, got {examples.min()}..{examples.max()}")
    return examples


def name_of(experiment: object) -> str:
    """The name of an experiment's task, or its own; "control" where it has neither.

    >>> name_of(object())
    'control'
    """
    return str(getattr(getattr(experiment, "task", experiment), "name", "control"))


def chance_of(experiment: object) -> float:
    """The score of guessing on an experiment's task, or its own ``chance``; 0 where it has neither."""
    return float(getattr(getattr(experiment, "task", experiment), "chance", 0.0))
