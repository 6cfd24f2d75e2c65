"""A task as tokens: the prompts and continuations of its examples, as a model with its tokenizer reads them."""

from __future__ import annotations

import warnings
from typing import Any

from cs_heads.lens import EncodedExample, encode_example
from cs_heads.lens.model import HookedModel, ModelInfo, context_length, tokenizer_of, vocabularies
from cs_heads.lens.tokens import NO_TOKENIZER, encode_prompt, leading_tokens, unread_words
from cs_heads.tasks import Example, Task
from cs_heads.tasks.chat import in_template
from cs_heads.text import shown

# What stands in for the target of an example that has none: any token does.
_ANY = ((0,),)

# Words that a warning names.
_TOLD = 3

TRUNCATES = '; load_task(..., too_long="truncate") cuts long prompts at the left'
"""What ends an error of a text that is too long."""


def as_shown(model: HookedModel | ModelInfo, task: Task) -> Task:
    """The task with its prompts in the model's chat template, where the task asks for that (``Task.chat``)."""
    tokenizer = tokenizer_of(model)
    if not task.over_token_ids:
        # Asks its files what comes before a text, and whether it has the token that a template may write there.
        leading_tokens(tokenizer)
    return in_template(tokenizer, task)


def encode_task(model: HookedModel | ModelInfo, task: Task, prepend_bos: bool | None) -> list[EncodedExample]:
    """The examples of a task as tokens; one that does not fit into the model's context raises ``ValueError``.

    So do a text for a model without a tokenizer, and tokens that the model does not read, or cannot answer with. With
    ``too_long="truncate"`` its prompt is cut at the left, as lm-eval's HFLM does: for each continuation to what that
    one leaves. Warns where the tokenizer merges the end of a prompt with a continuation, and of words it does not know.
    """
    tokenizer, limit, vocabulary = tokenizer_of(model), context_length(model), vocabularies(model)
    if tokenizer is None and not task.over_token_ids:
        raise ValueError(f"task {task.name!r} is made of texts: {NO_TOKENIZER}")
    unread: dict[str, int] = {}
    encoded: list[EncodedExample] = []
    for index, (plain, example) in enumerate(zip(task.examples, as_shown(model, task).examples, strict=True)):
        try:
            # Without what a chat template adds.
            for word in () if task.over_token_ids else _unread(tokenizer, plain):
                unread.setdefault(word, index)
            tokens = _encode(tokenizer, example, prepend_bos)
            _check_vocabulary(tokens, *vocabulary)
            prompts = [tokens.prompt_of(i) for i in range(len(tokens.continuations))]
            if len(set(zip(prompts, tokens.continuations, strict=True))) < len(prompts):
                raise ValueError(f"two choices are the same tokens to this tokenizer: {example.continuations}")
            encoded.append(tokens if limit is None else _fitting(tokens, prompts, limit, task.too_long))
        except ValueError as error:
            # The prompt too: the side of a split has other numbers than its file.
            place = f"task {task.name!r}, example {index} ({shown(example.prompt)[:40]!r})"
            raise ValueError(f"{place}: {error}") from error
    notes = []
    if merged := sum(tokens.merged for tokens in encoded):
        notes.append(
            f"in {merged} of {len(encoded)} examples the tokenizer merges the end of the prompt with a continuation; "
            "the merged token is scored with every continuation of the example"
        )
    if unread:
        named = ", ".join(f"{word!r} (example {index})" for word, index in [*unread.items()][:_TOLD])
        more = f" and {len(unread) - _TOLD} more" if len(unread) > _TOLD else ""
        why = "or none, in their place: the model is asked something else"
        notes.append(f"the tokenizer does not know {named}{more}, and puts another token, {why}")
    for note in notes:
        warnings.warn(f"task {task.name!r}: {note}", stacklevel=4)
    return encoded


def _unread(tokenizer: Any, example: Example) -> list[str]:
    """The words of an example that its tokenizer does not know."""
    unread: list[str] = []
    for place, answer in enumerate(example.continuations or [""]):
        prompt = shown(example.prompt_of(place))
        # What choices share is read once; a word may begin in the prompt.
        start = prompt if not place or example.prompts else prompt.split(" ")[-1]
        unread += unread_words(tokenizer, start + shown(answer))
    return unread


def _check_vocabulary(tokens: EncodedExample, n_in: int, n_out: int) -> None:
    """Raise ``ValueError`` for a token that the model does not read, or cannot answer with."""
    for continuation, answer in enumerate(tokens.continuations):
        for found, n, what in ((tokens.inputs_of(continuation), n_in, "reads"), (answer, n_out, "answers with")):
            if max(found) >= n:
                raise ValueError(f"token {max(found)} is none of those that the model {what}, 0..{n - 1}")


def _fitting(tokens: EncodedExample, prompts: list[tuple[int, ...]], limit: int, too_long: str) -> EncodedExample:
    """An example whose texts have ``limit`` tokens at most, the last of which is no input."""
    over = [len(tokens.inputs_of(continuation)) - limit for continuation in range(len(prompts))]
    if max(over) <= 0:
        return tokens
    too_short = any(n >= len(prompt) for n, prompt in zip(over, prompts, strict=True))
    if too_long == "refuse" or tokens.positions or too_short:
        hint = "" if tokens.positions or too_long == "truncate" else TRUNCATES
        raise ValueError(f"{limit + max(over)} tokens do not fit into the model's context of {limit}{hint}")
    return tokens.following([prompt[max(0, n) :] for n, prompt in zip(over, prompts, strict=True)])


def _encode(tokenizer: Any, example: Example, prepend_bos: bool | None) -> EncodedExample:
    if not example.continuations:
        return EncodedExample(encode_prompt(tokenizer, example.prompt, prepend_bos), _ANY, False)
    if not example.prompts:
        return encode_example(tokenizer, example.prompt, example.continuations, prepend_bos, example.positions)
    each = [
        encode_example(tokenizer, prompt, [continuation], prepend_bos)
        for prompt, continuation in zip(example.prompts, example.continuations, strict=True)
    ]
    merged = any(tokens.merged for tokens in each)
    joined = EncodedExample((), tuple(tokens.continuations[0] for tokens in each), merged)
    return joined.following([tokens.prompt for tokens in each])
