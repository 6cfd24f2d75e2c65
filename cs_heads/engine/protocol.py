"""What an experiment asks of the engine that runs its model, in this process or on workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.designs import different
from cs_heads.engine.ablation import Ablation
from cs_heads.lens import EncodedExample, HookedModel, ModelInfo
from cs_heads.text import TokenIds

PairExamples = Int[np.ndarray, " pair"]
"""The example of each pair, by its number."""

Known = Bool[np.ndarray, " pair"] | None
"""Pairs that are planned for and not yielded, so that the others are what they would be if none were known."""

PairText = tuple[int, TokenIds]
"""The number of a pair, and its text."""

PairResult = tuple[int, Float[np.ndarray, "continuation 2"]]
"""The number of a pair; by continuation the log-probability (nats) and the share of tokens that are the argmax."""


@dataclass(frozen=True, eq=False)
class PairMasks:
    """The mask of each pair, kept once for all its pairs: a mask of neurons is large.

    Attributes:
        masks: Masks (bool, True = ablated), or gates (float); no two are equal.
        which: The number of each pair's mask.

    >>> masks = PairMasks.of(np.array([[[True]], [[False]], [[True]]]))
    >>> len(masks.masks), [numbers for _, numbers in masks.pairs()]
    (2, [[0, 2], [1]])
    """

    masks: Shaped[np.ndarray, "mask layer head"]
    which: Int[np.ndarray, " pair"]

    @classmethod
    def of(cls, masks: Shaped[np.ndarray, "pair layer head"]) -> PairMasks:
        """Masks that stand one by one, pair after pair."""
        return cls(*different(masks))

    def __getitem__(self, pairs: Int[np.ndarray, " chosen"]) -> PairMasks:
        numbers, which = np.unique(self.which[pairs], return_inverse=True)
        return PairMasks(self.masks[numbers], which)

    def pairs(self) -> list[tuple[Shaped[np.ndarray, "layer head"], list[int]]]:
        """Each mask with its pairs, in the order in which the masks first come."""
        by_mask: dict[int, list[int]] = {}
        for pair, number in enumerate(self.which.tolist()):
            by_mask.setdefault(number, []).append(pair)
        return [(self.masks[number], pairs) for number, pairs in by_mask.items()]


@dataclass(frozen=True)
class StoppingCriteria:
    """A text ends by one of ``end_tokens``, by one of the strings ``stop``, or after ``max_new_tokens``."""

    max_new_tokens: int
    stop: tuple[str, ...]
    end_tokens: frozenset[int]

    def finished(self, text: Sequence[int], tokenizer: Any) -> bool:
        """Whether a text ends here; one without tokens does not."""
        if not text:
            return False
        if len(text) >= self.max_new_tokens or text[-1] in self.end_tokens:
            return True
        return bool(self.stop) and any(stop in tokenizer.decode(list(text)) for stop in self.stop)

    def kept(self, text: Sequence[int], tokenizer: Any) -> str:
        """A finished text without its end token, up to the first stop string."""
        kept = text[:-1] if text[-1] in self.end_tokens else text
        decoded = tokenizer.decode(list(kept), skip_special_tokens=True)
        ends = [decoded.index(stop) for stop in self.stop if stop in decoded]
        return decoded[: min(ends, default=len(decoded))]


@dataclass(frozen=True)
class TextRequest:
    """What texts are generated after and where they end.

    Attributes:
        prompts: By number of the example.
        stopping: Where a text ends.
    """

    prompts: Sequence[TokenIds]
    stopping: StoppingCriteria


@runtime_checkable
class EngineLike(Protocol):
    """Reads log-probabilities of (mask, example) pairs, and writes texts for them; each pair stands once in a call."""

    examples: list[EncodedExample]
    ablation: Ablation

    def add(self, examples: Sequence[EncodedExample]) -> int:
        """Take in the examples of another task, where units give zero; the number of the first of them."""

    @property
    def model(self) -> HookedModel | ModelInfo:
        """The model, or what is known here of a model on workers."""

    def run(self, masks: PairMasks, examples: PairExamples, known: Known = None) -> Iterator[list[PairResult]]:
        """Yield the results of pairs as they come, but for ``known`` pairs.

        Args:
            masks: The mask of each pair.
            examples: The example of each pair.
            known: Pairs that are planned for and not yielded; None is none of them.
        """

    def generate(
        self, request: TextRequest, masks: PairMasks, examples: PairExamples, known: Known = None
    ) -> Iterator[list[PairText]]:
        """Yield the texts of pairs as they are finished, but for ``known`` pairs.

        Args:
            request: What texts are generated after and where they end.
            masks: As for ``run``.
            examples: As for ``run``.
            known: As for ``run``.
        """
