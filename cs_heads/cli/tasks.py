"""``cs-heads tasks``: what there is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cs_heads.cli.options import Commands


def add(commands: Commands) -> None:
    """The sub-command ``tasks``."""
    parser = commands.add_parser("tasks", help="list the built-in tasks, one a line, and what each needs")
    parser.set_defaults(run=_tasks)


def _tasks(_: argparse.Namespace) -> None:
    from cs_heads.tasks import builtin_tasks

    listed = builtin_tasks()
    width = max(map(len, listed))
    for name, entry in listed.items():
        print(f"{name:<{width}}  {entry.about}{f' (needs {entry.needs})' if entry.needs else ''}")
