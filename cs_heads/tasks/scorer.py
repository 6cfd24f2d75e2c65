"""What turns what a model said into scores between 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float

from cs_heads.tasks.example import Example, right_of
from cs_heads.text import shown


@runtime_checkable
class Scorer(Protocol):
    """Scores what a model says, many texts at once: one number in [0, 1] for each.

    A store keeps what the model said and no score, so a scorer may be edited and tried again without a forward.

    Attributes:
        graded: May be left out: whether some of its numbers lie between 0 and 1; without it trial answers tell
            (``is_graded``).
    """

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> Sequence[float]:
        """The score of each text, said after the prompt of the example at its place.

        Args:
            examples: The example of each text.
            texts: What was said.

        Returns:
            One number in [0, 1] for each text.
        """


@runtime_checkable
class LogprobScorer(Protocol):
    """Scores an example from its continuations, in place of the rule of its kind; ``graded`` as for ``Scorer``."""

    def score_logprobs(
        self, example: Example, logprobs: Float[np.ndarray, " continuation"], greedy: Sequence[bool]
    ) -> float:
        """Score in [0, 1] from the summed log-probability (nats) and greedy match of each continuation.

        Args:
            example: The example.
            logprobs: Summed log-probability of each continuation (nats).
            greedy: Whether all tokens of each continuation are the argmax.

        Returns:
            The score; 1 is best.
        """


@runtime_checkable
class RelativeScorer(Protocol):
    """Scores texts beside what the intact model says after the same prompts."""

    def against(self, examples: Sequence[Example], texts: Sequence[str], intact: Sequence[str]) -> Sequence[float]:
        """The score in [0, 1] of each text, given the intact model's after the same prompt."""


AnyScorer: TypeAlias = Scorer | LogprobScorer | RelativeScorer

N_TRIED = 20
"""Examples whose trial answers are scored to know a scorer."""


def is_graded(scorer: AnyScorer, examples: Sequence[Example]) -> bool:
    """Whether a scorer gives numbers between 0 and 1, which are no right answers, as it says or trial answers show.

    No model runs: trial answers are the example's own, half of it, that of another example, both, and none; for scorers
    of log-probabilities such numbers, drawn.

    >>> examples = [Example("2 + 2 =", reference="4"), Example("2 + 3 =", reference="5")]
    >>> is_graded(as_scorer(lambda example, text: 1.0 if text == example.reference else 0.3), examples)
    True
    >>> is_graded(ExactMatch(), examples)
    False
    """
    graded = getattr(scorer, "graded", None)
    if graded is not None:
        return bool(graded)
    try:
        return any(0 < score < 1 for score in _trials(scorer, examples[:N_TRIED]))
    except Exception:  # what it makes of such answers is its own affair; a model's are still to come
        return False


def _trials(scorer: AnyScorer, examples: Sequence[Example]) -> Iterator[float]:
    """The scores of trial answers."""
    if isinstance(scorer, LogprobScorer):
        rng = np.random.default_rng(0)
        for example in examples:
            logprobs = -rng.exponential(2.0, len(example.continuations))
            yield float(scorer.score_logprobs(example, logprobs, (logprobs > -1).tolist()))
        return
    own = [shown(right_of(example)) for example in examples]
    others = [*own[1:], own[0]]
    halves, both = [text[: len(text) // 2] for text in own], list(map(" ".join, zip(own, others, strict=True)))
    for texts in (own, halves, others, both, [""] * len(own)):
        if isinstance(scorer, RelativeScorer):
            yield from map(float, scorer.against(examples, texts, own))
        elif isinstance(scorer, Scorer):
            yield from map(float, scorer.score_texts(examples, texts))


@dataclass(frozen=True)
class ExactMatch:
    """1 where the text is the example's reference, white space at both ends aside.

    >>> ExactMatch().score_texts([Example("2 + 2 =", reference="4")], [" 4"])
    [1.0]
    """

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """1 or 0 for each text.

        Args:
            examples: The example of each text.
            texts: What was said.

        Returns:
            A number for each text.

        Raises:
            ValueError: Another number of texts than of examples.
        """
        return [float(t.strip() == e.reference.strip()) for e, t in zip(examples, texts, strict=True)]


@dataclass(frozen=True)
class FunctionScorer:
    """A function of one example and one text as a scorer."""

    function: Callable[[Example, str], float]

    def score_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Any]:
        """The function on each example and text."""
        return [self.function(example, text) for example, text in zip(examples, texts, strict=True)]


def name_of_scorer(scorer: Any) -> str:
    """What a scorer calls itself, or the name of its function or class, for those who read a result.

    >>> name_of_scorer(ExactMatch())
    'ExactMatch'
    """
    own = getattr(scorer, "name", None)
    if isinstance(own, str):
        return own
    named = scorer.function if isinstance(scorer, FunctionScorer) else type(scorer)
    return str(getattr(named, "__qualname__", type(named).__qualname__))


def as_scorer(scorer: Any) -> AnyScorer:
    """A scorer as it is, or a function ``f(example, text)`` made one.

    >>> as_scorer(lambda example, text: float("yes" in text)).score_texts([Example("?")], ["yes!"])
    [1.0]
    """
    if not isinstance(scorer, type):
        if isinstance(scorer, AnyScorer):
            return scorer
        if callable(scorer):
            return FunctionScorer(scorer)
    raise ValueError(f"scorer must be a function of an example and a text, or a Scorer, got {scorer!r:.80}")


def check_scores(scorer: Any, scores: Any, of: Sequence[int]) -> Float[np.ndarray, " score"]:
    """A scorer's scores ``of`` examples as numbers; others than one in [0, 1] for each raise ``ValueError``.

    Its message names the scorer, and the first example with the score that it got.
    """
    numbers = [_number(score) for score in scores] if isinstance(scores, list | tuple | np.ndarray) else []
    checked = np.array(numbers, dtype=float)
    wrong = np.flatnonzero(~((checked >= 0) & (checked <= 1)))
    if checked.shape != (len(of),) or wrong.size:
        said, which = repr(scores)[:100], ""
        if checked.shape == (len(of),):
            said, which = repr(scores[wrong[0]])[:80], f" for example {of[wrong[0]]}"
        raise ValueError(f"scorer {name_of_scorer(scorer)!r} must give {len(of)} numbers in 0..1, got {said}{which}")
    return checked


def _number(score: Any) -> float:
    """A score as a number; NaN where it is none, a text of digits among them."""
    try:
        return float("nan") if isinstance(score, str | bytes) else float(score)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last from tensors of several numbers
        return float("nan")
