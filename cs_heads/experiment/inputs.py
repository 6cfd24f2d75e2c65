"""What an experiment is given beside a task's examples: what each is known by, and the prompts that texts follow."""

from __future__ import annotations

from collections.abc import Sequence

from cs_heads.arguments import check_integer, check_list
from cs_heads.engine.encoding import TRUNCATES, as_shown
from cs_heads.lens import EncodedExample
from cs_heads.lens.model import HookedModel, ModelInfo, context_length, tokenizer_of
from cs_heads.lens.tokens import NO_TOKENIZER, encode_prompt, unknown_tokens
from cs_heads.tasks import Task
from cs_heads.tasks.example import hash_of, questions_of


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
    """Tokens to write where a task says nothing: 64, or as many as the context leaves after the longest prompt.

    Prompts that leave none are refused, or cut for 64.
    """
    limit = context_length(model)
    if limit is None:
        return _TEXT
    lengths = [len(prompt) for prompt in _prompts(model, task, prepend_bos)]
    fitting = [n for n in lengths if n < limit or task.too_long == "refuse"]
    return max(1, min(_TEXT, limit - max(fitting, default=1)))


def encode_prompts(
    model: HookedModel | ModelInfo, task: Task, prepend_bos: bool | None, max_new_tokens: int
) -> list[tuple[int, ...]]:
    """The prompts of a task, to generate after; without room for ``max_new_tokens`` more, ``ValueError`` is raised."""
    prompts = _prompts(model, task, prepend_bos)
    limit, longest = context_length(model), max(map(len, prompts))
    if limit is None or longest + max_new_tokens <= limit:
        return prompts
    if task.too_long == "truncate":
        check_integer("max_new_tokens", max_new_tokens, 1, limit - 1, "the model's context but for a token of a prompt")
        return [prompt[-(limit - max_new_tokens) :] for prompt in prompts]
    raise ValueError(
        f"max_new_tokens must be {max(0, limit - longest)} or fewer: the longest prompt of task {task.name!r} has "
        f"{longest} tokens and the model's context {limit}; got {max_new_tokens}{TRUNCATES}"
    )


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
