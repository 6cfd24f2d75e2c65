"""Loading the tasks of a paper: built-in ones, local files in their place, or the demo model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cs_heads.arguments import check_seed
from cs_heads.reproduce.papers import Paper, PaperTask
from cs_heads.sandbox import Sandbox, SandboxError
from cs_heads.tasks import Task, confirming_side, entry_of, load_task
from cs_heads.tasks.splits import MIN_CORRECT

Sources = dict[str, tuple[str, dict[str, Any]]]
"""Name of a paper's task → what is loaded for it, and with which options."""


def load_tasks(
    paper: Paper,
    model: str,
    names: Sequence[str] | None = None,
    *,
    data: str | Path | None = None,
    n: int | None = None,
    seed: int = 0,
    allow_code: bool = False,
    paper_prompts: bool = False,
    quick: bool = False,
) -> tuple[dict[str, Task], dict[str, str]]:
    """Load the tasks of a paper; unseen examples are held out.

    Args:
        paper: the paper.
        model: name of the model. Without ``data`` the model ``"demo"`` has its own tasks in the paper's roles, and any
            other model the built-in tasks that the hub has.
        names: some of the paper's tasks (None: all with data), each as ``NAME``, or as ``NAME=TASK`` with any task of
            ``load_task`` in its place, whose own data may be in ``data``, too.
        data: a folder in which a file ``NAME.jsonl`` or ``NAME.csv`` holds records of ``load_task``, and a folder
            ``NAME`` or a file ``NAME.json`` what a benchmark's authors publish (``data_files=``). Tasks whose words
            come with the library need neither.
        n: finding examples a task; of a set that has not so many as leave 20 unseen (None: the paper's).
        seed: seeds the split.
        allow_code: lets tasks run what the model writes; without it, or where no sandbox works, these are left out.
        paper_prompts: gives tasks no prompts but the paper's, however few.
        quick: leaves out tasks that a quick run has not, where none are named.

    Returns:
        The finding side of each task by its name in the paper, in the paper's order, and by the name of each task that
        was left out the reason: programs that cannot run, local files that are needed, or, of tasks that were not
        named, what went wrong in loading.

    Raises:
        ValueError: for an unknown name, a task without a source, a named task that cannot be loaded, or tasks on none
            of which heads are found.
    """
    check_seed(seed)
    chosen, left_out = _sources(paper, model, names, None if data is None else Path(data))
    slow = [name for name in chosen if quick and names is None and not paper.task(name).quick]
    programs = [name for name, source in chosen.items() if "allow_code" in _options(source[0])]
    for some, reason in ((slow, "a quick run has two word tasks"), (programs, no_programs(allow_code))):
        if some and reason:
            left_out[", ".join(some)] = reason
            chosen = {name: source for name, source in chosen.items() if name not in some}
    if not any(paper.task(name).heads for name in chosen):
        known = ", ".join(task.name for task in paper.tasks if task.heads)
        lacking = "".join(f"; {name} is left out: {reason}" for name, reason in left_out.items())
        got = ", ".join(chosen) or "none"
        raise ValueError(f"tasks must hold one or more that heads are found on: {known}; got {got}{lacking}")
    given: dict[str, Any] = {"allow_code": True} if allow_code else {}
    given |= {"prompts": "paper"} if paper_prompts else {}
    tasks: dict[str, Task] = {}
    for task in paper.tasks:
        if task.name not in chosen:
            continue
        source, options = chosen[task.name]
        options = {**options, **{name: value for name, value in given.items() if name in _options(source)}}
        try:
            tasks[task.name] = _load(task, source, options, n=n, seed=seed)
        except ValueError as error:
            if names is not None:
                raise
            left_out[task.name] = str(error)
    if not any(paper.task(name).heads for name in tasks):
        raise ValueError(f"no task that heads are found on can be loaded: {'; '.join(left_out.values())}")
    return tasks, left_out


def no_programs(allow_code: bool) -> str | None:
    """Why programs that a model writes cannot run here; None where they can.

    Args:
        allow_code: whether they may.
    """
    if not allow_code:
        return "programs that the model writes run only with --allow-code"
    try:
        Sandbox().check()
    except SandboxError as error:
        return str(error)
    return None


def _options(source: str) -> tuple[str, ...]:
    entry = entry_of(source)
    return () if entry is None else entry.options


def _sources(
    paper: Paper, model: str, names: Sequence[str] | None, data: Path | None
) -> tuple[Sources, dict[str, str]]:
    """What is loaded for each task, and why there is nothing for another."""
    if data is not None and not data.is_dir():
        raise ValueError(f"data {str(data)!r} {'is no folder' if data.exists() else 'does not exist'}")
    given: Mapping[str, str] = {}
    if names is not None:
        given = {name: source for name, _, source in (each.partition("=") for each in names)}
        if len(given) < len(names):
            raise ValueError(f"tasks must be different, got {', '.join(names)}")
    found, left_out = Sources(), dict[str, str]()
    where = f"folder {str(data)!r}" if data is not None else f"model {model!r}"
    for task in [paper.task(name) for name in given] if names is not None else paper.tasks:
        instead = given.get(task.name)
        source = _source(task, model, data)
        if instead:
            source = _local(instead, {}, data if entry_of(instead) else None) or (instead, {})
        if source is not None:
            found[task.name] = source
        elif names is not None:
            raise ValueError(f"task {task.name!r} has no data with {where}: give {task.name}=FILE, or --data")
        elif task.local:
            left_out[task.name] = (
                f"it is not on the hub and needs --data, a folder with BIG-bench's files in {task.name}"
            )
        else:
            files = ", ".join(f"{task.name}.{kind}" for kind in ("jsonl", "csv", "json"))
            lacking = "" if data is None else f": it has no {files} or folder {task.name}"
            left_out[task.name] = f"there is no data for it with {where}{lacking}"
    return found, left_out


def _source(task: PaperTask, model: str, data: Path | None) -> tuple[str, dict[str, Any]] | None:
    if data is not None:
        built_in = (task.name, task.options) if task.own_words else None
        return _local(task.name, task.options, data) or built_in
    if model == "demo":
        return None if task.demo is None else (task.demo, task.demo_options)
    return None if task.local else (task.name, task.options)


def _local(name: str, options: Mapping[str, Any], data: Path | None) -> tuple[str, dict[str, Any]] | None:
    """What the folder has for a task."""
    for file in () if data is None else (data / f"{name}.jsonl", data / f"{name}.csv"):
        if file.is_file():
            return str(file), {}
    for own in () if data is None else (data / name, data / f"{name}.json"):
        if own.exists():
            return name, {**options, "data_files": str(own)}
    return None


def _load(task: PaperTask, source: str, options: dict[str, Any], *, n: int | None, seed: int) -> Task:
    loaded = load_task(source, None, seed, **options)
    if loaded.held_out is None:
        raise ValueError(f"task {task.name!r} ({source}) has no unseen examples to measure with")
    # What stands in for a set of the paper has its own size.
    as_published = entry_of(source) is None or source == task.name
    n = _n_finding(task if as_published else replace(task, n=None, share=None), loaded, n)
    return loaded if n == len(loaded) else load_task(source, n, seed, **options)


def _n_finding(task: PaperTask, loaded: Task, n: int | None) -> int:
    """So many finding examples as are asked for, or as the paper has; 20 stay unseen."""
    whole = len(loaded) + len(confirming_side(loaded))
    if n is None:
        n = task.n if task.share is None else round(task.share * whole)
    return len(loaded) if n is None else min(n, max(whole - MIN_CORRECT, len(loaded)))
