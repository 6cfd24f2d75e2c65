"""lm-eval's index of tasks, their configurations, and its own tasks built on given rows or the hub."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cs_heads.arguments import did_you_mean
from cs_heads.tasks.data_files import Row, not_downloaded, quiet_datasets
from cs_heads.text import first_line

Config = dict[str, Any]

# Folders of lm-eval whose tasks are not named after them, and tags with all their tasks in the folder of their name.
_FOLDERS = {"boolq": "super_glue"}
_WHOLE_TAGS = ("arithmetic",)


@dataclass(frozen=True)
class Member:
    """A task of lm-eval: ``config`` as it stands in its file (functions unread), with ``overrides`` of its group."""

    name: str
    config: Config
    overrides: Config

    def __getitem__(self, key: str) -> Any:
        """A setting of the configuration; None where it does not stand there."""
        return self.config.get(key)


@contextmanager
def quiet_harness() -> Iterator[None]:
    """Run lm-eval without its log and its bars, and with each template of its prompts compiled once.

    lm-eval compiles the template of a prompt anew for each example, which is nine tenths of the time it takes.
    """
    from lm_eval.utils import env

    plain = env.from_string
    with quiet_datasets("lm_eval"):
        try:
            env.from_string = _compiled
            yield
        finally:
            env.from_string = plain


@lru_cache(maxsize=4096)
def _compiled(template: str) -> Any:
    from lm_eval.utils import env

    return type(env).from_string(env, template)


def harness_version() -> str:
    """lm-eval's version; where it is missing, ``ValueError`` says what to install."""
    try:
        import lm_eval.tasks  # noqa: F401
    except ImportError as error:
        raise ValueError(f"lm-eval tasks need lm-eval: pip install 'cs-heads[lm-eval]' ({error})") from error
    return version("lm_eval")


def index_for(name: str) -> Any:
    """A task manager that knows ``name``, a task or group; an unknown one raises ``ValueError`` with near names.

    Reading all of lm-eval's configurations takes seconds, so that the folder that bears the name is tried first.
    """
    harness_version()
    manager = _folder(_FOLDERS.get(name, name))
    if manager is not None and name in manager.task_index and _complete(manager.task_index, name):
        return manager
    manager = _manager(None)
    if name not in manager.task_index:
        # Of thousands of names those that begin alike are nearer than their letters say.
        alike = [other for other in manager.all_tasks if other.partition("_")[0] == name.partition("_")[0]]
        raise ValueError(f"lm-eval has no task {name!r}{did_you_mean(name, alike or manager.all_tasks)}")
    return manager


def members(name: str) -> list[Member]:
    """The tasks of a group, or the one task by itself; a group with tasks defined inside it raises ``ValueError``."""
    manager = index_for(name)
    try:
        return list(_expand(manager.task_index, name, {}))
    except KeyError as error:
        why = f"which are not read here ({error})"
        raise ValueError(f"lm-eval group {name!r} defines tasks of its own, {why}") from error


Rows = Mapping[str, list[Row]]
"""What local files hold, by split."""


def build(name: str, overrides: Config, rows: Rows | None) -> Any:
    """lm-eval's own task object, on the rows of files, or on the hub's data where there are none.

    A data set that cannot be reached or read, or a library that the task needs, raises ``ValueError``.
    """
    manager = index_for(name)
    if rows is not None:
        overrides = {**overrides, "custom_dataset": partial(_dataset, rows)}
    state = random.getstate()
    # As lm-eval's own run: some tasks shuffle the choices of their documents (GPQA), here always alike.
    random.seed(0)
    try:
        with quiet_harness():
            # Through a group: the only public way to load a task of the index with overrides.
            loaded = manager.load({"group": "cs-heads", "task": [{"task": name, **overrides}]})
        (task,) = loaded["tasks"].values()
        for setting in ("doc_to_text", "doc_to_target", "doc_to_choice") if rows is not None else ():
            column = getattr(task.config, setting)
            # Of a column that is not there lm-eval takes the name for the text itself.
            if isinstance(column, str) and column.isidentifier() and column not in task.features:
                raise KeyError(column)
    except ModuleNotFoundError as error:
        why = f"({' '.join(str(error).split())}): install the package, or an older one that has the module"
        raise ValueError(f"lm-eval task {name!r} needs a Python package or module that is missing {why}") from error
    except Exception as error:
        raise why_not_read(name, rows, error) from error
    finally:
        random.setstate(state)
    return task


def _dataset(rows: Rows, **_: Any) -> Any:
    """The data of a task, for which lm-eval calls, without columns that have ``_faults``: who reads one says so."""
    from datasets import Dataset, DatasetDict

    made = {}
    for split, found in rows.items():
        faults = _faults(found)
        made[split] = Dataset.from_list([{name: row[name] for name in found[0] if name not in faults} for row in found])
    return DatasetDict(made)


def _faults(rows: Sequence[Row]) -> dict[str, int]:
    """The columns of the first row in which a row holds null or another type, and the number of the first such row.

    A null would be the text "None", and types that differ are no column of a data set.
    """
    faults: dict[str, int] = {}
    for column, first in rows[0].items():
        for number, row in enumerate(rows):
            value = row.get(column)
            if _holds_null(value) or not _is_of_type(value, first):
                faults[column] = number
                break
    return faults


def _holds_null(value: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(_holds_null, inside))


def _is_of_type(value: Any, first: Any) -> bool:
    import pyarrow

    try:
        pyarrow.array([first, value])
    except (pyarrow.ArrowException, OverflowError):
        return False
    return True


def why_not_read(name: str, rows: Rows | None, error: Exception) -> ValueError:
    """The error of data that a task could not be made of, in one line that says what to do."""
    if rows is None:
        config = index_for(name).task_index[name].cfg or {}
        return not_downloaded("/".join(filter(None, [config.get("dataset_path"), config.get("dataset_name")])), error)
    said = [f"{type(error).__name__}: {first_line(error)}"[:160]]
    for split, found in rows.items():
        said.append(f"{split} has {', '.join(map(str, found[0]))}")
        for column, number in _faults(found).items():
            held = json.dumps(found[number].get(column), ensure_ascii=False, default=str)
            said.append(f"column {column!r} is left out: record {number} of {split} holds {held:.60} there")
    return ValueError(f"data_files of lm-eval task {name!r} have not the columns that it reads ({'; '.join(said)})")


@cache
def _folder(name: str) -> Any:
    """The tasks of the folder whose name begins ``name``, the longest such; None where there is none."""
    import lm_eval.tasks

    root = Path(str(lm_eval.tasks.__file__)).parent
    parts = name.split("_")
    folders = (root / "_".join(parts[:n]) for n in range(len(parts), 0, -1))
    folder = next((folder for folder in folders if folder.is_dir()), None)
    return None if folder is None else _manager(folder)


@cache
def _manager(folder: Path | None) -> Any:
    """A task manager of one folder; None: of all that lm-eval has."""
    from lm_eval.tasks import TaskManager

    with quiet_harness():
        return TaskManager() if folder is None else TaskManager(include_defaults=False, include_path=str(folder))


def _complete(index: Mapping[str, Any], name: str) -> bool:
    """Whether a part of the index is known to hold all members of what bears the name."""
    if index[name].kind.name == "TAG" and name not in _WHOLE_TAGS:
        return False
    try:
        return bool(list(_expand(index, name, {})))
    except KeyError:
        return False


def _expand(index: Mapping[str, Any], name: str, overrides: Config) -> Iterator[Member]:
    entry = index[name]
    kind = entry.kind.name
    if kind == "TAG":
        for tagged in sorted(entry.tags):
            yield from _expand(index, tagged, overrides)
    elif kind == "GROUP":
        yield from _expand_group(index, entry.cfg, overrides)
    else:
        yield Member(name, {**(entry.cfg or {}), **overrides}, overrides)


def _expand_group(index: Mapping[str, Any], config: Config, overrides: Config) -> Iterator[Member]:
    from lm_eval.config.group import GroupConfig

    own = {field.name for field in fields(GroupConfig)}
    shared = {**{key: value for key, value in config.items() if key not in own}, **overrides}
    for item in config["task"] if isinstance(config["task"], list) else [config["task"]]:
        if isinstance(item, str):
            yield from _expand(index, item, shared)
            continue
        more = {key: value for key, value in item.items() if key not in ("task", "group")}
        if "group" in item and item["group"] not in index:
            yield from _expand_group(index, item, shared)
        else:
            yield from _expand(index, item.get("group") or item["task"], {**shared, **more})
