"""Chat templates: a prompt as a user's message, up to where the model's answer begins.

A template that states today's date states one and the same on every day, so that results can be repeated.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime
from typing import Any

from cs_heads.tasks.example import Example
from cs_heads.tasks.task import Task
from cs_heads.text import ChatPrompt, has_made_up_bos, shown

_DATE = datetime(2024, 7, 26)


def _date_part(code: str) -> str:
    """A code's text; the code itself where this system does not have it."""
    try:
        return _DATE.strftime(code)
    except ValueError:
        return code


# By what a format asks for, its text: the codes of C, without leading zeros where that is asked for. "%%" stands aside
# while the others are put in. A code that is none of these stays as it is written.
_TEXTS = {"%%": "\0", **{f"%{code}": _date_part(f"%{code}") for code in "aAbBcCdDeFfgGhHIjmMnprRStTuUVwWxXyYzZ"}}
_TEXTS |= {f"%-{code}": _TEXTS[f"%{code}"].lstrip("0") or "0" for code in "dHIjmMSUWy"}
_TEXTS |= {"\0": "%"}

# In place of the `strftime_now` of transformers, which no argument replaces. A line end after a block is left out
# there: the template begins on a line of its own, as it did.
_MACRO = (
    "{% macro strftime_now(format) %}{% set said = namespace(text=format) %}"
    "{% for code, text in fixed_date.items() %}{% set said.text = said.text | replace(code, text) %}{% endfor %}"
    "{{ said.text }}{% endmacro %}\n"
)


def chat_template(tokenizer: Any) -> str | None:
    """The tokenizer's chat template; None where it has none."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template or None


def chat_prompt(tokenizer: Any, prompt: str) -> ChatPrompt:
    """A prompt as a user's message, followed by what opens the answer; without a template ``ValueError`` is raised.

    Its tokens are those of ``apply_chat_template``, and what answers it is tokenized apart. A beginning-of-sequence
    token that the template writes stays in the text; ``encode_prompt`` and ``encode_example`` then add no other.
    """
    import jinja2

    if chat_template(tokenizer) is None:
        raise ValueError(
            "the tokenizer has no chat template: load an instruction-tuned model, set tokenizer.chat_template, "
            'or leave prompts as they are (chat="off", or chat="auto")'
        )
    settings = {"add_generation_prompt": True, "continue_final_message": False, **_as_loaded_on_any_day(tokenizer)}
    message = [{"role": "user", "content": prompt}]
    try:
        return ChatPrompt(tokenizer.apply_chat_template(message, tokenize=False, **settings))
    except jinja2.TemplateError as error:
        raise ValueError(f"the tokenizer's chat template fails: {error}") from error


def template_identity(tokenizer: Any, task: Task | None = None) -> str | None:
    """A short hash of the chat template; None where there is none, or where a task's prompts are not put in it."""
    template = chat_template(tokenizer)
    if template is None or (task is not None and _is_bare(task, tokenizer)):
        return None
    return hashlib.sha256(template.encode()).hexdigest()[:16]


def in_template(tokenizer: Any, task: Task) -> Task:
    """The task with each prompt as a user's message of the chat template, and answers without leading space.

    With ``chat="off"``, over token ids, and with ``"auto"`` for a tokenizer without a template, it is the task itself.
    ``chat="on"`` for such a tokenizer raises ``ValueError``.
    """
    if _is_bare(task, tokenizer):
        return task

    def changed(example: Example) -> Example:
        prompts = tuple(chat_prompt(tokenizer, shown(prompt)) for prompt in example.prompts)
        # An answer that is white space is all there is.
        continuations = tuple(shown(text).lstrip() or shown(text) for text in example.continuations)
        prompt = chat_prompt(tokenizer, shown(example.prompt))
        return replace(example, prompt=prompt, continuations=continuations, prompts=prompts)

    try:
        return replace(task, examples=tuple(map(changed, task.examples)), chat="off")
    except ValueError as error:
        raise ValueError(f"task {task.name!r}: {error}") from error


def _is_bare(task: Task, tokenizer: Any) -> bool:
    """Whether prompts stay as they are."""
    return task.chat == "off" or task.over_token_ids or (task.chat == "auto" and chat_template(tokenizer) is None)


def _as_loaded_on_any_day(tokenizer: Any) -> dict[str, Any]:
    """Arguments of ``apply_chat_template`` by which a prompt is that of the tokenizer as it was loaded, on every day.

    It states 26 Jul 2024, however its template asks for today: that may read a variable, as those of Llama 3 do, or
    call a function with the format of the date. And it has no beginning-of-sequence token that was made up.
    """
    template = chat_template(tokenizer)
    given: dict[str, Any] = {"date_string": _DATE.strftime("%d %b %Y")}
    if template is not None and "strftime_now" in template:
        given |= {"chat_template": _MACRO + template, "fixed_date": _TEXTS}
    if has_made_up_bos(tokenizer):
        given["bos_token"] = ""  # as jinja writes what is not defined
    return given
