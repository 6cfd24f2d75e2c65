"""Reading and checking records: the fields a task's examples are written in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from cs_heads.tasks.example import Example
from cs_heads.text import Text, is_token_ids

Kind = Literal["choice", "completion", "generation"]

IDS = "a list of token ids (integers of 0 or more, one at least)"
FORMS = '{"prompt", "choices", "answer"} or {"prompt", "target"}'
GENERATED = '{"prompt", "target", "reference"}, the last two optional'


def read_records(
    records: Iterable[tuple[str, Any]], name: str, generated: bool = False
) -> tuple[Kind, tuple[Example, ...]]:
    """Kind and examples of a task's records, each with its place; a mixture of kinds raises ``ValueError``."""
    examples: list[Example] = []
    kinds: dict[Kind, str] = {}
    for place, record in records:
        kind, example = read_record(record, f"task {name!r}, {place}", generated)
        kinds.setdefault(kind, place)
        examples.append(example)
    if len(kinds) > 1:
        places = " and ".join(f"a {kind} record ({place})" for kind, place in kinds.items())
        raise ValueError(f"task {name!r} mixes two forms: {places}; a task has one")
    return next(iter(kinds), "completion"), tuple(examples)


def read_record(record: Any, place: str, generated: bool = False) -> tuple[Kind, Example]:
    """Kind and example of one record; a malformed one raises ``ValueError`` naming ``place``."""
    forms = GENERATED if generated else FORMS
    if not isinstance(record, Mapping):
        raise ValueError(f"{place}: a record must be an object {forms}, got {type(record).__name__}")
    prompt = _token_ids(record.get("prompt"))
    if not isinstance(prompt, str) and (generated or not is_token_ids(prompt)):
        allowed = IDS if isinstance(prompt, tuple) and not generated else "a text"
        raise ValueError(f'{place}: "prompt" must be {allowed}, got {record.get("prompt")!r:.200}; records are {forms}')
    if generated:
        return "generation", _generated(record, prompt, place)
    positions = _token_ids(record.get("positions"))
    if positions is not None and (isinstance(prompt, str) or "choices" in record or not isinstance(positions, tuple)):
        given = f"{record['positions']!r:.80}"
        raise ValueError(f'{place}: "positions" must be a list, for a prompt and a target of token ids; got {given}')
    if "choices" in record and "target" in record:
        raise ValueError(f'{place}: has both "choices" and "target"; records are {FORMS}')
    if "choices" in record:
        return "choice", Example(prompt, *_choices(record, place, isinstance(prompt, str)))
    target = _token_ids(record.get("target"))
    if isinstance(prompt, str) and (not isinstance(target, str) or not target.strip()):
        raise ValueError(
            f'{place}: "target" must be a text that is not empty, got {target!r:.200}; records are {FORMS}'
        )
    if not isinstance(prompt, str) and not is_token_ids(target):
        raise ValueError(f'{place}: "target" must be {IDS}, as the prompt is, got {record.get("target")!r:.200}')
    try:
        return "completion", Example(prompt, (target,), positions=positions or ())
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _generated(record: Mapping[str, Any], prompt: str, place: str) -> Example:
    texts = {name: record.get(name) for name in ("target", "reference")}
    for name, text in texts.items():
        if text is not None and (not isinstance(text, str) or not text.strip()):
            raise ValueError(
                f'{place}: "{name}" must be a text that is not empty, got {text!r}; records are {GENERATED}'
            )
    target, reference = texts["target"], texts["reference"]
    return Example(prompt, () if target is None else (target,), reference=reference or target or "")


def _token_ids(value: Any) -> Any:
    """A list of whole numbers as a tuple of them; anything else as it is."""
    if not isinstance(value, list | tuple | np.ndarray):
        return value
    return tuple(int(token) if isinstance(token, np.integer) else token for token in value)


def _choices(record: Mapping[str, Any], place: str, texts: bool) -> tuple[tuple[Text, ...], int]:
    choices, answer = record["choices"], record.get("answer")
    if isinstance(choices, np.ndarray):
        choices = choices.tolist()
    listed = isinstance(choices, list | tuple)
    choices = [_token_ids(choice) for choice in choices] if listed else []
    good = (isinstance(choice, str) and choice.strip() if texts else is_token_ids(choice) for choice in choices)
    if not listed or not all(good):
        allowed = "texts, none empty" if texts else f"choices that are each {IDS}, as the prompt is"
        raise ValueError(f'{place}: "choices" must be a list of {allowed}, got {record["choices"]!r:.200}')
    if len(choices) < 2:
        raise ValueError(f'{place}: "choices" must hold two or more, got {len(choices)}')
    if len(set(choices)) < len(choices):
        raise ValueError(f'{place}: "choices" must differ from each other, got {choices!r}')
    if isinstance(answer, bool) or not isinstance(answer, int | np.integer) or not 0 <= answer < len(choices):
        raise ValueError(f'{place}: "answer" must be the index of a choice, 0..{len(choices) - 1}, got {answer!r}')
    return tuple(choices), int(answer)
