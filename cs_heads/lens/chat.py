"""Chat templates: a prompt as a user's message, up to where the model's answer begins."""

from __future__ import annotations

import hashlib
from typing import Any

# Llama 3's templates state a date, today's where none is given: prompts would differ from day to day.
_DATE = "26 Jul 2024"


def chat_template(tokenizer: Any) -> str | None:
    """The tokenizer's chat template; None where it has none."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template or None


def chat_prompt(tokenizer: Any, prompt: str) -> str:
    """A prompt as a user's message in the tokenizer's chat template, followed by what opens the answer.

    The text may begin with the beginning-of-sequence token; ``encode_prompt`` and ``encode_example`` then add no
    other. A tokenizer without a template, or a template that fails, raises ``ValueError``.
    """
    if chat_template(tokenizer) is None:
        raise ValueError(
            "the tokenizer has no chat template: load an instruction-tuned model, set tokenizer.chat_template, "
            'or leave prompts as they are (chat="off", or chat="auto")'
        )
    import jinja2

    messages = [{"role": "user", "content": prompt}]
    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, date_string=_DATE)
        )
    except jinja2.TemplateError as error:
        raise ValueError(f"the tokenizer's chat template fails: {error}") from error


def template_identity(tokenizer: Any) -> str | None:
    """A short hash of the chat template; None where there is none."""
    template = chat_template(tokenizer)
    return None if template is None else hashlib.sha256(template.encode()).hexdigest()[:16]
