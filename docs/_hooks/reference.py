"""Pages made of the code: the names of a package, and the command line."""

from __future__ import annotations

import ast
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
    """Every command with what it does and all that can be given, from its docstring and its flags."""
    from cs_heads.cli import COMMANDS

    return "\n\n".join(part for command in COMMANDS for part in _command(command))


def _command(command: Any) -> Iterator[str]:
    from cs_heads.cli import help_of

    yield f"## cs-heads {command.__name__}"
    summary, _, more = help_of(command).partition("\n\n")
    yield from _paragraphs(f"{summary}\n\n{more.replace('examples:', '').rstrip()}")
    if command.__name__ == "reproduce":
        yield _text("\n".join(_steps()))
    lines = [f"| `{name}` | {text} |" for name, text in rows(command)]
    yield "\n".join(["| argument | meaning |", "|---|---|", *lines])
    if command.__name__ == "methods":
        yield from _options()


def _steps() -> Iterator[str]:
    """A line for each step of each paper."""
    from cs_heads.reproduce.run import STEPS

    for paper, steps in STEPS.items():
        yield f"steps of {paper}:"
        for step in steps:
            need = f" (needs {step.needs[0]})" if step.needs[0] else ""
            yield f"  {step.name:<16}{step.about}{need}"


def _options() -> Iterator[str]:
    """The options of every method."""
    from cs_heads.methods import METHODS

    for name, method in METHODS.items():
        if method.options:
            yield f"**Options of the method {name}**"
            lines = [f"| `--{each.replace('_', '-')}` | {_escaped(o.help)} |" for each, o in method.options.items()]
            yield "\n".join(["| option | meaning |", "|---|---|", *lines])


def rows(command: Any) -> Iterator[tuple[str, str]]:
    """What can be given to a command, and what it means."""
    from cs_heads.cli import app

    made = app()
    of_command = made[command.__name__]
    # A command does not know by itself what holds for all.
    for argument in of_command.assemble_argument_collection(
        default_parameter=made.default_parameter, parse_docstring=True
    ):
        if argument.parse and argument.name != "*":
            default = argument.field_info.default
            unsaid = (argument.field_info.empty, None, False, True, [])
            kept = "" if default in unsaid else f" (default: {default})"
            meaning = " ".join((argument.parameter.help or "").split())
            yield ", ".join(argument.names), _escaped(meaning + ("" if "default:" in meaning else kept))


def _paragraphs(text: str) -> Iterator[str]:
    """Prose as prose, and what is laid out in columns as it is."""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        yield _text(part) if part.startswith(" ") else _escaped(part)


def _text(text: str) -> str:
    # The page breaks lines by itself.
    lines = re.sub(r"\n {4,}", " ", dedent(text).strip())
    return f"```text\n{lines}\n```"


def _escaped(text: str) -> str:
    return re.sub(r"([<*_|\[\]`])", r"\\\1", text)
