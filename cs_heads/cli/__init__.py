"""The same steps from a shell: ``cs-heads find --model M --task T``.

A command is a module of its own with ``add(commands)``, which registers its arguments and what runs it.
"""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from cs_heads.cli import compare, find, report, reproduce, store, tasks
from cs_heads.cli.options import Parser

_COMMANDS = (find, compare, report, reproduce, store, tasks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status, 2 for bad input."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    options.command = shlex.join(["cs-heads", *given])
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            options.run(options)
    except (ValueError, OSError, MemoryError, ImportError) as error:
        print(f"cs-heads: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"cs-heads: interrupted{store.saved(options, given)}", file=sys.stderr)
        return 130
    return 0


def _parser() -> Parser:
    parser = Parser(prog="cs-heads", description="Find the attention heads that a capability rests on.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser


def _print_warning(message: Any, *_: Any, **__: Any) -> None:
    print(f"cs-heads: warning: {' '.join(str(message).split())}", file=sys.stderr)
