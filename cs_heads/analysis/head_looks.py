"""What heads look at on a task: shares of the last token's attention, where the answer is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from cs_heads.analysis.attention import habit_masks
from cs_heads.lens.attention import token_texts
from cs_heads.lens.tokens import encode_prompt
from cs_heads.tasks import Example
from cs_heads.tasks.worked_examples import Form
from cs_heads.text import TokenIds

LOOKS = {
    "looks at the token before": "the token before",
    "looks at the first token": "the first token",
    "looks at the same token": "earlier copies of the last token",
    "looks at what followed it": "what followed earlier copies of the last token",
    "looks at punctuation": "punctuation",
    "looks at the right answer": "the right answer in the prompt",
    "looks at wrong answers": "wrong answers in the prompt",
    "looks at the question": "the question",
    "looks at worked answers": "answers of worked examples",
    "looks at worked examples": "worked examples beside their answers",
}
"""Shares of the last token's attention, and what they go to."""

EVERYWHERE = (
    *("at every token: the token before", "at every token: the first token", "at every token: earlier copies of it"),
    *("at every token: what followed earlier copies of it", "at every token: punctuation"),
    *("at every token: the question", "at every token: answers of worked examples"),
)
"""Shares of the attention of all tokens of a prompt; the last two of those tokens that can look there."""


def tokens_looked_at(
    tokenizer: Any, ids: TokenIds, right: Collection[int], wrong: Collection[int], parts: Mapping[str, Any]
) -> dict[str, Bool[np.ndarray, " pos"]]:
    """Of each of ``LOOKS`` the tokens of a prompt that it is of.

    Args:
        tokenizer: The model's; None for a model without one.
        ids: The prompt's tokens.
        right: Tokens that the right answer begins with.
        wrong: Tokens that wrong answers begin with.
        parts: As far as they are known (``parts_of``).

    >>> seen = tokens_looked_at(None, (5, 7, 8, 5), [7], [], {})
    >>> seen["looks at what followed it"].tolist(), seen["looks at the right answer"].tolist()
    ([False, True, False, False], [False, True, False, False])
    """
    token, none = np.array(ids), np.zeros(len(ids), dtype=bool)
    *kinds, question, answers = looked_at_everywhere(tokenizer, ids, parts)[:, -1]
    found = [
        *kinds,
        np.isin(token, [*right]),
        np.isin(token, [*wrong]),
        question,
        answers,
        parts.get("worked examples", none) & ~answers,
    ]
    return dict(zip(LOOKS, found, strict=True))


def looked_at_everywhere(tokenizer: Any, ids: TokenIds, parts: Mapping[str, Any]) -> Bool[np.ndarray, "kind query key"]:
    """Of each of ``EVERYWHERE`` the tokens that it is of, by the token that looks.

    They are the patterns of TransformerLens's ``detect_head``, with the first token, punctuation and parts beside.

    Args:
        tokenizer: The model's; None for a model without one.
        ids: The prompt's tokens.
        parts: As far as they are known (``parts_of``).
    """
    texts = ["" for _ in ids] if tokenizer is None else token_texts(tokenizer, ids)
    marks = np.array([bool(text.strip()) and not any(letter.isalnum() for letter in text) for text in texts])
    special = np.isin(ids, [] if tokenizer is None else tokenizer.all_special_ids)
    none = np.zeros(len(ids), dtype=bool)
    keys = [marks & ~special, *(parts.get(name, none) for name in ("question", "worked answers"))]
    return np.concatenate([habit_masks(ids), np.tril(np.tile(np.stack(keys)[:, None], (1, len(ids), 1)))])


def weights_everywhere(tokenizer: Any, ids: TokenIds, parts: Mapping[str, Any]) -> Float[np.ndarray, "kind query key"]:
    """What attention is weighted by, so that it sums to each of ``EVERYWHERE``: NaN for a part that is not there.

    Args:
        tokenizer: The model's; None for a model without one.
        ids: The prompt's tokens.
        parts: As far as they are known (``parts_of``).

    >>> weights_everywhere(None, (5, 7, 8), {"question": np.array([False, True, False])})[5].tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.5, 0.0]]
    """
    where = looked_at_everywhere(tokenizer, ids, parts)
    able = where.any(axis=2).sum(axis=1)
    # As detect_head counts, but for parts: nothing before them can look there.
    able[:-2] = len(ids)
    with np.errstate(invalid="ignore"):
        return where / able[:, None, None]


def parts_of(
    tokenizer: Any, example: Example, ids: TokenIds, prepend_bos: bool | None, form: Form | None
) -> dict[str, Bool[np.ndarray, " pos"]]:
    """The tokens of a prompt that are its bare question, worked examples before it, and the answers of these.

    Nothing where it is all question; no worked examples where none of their form stands before it, but a heading.

    Args:
        tokenizer: The model's.
        example: The example, as the model is shown it.
        ids: The prompt's tokens.
        prepend_bos: As in ``Settings``.
        form: That of the questions, and of worked examples before them.
    """
    prompt, asked, place = example.prompt, example.asked, np.arange(len(ids))
    if not isinstance(prompt, str) or not asked or asked == prompt or asked not in prompt:
        return {}

    def between(begin: int, end: int) -> Bool[np.ndarray, " pos"]:
        first, last = (len(encode_prompt(tokenizer, prompt[:until], prepend_bos)) for until in (begin, end))
        return (place >= first) & (place < last)

    start = prompt.rindex(asked)
    parts = {"question": between(start, start + len(asked))}
    if form is not None and (worked := [*form.worked.finditer(prompt, 0, start)]):
        parts["worked examples"] = between(worked[0].start(), start) & (place > 0)
        parts["worked answers"] = np.any([between(*one.span("answer")) for one in worked], axis=0)
    return parts


def shares(
    patterns: Sequence[Float[np.ndarray, "head _"]], seen: Sequence[Mapping[str, Bool[np.ndarray, "_"]]]
) -> dict[str, Float[np.ndarray, "prompt head"]]:
    """By what is looked at the share of attention that it gets, NaN on prompts that have no such token; and entropy."""
    found = {
        name: np.stack(
            [
                pattern @ each[name] if each[name].any() else np.full(len(pattern), np.nan)
                for pattern, each in zip(patterns, seen, strict=True)
            ]
        )
        for name in LOOKS
    }
    entropy = [-(pattern * np.log(np.maximum(pattern, 1e-12))).sum(axis=1) for pattern in patterns]
    return {**found, "entropy": np.stack(entropy)}
