"""Skills that go on with a sequence: a known one, or random words said a second time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from cs_heads.arguments import check_integer
from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.everyday import lists
from cs_heads.tasks.everyday.asking import Record, drawn_about
from cs_heads.tasks.task import Task

SHOWN = (3, 4, 5)
"""Members of a series that are shown before the one asked for."""


def succession(n: int | None = None, seed: int = 0) -> Task:
    """``n`` series of days, months, numbers or letters (default 100) to go on with, up to 400 held out.

    A member that is asked for on one side is not asked for on the other.
    """
    asked = [(series, at) for series, forms in lists.ROUND.items() for at in range(len(forms[0]))]
    asked += [(series, at) for series, forms in lists.STRAIGHT.items() for at in range(SHOWN[0], len(forms[0]))]
    return drawn_about("everyday/succession", asked, _next, n, seed)


def _next(rng: random.Random, asked: tuple[str, int], _: Sequence[tuple[str, int]]) -> Record:
    series, at = asked
    members = rng.choice((lists.ROUND | lists.STRAIGHT)[series])
    shown = rng.choice([length for length in SHOWN if series in lists.ROUND or length <= at])
    # Of a series that goes round, Sunday comes before Monday: an index below 0 is one from the end.
    before = [members[place] for place in range(at - shown, at)]
    return {"prompt": f"{', '.join(before)},", "target": f" {members[at]}"}


def copying(n: int | None = None, seed: int = 0, *, length: int = 8) -> Task:
    """``n`` lists of ``length`` random words, said a second time up to the word asked for (default 100).

    A word that is asked for on one side is not asked for on the other.
    """
    check_integer("length", length, 2, len(lists.NOUNS))
    return drawn_about("everyday/copying", lists.NOUNS, partial(_again, length), n, seed)


def _again(length: int, rng: random.Random, asked: str, _: Sequence[str]) -> Record:
    shown = [word for word in rng.sample(lists.NOUNS, length) if word != asked][: length - 1]
    at = rng.randrange(1, length)
    shown.insert(at, asked)
    return {"prompt": f"{', '.join(shown)}.\n{', '.join(shown[:at])},", "target": f" {asked}"}


def entries() -> dict[str, Entry]:
    """The skills by name."""
    return {
        "succession": Entry("the next of days, months, numbers or letters", succession),
        "copying": Entry("the next word of a list that is said twice", copying),
    }
