"""Reading and checking records: the fields a task's examples are written in."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np

from cs_heads.arguments import fits
from cs_heads.tasks.example import Example, joined, right_of
from cs_heads.text import is_token_ids, shown

Kind = Literal["choice", "completion", "generation"]

IDS = "a list of token ids (integers of 0 or more, one at least)"
FORMS = '{"prompt", "choices", "answer"} or {"prompt", "target"}'
GENERATED = '{"prompt", "target", "reference"}, the last two optional'
_FIELDS = ("prompt", "choices", "answer", "target", "positions", "reference", "sequence", "asked")

# Contradictions that a warning names, and answers of each.
_TOLD = 3

# How alike a mistyped name is: "position" is near "positions", "options" is not.
_NEAR = 0.88


def read_records(
    records: Iterable[tuple[str, Any]], name: str, generated: bool = False
) -> tuple[Kind, tuple[Example, ...]]:
    """Kind and examples of a task's records, each with its place; a mixture of kinds raises ``ValueError``.

    A warning names records that ask the same and have another answer.
    """
    examples: list[Example] = []
    kinds: dict[Kind, str] = {}
    answered: dict[Any, dict[Any, tuple[str, str]]] = {}
    for place, record in records:
        kind, example = read_record(record, f"task {name!r}, {place}", generated)
        kinds.setdefault(kind, place)
        examples.append(example)
        # Choices that differ are another question.
        asked = (example.question, example.positions, example.text if kind == "choice" else None)
        before = example.prompt if example.asked is None else example.asked
        right = (joined(before, right_of(example)), example.reference)
        told = f"{shown(example.prompt)[-60:]!r} is", f"{shown(right_of(example))!r:.40} ({place})"
        answered.setdefault(asked, {}).setdefault(right, told)
    if len(kinds) > 1:
        places = " and ".join(f"a {kind} record ({place})" for kind, place in kinds.items())
        raise ValueError(f"task {name!r} mixes two forms: {places}; a task has one")
    twice = [list(answers.values()) for answers in answered.values() if len(answers) > 1]
    if twice:
        lines = [f"{each[0][0]} {' and '.join(answer for _, answer in each[:_TOLD])}" for each in twice[:_TOLD]]
        lines += [f"{len(twice) - _TOLD} more"] if len(twice) > _TOLD else []
        said = "the same question has different answers, and a model gives one"
        warnings.warn(f"task {name!r}: {said}: {'; '.join(lines)}", stacklevel=3)
    return next(iter(kinds), "completion"), tuple(examples)


def read_record(record: Any, place: str, generated: bool = False) -> tuple[Kind, Example]:
    """Kind and example of one record; a malformed one raises ``ValueError`` naming ``place``."""
    try:
        return _read(record, generated)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _read(record: Any, generated: bool) -> tuple[Kind, Example]:
    forms = GENERATED if generated else FORMS
    if not isinstance(record, Mapping):
        raise ValueError(f"a record must be an object {forms}, got {type(record).__name__}")
    prompt = _token_ids(record.get("prompt"))
    texts = isinstance(prompt, str)
    _refuse_unread(record, ("asked", "reference", "target") if generated else ("asked",) if texts else ("positions",))

    def wrong(name: str, allowed: str) -> ValueError:
        there = ", ".join(f'"{key}"' for key in map(str, record) if key.isprintable())
        has = f"; this one has {there:.120}" if there and name not in record else ""
        return ValueError(f'"{name}" must be {allowed}, got {record.get(name)!r:.200}; records are {forms}{has}')

    if not texts and (generated or not is_token_ids(prompt)):
        raise wrong("prompt", IDS if isinstance(prompt, tuple) and not generated else "a text")
    more: dict[str, Any] = _kept_together(record, texts, wrong)
    if generated:
        target, reference = record.get("target"), record.get("reference")
        for name, text in (("target", target), ("reference", reference)):
            if text is not None and not (isinstance(text, str) and text.strip()):
                raise wrong(name, "a text of more than white space")
        reference = reference or target or ""
        return "generation", Example(prompt, () if target is None else (target,), reference=reference, **more)
    positions = _token_ids(record.get("positions"))
    if positions is not None and (texts or "choices" in record or not isinstance(positions, tuple)):
        raise wrong("positions", "a list, for a prompt and a target of token ids")
    if "choices" not in record:
        target = _token_ids(record.get("target"))
        if not _is_answer(target, texts):
            raise wrong("target", "a text that is not empty" if texts else f"{IDS}, as the prompt is")
        return "completion", Example(prompt, (target,), positions=positions or (), **more)
    if "target" in record:
        raise ValueError(f'has both "choices" and "target"; records are {FORMS}')
    choices, answer = record["choices"], record.get("answer")
    choices = choices.tolist() if isinstance(choices, np.ndarray) else choices
    choices = [_token_ids(choice) for choice in choices] if isinstance(choices, list | tuple) else [None]
    if not all(_is_answer(choice, texts) for choice in choices) or len(set(choices)) < max(2, len(choices)):
        each = "texts, none empty" if texts else f"choices, each {IDS}"
        raise wrong("choices", f"a list of two or more that differ: {each}")
    if answer is None or not fits(answer, int) or not 0 <= answer < len(choices):
        raise wrong("answer", f"the index of a choice, 0..{len(choices) - 1} (true and false are none)")
    return "choice", Example(prompt, tuple(choices), int(answer), **more)


def _kept_together(
    record: Mapping[Any, Any], texts: bool, wrong: Callable[[str, str], ValueError]
) -> dict[str, str | None]:
    """By what else than its text a record is known: its sequence, and the bare question."""
    sequence, asked = record.get("sequence"), record.get("asked")
    if not (sequence is None or fits(sequence, int) or (isinstance(sequence, str) and sequence.strip())):
        raise wrong("sequence", "a text that is not empty, or an integer")
    if not (asked is None or (texts and isinstance(asked, str) and asked.strip())):
        raise wrong("asked", "the bare question, a text that is not empty")
    return {"sequence": None if sequence is None else str(sequence), "asked": asked}


def _refuse_unread(record: Mapping[Any, Any], optional: Sequence[str]) -> None:
    """Raise ``ValueError`` for a field that is nearly one that may be left out, or one with spaces around its name."""
    for key in map(str, record):
        near = [key.strip()] if key.strip() in _FIELDS else get_close_matches(key, ["sequence", *optional], 1, _NEAR)
        if key not in _FIELDS and near and near[0] not in record:
            raise ValueError(f"has a field {key!r}, which is not read; did you mean {near[0]!r}?")


def _is_answer(value: Any, texts: bool) -> bool:
    return isinstance(value, str) and bool(value) if texts else is_token_ids(value)


def _token_ids(value: Any) -> Any:
    """A list of whole numbers as a tuple of them; anything else as it is."""
    if not isinstance(value, list | tuple | np.ndarray):
        return value
    return tuple(int(token) if isinstance(token, np.integer) else token for token in value)
