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

from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.everyday import sentences, sequences, word_to_word


def catalogue() -> dict[str, Entry]:
    """The skills by name."""
    return dict(sorted((sentences.entries() | sequences.entries() | word_to_word.entries()).items()))
