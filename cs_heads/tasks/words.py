"""The library's own word lists, and words that are one token to a model."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from cs_heads.arguments import check_seed

_FOLDER = Path(__file__).with_name("word_lists")
# More words than a task can use; asking a tokenizer for each of its tokens takes seconds.
_MOST = 2000


@cache
def rows(name: str) -> tuple[tuple[str, ...], ...]:
    """The lines of a list, each split into its words.

    >>> rows("rhymes")[0]
    ('bough', 'cow', 'how', 'now', 'vow', 'brow', 'allow')
    """
    lines = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return tuple(tuple(word.replace("_", " ") for word in line.split()) for line in lines if line.strip())


@cache
def nouns() -> tuple[str, ...]:
    """About two hundred short English nouns and colors, in alphabetical order."""
    return tuple(word for row in rows("nouns") for word in row)


@cache
def word_pairs(name: str) -> tuple[tuple[str, str], ...]:
    """A list of pairs ``word/other``.

    >>> word_pairs("singular-plural")[:2]
    (('cat', 'cats'), ('dog', 'dogs'))
    """
    split = (entry.split("/") for row in rows(name) for entry in row)
    return tuple((word, other) for word, other in split)


def single_token_words(tokenizer: Any, words: Iterable[str] | None = None, seed: int = 0) -> tuple[str, ...]:
    """The words that are one token to a tokenizer where they follow a space, in the order they come.

    Without ``words``, those of its own vocabulary: up to 2,000 tokens of three or more lower-case letters a–z,
    drawn with ``seed``. They are what symbolic tasks are made of when each word must be one position.
    """
    check_seed(seed)
    if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
        raise ValueError(f"tokenizer must be a tokenizer, as model.tokenizer, got {tokenizer!r:.80}")
    unknown = getattr(tokenizer, "unk_token_id", None)
    if words is None:
        found = {tokenizer.decode([index]).strip() for index in range(len(tokenizer))}
        listed = sorted(
            word for word in found if len(word) > 2 and word.isascii() and word.isalpha() and word.islower()
        )
        random.Random(seed).shuffle(listed)
        words = listed[:_MOST]
    # After another word: alone, a word may begin with a token that stands for the start of the text.
    return tuple(
        word
        for word in dict.fromkeys(words)
        if (tokens := _ids(tokenizer, f"{word} {word} {word}"))[-1:] != [unknown]
        and tokens[-1:] == tokens[-2:-1]
        and len(tokens) == len(_ids(tokenizer, f"{word} {word}")) + 1
    )


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
