"""Arguments that commands share, and what they load."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

from cs_heads.arguments import did_you_mean
from cs_heads.cli.colors import colored
from cs_heads.cli.completion import completes
from cs_heads.cli.config import config_given, read_config, with_config

if TYPE_CHECKING:
    from cs_heads.analysis.losses import Specificity
    from cs_heads.experiment.experiment import Experiment
    from cs_heads.methods.registry import Option
    from cs_heads.tasks import Task

    Commands = argparse._SubParsersAction["Parser"]


# What stands in help for the value of an option of such a type.
_METAVARS = {"Task": "TASK", "HeadRanking": "FILE", "PathLike": "FILE"}
# Arguments of `load_task` that have a flag of their own: for the task and its controls, and for the task alone.
_FLAGS = ("seed", "chat", "too_long", "allow_code", "unsafe_code")
_TASK_FLAGS = ("n", "length_normalized", *_FLAGS)


REPEATED: dict[str, Any] = {"action": "append", "default": []}
"""A flag that may be given several times: its values are a list."""
CONFIG = (
    "a TOML file of options, as n_masks = 200; flags override it. --out writes run.toml, which repeats the run that "
    "wrote it"
)
ALLOW_CODE = "tasks whose answer is a program may run it, in a sandbox"


class Parser(argparse.ArgumentParser):
    """Refuses in one line, and may add arguments when it is used: those that take long to import."""

    complete: Callable[[Parser, Sequence[str]], None] | None = None
    """Adds these arguments, given what is to be parsed."""

    takes_config = False
    """Whether ``--config`` may name a file of arguments."""
    is_command = False
    """Whether nobody else knows what it does not."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, with the arguments of ``complete``, and those of the file that ``--config`` names."""
        given = list(sys.argv[1:] if args is None else args)
        path = config_given(given) if self.takes_config else None
        said = {} if path is None else read_config(path)
        if self.complete is not None:
            complete, self.complete = self.complete, None
            complete(self, [*(f"--method={said['method']}" for _ in said if "method" in said), *given])
        if path is not None:
            given = with_config(self, path, said, given)
        if self.is_command:
            self._check_flags(given)
        options, unknown = super().parse_known_args(given, namespace)
        if self.takes_config:
            options.arguments, options.parser = given, self
        if unknown and self.is_command:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """One line, exit status 2."""
        said = f"{colored('error:', 'red', sys.stderr)} {message}{self._near(message)}"
        self.exit(2, f"{self.prog}: {said} (see {self.prog} --help)\n")

    def _check_flags(self, given: Sequence[str]) -> None:
        """Refuse a flag that is not known before others are missed, which it may have been meant for."""
        for flag in (argument.partition("=")[0] for argument in given if re.match(r"--\w", argument)):
            if not any(known.startswith(flag) for known in self._option_string_actions):
                self.error(f"unrecognized arguments: {flag}")

    def _near(self, message: str) -> str:
        """What was meant by a flag or a word that is not known."""
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            return did_you_mean(unknown[1].partition("=")[0], self._option_string_actions)
        wrong = re.match(r"argument (\S+): invalid choice: '(.*?)' \(choose from (.*)\)", message)
        return did_you_mean(wrong[2], re.findall(r"[\w-]+", wrong[3])) if wrong else ""


class Help(argparse.RawDescriptionHelpFormatter):
    """Texts as they are laid out, and each default that says something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        says_nothing = action.default in (None, argparse.SUPPRESS) or isinstance(action.default, bool | list)
        if says_nothing or "default:" in (action.help or ""):
            return action.help
        return f"{action.help} (default: %(default)s)"


def add_command(commands: Commands, run: Callable[[argparse.Namespace], int | None]) -> Parser:
    """A command that has the name of a function, and its docstring for help.

    Args:
        commands: Where it is added.
        run: What runs the command; returns the exit status, None for 0. Its docstring is a sentence, then what is
            done, then examples under a line "Examples:".
    """
    about, examples, epilog = (inspect.getdoc(run) or "").partition("\nExamples:")
    summary, _, description = about.partition("\n\n")
    parser = commands.add_parser(
        run.__name__,
        help=summary[:1].lower() + summary[1:].rstrip("."),
        description=description,
        epilog=examples.lstrip() + epilog,
        formatter_class=Help,
    )
    parser.set_defaults(run=run)
    parser.is_command = True
    return parser


def add_config(parser: Parser) -> None:
    """A file of arguments, for a command that writes one beside its results."""
    parser.takes_config = True
    parser.add_argument("--config", type=Path, metavar="FILE", help=CONFIG)


class ListMethods(argparse.Action):
    """The name of a method, or several; without a value it prints what methods there are, and ends."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        """As in argparse."""
        if values is not None:
            setattr(namespace, self.dest, values)
            return
        print(methods_listed())
        parser.exit()


def names_of_tasks() -> list[str]:
    """Built-in tasks, and files of tasks here."""
    from cs_heads.tasks import builtin_tasks

    return [*builtin_tasks(), *(str(path) for form in ("*.jsonl", "*.csv") for path in Path().glob(form))]


def names_of_models() -> list[str]:
    """The demo model, and folders here."""
    return ["demo", *(f"{path}/" for path in Path().iterdir() if path.is_dir())]


def names_of_methods() -> list[str]:
    """What ``--method`` may be."""
    from cs_heads.methods.registry import METHODS

    return list(METHODS)


def methods_listed() -> str:
    """A line for each method: its name, and what it does."""
    from cs_heads.methods.registry import METHODS

    width = max(map(len, METHODS))
    lines = [f"  {name:<{width}}  {method.about}" for name, method in METHODS.items()]
    return "\n".join(["methods (the options of one: cs-heads find --method NAME --help):", *lines])


def add_common(parser: Parser) -> None:
    """Arguments of every command that runs a model."""
    add_config(parser)
    add = parser.add_argument
    text = "Hugging Face name, local folder or GGUF file, or demo: the model that comes with the library"
    completes(add("--model", required=True, help=text), names_of_models)
    completes(add("--task", required=True, help="built-in task, or a .jsonl or .csv file"), names_of_tasks)
    controls = parser.add_mutually_exclusive_group().add_argument
    text = (
        "another task, which the heads should not serve; may be repeated: all count, in the search and in the "
        "verdict (default: everyday skills that come with the library)"
    )
    completes(controls("--control", **REPEATED, metavar="TASK", help=text), names_of_tasks)
    text = "no controls: heads of any task are ranked, and none is specific"
    controls("--no-control", action="store_true", help=text)
    text = "an option of the controls that have it, or of one, as boolq:data_files=dev.jsonl; may be repeated"
    add("--control-option", **REPEATED, metavar="[TASK:]NAME=VALUE", help=text)
    add("--n", type=int, help="examples to find heads with (default: 100, or half of a small task)")
    add("--length-normalized", action="store_true", help="score the choices of --task per character (acc_norm)")
    add("--allow-code", action="store_true", help=ALLOW_CODE)
    add("--unsafe-code", action="store_true", help="... and, where this machine has no sandbox, without any protection")
    add("--chat", help="show prompts in the model's chat template: on, off, auto (default: as a task says)")
    add("--too-long", help="prompts that do not fit into the model's context: refuse, or truncate them at the left")
    text = (
        "the model writes its answer to a completion task, and the text must be it; TOKENS may be left out for "
        "demo tasks"
    )
    add("--generate", nargs="?", const=0, type=int, metavar="TOKENS", help=text)
    add("--stop", **REPEATED, metavar="TEXT", help="ends what --generate TOKENS writes; may be repeated")
    text = "an option of --task, as data_files=lists.json or choices=4; may be repeated"
    add("--task-option", **REPEATED, metavar="NAME=VALUE", help=text)
    add("--budget", type=int, help="example-evaluations a method may spend (default: what it takes)")
    add("--k", type=int, help="heads to report and confirm (default: 5, or half of a smaller grid)")
    add("--seed", type=int, default=0, help="seed of the split, the masks and the tests")
    add_loading(parser)
    add("--json", action="store_true", help="print one JSON object")
    parser.complete = add_measuring


def add_measuring(parser: Parser, arguments: Sequence[str]) -> None:
    """The settings of every command that runs a model, and the options of methods.

    Args:
        parser: With a flag for every option of every method where it has ``--method``, else for the required ones.
        arguments: What is to be parsed: the help shows the options of the method that it names.
    """
    from cs_heads.methods.registry import METHODS

    add_settings(parser)
    one = any(action.dest == "method" for action in parser._actions)
    every = {option.name: option for method in METHODS.values() for option in method.options.values()}
    if not one:
        _add_options(parser.add_argument_group("methods"), [option for option in every.values() if option.required])
        return
    asked = Parser(prog=parser.prog, add_help=False)
    asked.add_argument("--method", nargs="?", default=parser.get_default("method"))
    name = asked.parse_known_args(arguments)[0].method or parser.get_default("method")
    own = METHODS[name].options if name in METHODS else {}
    _add_options(parser.add_argument_group(f"options of the method {name}"), own.values())
    _add_options(parser, [option for option in every.values() if option.name not in own], hidden=True)


def add_settings(parser: Parser, names: Collection[str] | None = None) -> None:
    """The settings of a call as flags: those of ``names``, or all."""
    from cs_heads.methods.registry import Option, described
    from cs_heads.settings import Settings, SettingsArguments

    texts, types = described(SettingsArguments, "Attributes"), get_type_hints(SettingsArguments)
    # The dtype stands beside device and backend.
    chosen = [each for each in fields(Settings) if each.name != "dtype" and (names is None or each.name in names)]
    settings = [Option(each.name, types[each.name], each.default, texts[each.name]) for each in chosen]
    _add_options(parser.add_argument_group("settings"), settings)


def _add_options(group: argparse._ActionsContainer, options: Iterable[Option], *, hidden: bool = False) -> None:
    """A flag for each option, with its help; absent ones leave no trace, for None may be a value."""
    for option in options:
        told = option.help.rstrip(".").replace("%", "%%")
        if not option.required and option.default is not None and "default" not in told:
            told = f"{told} (default: {option.default})"
        switch: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        group.add_argument(
            _flag(option.name),
            dest=option.name,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS if hidden else told[:1].lower() + told[1:],
            **switch if bool in option.types else {"type": _reader(option), "metavar": _METAVARS.get(_named(option))},
        )


def _flag(name: str) -> str:
    return "--ray-address" if name == "address" else f"--{name.replace('_', '-')}"


def _named(option: Option) -> str:
    """What kind of thing the text of an option names; nothing where it is the value itself."""
    return next((name for each in option.types if (name := getattr(each, "__name__", "")) in _METAVARS), "")


def _reader(option: Option) -> Callable[[str], Any]:
    """What reads the text of an option."""
    kind = next((kind for kind in (int, float) if kind in option.types), str)

    def read(text: str) -> Any:
        return None if text == "none" and NoneType in option.types else kind(text)

    read.__name__ = kind.__name__
    return read


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that a command was given; those of the model are left to what loads it."""
    from cs_heads.settings import Settings

    loading = ("dtype", "workers", "address")
    return {name: vars(options)[name] for name in Settings.kinds() if name not in loading and name in options}


def method_options(options: argparse.Namespace, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options of each method by its name, from flags and from ``--option METHOD.NAME=VALUE``.

    Args:
        options: The arguments of a command.
        names: The methods that it runs.

    Returns:
        Names and values, read: tasks are loaded and split like ``--task``, rankings are read from files.

    Raises:
        ValueError: An unknown method, an option that a method does not have, or a required one that is missing.
    """
    from cs_heads.methods.registry import METHODS, method_named

    methods = {name: method_named(name) for name in names}
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for flag in dict.fromkeys(key for method in METHODS.values() for key in method.options if key in options):
        takers = [name for name in names if "method" in options or flag in methods[name].options]
        if not takers:
            having = [name for name, method in METHODS.items() if flag in method.options]
            raise ValueError(f"{_flag(flag)} goes with the method {', '.join(having)}")
        for name in takers:
            given[name][flag] = vars(options)[flag]
    for text in getattr(options, "option", ()):
        named, equals, value = text.partition("=")
        name, _, key = named.partition(".")
        if not equals or not key:
            raise ValueError(f"--option must be METHOD.NAME=VALUE, got {text!r}")
        if name not in methods:
            raise ValueError(f"--option {text}: METHOD must be one of {', '.join(names)}, got {name!r}")
        try:
            given[name][key] = _reader(methods[name].options[key])(value) if key in methods[name].options else value
        except ValueError:
            raise ValueError(f"--option {text}: {key} must be a number, got {value!r}") from None
    for name, method in methods.items():
        missing = [option for option in method.options.values() if option.required and option.name not in given[name]]
        if missing:
            needed = " ".join(f"{_flag(option.name)} {_METAVARS.get(_named(option), 'VALUE')}" for option in missing)
            raise ValueError(f"method {name!r} needs {needed}: {missing[0].help}")
        method.check(name, given[name])
        given[name] = {key: _read(options, method.options[key], value) for key, value in given[name].items()}
    return given


def _read(options: argparse.Namespace, option: Option, value: Any) -> Any:
    """The value of an option that names a task or a file."""
    from cs_heads.ranking import HeadRanking
    from cs_heads.tasks import finding_side

    if _named(option) == "Task":
        return finding_side(_load(options, value, permissions(value, options)))
    return HeadRanking.load(value) if _named(option) == "HeadRanking" else value


def add_loading(parser: argparse.ArgumentParser) -> None:
    """How a model is loaded."""
    add = parser.add_argument
    add("--device", help="cpu, cuda, ... (default: cuda where there is one)")
    add("--dtype", help="float32, bfloat16 or float16 (default: float32)")
    add("--backend", default="auto", help="auto, bridge or hooked")


def check_numbers(options: argparse.Namespace) -> None:
    """Raise ``ValueError`` for a number or a head that no model and no task takes, before one is loaded."""
    from cs_heads.arguments import MAX_BUDGET, MAX_HEADS, check_seed, check_within
    from cs_heads.tasks.load import MAX_EXAMPLES
    from cs_heads.units import as_heads

    most = {"k": MAX_HEADS, "max_heads": MAX_HEADS, "n": MAX_EXAMPLES, "n_unseen": MAX_EXAMPLES, "n_masks": MAX_BUDGET}
    for name, limit in {**most, "budget": MAX_BUDGET, "generate": MAX_EXAMPLES}.items():
        value = getattr(options, name, None)
        if value is not None:
            check_within(name, value, 0 if name == "generate" else 1, limit)
    check_seed(options.seed)
    as_heads("off", getattr(options, "off", ()))


def make_folder(out: Path, dry: bool = False) -> None:
    """Make the folder of ``--out``, or with ``dry`` see that it can be; raises ``ValueError`` where it cannot."""
    # Of a name that is too long `Path.exists` raises.
    there = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.exists(path))
    reason = "" if there.is_dir() else f"{str(there)!r} is a file"
    if not dry and not reason:
        try:
            out.mkdir(parents=True, exist_ok=True)
            there = out
        except OSError as error:
            reason = str(error.strerror)
    if not reason and not os.access(there, os.W_OK | os.X_OK):
        reason = f"{str(there)!r} may not be written to"
    if reason:
        raise ValueError(f"--out must be a folder that is there or can be made, got {str(out)!r}: {reason}")


@contextmanager
def loaded(options: argparse.Namespace) -> Iterator[tuple[Any, Task, list[Task] | str | None]]:
    """The model or the cluster that holds it, the task and its controls, each read before anything is measured.

    Controls are as ``find_heads`` takes them: tasks, "auto" or None.
    """
    import cs_heads as cs
    from cs_heads.experiment.controls import check_apart
    from cs_heads.tasks import check_controls, confirming_side, control_side, entry_of, read_task_file

    check_numbers(options)
    if options.out is not None:
        make_folder(options.out)
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
    sides = [control_side(control, n=100, seed=options.seed) for control in controls]
    check_apart([task, *controls], [confirming_side(task), *sides])
    with model_of(options) as model:
        for side in sides:
            cs.Experiment(model, side)
        yield model, task, None if options.no_control else controls or "auto"


@contextmanager
def model_of(options: argparse.Namespace) -> Iterator[Any]:
    """The model of a command, or the cluster that holds it, which ends with the block."""
    import cs_heads as cs
    from cs_heads.cluster import placed

    load = partial(cs.load_model, options.model, device=options.device, dtype=options.dtype, backend=options.backend)
    workers, address = getattr(options, "workers", None), getattr(options, "address", None)
    with placed(load() if workers is None and address is None else load, workers, address) as model:
        yield model


def options_by_task(
    options: argparse.Namespace, kind: str, names: Sequence[str], flag: str, texts: Sequence[str]
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


def unseen_of(
    options: argparse.Namespace, model: Any, task: Task, beside: str, settings: dict[str, Any]
) -> Experiment | None:
    """The unseen examples to judge with, where ``--out`` names a folder; None where it does not.

    Args:
        options: The arguments of a command.
        model: The model.
        task: The task.
        beside: A file of the folder that another command wrote.
        settings: Those of the command; they are given the store that the examples opened.

    Raises:
        ValueError: The file ``beside`` is of another model or task, or the folder is that of an atlas.
    """
    import cs_heads as cs
    from cs_heads.report.findings import ATLAS, check_alone, check_folder
    from cs_heads.tasks import confirming_side

    if options.out is None:
        return None
    check_alone(options.out, ATLAS)
    with warnings.catch_warnings():
        # The same examples are measured later, and what is to be said of them is said then.
        warnings.simplefilter("ignore")
        unseen = cs.Experiment(model, confirming_side(task).take(100), **settings)
    check_folder(options.out, beside, unseen.provenance())
    settings["store"] = unseen.store
    return unseen


def losses_line(found: Specificity, most: int = 3) -> str:
    """The own loss, the mean control loss, and the controls that lose most."""
    many = len(found.controls)
    line = f"the task loses {found.own}, {f'{many} controls {found.mean} on average' if many > 1 else 'its control'}"
    return f"{line}; {largest_losses(found, most)}" if many > 1 else f"{line} {found.mean}"


def largest_losses(found: Specificity, most: int = 3) -> str:
    """The controls that lose most, the first first."""
    order = sorted(found.controls, key=lambda name: -found.controls[name].loss)
    shown = ", ".join(f"{name} {found.controls[name].loss:.2f}" for name in order[:most])
    left = order[most:]
    more = f"; {len(left)} more lose at most {found.controls[left[0]].loss:.2f}" if left else ""
    return f"controls that lose most: {shown}{more}"


def permissions(task: str, options: argparse.Namespace) -> dict[str, Any]:
    """Leave to run what the model writes, for a built-in task that asks for it."""
    from cs_heads.tasks import entry_of

    entry = entry_of(task)
    asked = entry.options if entry else ()
    return {name: True for name in ("allow_code", "unsafe_code") if name in asked and getattr(options, name)}


def _task(options: argparse.Namespace) -> Task:
    from cs_heads.tasks import entry_of

    named = dict(_option("--task-option", text, _TASK_FLAGS) for text in options.task_option)
    given = {**named, **permissions(options.task, options)}
    entry = entry_of(options.task)
    if options.generate == 0:
        if entry is None or "generate" not in entry.options:
            raise ValueError(f"--generate needs a number of tokens for task {options.task!r}, as --generate 8")
        given["generate"] = True
    elif options.stop and options.generate is None:
        raise ValueError("--stop goes with --generate TOKENS")
    task = _load(options, options.task, given)
    return task.generated(options.generate, options.stop) if options.generate else task


def _load(options: argparse.Namespace, name: str, given: dict[str, Any]) -> Task:
    """A task of ``--n`` examples; ``given`` are its options."""
    import cs_heads as cs

    more = {"chat": options.chat, "too_long": options.too_long, **given}
    return cs.load_task(name, options.n, options.seed, options.length_normalized, **more)


def _option(flag: str, text: str, flags: Sequence[str]) -> tuple[str, Any]:
    """Name and value; a value that is JSON is what it says, any other a text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{flag} must be NAME=VALUE, got {text!r}")
    own = name.rpartition(":")[2]
    if own in flags:
        raise ValueError(f"{flag} {name}=...: use --{own.replace('_', '-')}")
    try:
        return name, json.loads(value)
    except (json.JSONDecodeError, RecursionError):
        return name, value
