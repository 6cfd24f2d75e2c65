"""What prompts and answers are written in: characters, token ids for models that read no text, and chat templates."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias

TokenIds: TypeAlias = tuple[int, ...]
Text: TypeAlias = str | TokenIds
"""Characters, which a tokenizer reads, or token ids, which need none."""


def is_token_ids(text: object) -> bool:
    """Whether it is a tuple of integers of 0 or more, at least one; a truth value is none."""
    return isinstance(text, tuple) and len(text) > 0 and all(type(token) is int and token >= 0 for token in text)


def shown(text: Text) -> str:
    """A text as it stands; token ids as a list of numbers.

    >>> shown("One, two"), shown((1, 2))
    ('One, two', '[1, 2]')
    """
    return text if isinstance(text, str) else str(list(text))


def first_line(error: BaseException) -> str:
    r"""The first line of an error's message, or its class where it has none.

    >>> first_line(ValueError("no such file\nsee the log")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


MADE_UP_BOS = "cs_heads_made_up_bos"
"""On a tokenizer: what TransformerLens put in place of the beginning-of-sequence token that its files do not have."""

_DATE = datetime(2024, 7, 26)


def _text(code: str) -> str:
    """A code's text; the code itself where this system does not have it."""
    try:
        return _DATE.strftime(code)
    except ValueError:
        return code


# By what a format asks for, its text: the codes of C, without leading zeros where that is asked for. "%%" stands aside
# while the others are put in. A code that is none of these stays as it is written.
_TEXTS = {"%%": "\0", **{f"%{code}": _text(f"%{code}") for code in "aAbBcCdDeFfgGhHIjmMnprRStTuUVwWxXyYzZ"}}
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


def has_made_up_bos(tokenizer: Any) -> bool:
    """Whether the beginning-of-sequence token that a tokenizer names is none of its own."""
    made_up = getattr(tokenizer, MADE_UP_BOS, None)
    return made_up is not None and bool(made_up == tokenizer.bos_token)


def template_arguments(tokenizer: Any) -> dict[str, Any]:
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
