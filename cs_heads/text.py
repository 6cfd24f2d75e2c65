"""What prompts and answers are written in: characters, or token ids for models that read no text."""

from __future__ import annotations

from math import isnan
from typing import Any, TypeAlias

TokenIds: TypeAlias = tuple[int, ...]
Text: TypeAlias = str | TokenIds
"""Characters, which a tokenizer reads, or token ids, which need none."""


class ChatPrompt(str):
    """A prompt that a chat template wrote, with its special tokens; what answers it is tokenized apart."""

    __slots__ = ()


def is_token_ids(text: object) -> bool:
    """Whether it is a tuple of integers of 0 or more, at least one; a truth value is none."""
    return isinstance(text, tuple) and len(text) > 0 and all(type(token) is int and token >= 0 for token in text)


def shown(text: Text) -> str:
    """A text as it stands; token ids as a list of numbers.

    >>> shown("One, two"), shown((1, 2))
    ('One, two', '[1, 2]')
    """
    return text if isinstance(text, str) else str(list(text))


def first_line(error: BaseException) -> str:
    r"""The first line of an error's message, or its class where it has none.

    >>> first_line(ValueError("no such file\nsee the log")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


MADE_UP_BOS = "cs_heads_made_up_bos"
"""On a tokenizer: what TransformerLens put in place of the beginning-of-sequence token that its files do not have."""


def has_made_up_bos(tokenizer: Any) -> bool:
    """Whether the beginning-of-sequence token that a tokenizer names is none of its own."""
    made_up = getattr(tokenizer, MADE_UP_BOS, None)
    return made_up is not None and bool(made_up == tokenizer.bos_token)


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them; empty where they are not known.

    >>> duration(0.2), duration(200.0), duration(2e5)
    ('1 s', '3.3 min', '2.3 d')
    """
    if isnan(seconds):
        return ""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} s"
