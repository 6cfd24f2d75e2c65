"""What an experiment is given, as the engine takes it: tokens of a task, and indices of its examples."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from cs_heads.arguments import check_integer, check_list
from cs_heads.lens import EncodedExample, encode_example
from cs_heads.lens.model import HookedModel, ModelInfo, context_length, tokenizer_of, vocabularies
from cs_heads.lens.tokens import NO_TOKENIZER, encode_prompt, leading_tokens, unknown_tokens, unread_words
from cs_heads.tasks import Example, Task
from cs_heads.tasks.chat import in_template
from cs_heads.tasks.example import hash_of, questions_of
from cs_heads.text import shown

# What stands in for the target of an example that has none: any token does.
_ANY = ((0,),)

# Words that a warning names.
_TOLD = 3

_HINT = '; load_task(..., too_long="truncate") cuts long prompts at the left'


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
        hint = "" if tokens.positions else _HINT
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


def tokens_of(model: HookedModel | ModelInfo, task: Task, encoded: Sequence[EncodedExample]) -> list[list[str]]:
    """Hashes of each example's tokens, as ``questions_of`` has them of texts: of the prompt, and of all it is.

    None of one with words that the tokenizer does not know: they differ, and their token does not.
    """
    tokenizer = tokenizer_of(model)
    unknown = set[int]() if tokenizer is None else {*unknown_tokens(tokenizer)}
    known: list[list[str]] = []
    for example, keys, tokens in zip(task.examples, questions_of(task.examples), encoded, strict=True):
        prompts = [tokens.prompt_of(i) for i in range(len(tokens.continuations))]
        if not unknown.isdisjoint({token for text in (*prompts, *tokens.continuations) for token in text}):
            known.append([])
            continue
        whole = sorted((*prompt, *answer) for prompt, answer in zip(prompts, tokens.continuations, strict=True))
        known.append([hash_of(["tokens", whole])])
        # Where the prompt says nothing, the text alone is known.
        if keys[0] != example.text:
            known[-1].append(hash_of(["prompt", sorted(set(prompts))]))
    return known


# Tokens of a text where nobody says how many.
_TEXT = 64


def text_length(model: HookedModel | ModelInfo, task: Task, prepend_bos: bool | None) -> int:
    """Tokens to write where a task says nothing: 64, or as many as the context leaves after the longest prompt."""
    limit = context_length(model)
    longest = 1 if task.too_long == "truncate" else max(map(len, _prompts(model, task, prepend_bos)))
    return _TEXT if limit is None else max(1, min(_TEXT, limit - longest))


def encode_prompts(
    model: HookedModel | ModelInfo, task: Task, prepend_bos: bool | None, max_new_tokens: int
) -> list[tuple[int, ...]]:
    """The prompts of a task, to generate after; without room for ``max_new_tokens`` more, ``ValueError`` is raised."""
    prompts = _prompts(model, task, prepend_bos)
    limit, longest = context_length(model), max(map(len, prompts))
    if limit is not None and task.too_long == "truncate" and max_new_tokens < limit:
        return [prompt[-(limit - max_new_tokens) :] for prompt in prompts]
    if limit is not None and longest + max_new_tokens > limit:
        raise ValueError(
            f"max_new_tokens must be {max(0, limit - longest)} or fewer: the longest prompt of task {task.name!r} has "
            f"{longest} tokens and the model's context {limit}; got {max_new_tokens}{_HINT}"
        )
    return prompts


def _prompts(model: HookedModel | ModelInfo, task: Task, prepend_bos: bool | None) -> list[tuple[int, ...]]:
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        raise ValueError(f"task {task.name!r} can be scored but not written out: {NO_TOKENIZER}")
    return [encode_prompt(tokenizer, example.prompt, prepend_bos) for example in as_shown(model, task).examples]


def check_writing(max_new_tokens: int, stop: Sequence[str]) -> None:
    """Raise ``ValueError`` unless texts have one token at least, and end at strings that are not empty."""
    check_integer("max_new_tokens", max_new_tokens, 1)
    if not all(isinstance(text, str) and text for text in check_list("stop", stop, "texts, none empty")):
        raise ValueError(f"stop must be a list of texts, none empty, got {stop!r:.80}")
