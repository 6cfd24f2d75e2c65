"""The parser of a command: one line for what is wrong, a file of arguments, and what takes long added late."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cs_heads.arguments import did_you_mean
from cs_heads.cli.config import config_given, read_config, with_config
from cs_heads.cli.printing import colored

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

CONFIG = (
    "a TOML file of options, as n_masks = 200; flags override it. --out writes run.toml, which repeats the run that "
    "wrote it"
)


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
