"""Skills asked in sentences and in code: what agrees, who is meant, what is still open, what comes next."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.everyday import lists
from cs_heads.tasks.everyday.asking import Record, choice, drawn_about
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import word_pairs


def load(skill: str, n: int | None = None, seed: int = 0) -> Task:
    """``n`` questions of a skill (default 100), up to 400 held out, which ask about other words."""
    words, draw = _SKILLS[skill]
    return drawn_about(f"everyday/{skill}", words(), draw, n, seed)


def _agreement(rng: random.Random, noun: tuple[str, str], side: Sequence[tuple[str, str]]) -> Record:
    many = rng.randrange(2)
    other = rng.choice([pair for pair in side if pair != noun])[1 - many]
    verbs = rng.choice(lists.VERBS)
    return choice(rng, f"The {noun[many]} {rng.choice(lists.LINKS)} the {other}", verbs[many], [verbs[1 - many]])


def _pronoun(rng: random.Random, name: str, _: Sequence[str]) -> Record:
    right, wrong = (" she", " he") if name in lists.WOMEN else (" he", " she")
    return choice(rng, rng.choice(lists.PRONOUN_TEMPLATES).format(name), right, [wrong])


def _giving(rng: random.Random, receiver: str, side: Sequence[str]) -> Record:
    giver = rng.choice([name for name in side if name != receiver])
    form = rng.choice(lists.GIVING_TEMPLATES)
    if rng.randrange(2):
        form = form.replace("{0} and {1}", "{1} and {0}")
    prompt = form.format(giver, receiver, rng.choice(lists.PLACES), rng.choice(lists.THINGS))
    return {"prompt": prompt, "target": f" {receiver}"}


def _code(rng: random.Random, second: str, side: Sequence[str]) -> Record:
    first = rng.choice([name for name in side if name != second])
    prompt = f"def {rng.choice(lists.FUNCTIONS)}({first}, {second}):\n    return {first} {rng.choice('+-*/')}"
    return {"prompt": prompt, "target": f" {second}"}


def _closing(rng: random.Random, noun: str, side: Sequence[str]) -> Record:
    mark = rng.choice(list(lists.OPEN_TEMPLATES))
    other = rng.choice([word for word in side if word != noun])
    text = rng.choice(lists.OPEN_TEMPLATES[mark]).format(noun, other)
    return choice(rng, text, mark, [other for other in lists.OPEN_TEMPLATES if other != mark])


_SKILLS: Mapping[str, tuple[Callable[[], Sequence[Any]], Callable[..., Record]]] = {
    "agreement": (partial(word_pairs, "everyday-plural"), _agreement),
    "he_she": (lambda: lists.WOMEN + lists.MEN, _pronoun),
    "indirect_object": (lambda: lists.WOMEN + lists.MEN, _giving),
    "code": (lambda: lists.PARAMETERS, _code),
    "closing": (lambda: lists.NOUNS, _closing),
}

ABOUT = {
    "agreement": "the verb that agrees with its subject, across another noun: is or are?",
    "he_she": "the pronoun for a name: he or she?",
    "indirect_object": "to whom something is given, of two names",
    "code": "the variable that a one-line Python function has not used yet",
    "closing": "the bracket or quote that closes what is open, of four",
}
"""What each skill asks for."""


def entries() -> dict[str, Entry]:
    """The skills by name."""
    return {skill: Entry(about, partial(load, skill)) for skill, about in ABOUT.items()}
