"""Benchmarks as their authors publish them, brought into the columns that the hub's copies have.

A form is told by its columns; rows that have the hub's columns pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cs_heads.tasks.lm_eval.files import Row

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Form:
    """How one benchmark's own files become rows of the hub: ``columns`` are those of its CSV without heading."""

    convert: Callable[[list[Row]], list[Row]]
    columns: tuple[str, ...] | None = None


def hellaswag(rows: list[Row]) -> list[Row]:
    """Six lines a record: ``activity: context``, number of the right ending, four endings.

    The context is cut where its last, unfinished sentence begins: the ending goes on from there.
    """
    if "line" not in rows[0]:
        return rows
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
    return records


def _unfinished(context: str) -> tuple[str, str]:
    """A context in two: its finished sentences, and the beginning of the next, which is written small."""
    ends = list(re.finditer(r"[.!?][\"')]*\s+(?=[a-z])", context))
    if not ends or context.rstrip().endswith((".", "!", "?")):
        return context, ""
    return context[: ends[-1].end()].rstrip(), context[ends[-1].end() :]


def arc(rows: list[Row]) -> list[Row]:
    """``{"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}``, as AI2 publishes it."""
    if not isinstance(rows[0].get("question"), dict):
        return rows
    return [
        {
            "id": row.get("id", ""),
            "question": row["question"]["stem"],
            "choices": _columns(row["question"]["choices"]),
            "answerKey": row["answerKey"],
        }
        for row in rows
    ]


def commonsense_qa(rows: list[Row]) -> list[Row]:
    """The authors' form, which is ARC's, or ``{"question", "choices": [text, ...], "answer": number}``."""
    if isinstance(rows[0].get("choices"), list) and "answer" in rows[0]:
        return [
            {
                "question": row["question"],
                "choices": {"label": list(LETTERS[: len(row["choices"])]), "text": row["choices"]},
                "answerKey": LETTERS[int(row["answer"])],
            }
            for row in rows
        ]
    return arc(rows)


def boolq(rows: list[Row]) -> list[Row]:
    """``{"question", "passage", "answer": true}``, as its authors publish it; ``label`` is 1 for yes."""
    if "label" in rows[0] or "answer" not in rows[0]:
        return rows
    wrong = [i for i, row in enumerate(rows) if not isinstance(row["answer"], bool)]
    if wrong:
        raise ValueError(f'record {wrong[0]}: "answer" must be true or false, got {rows[wrong[0]]["answer"]!r:.60}')
    return [
        {"question": row["question"], "passage": row["passage"], "label": int(row["answer"]), "idx": i}
        for i, row in enumerate(rows)
    ]


def lettered(rows: list[Row]) -> list[Row]:
    """A row of a CSV without heading: question, four choices, letter of the right one (MMLU)."""
    if "A" not in rows[0]:
        return rows
    return [
        {
            "question": row["question"],
            "choices": [row[letter] for letter in "ABCD"],
            "answer": _letter(row["letter"], "ABCD", i),
        }
        for i, row in enumerate(rows)
    ]


def bigbench(rows: list[Row]) -> list[Row]:
    """``{"input", "target"}`` or ``{"input", "target_scores": {choice: score}}``, as in BIG-bench's ``task.json``."""
    if "input" not in rows[0]:
        return rows
    return [_bigbench_row(row, i) for i, row in enumerate(rows)]


def _bigbench_row(row: Row, number: int) -> Row:
    scores = row.get("target_scores") or {}
    targets = row.get("target", [])
    targets = [targets] if isinstance(targets, str) else targets
    if not isinstance(scores, dict) or not all(isinstance(score, int | float) for score in scores.values()):
        raise ValueError(f'record {number}: "target_scores" must be an object, choice to score, got {scores!r:.60}')
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise ValueError(f'record {number}: "target" must be a text or a list of texts, got {targets!r:.60}')
    if not targets and scores:
        best = max(scores.values())
        targets = [choice for choice, score in scores.items() if score == best]
    if not targets:
        raise ValueError(f'record {number}: a BIG-bench example has "target" or "target_scores", got {sorted(row)}')
    return {
        "inputs": row["input"],
        "targets": targets,
        "multiple_choice_targets": list(scores),
        "multiple_choice_scores": list(scores.values()),
        "idx": number,
    }


def _letter(letter: Any, letters: str, number: int) -> int:
    if letter not in set(letters):
        raise ValueError(f"record {number}: the right choice must be one of {', '.join(letters)}, got {letter!r}")
    return letters.index(letter)


def _columns(choices: Sequence[Row]) -> dict[str, list[Any]]:
    return {key: [choice[key] for choice in choices] for key in ("label", "text")}


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
    "hails/bigbench": Form(bigbench),
}
"""By the hub's name of a data set, with that of its part where parts differ."""


def form_of(dataset: str | None, part: str | None) -> Form:
    """The form in which the files of a data set of the hub may come."""
    return FORMS.get(f"{dataset}/{part}") or FORMS.get(str(dataset)) or Form(lambda rows: rows)
