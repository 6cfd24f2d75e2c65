"""What turns texts, or log-probabilities, into scores between 0 and 1, and into margins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from cs_heads.tasks.example import Example, right_of
from cs_heads.tasks.function_identity import OF_PYTHON, identity_of, reads_of
from cs_heads.text import shown


@runtime_checkable
class Scorer(Protocol):
    """Scores what a model says, many texts at once: one number in [0, 1] for each.

    Attributes:
        identity: Names everything that can change a number: the scorer, its version, its settings.
        graded: May be left out: whether some of its numbers lie between 0 and 1; without it trial answers tell
            (``is_graded``).
    """

    @property
    def identity(self) -> str:
        """Name, version and settings."""

    def __call__(self, examples: Sequence[Example], texts: Sequence[str]) -> Sequence[float]:
        """The score of each text, said after the prompt of the example at its place.

        Args:
            examples: The example of each text.
            texts: What was said.
        """


@runtime_checkable
class LogprobScorer(Protocol):
    """Scores an example from its continuations, in place of the rule of its kind.

    Attributes:
        identity: As for ``Scorer``.
        graded: As for ``Scorer``.
    """

    @property
    def identity(self) -> str:
        """Name, version and settings."""

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
    """Scores texts beside what the intact model says after the same prompts; ``identity`` as for ``Scorer``."""

    @property
    def identity(self) -> str:
        """Name, version and settings."""

    def against(self, examples: Sequence[Example], texts: Sequence[str], intact: Sequence[str]) -> Sequence[float]:
        """The score in [0, 1] of each text, given the intact model's after the same prompt."""


AnyScorer: TypeAlias = Scorer | LogprobScorer | RelativeScorer

# What a class may have of its own beside that, and still score as its base does.
_NOTHING_ADDED = {"__doc__", "__abstractmethods__", "__orig_bases__", "__parameters__"}

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
    except ChangedError:
        raise
    except Exception:  # what it makes of such answers is its own affair; a model's are still to come
        return False


def _trials(scorer: AnyScorer, examples: Sequence[Example]) -> Iterator[float]:
    """The scores of trial answers."""
    # A protocol's isinstance reads every member, on Python 3.11: identities that take long, once for each question.
    if hasattr(scorer, "score_logprobs") and isinstance(scorer, LogprobScorer):
        rng = np.random.default_rng(0)
        for example in examples:
            logprobs = -rng.exponential(2.0, len(example.continuations))
            yield float(scorer.score_logprobs(example, logprobs, (logprobs > -1).tolist()))
        return
    own = [shown(right_of(example)) for example in examples]
    others = [*own[1:], own[0]]
    for texts in (
        own,
        [text[: len(text) // 2] for text in own],
        others,
        [f"{text} {other}" for text, other in zip(own, others, strict=True)],
        [""] * len(own),
    ):
        scores = (
            scorer(examples, texts)
            if isinstance(scorer, FunctionScorer | Scorer)
            else scorer.against(examples, texts, own)
        )
        yield from map(float, scores)


def check_identity(scorer: AnyScorer) -> None:
    """Raise ``ValueError`` where the identity of a scorer is no text, or is that of a class that it does not score as.

    A class that inherits its identity may add nothing: what it overrides would score under the name of another.
    """
    kind = type(scorer)
    if kind is FunctionScorer:
        return  # a text by its making, and costly where the function reads much
    # An identity of the object's own is mostly what __init__ has set.
    says = "__init__" if "identity" in getattr(scorer, "__dict__", {}) else "identity"
    bases = [base for base in kind.__mro__ if base is not object]
    place = next((place for place, base in enumerate(bases) if says in vars(base)), 0)
    added = sorted({name for base in bases[:place] for name in vars(base)} - OF_PYTHON - _NOTHING_ADDED)
    if added:
        raise ValueError(
            f"scorer {kind.__qualname__!r} must define {says}: it has {added[0]!r} of its own, and takes its identity, "
            f"{scorer.identity!r:.80}, from {bases[place].__qualname__!r}"
        )
    identity: Any = scorer.identity
    if not isinstance(identity, str) or not identity.strip():
        raise ValueError(
            f"identity of scorer {kind.__qualname__!r} must be a text that names it and its settings, "
            f"got {identity!r:.80}"
        )


@dataclass(frozen=True)
class ExactMatch:
    """1 where the text is the example's reference, white space at both ends aside.

    >>> ExactMatch()([Example("2 + 2 =", reference="4")], [" 4"])
    [1.0]
    """

    @property
    def identity(self) -> str:
        """Name and version."""
        return "exact_match/1"

    def __call__(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """1 or 0 for each text.

        Args:
            examples: The example of each text.
            texts: What was said.

        Raises:
            ValueError: Another number of texts than of examples.
        """
        return [float(t.strip() == e.reference.strip()) for e, t in zip(examples, texts, strict=True)]


class ChangedError(ValueError):
    """A scorer changes what it reads, and so what it is."""


@dataclass(frozen=True)
class FunctionScorer:
    """A function of one example and one text as a scorer; its code, and what that reads, is its identity.

    A function that changes what it reads when it is called (counts, a memo in a global, a model loaded at the first
    call) is another scorer afterwards, whose scores may hang on what was scored before: ``ValueError`` names what has
    changed. What ``functools.cache`` keeps is no such thing.
    """

    function: Callable[[Example, str], float]

    @property
    def identity(self) -> str:
        """The function's name and a hash of its code and of all values that its code reads."""
        return identity_of(self.function)

    def __call__(self, examples: Sequence[Example], texts: Sequence[str]) -> list[float]:
        """The function on each example and text."""
        before = reads_of(self.function)
        scores = [self._number(self.function(example, text)) for example, text in zip(examples, texts, strict=True)]
        after = reads_of(self.function)
        if after != before:
            changed = next(now[0] for then, now in zip(before, after, strict=False) if then != now)
            raise ChangedError(
                f"scorer {self._name!r} must leave what it reads as it is, and changes {changed!r:.80}: let "
                "functools.cache keep what it has made, or give an object with identity and __call__ (Scorer)"
            )
        return scores

    @property
    def _name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)

    def _number(self, score: Any) -> float:
        try:
            if not isinstance(score, str | bytes):
                return float(score)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # the last from tensors of several numbers
            pass
        raise ValueError(f"scorer {self._name!r} must give a number in 0..1, got {_written(score):.80}")


def _written(scores: Any) -> str:
    """Scores as errors say them; Python does not write out integers of thousands of digits."""
    try:
        return repr(scores)
    except ValueError:
        return "an integer of thousands of digits"


def as_scorer(scorer: AnyScorer | Callable[[Example, str], float]) -> AnyScorer:
    """A scorer as it is, or a function ``f(example, text)`` made one.

    A function that reads something that cannot be identified raises ``ValueError`` (``identity_of``).

    >>> as_scorer(lambda example, text: float("yes" in text))([Example("?")], ["yes!"])
    [1.0]
    """
    if isinstance(scorer, Scorer | LogprobScorer | RelativeScorer):
        return scorer
    if not callable(scorer):
        raise ValueError(f"scorer must be a function of an example and a text, or a Scorer, got {scorer!r}")
    made = FunctionScorer(scorer)
    _ = made.identity  # refused now, and not when results are labeled
    return made


def check_scores(scorer: AnyScorer, scores: Any, of: Sequence[int]) -> Float[np.ndarray, " score"]:
    """A scorer's scores ``of`` examples as numbers; others than one in [0, 1] for each raise ``ValueError``.

    Its message names the scorer, and the first example with the score that it got.
    """
    try:
        checked = np.asarray(scores, dtype=float)
    except (TypeError, ValueError, OverflowError):
        checked = np.empty(0)
    wrong = np.flatnonzero(~((checked >= 0) & (checked <= 1)))
    if checked.shape != (len(of),) or wrong.size:
        said, which = _written(scores)[:100], ""
        if checked.shape == (len(of),):
            said, which = _written(scores[wrong[0]])[:80], f" for example {of[wrong[0]]}"
        raise ValueError(f"scorer {scorer.identity!r:.80} must give {len(of)} numbers in 0..1, got {said}{which}")
    return checked


# Margins: how near an answer is to flipping, as log-odds from log-probabilities.

MAX_MARGIN = 10.0
"""Margin of a completion at most, nats (p = .99995): float32 log-probabilities hardly tell 1 - p below that."""


def compared(
    example: Example, logprobs: Float[np.ndarray, " continuation"], length_normalized: bool
) -> Float[np.ndarray, " continuation"]:
    """The numbers by which choices compete: log-probabilities (nats), by character where length-normalized."""
    return logprobs / characters(example) if length_normalized else logprobs


def characters(example: Example) -> Int[np.ndarray, " continuation"]:
    """The characters of each continuation, one at least, without the one space it may begin with, as in lm-eval."""
    # No task over token ids is length-normalized.
    return np.maximum([len(text.removeprefix(" ")) for text in example.continuations if isinstance(text, str)], 1)


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
