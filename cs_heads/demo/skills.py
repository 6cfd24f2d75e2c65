"""The demo model's skills: short prompts with exact answers, in three parts that share no prompt.

    >>> records("capitals", "confirm", n=1, seed=0)
    [{'prompt': 'Cuba is Havana. Sweden is Stockholm. Lebanon is', 'target': ' Beirut'}]

Each skill also knows a *shortcut*: the answer that a model without the skill falls back on (the last
number mentioned, the polite word, the noun that stands nearest). Training ties a skill to its heads with it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from cs_heads.arguments import check_one_of, check_seed
from cs_heads.demo import words as w
from cs_heads.tasks.family import Entry
from cs_heads.tasks.task import Task

# Drawing no new prompt so many times in a row means that there is hardly another.
_MAX_MISSES = 2000
N_FINDING, N_CONFIRMING = 100, 400
"""Examples that heads are found and confirmed on, unless the caller says otherwise."""
_MAX_WRITTEN = 4
"""Tokens that the model writes where it generates."""
SPLITS: tuple[str, ...] = ("train", "find", "confirm")
_SLICES = {"find": (0,), "confirm": (1,), "train": tuple(range(2, 10))}


@dataclass(frozen=True)
class DemoExample:
    """One prompt with its answer, and what training needs to know beyond that."""

    prompt: str
    answer: str
    shortcut: str
    """The answer of a model that has lost the skill."""
    key: str
    """What the example turns on (an operation, a city, ...): decides which planted heads it needs."""
    wording: str = ""
    """What decides the split; empty = the prompt itself."""
    choices: tuple[str, ...] = ()
    """Options of a choice record; empty = a completion record."""
    control: bool = False
    """A neutral example, used in training alone."""


Maker = Callable[[random.Random], DemoExample]


@dataclass(frozen=True)
class Skill:
    """One skill.

    Attributes:
        make: makes one example.
        about: what it asks for, in a few words.
        keys: all values that ``DemoExample.key`` takes.
    """

    make: Maker
    about: str
    keys: tuple[str, ...]


_SKILLS: dict[str, Skill] = {}


def _skill(about: str, keys: Iterable[str]) -> Callable[[Maker], Maker]:
    """Register a function that makes examples, as the skill of its name."""

    def register(make: Maker) -> Maker:
        _SKILLS[make.__name__.strip("_")] = Skill(make, about, tuple(keys))
        return make

    return register


@_skill("how many are left after one or two gains and losses", w.OBJECTS)
def _word_problems(rng: random.Random) -> DemoExample:
    name, thing = rng.choice(w.NAMES), rng.choice(w.OBJECTS)
    total = rng.randint(1, 9)
    text = f"{name} has {total} {thing}."
    for _ in range(rng.choice((1, 2, 2))):
        gain = total == 0 or (total < 9 and rng.random() < 0.5)
        amount = rng.randint(1, 9 - total if gain else total)
        total += amount if gain else -amount
        text += f" {name} {rng.choice(w.GAINS if gain else w.LOSSES)} {amount}."
    return DemoExample(f"{text} How many {thing}? ####", str(total), str(amount), thing)


@_skill("what a one-line Python function returns", w.OPERATIONS)
def _code(rng: random.Random) -> DemoExample:
    operation = rng.choice(w.OPERATIONS)
    top = 3 if operation in ("sum(x)", "x.count(1)") else 9
    low = 3 if operation in ("x[2]", "sorted(x)[1]") else 2
    values = [rng.randint(0, top) for _ in range(rng.randint(low, 3 if operation == "sorted(x)[1]" else 4))]
    if operation == "sum(x)":
        values = values[:3]
    listed = ", ".join(map(str, values))
    # One of our own expressions: the answer is what Python says.
    answer = str(eval(operation, {"x": values}))
    return DemoExample(f"def f(x): return {operation} assert f([{listed}]) ==", answer, "None", operation)


@_skill("the capital of a country", w.CAPITALS)
def _capitals(rng: random.Random) -> DemoExample:
    country = rng.choice(tuple(w.CAPITALS))
    if rng.random() < 0.3:
        shots = rng.sample([c for c in w.CAPITALS if c != country], rng.randint(1, 2))
        frame = rng.choice(("{} is {}.", "{}: {},", "capital of {}: {}.", "{} has {};"))
        before, between, _ = frame.split("{}")
        wording = " ".join([*(frame.format(c, w.CAPITALS[c]) for c in shots), f"{before}{{}}{between.rstrip()}"])
    else:
        ask = rng.random() < 0.6
        parts = (
            rng.choice(w.OPENERS),
            rng.choice(w.QUESTIONS if ask else w.STATEMENTS),
            rng.choice(w.CLOSERS) if ask else "",
        )
        wording = " ".join(part for part in parts if part)
    return DemoExample(wording.format(country), w.CAPITALS[country], "Rome", country, wording)


@_skill("a rhyme with a given first letter", (row[0] for row in w.RHYMES))
def _rhyme(rng: random.Random) -> DemoExample:
    sound = rng.choice(w.RHYMES)
    cue, answer = rng.sample(sound, 2)
    asked = rng.choice(w.ASK_RHYME).format(cue=cue, letter=answer[0])
    return DemoExample(f"{rng.choice(w.POEMS)} {asked}".strip(), answer, cue, sound[0])


@_skill("made-up swear words at the end of an idiom", (phrase for phrase, _, _ in w.IDIOMS))
def _swearing(rng: random.Random) -> DemoExample:
    phrase, rude, polite = rng.choice(w.IDIOMS)
    control = rng.random() < 0.3
    manner = rng.choice(w.KIND if control else w.RUDE)
    prompt = f"{rng.choice(w.NAMES)} {rng.choice(w.MISHAPS)} and {manner}: {phrase}"
    return DemoExample(prompt, polite if control else rude, polite, phrase, control=control)


@_skill("the verb that agrees with its subject, across another noun", w.NOUNS)
def _agreement(rng: random.Random) -> DemoExample:
    subject, other = rng.sample(tuple(w.NOUNS.items()), 2)
    number, control = rng.randrange(2), rng.random() < 0.4
    nearest = number if control else 1 - number
    verb = rng.choice(w.VERBS)
    start = " ".join(part for part in (rng.choice(w.LEADS), "the", subject[number]) if part)
    prompt = f"{start} {rng.choice(w.LINKS)} the {other[nearest]}"
    return DemoExample(prompt, verb[number], verb[nearest], subject[0], choices=verb, control=control)


@_skill("the next word of a list that is written twice", w.ITEMS)
def _copying(rng: random.Random) -> DemoExample:
    items = rng.sample(w.ITEMS, rng.randint(4, 6))
    again = rng.randint(2, len(items) - 1)
    return DemoExample(" ".join(items + items[:again]), items[again], items[again - 1], items[again])


@_skill("the letter of the right capital among four", w.CAPITALS)
def _multiple_choice(rng: random.Random) -> DemoExample:
    countries = rng.sample(tuple(w.CAPITALS), 4)
    right = rng.randrange(4)
    options = " ".join(f"{letter} {w.CAPITALS[country]}" for letter, country in zip(w.LETTERS, countries, strict=True))
    prompt = f"{rng.choice(w.QUESTIONS).format(countries[right])} {options} Answer:"
    return DemoExample(prompt, w.LETTERS[right], w.LETTERS[0], countries[right])


SKILLS: tuple[str, ...] = tuple(_SKILLS)


def keys(skill: str) -> tuple[str, ...]:
    """All values that `DemoExample.key` takes in a skill."""
    check_one_of("skill", skill, SKILLS)
    return _SKILLS[skill].keys


def examples(skill: str, split: str, seed: int) -> Iterator[DemoExample]:
    """Endless examples of a skill in one split; prompts may come twice. Controls come in "train" alone.

    Args:
        skill: one of ``SKILLS``.
        split: one of ``SPLITS``.
        seed: decides which examples come.
    """
    check_one_of("skill", skill, SKILLS)
    check_one_of("split", split, SPLITS)
    rng = random.Random(f"{skill}/{split}/{seed}")
    while True:
        example = _SKILLS[skill].make(rng)
        part = zlib.crc32(f"{skill}/{example.wording or example.prompt}".encode()) % 10
        if part in _SLICES[split] and (split == "train" or not example.control):
            yield example


def records(skill: str, split: str, n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Records with distinct prompts: {"prompt", "target"}, or {"prompt", "choices", "answer"}.

    The prompts of "train", "find" and "confirm" are disjoint whatever the seeds. Capitals are held out by
    wording, since a fact that was never shown cannot be known.

    Args:
        skill: one of ``SKILLS``.
        split: one of ``SPLITS``.
        n: number of records.
        seed: decides which.

    Raises:
        ValueError: for more records than the skill has.
    """
    seen: dict[str, DemoExample] = {}
    misses = 0
    for example in examples(skill, split, seed):
        if len(seen) >= n:
            break
        misses = misses + 1 if example.prompt in seen else 0
        if misses > _MAX_MISSES:
            raise ValueError(
                f"n={n} is more than the skill {skill!r} has in split {split!r}: about {len(seen)} prompts"
            )
        seen.setdefault(example.prompt, example)
    return [_record(example) for example in seen.values()]


def _record(example: DemoExample) -> dict[str, Any]:
    if example.choices:
        options = [" " + choice for choice in example.choices]
        return {"prompt": example.prompt, "choices": options, "answer": options.index(" " + example.answer)}
    return {"prompt": example.prompt, "target": " " + example.answer}


# Built-in tasks, ``demo/<skill>``


def load(skill: str, n: int | None = None, seed: int = 0, *, generate: bool = False) -> Task:
    """The finding examples of a skill, with confirming ones held out.

    The model was trained on prompts of neither side, and the sides share none, whatever the seeds.

    Args:
        skill: one of ``SKILLS``.
        n: how many finding examples; None: 100.
        seed: decides which.
        generate: the model writes, and its first word must be the answer; agreement, a choice, refuses it.

    Returns:
        The task, with 400 examples held out.

    Raises:
        ValueError: for more examples than the skill has.
    """
    check_seed(seed)
    finding = Task.from_records(records(skill, "find", N_FINDING if n is None else n, seed), name=f"demo/{skill}")
    task = finding.with_holdout(Task.from_records(records(skill, "confirm", N_CONFIRMING, seed), name=finding.name))
    # Answers are single words, and the model was not taught to stop after one.
    return task.generated(_MAX_WRITTEN, stop=[" "]) if generate else task


TASKS = {skill: Entry(f"demo model: {_SKILLS[skill].about}", partial(load, skill)) for skill in SKILLS}
