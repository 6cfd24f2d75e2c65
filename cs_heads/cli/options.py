"""Flags that commands share, and the values of settings and of methods' options that they give."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

from cs_heads.arguments import Option, check_one_of, described
from cs_heads.cli.completion import completes, methods_in_source
from cs_heads.cli.cost import DRY_RUN
from cs_heads.cli.loading import load_named, permissions
from cs_heads.cli.parser import Parser, add_config

# What stands in help for the value of an option of such a type.
_METAVARS = {"Task": "TASK", "HeadRanking": "FILE", "PathLike": "FILE"}

REPEATED: dict[str, Any] = {"action": "append", "default": []}
"""A flag that may be given several times: its values are a list."""
ALLOW_CODE = "tasks whose answer is a program may run it, in a sandbox"


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
    return ["demo", *(f"{path}/" for path in Path().iterdir() if path.is_dir() and path.name[0] != ".")]


def names_of_methods() -> list[str]:
    """What ``--method`` may be."""
    return [*methods_in_source()]


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
    add("--dry-run", action="store_true", help=DRY_RUN)
    parser.complete = add_measuring


def add_measuring(parser: Parser, arguments: Sequence[str]) -> None:
    """The settings of every command that runs a model, and the options of methods.

    Args:
        parser: With a flag for every option of every method where it has ``--method``, else for the required ones.
        arguments: What is to be parsed: the help shows the options of the method that it names.
    """
    add_settings(parser)
    one = any(action.dest == "method" for action in parser._actions)
    methods = methods_in_source()
    every = {option.name: option for own in methods.values() for option in own.values()}
    if not one:
        _add_options(parser.add_argument_group("methods"), [option for option in every.values() if option.required])
        return
    asked = Parser(prog=parser.prog, add_help=False)
    asked.add_argument("--method", nargs="?", default=parser.get_default("method"))
    name = asked.parse_known_args(arguments)[0].method or parser.get_default("method")
    own = methods.get(name, {})
    _add_options(parser.add_argument_group(f"options of the method {name}"), own.values())
    _add_options(parser, [option for option in every.values() if option.name not in own], hidden=True)


def add_settings(parser: Parser, names: Collection[str] | None = None) -> None:
    """The settings of a call as flags: those of ``names``, or all."""
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


def add_loading(parser: argparse.ArgumentParser) -> None:
    """How a model is loaded."""
    add = parser.add_argument
    add("--device", help="cpu, cuda, ... (default: cuda where there is one)")
    add("--dtype", help="float32, bfloat16 or float16 (default: float32)")
    add("--backend", default="auto", help="auto, bridge or hooked")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that a command was given, checked; those of the model are left to what loads it."""
    from cs_heads.settings import Settings

    given = {name: vars(options)[name] for name in Settings.kinds() if name in options and name != "dtype"}
    Settings.of(given)
    return {name: value for name, value in given.items() if name not in ("workers", "address")}


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
    from cs_heads.settings import check_method_options

    known = methods_in_source()
    for name in names:
        check_one_of("method", name, known)
    methods = {name: known[name] for name in names}
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for flag in dict.fromkeys(key for own in known.values() for key in own if key in options):
        takers = [name for name in names if "method" in options or flag in methods[name]]
        if not takers:
            having = [name for name, own in known.items() if flag in own]
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
            given[name][key] = _reader(methods[name][key])(value) if key in methods[name] else value
        except ValueError:
            raise ValueError(f"--option {text}: {key} must be a number, got {value!r}") from None
    for name, own in methods.items():
        missing = [option for option in own.values() if option.required and option.name not in given[name]]
        if missing:
            needed = " ".join(f"{_flag(option.name)} {_METAVARS.get(_named(option), 'VALUE')}" for option in missing)
            raise ValueError(f"method {name!r} needs {needed}: {missing[0].help}")
        check_method_options(name, own, given[name])
        given[name] = {key: _read(options, own[key], value) for key, value in given[name].items()}
    return given


def _read(options: argparse.Namespace, option: Option, value: Any) -> Any:
    """The value of an option that names a task or a file."""
    from cs_heads.ranking import HeadRanking
    from cs_heads.tasks import finding_side

    if _named(option) == "Task":
        return finding_side(load_named(options, value, permissions(value, options)))
    return HeadRanking.load(value) if _named(option) == "HeadRanking" else value
