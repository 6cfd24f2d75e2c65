"""The demo model's tokenizer: one token per word, digit or run of punctuation.

"word" and " word" are the same token.
"""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cs_heads.demo import skills, words

SPECIAL: tuple[str, ...] = ("<pad>", "<s>", "</s>", "<unk>")
PATTERN = r"\d|[^\W\d]+|[^\w\s]+"
"""A digit, a word, or a run of punctuation."""


def split_words(text: str) -> list[str]:
    """The pieces of a text, as the tokenizer cuts it."""
    return re.findall(PATTERN, text)


def vocabulary() -> list[str]:
    """Every token in order of its number: the special ones, the digits, then the words of the skills."""
    pieces: set[str] = set()
    for name, value in vars(words).items():
        if name.isupper():
            pieces.update(piece for text in _strings(value) for piece in split_words(text))
    for skill in skills.SKILLS:  # frames and punctuation live in the generators
        stream = skills.examples(skill, "train", seed=0)
        for _ in range(4000):
            example = next(stream)
            pieces.update(split_words(f"{example.prompt} {example.answer} {example.shortcut}"))
    digits = [str(digit) for digit in range(10)]
    return [*SPECIAL, *digits, *sorted(pieces - set(digits))]


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = tuple(value) + tuple(value.values())
    return [text for part in value for text in _strings(part)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; encoding with special tokens puts exactly `<s>` in front."""
    numbers = {token: number for number, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", numbers["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )
