"""Tasks by name or file."""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from cs_heads.arguments import check_options, check_seed, check_within
from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.files import json_lines, read_text
from cs_heads.tasks.records import check_columns
from cs_heads.tasks.task import Task

FORMATS = (".jsonl", ".csv")

MAX_EXAMPLES = 100_000
"""Examples to find heads with, at most: tasks that are drawn have any number, and take a while to draw it."""

_SCORING = ("scorer", "accuracy", "max_new_tokens", "stop")

FAMILIES = {
    "demo": "cs_heads.demo.skills",
    "": "cs_heads.tasks.papers",
    "rhyming": "cs_heads.tasks.rhyming",
    "swearing": "cs_heads.tasks.swearing",
    "function_vectors": "cs_heads.tasks.function_vectors",
    "ioi": "cs_heads.tasks.ioi",
    "symbolic": "cs_heads.tasks.symbolic",
    "induction": "cs_heads.tasks.induction",
    "everyday": "cs_heads.tasks.everyday",
    "bigbench": "cs_heads.tasks.bigbench",
    "lm-eval": "cs_heads.tasks.lm_eval",
}
"""Families of built-in tasks: first part of the name → the module with its ``catalogue()``.

A catalogue has a task's name after the family's, or "" where the family is one task; tasks without a family have "".
A module with more tasks than it lists has ``entry(name)``, too.
"""


def builtin_tasks() -> dict[str, Entry]:
    """All built-in tasks by their names, ``family/name`` or one of them alone."""
    return {
        "/".join(filter(None, (family, name))): entry
        for family, module in FAMILIES.items()
        for name, entry in _catalogue(module).items()
    }


def names_of(family: str) -> list[str]:
    """The names of a family's tasks, ``family/name``; no other family is read."""
    return [f"{family}/{name}" for name in _catalogue(FAMILIES[family])]


def entry_of(name: str) -> Entry | None:
    """The built-in task of this name, or None; what ends as a task file does is a file."""
    if Path(name).suffix.lower() in FORMATS:
        return None
    family, slash, rest = name.partition("/")
    if not slash and family not in FAMILIES:
        family, rest = "", name
    if family not in FAMILIES or (slash and not (family and rest)):
        return None
    module = import_module(FAMILIES[family])
    found: Entry | None = module.entry(rest) if hasattr(module, "entry") else module.catalogue().get(rest)
    return found


def _catalogue(module: str) -> dict[str, Entry]:
    found: dict[str, Entry] = import_module(module).catalogue()
    return found


def load_task(
    name_or_path: str | Path,
    n: int | None = None,
    seed: int = 0,
    length_normalised: bool = False,
    *,
    chat: str | None = None,
    too_long: str | None = None,
    **options: Any,
) -> Task:
    """The finding side of a built-in task or a JSONL/CSV file, its other examples held out for the proof.

    A JSONL line is a record of ``Task.from_records``; a CSV file has the same columns, its ``choices`` written as a
    JSON list. ``n`` examples (default 100, or half of a small task) are chosen with ``seed`` to find heads with;
    ``length_normalised`` scores choices by ``acc_norm``; ``chat`` shows prompts in the model's chat template
    (``Task.chatting``; None: as the task says); ``too_long="truncate"`` cuts a prompt that does not fit into the
    model's context at the left (``Task.shortening``). ``options`` are the built-in task's own, or ``scorer``,
    ``accuracy``, ``max_new_tokens`` and ``stop`` of ``Task.from_records`` for a file. An unknown name or option, a
    missing file or a malformed record raises ``ValueError``, naming the line.

    >>> task = load_task("demo/capitals", n=100, seed=0)
    >>> len(task), task.role, task.held_out.role
    (100, 'finding', 'confirming')
    """
    check_seed(seed)
    if n is not None:
        check_within("n", n, 1, MAX_EXAMPLES)
    if not isinstance(name_or_path, str | Path):
        raise ValueError(f"name_or_path must be a name or a path, got {name_or_path!r:.80}")
    entry = entry_of(str(name_or_path))
    if entry is None:
        task = whole_task(name_or_path, length_normalised, **options).split(n, seed)[0]
        return _put(task, chat, too_long)
    task = entry.load(n=n, seed=seed, **entry.checked(str(name_or_path), options))
    if length_normalised and task.scorer is not None:
        raise ValueError(f"length_normalised does not apply to task {task.name!r}: its scorer has a rule of its own")
    if length_normalised and task.held_out is not None:
        unseen = replace(task.held_out, length_normalised=True)
        task = replace(task, length_normalised=True, held_out=unseen)
    return _put(task, chat, too_long)


def _put(task: Task, chat: str | None, too_long: str | None) -> Task:
    """The task as it is put to a model; None: as it says."""
    task = task if chat is None else task.chatting(chat)
    return task if too_long is None else task.shortening(too_long)


def whole_task(path: str | Path, length_normalised: bool = False, **options: Any) -> Task:
    """Every example of a JSONL/CSV file, unsplit; options and errors are those of ``load_task``."""
    name, path = str(path), Path(path)
    if path.suffix.lower() not in FORMATS and not path.exists():
        close = difflib.get_close_matches(name, list(builtin_tasks()), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"task {name!r} is unknown{hint} (the command 'cs-heads tasks' lists the built-in ones, and 'lm-eval/NAME' "
            f"is any of lm-eval's; a task file ends in {' or '.join(FORMATS)})"
        )
    if not path.is_file():
        raise ValueError(f"task file {name!r} does not exist" if not path.exists() else f"task {name!r} is no file")
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"task file {name!r} must end in {' or '.join(FORMATS)}")
    unknown = [option for option in options if option not in _SCORING]
    if unknown:
        raise ValueError(f"a task file has no option {', '.join(unknown)}; it has {', '.join(_SCORING)}")
    check_options(Task.from_records, options)
    text = read_text(path, "task file")
    records = json_lines(text, f"task {path.stem!r}") if path.suffix.lower() == ".jsonl" else _csv_lines(text, path)
    return Task.from_numbered(records, path.stem, length_normalised, **options)


def _csv_lines(text: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    check_columns(_header(reader, path), f"task {path.stem!r}, line 1")
    while True:
        try:
            record: dict[Any, Any] = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"task {path.stem!r}, line {reader.line_num + 1}: not CSV ({error})") from error
        place = f"line {reader.line_num}"
        if None in record:
            raise ValueError(
                f"task {path.stem!r}, {place}: more fields than the {len(record) - 1} columns of the header; "
                "a text with a comma in it stands in double quotes"
            )
        if "choices" in record:
            record["choices"] = _json_field(record["choices"], path, place)
            answer = record.get("answer")
            record["answer"] = int(answer) if answer and answer.strip().isdecimal() else answer
        yield place, record


def _header(reader: csv.DictReader[str], path: Path) -> Sequence[str]:
    try:
        return reader.fieldnames or ()
    except csv.Error as error:
        raise ValueError(f"task {path.stem!r}, line 1: not CSV ({error})") from error


def _json_field(text: str | None, path: Path, place: str) -> Any:
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f'task {path.stem!r}, {place}: "choices" must be a JSON list like ["a", "b"], got {text!r:.80}'
        ) from error
