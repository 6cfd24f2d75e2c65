"""What a task makes of what a model said: scores, probabilities and margins, pure functions of observations.

A new response is one function here, and one line in ``RESPONSES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.special import expit

from cs_heads.tasks.scorer import LogprobScorer, check_scores

if TYPE_CHECKING:
    from cs_heads.tasks.task import Task

MAX_MARGIN = 10.0
"""Margin of a completion at most, nats (p = .99995): float32 log-probabilities hardly tell 1 - p below that."""


@dataclass(frozen=True, eq=False)
class Observations:
    """What a model said about examples, a row for each mask.

    Attributes:
        examples: The examples of each row, by their place in the task.
        logprobs: Summed log-probability of each continuation (nats), NaN where an example has fewer; None of texts.
        greedy: Share of each continuation's tokens that are the argmax, 1 being a greedy match.
        texts: What the model wrote; None of continuations.
        intact: What it wrote with nothing off, for scorers that compare.
    """

    examples: Int[np.ndarray, "row k"]
    logprobs: Float[np.ndarray, "row k continuation"] | None = None
    greedy: Float[np.ndarray, "row k continuation"] | None = None
    texts: Shaped[np.ndarray, "row k"] | None = None
    intact: Shaped[np.ndarray, "row k"] | None = None


def score(task: Task, said: Observations) -> Float[np.ndarray, "row k"]:
    """The score of each example in [0, 1]: what the scorer says, or the rule of the task's kind.

    Choices that tie for the best share the point.

    Args:
        task: What was asked.
        said: What the model said.

    Raises:
        ValueError: A scorer's number outside [0, 1].
    """
    shape, examples = said.examples.shape, said.examples.ravel().tolist()
    if said.texts is not None:
        intact = None if said.intact is None else said.intact.ravel().tolist()
        return task.score_texts(examples, said.texts.ravel().tolist(), intact).reshape(shape)
    assert said.logprobs is not None
    assert said.greedy is not None
    if task.scorer is not None:
        logprobs, greedy = (each.reshape(len(examples), -1) for each in (said.logprobs, said.greedy))
        return np.array([*map(partial(_scored, task), examples, logprobs, greedy)]).reshape(shape)
    if task.kind == "completion":
        return said.greedy[..., 0] if task.accuracy == "token" else (said.greedy[..., 0] == 1).astype(float)
    compared = compared_of(task, said)
    best = compared == np.nanmax(compared, axis=-1, keepdims=True)
    return _at(best, task.answers[said.examples]) / best.sum(axis=-1)


def margin(task: Task, said: Observations) -> Float[np.ndarray, "row k"]:
    """Log-odds (nats) of the right answer, log p / (1 - p); of a completion ``MAX_MARGIN`` at most.

    p is a choice's share (softmax) by the numbers that the score compares, or the probability of the whole target, with
    ``accuracy="token"`` the geometric mean of its tokens'.

    Args:
        task: What was asked; no scorer judges it.
        said: What the model said.
    """
    assert said.logprobs is not None
    if task.kind == "completion":
        lengths = np.array([len(example.target) if task.accuracy == "token" else 1 for example in task.examples])
        # log p where log p / (1 - p) is MAX_MARGIN.
        logprobs = np.minimum(said.logprobs[..., 0] / lengths[said.examples], -np.log1p(np.exp(-MAX_MARGIN)))
        return logprobs - np.log(-np.expm1(logprobs))
    compared, answers = compared_of(task, said), task.answers[said.examples]
    others = np.where(np.isnan(compared), -np.inf, compared)
    np.put_along_axis(others, answers[..., None], -np.inf, axis=-1)
    return _at(compared, answers) - np.logaddexp.reduce(others, axis=-1)


def probability(task: Task, said: Observations) -> Float[np.ndarray, "row k"]:
    """The probability of the right answer, of which ``margin`` is the log-odds."""
    return np.asarray(expit(margin(task, said)))


RESPONSES: dict[str, Callable[[Task, Observations], Float[np.ndarray, "row k"]]] = {
    "score": score,
    "probability": probability,
    "margin": margin,
}
"""What an experiment may answer: score, probability of the right answer, or its log-odds (nats).

Scores alone are right answers; the others are never counted as such.
"""


def compared_of(task: Task, said: Observations) -> Float[np.ndarray, "row k continuation"]:
    """The numbers by which choices compete: log-probabilities (nats), by character where length-normalized."""
    assert said.logprobs is not None
    return said.logprobs / task.characters[said.examples] if task.length_normalized else said.logprobs


def _at(values: Shaped[np.ndarray, "row k continuation"], places: Int[np.ndarray, "row k"]) -> np.ndarray:
    return np.take_along_axis(values, places[..., None], axis=-1)[..., 0]


def _scored(task: Task, example: int, logprobs: Float[np.ndarray, " n"], greedy: Float[np.ndarray, " n"]) -> float:
    n = len(task.examples[example].continuations)
    assert isinstance(task.scorer, LogprobScorer)
    made = task.scorer.score_logprobs(task.examples[example], logprobs[:n], (greedy[:n] == 1).tolist())
    return float(check_scores(task.scorer, [made], [example])[0])
