"""The right answers of a task, and pairs of prompts, as tokens: for methods that start from a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from cs_heads.lens import EncodedExample
from cs_heads.lens.model import tokenizer_of
from cs_heads.lens.points import PatchPoint, encode_point
from cs_heads.tasks import Task
from cs_heads.tasks.pairs import PromptPair


@dataclass(frozen=True)
class Answers:
    """Tokens of each example's prompt and of its right continuation, in the order of the task.

    ``positions`` are the places in the prompt where the continuation's tokens are read, none where it comes after it.
    """

    prompts: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]
    positions: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, task: Task, encoded: Sequence[EncodedExample]) -> Answers:
        """Those of a task, as its examples are tokenized; one without targets raises ``ValueError``."""
        for example in task.examples:
            _ = example.target
        answered = [(tokens, example.answer) for tokens, example in zip(encoded, task.examples, strict=True)]
        return cls(
            prompts=tuple(tokens.prompt_of(answer) for tokens, answer in answered),
            targets=tuple(tokens.continuations[answer] for tokens, answer in answered),
            positions=tuple(tokens.positions for tokens, _ in answered),
        )

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, examples: Int[np.ndarray, " n"]) -> Answers:
        """The answers of these examples, in this order; an example may come several times."""
        each = (self.prompts, self.targets, self.positions)
        return Answers(*(tuple(some[i] for i in examples) for some in each))


def points_of(
    model: Any, pairs: Sequence[PromptPair], prepend_bos: bool | None, least: int = 2
) -> tuple[list[PatchPoint], list[PatchPoint]]:
    """Clean and corrupted prompts as tokens; fewer than ``least``, or pairs of two kinds, raise ``ValueError``."""
    if len(pairs) < least:
        raise ValueError(f"pairs must hold {least} or more, got {len(pairs)}")
    if len({(pair.instead is None, len(pair.clean_ends)) for pair in pairs}) > 1:
        raise ValueError("pairs must all name what is said instead or none, and have the same number of places")
    sides: tuple[list[PatchPoint], list[PatchPoint]] = ([], [])
    for number, pair in enumerate(pairs):
        answers = [pair.target] if pair.instead is None else [pair.target, pair.instead]
        texts = ((pair.clean, pair.clean_ends), (pair.corrupted, pair.corrupted_ends))
        for side, (text, ends) in zip(sides, texts, strict=True):
            try:
                side.append(encode_point(tokenizer_of(model), text, answers, ends, prepend_bos))
            except ValueError as error:
                raise ValueError(f"pair {number}: {error}") from error
    return sides
