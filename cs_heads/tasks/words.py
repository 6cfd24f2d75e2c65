"""The library's own lists of words and sentences."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("word_lists")


@cache
def sentences(name: str) -> tuple[str, ...]:
    """The lines of a list, as they stand."""
    return tuple(filter(None, (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()))


@cache
def rows(name: str) -> tuple[tuple[str, ...], ...]:
    """The lines of a list, each split into its words.

    >>> rows("rhymes")[0]
    ('bough', 'cow', 'how', 'now', 'vow', 'brow', 'allow')
    """
    return tuple(tuple(word.replace("_", " ") for word in line.split()) for line in sentences(name))


@cache
def word_list(name: str) -> tuple[str, ...]:
    """The words of a list, in its order."""
    return tuple(word for row in rows(name) for word in row)


@cache
def word_pairs(name: str) -> tuple[tuple[str, str], ...]:
    """A list of pairs ``word/other``.

    >>> word_pairs("singular-plural")[:2]
    (('cat', 'cats'), ('dog', 'dogs'))
    """
    split = (entry.split("/") for row in rows(name) for entry in row)
    return tuple((word, other) for word, other in split)
