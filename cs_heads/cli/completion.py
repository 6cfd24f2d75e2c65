"""Completion in the shell, by argcomplete where that is installed: commands, flags, names of tasks and methods.

A shell waits for each answer, as who mistypes an argument or asks for help does, and importing the methods takes
seconds: what they are called and which options they have is read from their source.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import inspect
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Union

from cs_heads.arguments import Option, described

_REGISTRY = "cs_heads.methods.registry"


def is_completing() -> bool:
    """Whether a shell asks how a line goes on."""
    return "_ARGCOMPLETE" in os.environ


def autocomplete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks how a line goes on, and end; nothing where none asks."""
    if is_completing():
        import argcomplete

        argcomplete.autocomplete(parser, always_complete_options="long")


def completes(action: argparse.Action, names: Callable[[], Iterable[str]], *, lists: bool = False) -> None:
    """Let the value of an option be completed.

    Args:
        action: The option.
        names: Gives the names that it may have; called when the shell asks.
        lists: Whether it takes several, with commas between.
    """

    def known(prefix: str, **_: Any) -> list[str]:
        begun, comma, _last = prefix.rpartition(",") if lists else ("", "", prefix)
        return [f"{begun}{comma}{name}" for name in names()]

    # What argcomplete reads.
    vars(action)["completer"] = known


@cache
def methods_in_source() -> dict[str, dict[str, Option]]:
    """The options of every method of the registry, by its name; types that are not built in are their names alone."""
    assigned: dict[str, Any] = {}
    for node in _tree(_REGISTRY).body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            assigned[ast.unparse(target)] = node.value
    given, methods = ast.literal_eval(assigned["_GIVEN"]), {}
    for name, made in zip(assigned["METHODS"].keys, assigned["METHODS"].values, strict=True):
        run, fixed = made.args[0], []
        if isinstance(run, ast.Call):  # a partial
            fixed = [keyword.arg for keyword in run.keywords]
            run = run.args[0]
        function = _function(_REGISTRY, run.id)
        texts, arguments = described(ast.get_docstring(function) or ""), function.args
        methods[name.value] = {
            each.arg: Option(
                each.arg,
                str if each.annotation is None else _type(each.annotation),
                inspect.Parameter.empty if default is None else ast.literal_eval(default),
                texts.get(each.arg, ""),
            )
            for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if each.arg not in (*given, *fixed)
        }
    return methods


def _type(annotation: ast.expr) -> Any:
    """A type that is built in, or a union of some; of any other a class of its name."""
    if isinstance(annotation, ast.BinOp):
        return Union[_type(annotation.left), _type(annotation.right)]  # noqa: UP007 - not written out
    name = ast.unparse(annotation.value if isinstance(annotation, ast.Subscript) else annotation)
    return None if name == "None" else getattr(builtins, name, None) or type(name, (), {})


@cache
def _tree(module: str) -> ast.Module:
    """The source of a module of this package, parsed."""
    path = Path(__file__).parents[2].joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _function(module: str, name: str) -> ast.FunctionDef:
    """The function that a module has under a name, where it is defined."""
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and name in (each.name for each in node.names):
            return _function(node.module, name)
    raise ValueError(f"{module} has no function {name}")
