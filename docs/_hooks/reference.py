"""Pages made of the code: the names of a package, and the command line."""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).parents[2]


def exported(package: str) -> dict[str, str]:
    """The public names of a package, and where each comes from, without importing it: read in its stub or ``__init__``.

    >>> exported("cs_heads")["find_heads"]
    'cs_heads.methods.find.find_heads'
    """
    folder = ROOT.joinpath(*package.split("."))
    stub = folder / "__init__.pyi"
    text = (stub if stub.exists() else folder / "__init__.py").read_text(encoding="utf-8")
    names = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            module = (
                f"{package}.{node.module}" if node.level and node.module else package if node.level else node.module
            )
            names |= {alias.asname: f"{module}.{alias.name}" for alias in node.names if alias.asname}
    return names


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what the code says where a page asks for it."""
    markdown = re.sub(r"^<!-- names of (\S+) -->$", lambda found: names_of(found[1]), markdown, flags=re.MULTILINE)
    return re.sub(r"^<!-- commands -->$", lambda _: commands(), markdown, flags=re.MULTILINE)


def names_of(package: str) -> str:
    """One entry for each public name of a package that the top level has not, as mkdocstrings asks for it."""
    top = exported("cs_heads")
    return "\n\n".join(f"::: {path}" for name, path in exported(package).items() if top.get(name) != path)


def commands() -> str:
    """Every command with its usage and all that can be given, from the parser itself."""
    from cs_heads.cli import _parser

    os.environ["COLUMNS"] = "84"  # what usage is wrapped at
    parser = _parser()
    [choices] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return "\n\n".join(part for name, command in choices.choices.items() for part in _command(name, command))


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## cs-heads {name}"
    variants = _variants(name, command)
    first = next(variants)
    yield from _paragraphs(first.description or "")
    yield _text(first.format_usage().removeprefix("usage: "))
    shown: set[str] = set()
    for parser in (first, *variants):
        for group in parser._action_groups:
            actions = [a for a in group._group_actions if a.help != argparse.SUPPRESS]
            if actions and group.title not in shown:
                shown.add(group.title)
                yield f"**{group.title[:1].upper()}{group.title[1:]}**"
                yield "\n".join(_rows(parser, actions))
    if first.epilog:
        yield _text(first.epilog.replace("examples:", ""))


def _variants(name: str, command: Any) -> Iterator[Any]:
    """The parser of a command; where its arguments depend on the method, once for each method."""
    if command.complete is None:
        yield command
        return
    from cs_heads.cli import _parser
    from cs_heads.methods import METHODS

    for method in METHODS:
        [choices] = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
        fresh = choices.choices[name]
        fresh.complete(fresh, ["--method", method])
        yield fresh


def _rows(parser: Any, actions: list[argparse.Action]) -> Iterator[str]:
    formatter = parser._get_formatter()
    yield "| argument | meaning |"
    yield "|---|---|"
    for action in actions:
        given = formatter._format_action_invocation(action).replace("|", "\\|")
        meaning = " ".join((formatter._expand_help(action) if action.help else "").split())
        yield f"| `{given}` | {_escaped(meaning)} |"


def _paragraphs(text: str) -> Iterator[str]:
    """Prose as prose, and what is laid out in columns as it is."""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        yield _text(part) if part.startswith(" ") else _escaped(part)


def _text(text: str) -> str:
    return f"```text\n{dedent(text).strip()}\n```"


def _escaped(text: str) -> str:
    return re.sub(r"([<*_|\[\]`])", r"\\\1", text)
