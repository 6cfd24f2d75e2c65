"""The same questions in two forms: answered by a letter among the options, or by the answer itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

from cs_heads.tasks.example import Example
from cs_heads.tasks.task import Task
from cs_heads.text import shown


def letter_form(task: Task, *, template: str = "{prompt}\n{options}\nAnswer:") -> Task:
    """A choice task with its choices listed in the prompt, and their letters to choose from: MMLU's form.

    The continuations are a space and a letter. Held-out examples go with the task, whose name gains ``/letters``; a
    scorer, which judges the answers themselves, does not.

    Args:
        task: The choice task.
        template: The new prompt, filled with the ``prompt`` and the ``options``.

    Returns:
        A new task of as many examples, whose right choices stand at the same places.

    Raises:
        ValueError: The task is of another kind, or has more choices than letters.

    >>> task = Task.from_records([{"prompt": "2 + 2 is", "choices": [" 3", " 4"], "answer": 1}])
    >>> example = letter_form(task).examples[0]
    >>> print(example.prompt, example.target, sep="|")
    2 + 2 is
    A. 3
    B. 4
    Answer:| B
    """
    _check_choice(task)

    def changed(example: Example) -> Example:
        n = len(example.continuations)
        if n > len(ascii_uppercase):
            raise ValueError(f"task {task.name!r} has {n} choices, and there are {len(ascii_uppercase)} letters")
        choices = zip(ascii_uppercase, example.continuations, strict=False)
        options = "\n".join(f"{letter}. {shown(choice).strip()}" for letter, choice in choices)
        named = tuple(f" {letter}" for letter in ascii_uppercase[:n])
        prompt = template.format(prompt=example.prompt, options=options)
        # Letters no longer tell one question's choices from another's.
        asked = None if example.asked is None else example.text
        return replace(example, prompt=prompt, continuations=named, asked=asked)

    return _changed(task, "letters", changed, length_normalized=False, scorer=None)


def full_form(task: Task, *, template: str = "{prompt}", length_normalized: bool | None = None) -> Task:
    """A choice task whose choices are the answers themselves, which the prompt does not list: the cloze form.

    Held-out examples go with the task, whose name gains ``/full``.

    Args:
        task: The choice task.
        template: The new prompt, filled with the ``prompt``.
        length_normalized: Score by ``acc_norm``, as is usual in this form; None: as it was.

    Returns:
        A new task of as many examples, whose answers are the same.

    Raises:
        ValueError: The task is of another kind, or has a scorer and ``length_normalized`` is given.
    """
    _check_choice(task)
    normalized = task.length_normalized if length_normalized is None else length_normalized
    return _changed(
        task, "full", lambda e: replace(e, prompt=template.format(prompt=e.prompt)), length_normalized=normalized
    )


def _changed(task: Task, suffix: str, change: Callable[[Example], Example], **scoring: Any) -> Task:
    held_out = None if task.held_out is None else _changed(task.held_out, suffix, change, **scoring)
    examples = tuple(map(change, task.examples))
    return replace(task, name=f"{task.name}/{suffix}", examples=examples, held_out=held_out, **scoring)


def _check_choice(task: Task) -> None:
    if task.kind != "choice":
        raise ValueError(f"task must be a choice task, {task.name!r} is a {task.kind} task")
    if task.over_token_ids:
        raise ValueError(f"task {task.name!r} is over token ids: its choices have no form but their own")
    if any(example.prompts for example in task.examples):
        raise ValueError(f"task {task.name!r} has a prompt for each choice: its choices stand in the prompts")
