"""What an experiment asks of whatever runs its model: here, or on workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from cs_heads.engine.ends import Ends
from cs_heads.lens import EncodedExample

Text = tuple[int, ...]
PairText = tuple[int, Text]
PairResult = tuple[int, Float[np.ndarray, " continuation"], Float[np.ndarray, " continuation"]]


@runtime_checkable
class EngineLike(Protocol):
    """Scores, and generates after, (mask, example) pairs; ``Engine`` says what each of these is."""

    model: Any
    examples: Sequence[EncodedExample]
    ablation: Any

    def run(
        self,
        masks: Shaped[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        progress: bool | None,
        known: Bool[np.ndarray, " pair"] | None = None,
    ) -> Iterator[list[PairResult]]:
        """Yield results as they come, but for ``known`` pairs: (pair, logprobs, shares of argmax tokens)."""

    def generate(
        self,
        prompts: Sequence[Text],
        ends: Ends,
        masks: Shaped[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        *,
        drafts: Mapping[int, Text],
        progress: bool | None,
        known: Bool[np.ndarray, " pair"] | None = None,
    ) -> Iterator[list[PairText]]:
        """Yield (pair, tokens) as texts are finished, but for ``known`` pairs."""

    def worth_drafting(self, n_texts: int) -> bool:
        """Whether the intact model should write first, to draft so many texts of masked ones."""
