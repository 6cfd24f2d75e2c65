"""Places in a prompt, as tokens: where z is recorded or replaced, and which token answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cs_heads.lens.bos import leading_tokens
from cs_heads.lens.tokens import EncodedExample, encode_example
from cs_heads.text import Text


@dataclass(frozen=True)
class PatchPoint:
    """A prompt, the positions in it where z is recorded or replaced, and the tokens that may answer it.

    One answer: the effect is measured on its probability. Two: on the log-probability of the first
    minus that of the second (nats), which is the difference of their logits.
    """

    prompt: tuple[int, ...]
    positions: tuple[int, ...]
    answers: tuple[int, ...]


def encode_point(
    tokenizer: Any, prompt: Text, answers: Sequence[Text], ends: Sequence[int] = (), prepend_bos: bool | None = None
) -> PatchPoint:
    """Tokenise a prompt and the first token of each answer; ``ends`` are places as numbers of characters, or token ids.

    A place is the last token of the text up to there; without any it is the last token of the prompt.
    Raises ``ValueError`` where answers begin with the same token, or where a place lies inside a token.
    """
    encoded = encode_answers(tokenizer, prompt, answers, prepend_bos)
    first = tuple(continuation[0] for continuation in encoded.continuations)
    if len(set(first)) < len(first):
        raise ValueError(f"answers {', '.join(map(repr, answers))} begin with the same token")
    if not ends:
        return PatchPoint(encoded.prompt, (len(encoded.prompt) - 1,), first)
    return PatchPoint(encoded.prompt, tuple(_place(tokenizer, prompt, end, encoded.prompt) for end in ends), first)


def encode_answers(
    tokenizer: Any, prompt: Text, answers: Sequence[Text], prepend_bos: bool | None = None
) -> EncodedExample:
    """``encode_example``, but white space at the end of the prompt that all answers share as a token stays with it."""
    encoded = encode_example(tokenizer, prompt, answers, prepend_bos)
    while len({tokens[0] for tokens in encoded.continuations}) == 1 and min(map(len, encoded.continuations)) > 1:
        shared = encoded.continuations[0][0]
        if not isinstance(prompt, str) or tokenizer.decode([shared]).strip():
            break
        rest = tuple(tokens[1:] for tokens in encoded.continuations)
        encoded = replace(encoded, prompt=(*encoded.prompt, shared), continuations=rest)
    return encoded


def _place(tokenizer: Any, prompt: Text, end: int, tokens: tuple[int, ...]) -> int:
    if not isinstance(prompt, str):
        return end - 1
    until = list(tokenizer(prompt[:end], add_special_tokens=False)["input_ids"])
    # The prompt may have a beginning-of-sequence token, or what else the tokenizer prepends, before its text.
    for before in (0, 1, len(leading_tokens(tokenizer))):
        if until and list(tokens[before : before + len(until)]) == until:
            return before + len(until) - 1
    raise ValueError(f"place {end} of prompt {prompt[:60]!r} lies inside a token ({prompt[max(0, end - 10) : end]!r})")
