"""The right answers of a task as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from cs_heads.lens import EncodedExample
from cs_heads.tasks import Task


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
