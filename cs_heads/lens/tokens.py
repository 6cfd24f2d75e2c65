"""Text to tokens: joining a prompt and its continuations without losing a token at the border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from cs_heads.lens.bos import leading_tokens


@dataclass(frozen=True)
class EncodedExample:
    """Token ids of a prompt (never empty) and of each continuation after it (none empty).

    ``merged`` says that some continuation shares a token with the end of the prompt; that token is
    then scored with the continuation, for every continuation alike. ``prompts`` has one prompt for each continuation
    where they differ; ``prompt`` is then the first of them.
    """

    prompt: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    merged: bool
    prompts: tuple[tuple[int, ...], ...] = ()

    def prompt_of(self, continuation: int) -> tuple[int, ...]:
        """What a continuation follows, by its index."""
        return self.prompts[continuation] if self.prompts else self.prompt

    def following(self, prompts: Sequence[tuple[int, ...]]) -> EncodedExample:
        """The same continuations, each after its own of ``prompts``."""
        return replace(self, prompt=prompts[0], prompts=tuple(prompts) if len(set(prompts)) > 1 else ())


def encode_example(
    tokenizer: Any, prompt: str, continuations: Sequence[str], prepend_bos: bool | None = None
) -> EncodedExample:
    """Tokenise prompt + continuation in one piece and cut it where the prompt ends, as lm-eval does.

    Spaces at the end of the prompt go with the continuation. The cut lies where the tokens of the
    prompt alone and those of every joined text last agree, so a token that spans the border is
    neither lost nor split. ``prepend_bos`` None prepends what the tokenizer itself does when asked to add special
    tokens, as it was loaded: those of Llama and Gemma a beginning-of-sequence token, those of GPT-2 and Qwen none. A
    prompt that begins with this token gets no second one, an empty prompt always gets one, the end-of-sequence token
    for want of another. A tokenizer with neither, or a continuation without tokens, raises ``ValueError``.
    """
    context = _encode(tokenizer, prompt.rstrip())
    joined = [_encode(tokenizer, prompt + continuation) for continuation in continuations]
    border = min(_common_prefix(context, tokens) for tokens in joined)
    for text, tokens in zip(continuations, joined, strict=True):
        if len(tokens) <= border:
            raise ValueError(f"continuation {text!r} has no token of its own after prompt {prompt[-40:]!r}")
    prefix = _prefix(tokenizer, prepend_bos, context[:border])
    return EncodedExample(
        prompt=(*prefix, *context[:border]),
        continuations=tuple(tuple(tokens[border:]) for tokens in joined),
        merged=border < len(context),
    )


def encode_prompt(tokenizer: Any, prompt: str, prepend_bos: bool | None = None) -> tuple[int, ...]:
    """Tokens of a prompt that a text is generated after; ``prepend_bos`` is as in ``encode_example``."""
    tokens = _encode(tokenizer, prompt)
    return (*_prefix(tokenizer, prepend_bos, tokens), *tokens)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _common_prefix(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _prefix(tokenizer: Any, prepend_bos: bool | None, tokens: list[int]) -> tuple[int, ...]:
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if prepend_bos and bos is None:
        raise ValueError("prepend_bos is True, but the tokenizer has no beginning-of-sequence token")
    wanted = leading_tokens(tokenizer) if prepend_bos is None else (int(bos),) if prepend_bos else ()
    # A text that writes the token out, as chat templates do, has it already.
    if tokens and tokens[0] in (bos, *wanted[:1]):
        return ()
    if tokens or wanted:
        return wanted
    first = bos if bos is not None else eos
    if first is None:
        raise ValueError(
            "an empty prompt needs a beginning- or end-of-sequence token to stand before it; the tokenizer has neither"
        )
    return (int(first),)
