"""Chat templates: a prompt as a user's message, up to where the model's answer begins."""

from __future__ import annotations

import hashlib
from typing import Any

from cs_heads.lens.bos import leading_tokens
from cs_heads.text import chat_template, template_arguments


def chat_prompt(tokenizer: Any, prompt: str) -> str:
    """A prompt as a user's message in the tokenizer's chat template, followed by what opens the answer.

    The text may begin with the beginning-of-sequence token; ``encode_prompt`` and ``encode_example`` then add no
    other. A template that states today's date states one and the same on every day. A tokenizer without a template,
    or a template that fails, raises ``ValueError``.
    """
    if chat_template(tokenizer) is None:
        raise ValueError(
            "the tokenizer has no chat template: load an instruction-tuned model, set tokenizer.chat_template, "
            'or leave prompts as they are (chat="off", or chat="auto")'
        )
    import jinja2

    leading_tokens(tokenizer)  # asks the tokenizer's files, which also know whether it has such a token
    messages = [{"role": "user", "content": prompt}]
    settings = {"tokenize": False, "add_generation_prompt": True, **template_arguments(tokenizer)}
    try:
        return str(tokenizer.apply_chat_template(messages, **settings))
    except jinja2.TemplateError as error:
        raise ValueError(f"the tokenizer's chat template fails: {error}") from error


def template_identity(tokenizer: Any) -> str | None:
    """A short hash of the chat template; None where there is none."""
    template = chat_template(tokenizer)
    return None if template is None else hashlib.sha256(template.encode()).hexdigest()[:16]
