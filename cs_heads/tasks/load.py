"""Tasks by name or file."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from cs_heads.tasks.task import Task

FORMATS = (".jsonl", ".csv")

FAMILIES = {"demo": "cs_heads.demo.tasks"}
"""Families of built-in tasks: first part of the name → the module with its ``names()`` and ``load(name, n, seed)``."""


def builtin_tasks() -> tuple[str, ...]:
    """The names of all built-in tasks, ``family/name``."""
    return tuple(f"{family}/{name}" for family, module in FAMILIES.items() for name in import_module(module).names())


def load_task(name_or_path: str | Path, n: int | None = None, seed: int = 0) -> Task:
    """The finding side of a built-in task or a JSONL/CSV file, its other examples held out for the proof.

    A JSONL line is a record of ``Task.from_records``; a CSV file has the same columns, its
    ``choices`` written as a JSON list. ``n`` examples (default 100, or half of a small task) are
    chosen with ``seed`` to find heads with. An unknown name, a missing file or a malformed record
    raises ``ValueError``, naming the line.

    >>> task = load_task("demo/capitals", n=100, seed=0)
    >>> len(task), task.role, task.held_out.role
    (100, 'finding', 'confirming')
    """
    name = str(name_or_path)
    family, _, rest = name.partition("/")
    if family in FAMILIES and rest in import_module(FAMILIES[family]).names():
        task: Task = import_module(FAMILIES[family]).load(rest, n, seed)
        return task
    return whole_task(name_or_path).split(n, seed)[0]


def whole_task(path: str | Path) -> Task:
    """Every example of a JSONL/CSV file, unsplit; raises as ``load_task`` does."""
    name, path = str(path), Path(path)
    if path.suffix.lower() not in FORMATS and not path.exists():
        known = builtin_tasks()
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"task {name!r} is unknown{hint} (built-in tasks: {', '.join(known)}; "
            f"a task file ends in {' or '.join(FORMATS)})"
        )
    if not path.is_file():
        raise ValueError(f"task file {name!r} does not exist" if not path.exists() else f"task {name!r} is no file")
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"task file {name!r} must end in {' or '.join(FORMATS)}")
    reader = _read_jsonl if path.suffix.lower() == ".jsonl" else _read_csv
    try:
        return Task._from_numbered(reader(path), name=path.stem)
    except UnicodeDecodeError as error:
        raise ValueError(f"task file {name!r} is not UTF-8 text: {error}") from error


def _read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield f"line {number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"task {path.stem!r}, line {number}: not JSON ({error})") from error


def _read_csv(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        for row in reader:
            place = f"line {reader.line_num}"
            record: dict[str, Any] = {key: value for key, value in row.items() if key is not None}
            if "choices" in record:
                record["choices"] = _json_field(record["choices"], path, place)
                answer = record.get("answer")
                record["answer"] = int(answer) if answer and answer.strip().isdecimal() else answer
            yield place, record


def _json_field(text: str | None, path: Path, place: str) -> Any:
    try:
        return json.loads(text or "")
    except json.JSONDecodeError as error:
        raise ValueError(
            f'task {path.stem!r}, {place}: "choices" must be a JSON list like ["a", "b"], got {text!r}'
        ) from error
