"""A run in a file: the flags of a command as TOML, read by ``--config`` and written by ``--out``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cs_heads.arguments import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RUN = "run.toml"
"""The file that ``--out`` writes."""

# What a file says nothing of: these are of one call.
_OF_A_CALL = ("help", "config", "json", "dry_run")


def config_given(arguments: Sequence[str]) -> Path | None:
    """The file that ``--config`` names among arguments, if there is one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    known: Path | None = parser.parse_known_args([each for each in arguments if each not in ("-h", "--help")])[0].config
    return known


def read_config(path: Path) -> dict[str, Any]:
    """What a file says; raises ``ValueError`` where it is no TOML, ``OSError`` where it is not there."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"--config {path}: no TOML: {error}") from None


def with_config(
    parser: argparse.ArgumentParser, path: Path, said: dict[str, Any], arguments: Sequence[str]
) -> list[str]:
    """The arguments that a file stands for, then those given, which override it.

    Args:
        parser: What they are arguments of.
        path: The file, for errors.
        said: What it says.
        arguments: Those given.

    Raises:
        ValueError: A key that is no option of the command, or a value of another type.
    """
    known = {_key(action): action for action in _in_files(parser)}
    stand_for: list[str] = []
    overridden = _overridden(parser, arguments)
    for key, value in said.items():
        name = key.replace("_", "-")
        if name not in known:
            raise ValueError(f"--config {path}: {parser.prog} has no option {key!r}{did_you_mean(name, known)}")
        if known[name].dest not in overridden:
            stand_for += _as_arguments(known[name], value, f"--config {path}: {key}")
    return [*stand_for, *arguments]


def write_config(parser: argparse.ArgumentParser, options: argparse.Namespace, arguments: Sequence[str]) -> Path:
    """Write what was given to the folder of ``--out``, so that ``--config`` repeats the run; returns the file."""
    lines = [f"# {parser.prog} --config {RUN} repeats this run (cs-heads {version('cs-heads')}); flags override it."]
    given = _given(parser, arguments)
    for action in _in_files(parser):
        if action.dest in given:
            lines.append(f"{_key(action)} = {_as_toml(getattr(options, action.dest))}")
    path: Path = options.out / RUN
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _in_files(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    return [action for action in parser._actions if action.option_strings and action.dest not in _OF_A_CALL]


def _key(action: argparse.Action) -> str:
    """The name of an option in a file: that of its flag, but for flags that turn something off."""
    return action.dest.replace("_", "-")


def _given(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> set[str]:
    """Where the values go of the flags that stand among arguments, shortened ones too."""
    given = set()
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--") and len(name) > 2:
            actions = parser._option_string_actions
            exact = [actions[name]] if name in actions else []
            given |= {action.dest for action in exact or [actions[each] for each in actions if each.startswith(name)]}
    return given


def _overridden(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Collection[str]:
    """What arguments say, and what they rule out: of ``--control`` and ``--no-control`` one is given."""
    given = _given(parser, arguments)
    for group in parser._mutually_exclusive_groups:
        dests = {action.dest for action in group._group_actions}
        if dests & given:
            given |= dests
    return given


def _as_arguments(action: argparse.Action, value: Any, where: str) -> list[str]:
    flag = max(action.option_strings, key=len)
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"{where} must be true or false, got {value!r}")
        if isinstance(action, argparse.BooleanOptionalAction):
            return [action.option_strings[0 if value else 1]]
        return [flag] if value is action.const else []
    several = isinstance(value, list)
    if several is not (action.nargs == "+" or isinstance(action, argparse._AppendAction)) or isinstance(value, dict):
        raise ValueError(f"{where} must be {'one value' if several else 'a list'}, got {value!r}")
    texts = [_text(each, where) for each in (value if several else [value])]
    if action.nargs == "+":
        return [flag, *texts] if texts else []
    return [f"{flag}={text}" for text in texts]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"{where} must be a text or a number, got {value!r}")
    return str(value)


def _as_toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_as_toml, value))}]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    # A text of JSON is one of TOML, but for DEL.
    return json.dumps("none" if value is None else str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
