"""Completion in the shell, by argcomplete where that is installed: commands, flags, names of tasks and methods."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any


def autocomplete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks how a line goes on, and end; nothing where none asks."""
    if "_ARGCOMPLETE" in os.environ:
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
