"""Induction: random words, and then the same words again; what comes next was seen before.

The behavior that induction heads explain (Olsson et al., *In-context Learning and Induction Heads*,
arXiv 2209.11895): nothing but the prompt itself knows the answer.

    >>> task = load(n=1, length=5)
    >>> task.examples[0].prompt, task.examples[0].continuations
    ('camp orange page snow storm camp orange', (' page',))
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cs_heads.arguments import check_integer
from cs_heads.tasks.family import Entry, Record, drawn
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import word_list


def load(n: int | None = None, seed: int = 0, *, length: int = 20, words: Sequence[str] | None = None) -> Task:
    """``n`` prompts of ``length`` different words and some of them again, 400 held out.

    Args:
        n: Finding examples, 100 by default.
        seed: Draws all examples.
        length: Different words of a prompt.
        words: What prompts are made of; short nouns by default.

    Raises:
        ValueError: There are too few words.
    """
    check_integer("length", length, 2)
    vocabulary = vocabulary_of(words, least=length)

    def draw(rng: random.Random) -> Record:
        shown = rng.sample(vocabulary, length)
        at = rng.randrange(1, length)
        return {"prompt": " ".join(shown + shown[:at]), "target": f" {shown[at]}"}

    return drawn("induction", draw, n, seed)


def vocabulary_of(words: Sequence[str] | None, least: int) -> list[str]:
    """The words a symbolic task is made of; fewer than ``least`` raise ``ValueError``."""
    chosen = list(dict.fromkeys(word_list("nouns") if words is None else words))
    if len(chosen) < least:
        raise ValueError(f"words must hold {least} or more different words, got {len(chosen)}")
    return chosen


TASKS = {"": Entry("random words, then the same again: the next word was seen before", load)}
