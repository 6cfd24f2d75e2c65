"""A tokenizer's chat template as lm-eval calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cs_heads.text import chat_template, template_arguments


@dataclass(frozen=True)
class ChatTemplate:
    """Messages to text by a tokenizer's own template.

    A beginning-of-sequence token that the template writes stays there: the engine prepends no second one.
    A template that states today's date states one and the same on every day.
    """

    tokenizer: Any

    def __call__(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation; without ``add_generation_prompt`` its last message is gone on with."""
        return str(
            self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **template_arguments(self.tokenizer),
            )
        )


def template_of(tokenizer: Any) -> Callable[..., str] | None:
    """What lm-eval takes, of a tokenizer or None; a tokenizer without a template raises ``ValueError``."""
    if tokenizer is None:
        return None
    if not hasattr(tokenizer, "apply_chat_template"):
        raise ValueError(f"chat_template must be a tokenizer, as model.tokenizer, got {type(tokenizer).__name__}")
    if chat_template(tokenizer) is None:
        raise ValueError("chat_template: the tokenizer has no chat template; leave it out")
    return ChatTemplate(tokenizer)
