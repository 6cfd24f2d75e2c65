"""Questions with worked examples before them, as causal head gating puts them.

Nam et al., *Causal Head Gating* (arXiv 2505.13737): an instruction, worked examples drawn from the shortest
questions, which are asked by none, then the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np

from cs_heads.arguments import check_seed


@dataclass(frozen=True)
class Question:
    """A question, the answer it should get, and the choices it offers (none where the answer is written freely)."""

    text: str
    answer: str
    choices: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """The question with its choices, lettered."""
        lettered = (f"\n{letter}. {choice}" for letter, choice in zip(ascii_uppercase, self.choices, strict=False))
        return f"Question: {self.text.strip()}{''.join(lettered)}\nAnswer:"


def with_worked_examples(
    questions: Sequence[Question], instruction: str, n_shots: int, pool: int, seed: int
) -> list[tuple[str, Question]]:
    """Each question but those of the pool, with its prompt: ``n_shots`` of the ``pool`` shortest are drawn for it.

    Questions that come again are left out. Without enough of them for a pool and two more, ``ValueError`` is raised.
    """
    check_seed(seed)
    known: dict[tuple[str, tuple[str, ...]], Question] = {}
    for question in questions:
        # Where choices are lettered, another order of them has another letter for the same answer.
        known.setdefault((question.text, tuple(sorted(question.choices)) or (question.answer,)), question)
    different = list(known.values())
    pool = pool if n_shots else 0
    if n_shots < 0 or n_shots > pool or len(different) < pool + 2:
        raise ValueError(
            f"few_shot must be 0 to {pool}, with {pool + 2} or more different questions (the {pool} shortest are "
            f"shown as worked examples); got few_shot={n_shots} and {len(different)} questions"
        )
    by_length = sorted(range(len(different)), key=lambda i: len(different[i].asked) + len(different[i].answer))
    shown = [different[i] for i in by_length[:pool]]
    rng = np.random.default_rng(seed)
    prompts = []
    for i in sorted(by_length[pool:]):
        drawn = rng.permutation(pool)[:n_shots]
        worked = "".join(f"{shown[j].asked} {shown[j].answer}\n" for j in drawn)
        head = f"{instruction}\n" if instruction else ""
        prompts.append((f"{head}{worked}{different[i].asked}", different[i]))
    return prompts
