"""Reading and checking records: the fields a task's examples are written in."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cs_heads.arguments import in_line
from cs_heads.tasks.data_files import check_columns
from cs_heads.tasks.example import Example, joined, right_of
from cs_heads.text import Text, is_token_ids, shown

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["choice", "completion", "generation"]

IDS = "a list of token ids (integers of 0 or more, one at least)"
FORMS = '{"prompt", "choices", "answer"} or {"prompt", "target"}'
GENERATED = '{"prompt", "target", "reference"}, the last two optional'
_FIELDS = ("prompt", "choices", "answer", "target", "positions", "reference", "sequence")

# Contradictions that a warning names, and answers of each.
_TOLD = 3

# How alike a mistyped name is: "position" is near "positions", "options" is not.
_NEAR = 0.88


def numbered(records: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Records with their places, in words; what holds none raises ``ValueError``."""
    if not isinstance(records, Iterable):
        raise ValueError(f"records must be a list of records, got {in_line(records)}")
    return ((f"record {i}", record) for i, record in enumerate(records))


def records_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as records; what is none, or has a column twice, raises ``ValueError``."""
    columns = list(map(str, getattr(frame, "columns", ())))
    if not columns:
        raise ValueError(f"frame must be a DataFrame with columns, got {in_line(frame)}")
    check_columns(columns, "frame")
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def read_records(
    records: Iterable[tuple[str, Any]], name: str, generated: bool = False
) -> tuple[Kind, tuple[Example, ...]]:
    """Kind and examples of a task's records, each with its place; a mixture of kinds raises ``ValueError``.

    A warning names records that ask the same and have another answer.
    """
    examples: list[Example] = []
    kinds: dict[Kind, str] = {}
    answered: dict[Any, dict[Any, tuple[Example, str]]] = {}
    for place, record in records:
        kind, example = read_record(record, f"task {name!r}, {place}", generated)
        kinds.setdefault(kind, place)
        examples.append(example)
        # Choices that differ are another question.
        asked = (example.question, example.positions, example.text if kind == "choice" else None)
        right = joined(example.prompt, right_of(example))
        answered.setdefault(asked, {}).setdefault((right, example.reference), (example, place))
    if len(kinds) > 1:
        places = " and ".join(f"a {kind} record ({place})" for kind, place in kinds.items())
        raise ValueError(f"task {name!r} mixes two forms: {places}; a task has one")
    twice = [list(different.values()) for different in answered.values() if len(different) > 1]
    if twice:
        warnings.warn(_contradictions(name, twice), stacklevel=3)
    return next(iter(kinds), "completion"), tuple(examples)


def _contradictions(name: str, twice: list[list[tuple[Example, str]]]) -> str:
    """Of questions, each with examples of different answers and their places, what a warning says."""
    told = []
    for examples in twice[:_TOLD]:
        answers = [f"{shown(right_of(example))!r:.40} ({place})" for example, place in examples[:_TOLD]]
        told.append(f"{shown(examples[0][0].prompt)[-60:]!r} is {' and '.join(answers)}")
    more = [f"{len(twice) - _TOLD} more"] if len(twice) > _TOLD else []
    said = "the same question has different answers, and a model gives one"
    return f"task {name!r}: {said}: {'; '.join(told + more)}"


def read_record(record: Any, place: str, generated: bool = False) -> tuple[Kind, Example]:
    """Kind and example of one record; a malformed one raises ``ValueError`` naming ``place``."""
    forms = GENERATED if generated else FORMS
    if not isinstance(record, Mapping):
        raise ValueError(f"{place}: a record must be an object {forms}, got {type(record).__name__}")
    _refuse_spaces(record, place)
    prompt = _token_ids(record.get("prompt"))
    if not isinstance(prompt, str) and (generated or not is_token_ids(prompt)):
        allowed = IDS if isinstance(prompt, tuple) and not generated else "a text"
        raise ValueError(
            f'{place}: "prompt" must be {allowed}, got {record.get("prompt")!r:.200}; records are {forms}'
            f"{_instead_of('prompt', record)}"
        )
    _refuse_mistyped(record, place, generated, over_token_ids=not isinstance(prompt, str))
    sequence = _sequence(record.get("sequence"), place)
    if generated:
        return "generation", _generated(record, prompt, sequence, place)
    positions = _token_ids(record.get("positions"))
    if positions is not None and (isinstance(prompt, str) or "choices" in record or not isinstance(positions, tuple)):
        given = f"{record['positions']!r:.80}"
        raise ValueError(f'{place}: "positions" must be a list, for a prompt and a target of token ids; got {given}')
    if "choices" in record and "target" in record:
        raise ValueError(f'{place}: has both "choices" and "target"; records are {FORMS}')
    if "choices" in record:
        choices, answer = _choices(record, place, isinstance(prompt, str))
        return "choice", _example(place, prompt, choices, answer, sequence=sequence)
    target = _token_ids(record.get("target"))
    if isinstance(prompt, str) and (not isinstance(target, str) or not target):
        raise ValueError(
            f'{place}: "target" must be a text that is not empty, got {target!r:.200}; records are {FORMS}'
            f"{_instead_of('target', record)}"
        )
    if not isinstance(prompt, str) and not is_token_ids(target):
        raise ValueError(f'{place}: "target" must be {IDS}, as the prompt is, got {record.get("target")!r:.200}')
    return "completion", _example(place, prompt, (target,), positions=positions or (), sequence=sequence)


def _example(place: str, *fields: Any, **more: Any) -> Example:
    try:
        return Example(*fields, **more)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _instead_of(field: str, record: Mapping[Any, Any]) -> str:
    """What ends an error where a record lacks a field: the fields that it has."""
    there = ", ".join(f'"{name}"' for name in map(str, record) if name.isprintable())
    return f"; this one has {there:.120}" if there and field not in record else ""


def _refuse_spaces(record: Mapping[Any, Any], place: str) -> None:
    """Raise ``ValueError`` for a field with spaces around its name, which would not be read."""
    for key in map(str, record):
        if key.strip() in _FIELDS and key.strip() not in record:
            raise ValueError(f"{place}: has a field {key!r}, which is not read; did you mean {key.strip()!r}?")


def _refuse_mistyped(record: Mapping[Any, Any], place: str, generated: bool, *, over_token_ids: bool) -> None:
    """Raise ``ValueError`` for a field that is nearly one that may be left out: other fields are not read."""
    optional = ["sequence", *(["reference", "target"] if generated else ["positions"] if over_token_ids else [])]
    others = [key for key in map(str, record) if key not in _FIELDS]
    for name in optional if others else ():
        near = get_close_matches(name, others, n=1, cutoff=_NEAR)
        if name not in record and near:
            raise ValueError(f'{place}: has no field "{name}", but {near[0]!r}, which is not read; rename it')


def _sequence(value: Any, place: str) -> str | None:
    """The name of a sequence, in a file of whatever form."""
    if value is None:
        return None
    named = isinstance(value, str) and value.strip()
    if not named and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
        raise ValueError(f'{place}: "sequence" must be a text that is not empty, or an integer, got {value!r:.80}')
    return str(value)


def _generated(record: Mapping[str, Any], prompt: str, sequence: str | None, place: str) -> Example:
    texts = {name: record.get(name) for name in ("target", "reference")}
    for name, text in texts.items():
        if text is not None and (not isinstance(text, str) or not text.strip()):
            raise ValueError(
                f'{place}: "{name}" must be a text of more than white space, got {text!r}; records are {GENERATED}'
            )
    target, reference = texts["target"], texts["reference"]
    continuations = () if target is None else (target,)
    return _example(place, prompt, continuations, reference=reference or target or "", sequence=sequence)


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
    good = (isinstance(choice, str) and choice if texts else is_token_ids(choice) for choice in choices)
    if not listed or not all(good):
        allowed = "texts, none empty" if texts else f"choices that are each {IDS}, as the prompt is"
        raise ValueError(f'{place}: "choices" must be a list of {allowed}, got {record["choices"]!r:.200}')
    if len(choices) < 2:
        raise ValueError(f'{place}: "choices" must hold two or more, got {len(choices)}')
    if len(set(choices)) < len(choices):
        raise ValueError(f'{place}: "choices" must differ from each other, got {choices!r}')
    if isinstance(answer, bool) or not isinstance(answer, int | np.integer) or not 0 <= answer < len(choices):
        truth = str(answer).strip().lower() in ("true", "false")
        why = '; true and false are no index: write the number of the choice, or the right text as "target"'
        raise ValueError(
            f'{place}: "answer" must be the index of a choice, 0..{len(choices) - 1}, got {answer!r}{why * truth}'
        )
    return tuple(choices), int(answer)
