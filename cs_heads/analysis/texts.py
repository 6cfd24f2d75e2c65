"""What is wrong with a text, without knowing what it should say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

LOOPED = 0.5
"""Share of a text that a loop at its end must cover, for the text to be called repetition."""
DISTINCT = 0.5
"""Share of different pairs of words below which a text is called repetition."""
LEAST = 8
"""Words that a text must have to be called repetition."""


def words_of(text: str) -> list[str]:
    """Words and punctuation marks of a text, in lower case; the characters of a text that is hardly more than one word.

    >>> words_of("The cat, the CAT"), words_of("aaa")
    (['the', 'cat', ',', 'the', 'cat'], ['aaa'])
    """
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return list(text.strip()) if len(words) < 3 and len(text) > 30 else words


def distinct(texts: Sequence[str], n: int) -> float:
    """Share of different n-grams of words among all of them, each text by itself: distinct-n, averaged over texts.

    (Li et al., *A Diversity-Promoting Objective Function for Neural Conversation Models*, arXiv 1510.03055.) Texts
    shorter than ``n`` words do not count; NaN where none is longer.

    >>> distinct(["a b a b"], 1), distinct(["a b a b"], 2)
    (0.5, 0.6666666666666666)
    """
    shares = []
    for text in texts:
        words = words_of(text)
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        if grams:
            shares.append(len({*grams}) / len(grams))
    return sum(shares) / len(shares) if shares else float("nan")


def looped(text: str) -> float:
    """Share of a text's words that lie in a loop at its end: the same words three times or more.

    >>> looped("once upon a time time time time time"), looped("one two three four")
    (0.625, 0.0)
    """
    words = words_of(text)
    most = 0
    for unit in range(1, len(words) // 3 + 1):
        last, times = words[-unit:], 1
        while words[-unit * (times + 1) : -unit * times] == last:
            times += 1
        most = max(most, times * unit if times >= 3 else 0)
    return most / len(words) if words else 0.0


def is_empty(text: str) -> bool:
    """Whether a text has no word in it, punctuation alone or nothing at all."""
    return not re.search(r"\w", text)


def is_repetition(text: str) -> bool:
    """Whether half of a text is a loop at its end, or fewer than half of its pairs of words differ.

    Texts of fewer than eight words are not judged.

    >>> is_repetition("the the the the the the the the"), is_repetition("so go and see who that is now")
    (True, False)
    """
    return len(words_of(text)) >= LEAST and (looped(text) >= LOOPED or distinct([text], 2) < DISTINCT)


def most_common(items: Sequence[object]) -> int:
    """How many of the items are the one that is there most often."""
    return Counter(items).most_common(1)[0][1] if items else 0
