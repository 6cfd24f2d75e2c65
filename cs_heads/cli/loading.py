"""The model, the task and its controls that a command names, each read before anything is measured."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from cs_heads.arguments import MAX_BUDGET, Option, check_type, check_within, did_you_mean
from cs_heads.cli.flags import given_settings, value_of
from cs_heads.progress import announce
from cs_heads.settings import Settings

if TYPE_CHECKING:
    from cs_heads.cli.flags import OneTask, Run
    from cs_heads.experiment.experiment import Experiment
    from cs_heads.tasks import Task

# Arguments of `load_task` that have a flag of their own: for the task and its controls, and for the task alone.
_FLAGS = ("seed", "chat", "too_long", "allow_code", "unsafe_code")
_TASK_FLAGS = ("n", "length_normalized", *_FLAGS)

N_UNSEEN = 100  # unseen examples to judge with, at most


def check_out(out: Path) -> None:
    """Raise ``ValueError`` or ``OSError`` where the folder of ``--out`` can neither be made nor written to."""
    # Of a name that is too long `Path.exists` raises.
    there = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.exists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = f"{str(there)!r} {'may not be written to' if there.is_dir() else 'is a file'}"
        raise ValueError(f"--out must be a folder that is there or can be made, got {str(out)!r}: {reason}")


@dataclass
class Loaded:
    """What a command on one task runs with.

    Attributes:
        model: The model, or the cluster that holds it.
        task: The task.
        controls: As ``find_heads`` takes them: tasks, "auto" or None.
        settings: Those of every call.
    """

    model: Any
    task: Task
    controls: list[Task] | str | None
    settings: dict[str, Any]

    @property
    def dry(self) -> dict[str, Any]:
        """The settings of a dry run."""
        return {**self.settings, "store": None, "progress": False}


@contextmanager
def loaded(options: OneTask, *, searched: bool = True) -> Iterator[Loaded]:
    """The model, the task and its controls, each read before anything is measured.

    Args:
        options: The flags of a command.
        searched: Whether it searches, for which both sides of the task need examples enough.
    """
    import cs_heads as cs
    from cs_heads.tasks import check_controls, confirming_side, control_side, entry_of, read_task_file

    settings = given_settings(options)
    if options.control and options.no_control:
        raise ValueError("--control and --no-control do not go together")
    if options.out is not None:
        check_out(options.out)
    task = _task(options)
    given = options_by_task(options, "--control", options.control, "--control-option", options.control_option)
    controls = [
        cs.load_task(name, seed=options.seed, **given[name]) if entry_of(name) else read_task_file(name)
        for name in options.control
    ]
    if options.chat is not None:
        controls = [control.with_chat_template(options.chat) for control in controls]
    if options.too_long is not None:
        controls = [control.with_truncation(options.too_long) for control in controls]
    check_controls(controls, task)
    # What takes seconds to import comes after what can be refused without it.
    from cs_heads.tasks.splits import check_apart, check_size

    for side in (task, confirming_side(task)) if searched else ():
        check_size(side)
    sides = [control_side(control, n=100, seed=options.seed) for control in controls]
    check_apart([task, *controls], [confirming_side(task), *sides])
    with loaded_model(options) as model:
        for side in sides:
            cs.Experiment(model, side, **{**settings, "store": None})
        yield Loaded(model, task, None if options.no_control else controls or "auto", settings)


@contextmanager
def loaded_model(options: Run) -> Iterator[Any]:
    """The model of a command, or the cluster that holds it, which ends with the block."""
    import cs_heads as cs
    from cs_heads.cluster import placed

    load = partial(cs.load_model, options.model, device=options.device, dtype=options.dtype, backend=options.backend)
    workers, address = options.settings.get("workers"), options.settings.get("address")
    announce(f"loading {options.model} ...", options.settings.get("progress"))
    with placed(load() if workers is None and address is None else load, workers, address) as model:
        yield model


def options_by_task(
    options: Run, kind: str, names: Sequence[str], flag: str, texts: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The options of each of several tasks by its name.

    Args:
        options: The arguments of a command.
        kind: The flag that names the tasks.
        names: What it names.
        flag: The flag that gives options.
        texts: What it gives: ``NAME=VALUE`` for all tasks that have it, ``TASK:NAME=VALUE`` for one.

    Raises:
        ValueError: An option that none of the tasks has.
    """
    from cs_heads.tasks import entry_of

    given = {name: permissions(name, options) for name in names}
    built_in = {name: entry.options for name in given if (entry := entry_of(name))}
    for text in texts:
        named, value = _option(flag, text, _FLAGS)
        # The name of a task file may hold a colon, that of an option none.
        task, _, name = named.rpartition(":")
        asked = [task] if task else list(built_in)
        having = [one for one in asked if name in built_in.get(one, ())]
        if task and task not in built_in:
            raise ValueError(f"{flag} {text}: no built-in {kind} is {task!r}")
        if not having:
            has = "; ".join(f"{one} has {', '.join(built_in[one]) or 'none'}" for one in asked)
            raise ValueError(f"{flag} {text}: no {kind} has an option {name!r}{has and f' ({has})'}")
        for one in having:
            given[one][name] = value
    return given


def unseen_of(options: OneTask, at: Loaded, beside: str) -> Experiment | None:
    """The unseen examples to judge with, where ``--out`` names a folder; None where it does not.

    Args:
        options: The arguments of a command.
        at: What it runs with; its settings are given the store that the examples opened.
        beside: A file of the folder that another command wrote.

    Raises:
        ValueError: The file ``beside`` is of another model or task, or the folder is that of an atlas.
    """
    import cs_heads as cs
    from cs_heads.report.findings import ATLAS, check_alone, check_folder
    from cs_heads.tasks import confirming_side
    from cs_heads.tasks.splits import distinct

    if options.out is None:
        return None
    check_alone(options.out, ATLAS)
    with warnings.catch_warnings():
        # The same examples are measured later, and what is to be said of them is said then.
        warnings.simplefilter("ignore")
        unseen = cs.Experiment(at.model, distinct(confirming_side(at.task))[0].take(N_UNSEEN), **at.settings)
    check_folder(options.out, beside, unseen.provenance())
    at.settings["store"] = unseen.store
    return unseen


def permissions(task: str, options: Run) -> dict[str, Any]:
    """Leave to run what the model writes, for a built-in task that asks for it."""
    from cs_heads.tasks import entry_of

    entry = entry_of(task)
    asked = entry.options if entry else ()
    return {name: True for name in ("allow_code", "unsafe_code") if name in asked and getattr(options, name)}


def _task(options: OneTask) -> Task:
    from cs_heads.tasks import entry_of

    given = dict(_option("--task-option", text, _TASK_FLAGS) for text in options.task_option)
    entry = entry_of(options.task)
    if options.generate == 0:
        if entry is None or "generate" not in entry.options:
            raise ValueError(f"--generate needs a number of tokens for task {options.task!r}, as --generate 8")
        given["generate"] = True
    elif options.stop and options.generate is None:
        raise ValueError("--stop goes with --generate TOKENS")
    task = load_named(options, options.task, given)
    return task.generated(options.generate, options.stop) if options.generate else task


def load_named(options: Run, name: str, given: dict[str, Any]) -> Task:
    """A task of ``--n`` examples; ``given`` are its options, beside leave to run what the model writes."""
    import cs_heads as cs

    more = {"chat": options.chat, "too_long": options.too_long, **permissions(name, options), **given}
    return cs.load_task(name, options.n, options.seed, getattr(options, "length_normalized", False), **more)


def _option(flag: str, text: str, flags: Sequence[str]) -> tuple[str, Any]:
    """The name and the value of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{flag} must be NAME=VALUE, got {text!r}")
    own = name.rpartition(":")[2]
    if own in flags:
        raise ValueError(f"{flag} {name}=...: use --{own.replace('_', '-')}")
    return name, value_of(value)


def method_options(
    options: OneTask, names: Sequence[str], flags: Mapping[str, str], texts: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """The options of each method by its name.

    Args:
        options: The flags of a command.
        names: The methods that it runs.
        flags: Flags that the command itself does not have.
        texts: What ``--option METHOD.NAME=VALUE`` gave.

    Returns:
        Names and values, read: tasks are loaded and split like ``--task``, rankings are read from files.

    Raises:
        ValueError: An unknown method, an option that a method does not have, or a required one that is missing.
    """
    from cs_heads.methods.registry import method_named
    from cs_heads.settings import check_method_options

    methods = {name: method_named(name).options for name in names}
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for flag, text in flags.items():
        option = flag.replace("-", "_")
        for name in _takers(options, option, names):
            given[name][option] = _value(methods[name].get(option), text)
    for text in texts:
        named, equals, value = text.partition("=")
        name, _, option = named.partition(".")
        if not equals or not option:
            raise ValueError(f"--option must be METHOD.NAME=VALUE, got {text!r}")
        if name not in methods:
            raise ValueError(f"--option {text}: METHOD must be one of {', '.join(names)}, got {name!r}")
        given[name][option] = _value(methods[name].get(option), value)
    for name, own in methods.items():
        missing = [option for option in own.values() if option.required and option.name not in given[name]]
        if missing:
            needed = " ".join(f"--{option.name.replace('_', '-')}" for option in missing)
            raise ValueError(f"method {name!r} needs {needed}: {missing[0].help}")
        check_method_options(name, own, given[name])
        given[name] = {key: _read(options, own[key], value) for key, value in given[name].items()}
    return given


def _value(option: Option | None, text: str) -> Any:
    """What a text says of an option; of one that names a task it is the name."""
    from cs_heads.tasks import Task

    types = () if option is None else option.types
    if text == "none" and NoneType in types:
        return None
    return text if Task in types else value_of(text)


def _takers(options: OneTask, option: str, names: Sequence[str]) -> list[str]:
    """Which of the methods that are run have an option."""
    from cs_heads.methods.registry import METHODS

    having = [name for name, method in METHODS.items() if option in method.options]
    if not having:
        known = {each.name for each in fields(type(options))} | {*Settings.kinds()}
        known = known.union(*(method.options for method in METHODS.values()))
        flag, *flags = (f"--{each.replace('_', '-')}" for each in (option, *known))
        raise ValueError(f"unknown option {flag}{did_you_mean(flag, flags)}")
    if not {*names} & {*having}:
        raise ValueError(f"--{option.replace('_', '-')} goes with the method {', '.join(having)}")
    return [name for name in names if name in having]


def _read(options: OneTask, option: Option, value: Any) -> Any:
    """The value of an option, or the task that it names; a number within reach."""
    from cs_heads.tasks import Task, finding_side

    if Task in option.types:
        return finding_side(load_named(options, value, {}))
    check_type(option.name, value, option.type)
    if type(value) is int:
        check_within(option.name, value, min(value, 1), MAX_BUDGET)
        return float(value) if float in option.types else value
    return value
