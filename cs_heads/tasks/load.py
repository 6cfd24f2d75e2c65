"""Tasks by name or file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from cs_heads.arguments import check_path, check_seed, check_within, did_you_mean
from cs_heads.files import parse_json, read_text
from cs_heads.tasks.data_files import csv_lines, json_lines
from cs_heads.tasks.family import Entry
from cs_heads.tasks.task import Task, with_fields

FORMATS = (".jsonl", ".csv")

MAX_EXAMPLES = 100_000
"""Examples to find heads with, at most: tasks that are drawn have any number, and take a while to draw it."""

_NAMED = ("rhyming", "swearing", "function_vectors", "ioi", "symbolic", "induction", "everyday", "bigbench")
FAMILIES = {"demo": "cs_heads.demo.skills", "": "cs_heads.tasks.papers"}
FAMILIES |= {name: f"cs_heads.tasks.{name}" for name in _NAMED} | {"lm-eval": "cs_heads.tasks.lm_eval"}
"""Families of built-in tasks: first part of the name → the module with its ``TASKS``.

These have a task's name after the family's, or "" where the family is one task; tasks without a family have "".
A module with more tasks than it lists has ``entry(name)``, too.
"""


_FILE = Entry("a file", partial(Task.from_records, records=(), name="", length_normalized=False, places=None))


def builtin_tasks() -> dict[str, Entry]:
    """All built-in tasks by their names, ``family/name`` or one of them alone."""
    return {
        "/".join(filter(None, (family, name))): entry
        for family, module in FAMILIES.items()
        for name, entry in import_module(module).TASKS.items()
    }


def names_of(family: str) -> list[str]:
    """The names of a family's tasks, ``family/name``; no other family is read."""
    return [f"{family}/{name}" for name in import_module(FAMILIES[family]).TASKS]


def entry_of(name: str) -> Entry | None:
    """The built-in task of this name, or None; what ends as a task file does is a file.

    Args:
        name: The name, as ``"everyday/plural"``.
    """
    if Path(name).suffix.lower() in FORMATS:
        return None
    family, slash, rest = name.partition("/")
    if not slash and family not in FAMILIES:
        family, rest = "", name
    if family not in FAMILIES or (slash and not (family and rest)):
        return None
    module = import_module(FAMILIES[family])
    return module.entry(rest) if hasattr(module, "entry") else module.TASKS.get(rest)


def load_task(
    name_or_path: str | Path,
    n: int | None = None,
    seed: int = 0,
    length_normalized: bool = False,
    *,
    chat: str | None = None,
    too_long: str | None = None,
    **options: Any,
) -> Task:
    """The finding side of a built-in task or a JSONL/CSV file, its other examples held out for the proof.

    Args:
        name_or_path: A built-in task (``builtin_tasks``), or a file: a JSONL line is a record of ``Task.from_records``;
            a CSV file has the same columns, its ``choices`` written as a JSON list.
        n: Finding examples; by default 100, or half of a small task.
        seed: Chooses them.
        length_normalized: Score choices by ``acc_norm``.
        chat: Show prompts in the model's chat template (``Task.with_chat_template``); None: as the task says.
        too_long: ``"truncate"`` cuts prompts that do not fit into the context at the left (``Task.with_truncation``).
        options: Those of the built-in task; for a file ``scorer``, ``accuracy``, ``max_new_tokens`` and ``stop`` of
            ``Task.from_records``.

    Returns:
        The finding side, with the confirming side in ``held_out``.

    Raises:
        ValueError: The name or an option is unknown, the file is missing, or a record is malformed; the line is named.

    >>> task = load_task("demo/capitals", n=100, seed=0)
    >>> len(task), task.role, task.held_out.role
    (100, 'finding', 'confirming')
    """
    check_seed(seed)
    if n is not None:
        check_within("n", n, 1, MAX_EXAMPLES)
    check_path("name_or_path", name_or_path)
    entry = entry_of(str(name_or_path))
    if entry is None:
        task = read_task_file(name_or_path, length_normalized, **options).split(n, seed)[0]
    else:
        entry.check(str(name_or_path), options)
        task = entry.load(n=n, seed=seed, **options)
        task = with_fields(task, length_normalized=True) if length_normalized else task
    task = task if chat is None else task.with_chat_template(chat)
    return task if too_long is None else task.with_truncation(too_long)


def read_task_file(path: str | Path, length_normalized: bool = False, **options: Any) -> Task:
    """Every example of a JSONL/CSV file, unsplit.

    Args:
        path: The file, as for ``load_task``.
        length_normalized: Score choices by ``acc_norm``.
        options: ``scorer``, ``accuracy``, ``max_new_tokens`` and ``stop`` of ``Task.from_records``.

    Returns:
        The whole task, named like the file without its ending, with the examples in the order of the lines.

    Raises:
        ValueError: The name is unknown, the file is missing or of another format, an option is unknown, or a record is
            malformed; the line is named.
    """
    name, path = str(path), Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        if path.is_file():
            raise ValueError(f"task file {name!r} must end in {' or '.join(FORMATS)}")
        raise ValueError(
            f"task {name!r} is unknown{did_you_mean(name, builtin_tasks())} (the command 'cs-heads tasks' lists the "
            f"built-in ones, and 'lm-eval/NAME' is any of lm-eval's; a task file ends in {' or '.join(FORMATS)})"
        )
    if not path.exists():
        beside = [file.name for file in path.parent.glob("*") if file.suffix.lower() in FORMATS]
        raise ValueError(f"task file {name!r} does not exist{did_you_mean(path.name, beside)}")
    _FILE.check(name, options)
    place, text = f"task {path.stem!r}", read_text(path, "task file")
    placed = dict(json_lines(text, place) if suffix == ".jsonl" else _csv_records(text, place))
    return Task.from_records(iter(placed.values()), path.stem, length_normalized, places=list(placed), **options)


def _csv_records(text: str, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a CSV text as records, each with its place: choices are JSON lists there, and numbers are texts."""
    for line, record in csv_lines(text, place):
        if "choices" in record:
            said = f'{place}, {line}: "choices" must be a JSON list like ["a", "b"], got {record["choices"]!r:.80}'
            record["choices"] = parse_json(record["choices"], said)
            answer = record.get("answer", "")
            record["answer"] = int(answer) if answer.strip().isdecimal() else answer
        yield line, record
