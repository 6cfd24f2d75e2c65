"""Skills that turn a word into another, one question a word, after a few worked examples."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.everyday import lists
from cs_heads.tasks.everyday.asking import asked_once
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import word_pairs

SUMS_BELOW = 40


def load(skill: str, n: int | None = None, seed: int = 0, *, shots: int = 4) -> Task:
    """``n`` questions of a skill (default 100, or half of them), the others held out.

    The same ``shots`` worked examples, 0 to 10, come before each question, of words that are never asked about.
    """
    words, line = _SKILLS[skill]
    return asked_once(f"everyday/{skill}", words(), line, n, seed, shots=shots)


def _filled(form: str) -> Callable[[random.Random, tuple[str, str]], tuple[str, str]]:
    """The question that a form asks about a pair of words, and its answer."""
    return lambda _, pair: (form.format(pair[0]), pair[1])


def _either_way(rng: random.Random, pair: tuple[str, str]) -> tuple[str, str]:
    word, opposite = rng.sample(pair, 2)
    return f"The opposite of {word} is", opposite


def _sum(rng: random.Random, pair: tuple[int, int]) -> tuple[str, str]:
    a, b = rng.sample(pair, 2)
    return f"{a} + {b} =", str(a + b)


def _capitalized() -> list[tuple[str, str]]:
    return [(word, word.capitalize()) for word in lists.NOUNS]


def _sums() -> list[tuple[int, int]]:
    return [(a, b) for b in range(1, SUMS_BELOW) for a in range(1, b + 1) if a + b < SUMS_BELOW]


_SKILLS: Mapping[str, tuple[Callable[[], Any], Callable[[random.Random, Any], tuple[str, str]]]] = {
    "plural": (partial(word_pairs, "everyday-plural"), _filled("one {}, two")),
    "past": (partial(word_pairs, "everyday-past"), _filled("Today we {}. Yesterday we")),
    "upper_case": (_capitalized, _filled("{} ->")),
    "capitals": (partial(word_pairs, "everyday-capitals"), _filled("The capital of {} is")),
    "antonyms": (partial(word_pairs, "everyday-antonyms"), _either_way),
    "kinds": (partial(word_pairs, "everyday-kinds"), _filled("{} is a kind of")),
    "sums": (_sums, _sum),
    "phrases": (partial(word_pairs, "everyday-phrases"), _filled("{}")),
}

ABOUT = {
    "plural": "the plural of a noun, after worked examples",
    "past": "the past tense of a verb, after worked examples",
    "upper_case": "a word with a capital first letter, after worked examples",
    "capitals": "the capital of a country or a state, after worked examples",
    "antonyms": "the opposite of a word, after worked examples",
    "kinds": "what kind of thing a word names, after worked examples",
    "phrases": "the last word of a common phrase, after worked examples",
    "sums": f"sums below {SUMS_BELOW}, after worked examples",
}
"""What each skill asks for."""


def entries() -> dict[str, Entry]:
    """The skills by name."""
    return {skill: Entry(about, partial(load, skill)) for skill, about in ABOUT.items()}
