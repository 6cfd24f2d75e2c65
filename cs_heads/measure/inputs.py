"""What an experiment is given, as the engine takes it: tokens of a task, and indices of its examples."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from cs_heads.integers import check_integer
from cs_heads.lens import EncodedExample, encode_example
from cs_heads.lens.model import context_length
from cs_heads.lens.tokens import encode_prompt
from cs_heads.measure.chat import as_shown
from cs_heads.tasks import Example, Task

# What stands in for the target of an example that has none: any token does.
_ANY = ((0,),)

_HINT = '; load_task(..., too_long="truncate") cuts long prompts at the left'


def encode_task(model: Any, task: Task, prepend_bos: bool | None) -> list[EncodedExample]:
    """The examples of a task as tokens; one that does not fit into the model's context raises ``ValueError``.

    With ``too_long="truncate"`` its prompt is cut at the left, as lm-eval's HFLM does: for each continuation to what
    that one leaves. Warns where the tokenizer merges the end of a prompt with a continuation.
    """
    if getattr(model, "tokenizer", None) is None:
        raise ValueError("model has no tokenizer: give it one (model.tokenizer), tasks are texts")
    task = as_shown(model, task)
    encoded = []
    limit = context_length(model)
    for index, example in enumerate(task.examples):
        # The prompt too: the side of a split has other numbers than its file.
        place = f"task {task.name!r}, example {index} ({example.prompt[:40]!r})"
        try:
            tokens = _encode(model.tokenizer, example, prepend_bos)
            prompts = [tokens.prompt_of(i) for i in range(len(tokens.continuations))]
            if len(set(zip(prompts, tokens.continuations, strict=True))) < len(prompts):
                raise ValueError(f"two choices are the same tokens to this tokenizer: {example.continuations}")
            encoded.append(tokens if limit is None else _fitting(tokens, prompts, limit, task.too_long))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    merged = sum(tokens.merged for tokens in encoded)
    if merged:
        warnings.warn(
            f"task {task.name!r}: in {merged} of {len(encoded)} examples the tokenizer merges the end of the "
            "prompt with a continuation; the merged token is scored with every continuation of the example",
            stacklevel=4,
        )
    return encoded


def _fitting(tokens: EncodedExample, prompts: list[tuple[int, ...]], limit: int, too_long: str) -> EncodedExample:
    """An example whose texts have ``limit`` tokens at most, the last of which is no input."""
    over = [len(prompt) + len(c) - 1 - limit for prompt, c in zip(prompts, tokens.continuations, strict=True)]
    if max(over) <= 0:
        return tokens
    if too_long == "refuse" or any(n >= len(prompt) for n, prompt in zip(over, prompts, strict=True)):
        raise ValueError(f"{limit + max(over)} tokens do not fit into the model's context of {limit}{_HINT}")
    return tokens.following([prompt[max(0, n) :] for n, prompt in zip(over, prompts, strict=True)])


def _encode(tokenizer: Any, example: Example, prepend_bos: bool | None) -> EncodedExample:
    if not example.continuations:
        return EncodedExample(encode_prompt(tokenizer, example.prompt, prepend_bos), _ANY, False)
    if not example.prompts:
        return encode_example(tokenizer, example.prompt, example.continuations, prepend_bos)
    each = [
        encode_example(tokenizer, prompt, [continuation], prepend_bos)
        for prompt, continuation in zip(example.prompts, example.continuations, strict=True)
    ]
    merged = any(tokens.merged for tokens in each)
    joined = EncodedExample((), tuple(tokens.continuations[0] for tokens in each), merged)
    return joined.following([tokens.prompt for tokens in each])


# Tokens of a text where nobody says how many.
_TEXT = 64


def text_length(model: Any, task: Task, prepend_bos: bool | None) -> int:
    """Tokens to write where a task says nothing: 64, or as many as the context leaves after the longest prompt."""
    limit = context_length(model)
    if limit is None or task.too_long == "truncate":
        return _TEXT if limit is None else max(1, min(_TEXT, limit - 1))
    longest = max(len(encode_prompt(model.tokenizer, e.prompt, prepend_bos)) for e in as_shown(model, task).examples)
    return max(1, min(_TEXT, limit - longest))


def encode_prompts(model: Any, task: Task, prepend_bos: bool | None, max_new_tokens: int) -> list[tuple[int, ...]]:
    """The prompts of a task, to generate after; without room for ``max_new_tokens`` more, ``ValueError`` is raised."""
    prompts = [encode_prompt(model.tokenizer, e.prompt, prepend_bos) for e in as_shown(model, task).examples]
    limit, longest = context_length(model), max(map(len, prompts))
    if limit is not None and task.too_long == "truncate" and max_new_tokens < limit:
        return [prompt[-(limit - max_new_tokens) :] for prompt in prompts]
    if limit is not None and longest + max_new_tokens > limit:
        raise ValueError(
            f"max_new_tokens must be {max(0, limit - longest)} or fewer: the longest prompt of task {task.name!r} has "
            f"{longest} tokens and the model's context {limit}; got {max_new_tokens}{_HINT}"
        )
    return prompts


def check_writing(max_new_tokens: int, stop: Sequence[str]) -> None:
    """Raise ``ValueError`` unless texts have one token at least, and end at strings that are not empty."""
    check_integer("max_new_tokens", max_new_tokens, 1)
    if isinstance(stop, str) or "" in stop:
        raise ValueError(f"stop must be a list of texts, none empty, got {stop!r}")
