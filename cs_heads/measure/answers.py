"""The right answers of a task as tokens, for methods that start from a model and a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from cs_heads.lens import encode_example
from cs_heads.measure.experiment import Experiment


@dataclass(frozen=True)
class Answers:
    """Tokens of each example's prompt and of its right continuation, in the order of the task."""

    prompts: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, experiment: Experiment) -> Answers:
        """Those of an experiment's task, tokenised as the experiment does."""
        tokenizer: Any = experiment.model.tokenizer
        prepend_bos = experiment.provenance()["prepend_bos"]
        encoded = [
            (encode_example(tokenizer, example.prompt, example.continuations, prepend_bos), example.answer)
            for example in experiment.task.examples
        ]
        return cls(
            prompts=tuple(tokens.prompt for tokens, _ in encoded),
            targets=tuple(tokens.continuations[answer] for tokens, answer in encoded),
        )

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, examples: Int[np.ndarray, " n"]) -> Answers:
        """The answers of these examples, in this order; an example may come several times."""
        return Answers(tuple(self.prompts[i] for i in examples), tuple(self.targets[i] for i in examples))
