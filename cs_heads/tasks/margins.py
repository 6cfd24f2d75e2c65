"""What choices are compared by, and how near an answer is to flipping: log-odds from log-probabilities."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from cs_heads.tasks.example import Example

MAX_MARGIN = 10.0
"""Margin of a completion at most, nats (p = .99995): float32 log-probabilities hardly tell 1 - p below that."""


def compared(
    example: Example, logprobs: Float[np.ndarray, " continuation"], length_normalized: bool
) -> Float[np.ndarray, " continuation"]:
    """The numbers by which choices compete: log-probabilities (nats), by character where length-normalized."""
    if not length_normalized:
        return logprobs
    # No task over token ids is length-normalized.
    lengths = [len(text.lstrip()) for text in example.continuations if isinstance(text, str)]
    return logprobs / np.maximum(lengths, 1)


def margin_of_choice(compared: Float[np.ndarray, " continuation"], answer: int) -> float:
    """Log-odds of the right choice, its probability being its share among the choices (a softmax).

    >>> round(margin_of_choice(np.log([0.1, 0.3, 0.1]), 1), 4) == round(float(np.log(0.6 / 0.4)), 4)
    True
    """
    return float(compared[answer] - np.logaddexp.reduce(np.delete(compared, answer)))


def margin_of_target(logprob: float) -> float:
    """Log-odds of a text of this log-probability, ``MAX_MARGIN`` at most.

    >>> margin_of_target(np.log(0.5)), round(margin_of_target(0.0), 6)
    (0.0, 10.0)
    """
    # log p where log p / (1 - p) is MAX_MARGIN.
    most = -np.log1p(np.exp(-MAX_MARGIN))
    logprob = np.minimum(logprob, most)
    return float(logprob - np.log(-np.expm1(logprob)))
