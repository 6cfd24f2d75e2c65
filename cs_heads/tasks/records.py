"""Reading and checking records: the fields a task's examples are written in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

FORMS = '{"prompt", "choices", "answer"} or {"prompt", "target"}'


def read_record(record: Any, place: str) -> tuple[Literal["choice", "completion"], str, tuple[str, ...], int]:
    """Kind, prompt, continuations and answer of one record; a malformed one raises ``ValueError`` naming ``place``."""
    if not isinstance(record, Mapping):
        raise ValueError(f"{place}: a record must be an object {FORMS}, got {type(record).__name__}")
    prompt = record.get("prompt")
    if not isinstance(prompt, str):
        raise ValueError(f'{place}: "prompt" must be a text, got {prompt!r}; records are {FORMS}')
    if "choices" in record and "target" in record:
        raise ValueError(f'{place}: has both "choices" and "target"; records are {FORMS}')
    if "choices" in record:
        return "choice", prompt, *_choices(record, place)
    target = record.get("target")
    if not isinstance(target, str) or not target.strip():
        raise ValueError(f'{place}: "target" must be a text that is not empty, got {target!r}; records are {FORMS}')
    return "completion", prompt, (target,), 0


def _choices(record: Mapping[str, Any], place: str) -> tuple[tuple[str, ...], int]:
    choices, answer = record["choices"], record.get("answer")
    if isinstance(choices, np.ndarray):
        choices = choices.tolist()
    if not isinstance(choices, list | tuple) or not all(isinstance(c, str) and c.strip() for c in choices):
        raise ValueError(f'{place}: "choices" must be a list of texts, none empty, got {choices!r}')
    if len(choices) < 2:
        raise ValueError(f'{place}: "choices" must hold two or more, got {len(choices)}')
    if len(set(choices)) < len(choices):
        raise ValueError(f'{place}: "choices" must differ from each other, got {choices!r}')
    if isinstance(answer, bool) or not isinstance(answer, int | np.integer) or not 0 <= answer < len(choices):
        raise ValueError(f'{place}: "answer" must be the index of a choice, 0..{len(choices) - 1}, got {answer!r}')
    return tuple(choices), int(answer)
