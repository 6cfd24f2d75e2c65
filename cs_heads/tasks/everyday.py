"""Everyday skills, ``everyday/<skill>``: plain English and a little code that come with the library.

Small language models can do most of them, and no file or network is needed. A word that is asked about to find heads is
never asked about to confirm them, nor shown in a worked example. Answers are one token to the tokenizers of SmolLM2,
Gemma 3 and Qwen2.5, except some capitals, and the sums, whose digits are tokens of their own.

    >>> from cs_heads.tasks import load_task
    >>> example = load_task("everyday/plural", n=1, shots=2).examples[0]
    >>> print(example.prompt + example.target)
    one visitor, two visitors
    one bed, two beds
    one bird, two birds
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from cs_heads.arguments import check_integer
from cs_heads.tasks.family import Entry, Record, asked_once, choice_record, drawn_about
from cs_heads.tasks.task import Task
from cs_heads.tasks.words import rows, sentences, word_list, word_pairs

WOMEN, MEN = word_list("everyday-women"), word_list("everyday-men")
NOUNS = word_list("everyday-nouns")
PLURALS, CAPITALS = word_pairs("everyday-plural"), word_pairs("everyday-capitals")
# Names of arguments in code.
PARAMETERS = word_list("everyday-parameters")

PLACES = ("office", "beach", "station", "market", "hospital", "museum", "farm", "library", "school", "garden")
THINGS = ("book", "letter", "ticket", "map", "camera", "key", "gift", "phone", "cup", "ring")
LINKS = ("near", "behind", "next to", "in front of", "beside", "under", "close to", "with")
VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))

FUNCTIONS = ("combine", "compute", "calculate", "process", "get_result", "find", "check", "f")

# What is open at the end of a text is closed by the mark.
OPEN_TEMPLATES = {
    ")": ("print({0}", "The {0} (or the {1}", "max({0}, {1}", "We saw a {0} (and a {1}"),
    "]": ("[{0}, {1}", "words = [{0}, {1}", "items[{0}", "list = [{0}"),
    "}": ("{{{0}, {1}", "words = {{{0}, {1}", "set = {{{0}", "{{{0}: {1}"),
    '"': ('She said "{0}', 'The word is "{0}', 'name = "{0}', 'They call it a "{0}'),
}

# Each follows the one before it; a second form is another way to write the series.
ROUND = {"days": rows("everyday-days"), "months": rows("everyday-months")}
STRAIGHT = {
    **{name: (row,) for name, row in zip(("numbers", "tens", "ordinals"), rows("everyday-numbers"), strict=True)},
    "letters": (tuple(ascii_uppercase), tuple(ascii_lowercase)),
}
LENGTHS = (3, 4, 5)
"""Members of a series that are shown before the one asked for."""
SUMS_BELOW = 40

# Skills asked in sentences and in code: what agrees, who is meant, what is still open, what comes next.


def _agreement(rng: random.Random, noun: tuple[str, str], side: Sequence[tuple[str, str]]) -> Record:
    many = rng.randrange(2)
    other = rng.choice([pair for pair in side if pair != noun])[1 - many]
    verbs = rng.choice(VERBS)
    prompt = f"The {noun[many]} {rng.choice(LINKS)} the {other}"
    return choice_record(rng, prompt, [verbs[many], verbs[1 - many]], verbs[many])


def _pronoun(rng: random.Random, name: str, _: Sequence[str]) -> Record:
    right, wrong = (" she", " he") if name in WOMEN else (" he", " she")
    return choice_record(rng, rng.choice(sentences("everyday-pronoun-sentences")).format(name), [right, wrong], right)


def _giving(rng: random.Random, receiver: str, side: Sequence[str]) -> Record:
    giver = rng.choice([name for name in side if name != receiver])
    form = rng.choice(sentences("everyday-giving-sentences"))
    if rng.randrange(2):
        form = form.replace("{0} and {1}", "{1} and {0}")
    prompt = form.format(giver, receiver, rng.choice(PLACES), rng.choice(THINGS))
    return {"prompt": prompt, "target": f" {receiver}"}


def _code(rng: random.Random, second: str, side: Sequence[str]) -> Record:
    first = rng.choice([name for name in side if name != second])
    prompt = f"def {rng.choice(FUNCTIONS)}({first}, {second}):\n    return {first} {rng.choice('+-*/')}"
    return {"prompt": prompt, "target": f" {second}"}


def _closing(rng: random.Random, noun: str, side: Sequence[str]) -> Record:
    mark = rng.choice(list(OPEN_TEMPLATES))
    other = rng.choice([word for word in side if word != noun])
    text = rng.choice(OPEN_TEMPLATES[mark]).format(noun, other)
    return choice_record(rng, text, [mark, *(other for other in OPEN_TEMPLATES if other != mark)], mark)


def _next(rng: random.Random, asked: tuple[str, int], _: Sequence[tuple[str, int]]) -> Record:
    series, at = asked
    members = rng.choice((ROUND | STRAIGHT)[series])
    shown = rng.choice([length for length in LENGTHS if series in ROUND or length <= at])
    # Of a series that goes round, Sunday comes before Monday: an index below 0 is one from the end.
    before = ", ".join(members[place] for place in range(at - shown, at))
    return {"prompt": f"{before},", "target": f" {members[at]}"}


# Each member of a series that may be asked for.
_MEMBERS = [(series, at) for series, forms in ROUND.items() for at in range(len(forms[0]))]
_MEMBERS += [(series, at) for series, forms in STRAIGHT.items() for at in range(LENGTHS[0], len(forms[0]))]

# By skill: what it asks for, the words it asks about, and a record about one of them.
_ASKED: Mapping[str, tuple[str, Sequence[Any], Callable[..., Record]]] = {
    "agreement": ("the verb that agrees with its subject, across another noun: is or are?", PLURALS, _agreement),
    "he_she": ("the pronoun for a name: he or she?", WOMEN + MEN, _pronoun),
    "indirect_object": ("to whom something is given, of two names", WOMEN + MEN, _giving),
    "code": ("the variable that a one-line Python function has not used yet", PARAMETERS, _code),
    "closing": ("the bracket or quote that closes what is open, of four", NOUNS, _closing),
    "succession": ("the next of days, months, numbers or letters", _MEMBERS, _next),
}


def _in_sentences(skill: str, n: int | None = None, seed: int = 0) -> Task:
    """``n`` questions of a skill (default 100), up to 400 held out, which ask about other words."""
    _, about, draw = _ASKED[skill]
    return drawn_about(f"everyday/{skill}", about, draw, n, seed)


# Skills that turn a word into another, one question a word, after a few worked examples.


def _filled(form: str) -> Callable[[random.Random, tuple[str, str]], tuple[str, str]]:
    """The question that a form asks about a pair of words, and its answer."""
    return lambda _, pair: (form.format(pair[0]), pair[1])


def _either_way(rng: random.Random, pair: tuple[str, str]) -> tuple[str, str]:
    word, opposite = rng.sample(pair, 2)
    return f"The opposite of {word} is", opposite


def _sum(rng: random.Random, pair: tuple[int, int]) -> tuple[str, str]:
    a, b = rng.sample(pair, 2)
    return f"{a} + {b} =", str(a + b)


_SUMS = [(a, b) for b in range(1, SUMS_BELOW) for a in range(1, b + 1) if a + b < SUMS_BELOW]

# By skill: what it asks for, the words it asks about, and a question about one of them with its answer.
_SHOWN: Mapping[str, tuple[str, Sequence[Any], Callable[[random.Random, Any], tuple[str, str]]]] = {
    "plural": ("the plural of a noun", PLURALS, _filled("one {}, two")),
    "past": ("the past tense of a verb", word_pairs("everyday-past"), _filled("Today we {}. Yesterday we")),
    "upper_case": ("a word with a capital first letter", [(w, w.capitalize()) for w in NOUNS], _filled("{} ->")),
    "capitals": ("the capital of a country or a state", CAPITALS, _filled("The capital of {} is")),
    "antonyms": ("the opposite of a word", word_pairs("everyday-antonyms"), _either_way),
    "kinds": ("what kind of thing a word names", word_pairs("everyday-kinds"), _filled("{} is a kind of")),
    "phrases": ("the last word of a common phrase", word_pairs("everyday-phrases"), _filled("{}")),
    "sums": (f"sums below {SUMS_BELOW}", _SUMS, _sum),
}


def _after_examples(skill: str, n: int | None = None, seed: int = 0, *, shots: int = 4) -> Task:
    """``n`` questions of a skill (default 100, or half of them), the others held out.

    The same ``shots`` worked examples, 0 to 10, come before each question, of words that are never asked about.
    """
    _, about, line = _SHOWN[skill]
    return asked_once(f"everyday/{skill}", about, line, n, seed, shots=shots)


# A list of random words, said a second time.


def copying(n: int | None = None, seed: int = 0, *, length: int = 8) -> Task:
    """``n`` lists of ``length`` random words, said a second time up to the word asked for (default 100).

    A word that is asked for on one side is not asked for on the other.
    """
    check_integer("length", length, 2, len(NOUNS))
    return drawn_about("everyday/copying", NOUNS, partial(_again, length), n, seed)


def _again(length: int, rng: random.Random, asked: str, _: Sequence[str]) -> Record:
    shown = [word for word in rng.sample(NOUNS, length) if word != asked][: length - 1]
    at = rng.randrange(1, length)
    shown.insert(at, asked)
    return {"prompt": f"{', '.join(shown)}.\n{', '.join(shown[:at])},", "target": f" {asked}"}


TASKS = {name: Entry(about, partial(_in_sentences, name)) for name, (about, *_) in _ASKED.items()}
TASKS |= {
    name: Entry(f"{about}, after worked examples", partial(_after_examples, name))
    for name, (about, *_) in _SHOWN.items()
}
TASKS = dict(sorted({**TASKS, "copying": Entry("the next word of a list that is said twice", copying)}.items()))
