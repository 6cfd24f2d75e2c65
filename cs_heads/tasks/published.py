"""Benchmarks as their authors publish them, brought into the columns that the hub's copies have.

A form is recognized by its columns; rows that have the hub's columns pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from string import ascii_uppercase
from typing import Any

from cs_heads.tasks.data_files import Row


@dataclass(frozen=True)
class Form:
    """How one benchmark's own files become rows of the hub: ``columns`` are those of its CSV without heading."""

    convert: Callable[[list[Row]], list[Row]]
    columns: tuple[str, ...] | None = None


def _row_by_row(convert: Callable[[Row], Row]) -> Callable[[list[Row]], list[Row]]:
    """The conversion of many rows: what is wrong with one is said with its number."""

    @wraps(convert, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def converted(rows: list[Row]) -> list[Row]:
        found = []
        for number, row in enumerate(rows):
            try:
                found.append(convert(row))
            except (KeyError, TypeError, IndexError) as error:
                raise LookupError(f"record {number}: {error}") from error
            except ValueError as error:
                raise ValueError(f"record {number}: {error}") from error
        return found

    return converted


def hellaswag(rows: list[Row]) -> list[Row]:
    """Six lines a record: ``activity: context``, number of the right ending, four endings.

    The context is cut where its last, unfinished sentence begins: the ending goes on from there. Rows in the hub's
    columns are checked alone.
    """
    if "line" not in rows[0]:
        return _checked_hellaswag(rows)
    lines = [row["line"] for row in rows]
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) % 6:
        raise ValueError(f"a HellaSwag record has 6 lines, and {len(lines)} lines are no multiple of it")
    records = []
    for first in range(0, len(lines), 6):
        activity, colon, context = lines[first].partition(": ")
        label, endings = lines[first + 1].strip(), lines[first + 2 : first + 6]
        if not colon or label not in {"0", "1", "2", "3"}:
            raise ValueError(
                f"line {first + 1}: a HellaSwag record begins with 'activity: context' and the number of an ending, "
                f"0 to 3; got {lines[first]!r:.60} and {label!r:.20}"
            )
        whole, begun = _unfinished(context)
        records.append({"activity_label": activity, "ctx_a": whole, "ctx_b": begun, "endings": endings, "label": label})
    return _checked_hellaswag(records)


@_row_by_row
def _checked_hellaswag(row: Row) -> Row:
    label, endings = row.get("label", "0"), row.get("endings")
    if "endings" in row and (not isinstance(endings, list) or len(endings) != 4 or not all(map(_says, endings))):
        raise ValueError(f'"endings" must be a list of four texts, none empty, got {endings!r:.80}')
    if isinstance(label, bool) or str(label) not in ("0", "1", "2", "3"):
        raise ValueError(f'"label" must be the number of an ending, 0 to 3, got {label!r:.20}')
    return row


def _unfinished(context: str) -> tuple[str, str]:
    """A context in two: its finished sentences, and the beginning of the next, which is written small."""
    ends = list(re.finditer(r"[.!?][\"')]*\s+(?=[a-z])", context))
    if not ends or context.rstrip().endswith((".", "!", "?")):
        return context, ""
    return context[: ends[-1].end()].rstrip(), context[ends[-1].end() :]


def _arc_row(row: Row) -> Row:
    """``{"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}``, as AI2 publishes it."""
    if isinstance(row.get("question"), dict):
        asked = row["question"]
        choices = {key: [choice[key] for choice in asked["choices"]] for key in ("label", "text")}
        row = {"id": row.get("id", ""), "question": asked["stem"], "choices": choices, "answerKey": row["answerKey"]}
    if isinstance(row.get("choices"), dict):
        _check_right(row["answerKey"], row["choices"]["label"])
    return row


arc = _row_by_row(_arc_row)


@_row_by_row
def commonsense_qa(row: Row) -> Row:
    """The authors' form, which is ARC's, or ``{"question", "choices": [text, ...], "answer": number}``."""
    if not isinstance(row.get("choices"), list) or "answer" not in row:
        return _arc_row(row)
    letters = list(ascii_uppercase[: len(row["choices"])])
    _check_right(row["answer"], range(len(letters)))
    choices = {"label": letters, "text": row["choices"]}
    return {"question": row["question"], "choices": choices, "answerKey": letters[row["answer"]]}


def boolq(rows: list[Row]) -> list[Row]:
    """``{"question", "passage", "answer": true}``, as its authors publish it; ``label`` is 1 or true for yes."""
    if "label" in rows[0]:
        return _numbered_labels(rows)
    return rows if "answer" not in rows[0] else [{**row, "idx": i} for i, row in enumerate(_labeled(rows))]


@_row_by_row
def _numbered_labels(row: Row) -> Row:
    label = row.get("label")
    if isinstance(label, str):
        raise ValueError(f'"label" must be 0, 1, true or false, got the text {label!r:.60}')
    return {**row, "label": int(label)} if isinstance(label, bool) else row


@_row_by_row
def _labeled(row: Row) -> Row:
    if not isinstance(row["answer"], bool):
        raise ValueError(f'"answer" must be true or false, got {row["answer"]!r:.60}')
    return {"question": row["question"], "passage": row["passage"], "label": int(row["answer"])}


@_row_by_row
def lettered(row: Row) -> Row:
    """A row of a CSV without heading: question, four choices, letter of the right one (MMLU); or the hub's columns."""
    if "A" in row:
        _check_right(row["letter"], tuple("ABCD"))
        choices = [row[letter] for letter in "ABCD"]
        return {"question": row["question"], "choices": choices, "answer": "ABCD".index(row["letter"])}
    if "choices" in row:
        # More would be cut to four without a word.
        if not isinstance(row["choices"], list) or len(row["choices"]) != 4:
            raise ValueError(f'"choices" must be a list of four texts, got {row["choices"]!r:.80}')
        _check_right(row["answer"], range(4))
    return row


@_row_by_row
def gsm8k(row: Row) -> Row:
    """The hub's columns; every worked solution ends in ``#### `` and its result."""
    answer = row.get("answer")
    if answer is not None and (not isinstance(answer, str) or not re.search(r"#### *\S", answer)):
        raise ValueError(f'"answer" must be a worked solution that ends in "#### " and its result, got {answer!r:.80}')
    return row


@_row_by_row
def arithmetic(row: Row) -> Row:
    """``{"context", "completion"}``, as its authors publish it; neither is empty."""
    for column in ("context", "completion"):
        if row.get(column) is not None and not _says(row[column]):
            raise ValueError(f'"{column}" must be a text that is not empty, got {row[column]!r:.60}')
    return row


def _says(value: Any) -> bool:
    """Whether a value is a text that is not empty."""
    return isinstance(value, str) and bool(value.strip())


@_row_by_row
def openmath(row: Row) -> Row:
    """The hub's columns; an expected answer that is a number is its text."""
    answer = row.get("expected_answer")
    number = isinstance(answer, int | float) and not isinstance(answer, bool)
    return {**row, "expected_answer": str(answer)} if number else row


def bigbench(rows: list[Row]) -> list[Row]:
    """``{"input", "target"}`` or ``{"input", "target_scores": {choice: score}}``, as in BIG-bench's ``task.json``."""
    if "input" not in rows[0]:
        return rows
    return [{**row, "idx": i} for i, row in enumerate(_answered(rows))]


@_row_by_row
def _answered(row: Row) -> Row:
    scores = row.get("target_scores") or {}
    targets = row.get("target", [])
    targets = [targets] if isinstance(targets, str) else targets
    if not isinstance(scores, dict) or not all(isinstance(score, int | float) for score in scores.values()):
        raise ValueError(f'"target_scores" must be an object, choice to score, got {scores!r:.60}')
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise ValueError(f'"target" must be a text or a list of texts, got {targets!r:.60}')
    if not targets and scores:
        best = max(scores.values())
        targets = [choice for choice, score in scores.items() if score == best]
    if not targets:
        raise ValueError(f'a BIG-bench example has "target" or "target_scores", got {sorted(row)}')
    return {
        "inputs": row["input"],
        "targets": targets,
        "multiple_choice_targets": list(scores),
        "multiple_choice_scores": list(scores.values()),
    }


def _check_right(answer: Any, known: Sequence[Any]) -> None:
    """Raise ``ValueError`` unless the right choice is one of those there are; true is not the number 1."""
    if isinstance(answer, bool | float) or answer not in known:
        raise ValueError(f"the right choice must be one of {', '.join(map(str, known))}, got {answer!r:.60}")


_LETTERED = Form(lettered, ("question", "A", "B", "C", "D", "letter"))

FORMS: dict[str, Form] = {
    "Rowan/hellaswag": Form(hellaswag),
    "hellaswag": Form(hellaswag),
    "allenai/ai2_arc": Form(arc),
    "tau/commonsense_qa": Form(commonsense_qa),
    "commonsense_qa": Form(commonsense_qa),
    "aps/super_glue/boolq": Form(boolq),
    "super_glue/boolq": Form(boolq),
    "cais/mmlu": _LETTERED,
    "hails/mmlu_no_train": _LETTERED,
    "cais/wmdp": Form(lettered),
    "nvidia/OpenMathInstruct-2": Form(openmath),
    "hails/bigbench": Form(bigbench),
    "openai/gsm8k": Form(gsm8k),
    "madrylab/gsm8k-platinum": Form(gsm8k),
    "EleutherAI/arithmetic": Form(arithmetic),
}
"""By the hub's name of a data set, with that of its part where parts differ."""


def form_of(dataset: str | None, part: str | None) -> Form:
    """The form in which the files of a data set of the hub may come."""
    return FORMS.get(f"{dataset}/{part}") or FORMS.get(str(dataset)) or Form(lambda rows: rows)
