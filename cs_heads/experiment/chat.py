"""A task as a model is shown it: prompts in its chat template, where the task asks for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cs_heads.lens.chat import chat_prompt, template_identity
from cs_heads.lens.model import tokenizer_of
from cs_heads.tasks import Example, Task
from cs_heads.text import chat_template, shown


def template_of(model: Any, task: Task) -> str | None:
    """A hash of the chat template that a task's prompts are put in on this model; None where they are not."""
    tokenizer = tokenizer_of(model)
    if _is_bare(task, tokenizer):
        return None
    return template_identity(tokenizer)


def as_shown(model: Any, task: Task) -> Task:
    """The task with each prompt as a user's message of the model's chat template, and answers without leading space.

    With ``chat="off"``, over token ids, and with ``"auto"`` on a model without a template, it is the task itself.
    ``chat="on"`` on such a model raises ``ValueError``.
    """
    tokenizer = tokenizer_of(model)
    if _is_bare(task, tokenizer):
        return task
    try:
        return replace(task, examples=tuple(_shown(tokenizer, example) for example in task.examples), chat="off")
    except ValueError as error:
        raise ValueError(f"task {task.name!r}: {error}") from error


def _is_bare(task: Task, tokenizer: Any) -> bool:
    """Whether prompts stay as they are."""
    no_template = task.chat == "auto" and chat_template(tokenizer) is None
    return task.chat == "off" or task.over_token_ids or no_template


def _shown(tokenizer: Any, example: Example) -> Example:
    continuations = tuple(shown(text).lstrip() for text in example.continuations)
    prompts = tuple(chat_prompt(tokenizer, shown(prompt)) for prompt in example.prompts)
    prompt = chat_prompt(tokenizer, shown(example.prompt))
    return replace(example, prompt=prompt, continuations=continuations, prompts=prompts)
