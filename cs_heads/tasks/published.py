"""Benchmarks as their authors publish them, brought into the columns that the hub's copies have.

A form is recognized by its columns; rows that have the hub's columns pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import ascii_uppercase
from typing import Any, TypeVar

from cs_heads.tasks.data_files import Row

Convert = Callable[[Row], Row]
T = TypeVar("T")

MMLU_COLUMNS = ("question", "A", "B", "C", "D", "letter")
"""The columns of MMLU's CSV files, which have no heading."""


def converted(rows: list[Row], convert: Callable[[Row], T], place: str) -> list[T]:
    """The rows, each converted; what is wrong with one, or lacking, raises ``ValueError`` with its number."""
    found = []
    for number, row in enumerate(rows):
        try:
            found.append(convert(row))
        except (LookupError, TypeError, ValueError) as error:
            lacks = "" if isinstance(error, ValueError) else f"lacks what is read, and has {', '.join(map(str, row))}: "
            raise ValueError(f"{place}, record {number}: {lacks}{error}") from error
    return found


def six_lines_each(rows: list[Row], place: str) -> list[Row]:
    """The lines of HellaSwag's text file by six, without those at its end that are empty."""
    lines = [row["line"] for row in rows]
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) % 6:
        raise ValueError(f"{place}: a HellaSwag record has 6 lines, and {len(lines)} lines are no multiple of it")
    return [{"lines": lines[first : first + 6]} for first in range(0, len(lines), 6)]


def hellaswag(row: Row) -> Row:
    """Six lines a record: ``activity: context``, number of the right ending, four endings.

    The context is cut where its last, unfinished sentence begins: the ending goes on from there.
    """
    if "lines" not in row:
        return row
    head, label, *endings = row["lines"]
    activity, colon, context = head.partition(": ")
    if not colon or label.strip() not in {"0", "1", "2", "3"}:
        wanted = "'activity: context' and the number of an ending, 0 to 3"
        raise ValueError(f"a HellaSwag record begins with {wanted}; got {head!r:.60} and {label!r:.20}")
    whole, begun = _unfinished(context)
    return {"activity_label": activity, "ctx_a": whole, "ctx_b": begun, "endings": endings, "label": label.strip()}


def _unfinished(context: str) -> tuple[str, str]:
    """A context in two: its finished sentences, and the beginning of the next, which is written small."""
    ends = list(re.finditer(r"[.!?][\"')]*\s+(?=[a-z])", context))
    if not ends or context.rstrip().endswith((".", "!", "?")):
        return context, ""
    return context[: ends[-1].end()].rstrip(), context[ends[-1].end() :]


def arc(row: Row) -> Row:
    """``{"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}``, as AI2 publishes it."""
    if not isinstance(row.get("question"), dict):
        return row
    asked = row["question"]
    choices = {key: [choice[key] for choice in asked["choices"]] for key in ("label", "text")}
    return {"id": row.get("id", ""), "question": asked["stem"], "choices": choices, "answerKey": row["answerKey"]}


def commonsense_qa(row: Row) -> Row:
    """The authors' form, which is ARC's, or ``{"question", "choices": [text, ...], "answer": number}``."""
    if not isinstance(row.get("choices"), list) or "answer" not in row:
        return arc(row)
    letters = list(ascii_uppercase[: len(row["choices"])])
    answer = letters[_one_of(row["answer"], list(range(len(letters))))]
    return {"question": row["question"], "choices": {"label": letters, "text": row["choices"]}, "answerKey": answer}


def boolq(row: Row) -> Row:
    """``{"question", "passage", "answer": true}``, as its authors publish it; ``label`` is 1 for yes."""
    label = row.get("label", row.get("answer"))
    return {**row, "label": int(label)} if isinstance(label, bool) else row


def mmlu(row: Row) -> Row:
    """A row of a CSV without heading: question, four choices, letter of the right one; or the hub's columns."""
    if "A" in row:
        answer = "ABCD".index(_one_of(row["letter"], list("ABCD")))
        return {"question": row["question"], "choices": [row[letter] for letter in "ABCD"], "answer": answer}
    # More would be cut to four without a word.
    if "choices" in row and (not isinstance(row["choices"], list) or len(row["choices"]) != 4):
        raise ValueError(f'"choices" must be a list of four texts, got {row["choices"]!r:.80}')
    return row


def gsm8k(row: Row) -> Row:
    """The hub's columns; every worked solution ends in ``#### `` and its result."""
    answer = row.get("answer")
    if answer is not None and not re.search(r"#### *\S", str(answer)):
        raise ValueError(f'"answer" must be a worked solution that ends in "#### " and its result, got {answer!r:.80}')
    return row


def _one_of(answer: Any, known: list[Any]) -> Any:
    """The right choice, where it is one of those there are; true is not the number 1."""
    if isinstance(answer, bool | float) or answer not in known:
        raise ValueError(f"the right choice must be one of {', '.join(map(str, known))}, got {answer!r:.60}")
    return answer


_SETS: dict[Convert, tuple[str, ...]] = {
    hellaswag: ("Rowan/hellaswag", "hellaswag"),
    arc: ("allenai/ai2_arc",),
    commonsense_qa: ("tau/commonsense_qa", "commonsense_qa"),
    boolq: ("aps/super_glue/boolq", "super_glue/boolq"),
    mmlu: ("cais/mmlu", "hails/mmlu_no_train", "cais/wmdp"),
    gsm8k: ("openai/gsm8k", "madrylab/gsm8k-platinum"),
}
FORMS = {name: convert for convert, names in _SETS.items() for name in names}
"""By the hub's name of a data set, with that of its part where parts differ."""


def form_of(dataset: str | None, part: str | None) -> Convert:
    """What brings the files of a data set of the hub into its columns."""
    return FORMS.get(f"{dataset}/{part}") or FORMS.get(str(dataset)) or (lambda row: row)
