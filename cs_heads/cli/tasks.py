"""List the built-in tasks, what each is and what it needs.

List the tasks that --task and --control know by name, what each is and what it needs: an extra
to install, or files (--task-option data_files=PATH). A .jsonl or .csv file of your own needs
no name.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING

from cs_heads.cli.options import add_command

if TYPE_CHECKING:
    from cs_heads.cli.options import Commands

WIDTH = 120


def add(commands: Commands) -> None:
    """The sub-command ``tasks``."""
    parser = add_command(commands, "tasks", __doc__, _tasks)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with each task's options")


def _tasks(options: argparse.Namespace) -> None:
    from cs_heads.tasks import builtin_tasks

    listed = builtin_tasks()
    if options.json:
        print(
            json.dumps(
                {
                    name: {
                        "about": entry.about,
                        "needs": entry.needs,
                        "leaves_out": entry.leaves_out,
                        "options": entry.options,
                    }
                    for name, entry in listed.items()
                }
            )
        )
        return
    width = max(map(len, listed))
    margin = " " * (width + 2)
    for number, (_, names) in enumerate(groupby(listed, key=lambda name: name.partition("/")[0])):
        if number:
            print()
        for name in names:
            entry = listed[name]
            print(f"{name:<{width}}  {entry.about}")
            if entry.needs:
                print(f"{'':<{width}}  needs {entry.needs}")
            if entry.leaves_out:
                print(fill(f"leaves out {entry.leaves_out}", WIDTH, initial_indent=margin, subsequent_indent=margin))
