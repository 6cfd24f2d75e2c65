"""The command line.

Find the attention heads that a capability of a language model rests on, and prove it.

A capability is a task: examples with a prompt and how the answer is scored. Heads are set
to zero, some at a time, and the score is measured; a head whose absence costs score is
important. What is found on some examples is proved on others, against random heads: believe
the verdict, not the ranking.

the usual way:
  cs-heads tasks                                                     what there is to measure
  cs-heads doctor gpt2                                               whether a model can be measured
  cs-heads find --model demo --task demo/capitals --out found
                                                                     the heads, the verdict, found/report.html
  cs-heads explain --model demo --task demo/capitals --ranking found/ranking.json
                                                                     what each of these heads does
  cs-heads compare --model demo --task demo/capitals --out compared  the same by several methods
  cs-heads atlas --model demo --out atlas                            the heads of many skills at once, and of all
  cs-heads report found -o page.html                                 the page once more; nothing is measured
  cs-heads reproduce --paper cs --model demo --quick --out cs-demo   a paper's tables and figures

A file of your own is a task, too: --task my_task.jsonl. With --store FILE everything
measured is kept, and the same command resumes where it was cut short. What --out DIR writes
has DIR/run.toml in it: --config DIR/run.toml repeats the run. Each command has its own --help;
cost is said in example-evaluations: one mask, one example. --dry-run says it beforehand.

The shell completes commands, flags, and names of tasks and methods, after
  cs-heads --install-completion
"""

from __future__ import annotations

import gc
import inspect
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import takewhile
from textwrap import fill
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@contextmanager
def _stopped_by() -> Iterator[list[int]]:
    """The signals that came, Ctrl-C or SIGTERM, each of which raises ``KeyboardInterrupt``."""
    came: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    # Only the main thread may set what a signal does, and a handler of others stays.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    own = {number: was for number, was in usual.items() if signal.getsignal(number) is was}
    own = own if current_thread() is main_thread() else {}
    for number in own:
        signal.signal(number, stop)
    try:
        yield came
    finally:
        for number, was in own.items():
            signal.signal(number, was)


def _stopped(signals: Sequence[int], kept: str = "") -> int:
    """Say so, and what the store has; returns the exit status."""
    number = signals[0] if signals else signal.SIGINT
    print(f"cs-heads: {'interrupted' if number == signal.SIGINT else 'terminated'}{kept}", file=sys.stderr)
    return 128 + number


with _stopped_by() as _signals:
    try:
        from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnusedCliTokensError
        from cyclopts.config import Dict

        from cs_heads.cli import housekeeping
        from cs_heads.cli.atlas import atlas
        from cs_heads.cli.compare import compare
        from cs_heads.cli.explain import explain
        from cs_heads.cli.find import find
        from cs_heads.cli.flags import Command
        from cs_heads.cli.reproduce import reproduce
        from cs_heads.files import read_text
    except BaseException:  # a library that is interrupted while it is imported may raise one of its own
        if not _signals:
            raise
        raise SystemExit(_stopped(_signals)) from None


WIDTH = 118  # columns of help

COMMANDS: tuple[Callable[..., Any], ...] = (
    housekeeping.doctor,
    find,
    explain,
    compare,
    atlas,
    housekeeping.report,
    reproduce,
    housekeeping.store,
    housekeeping.tasks,
    housekeeping.methods,
)

RUNS = find, explain, compare, atlas, reproduce  # those that run a model, with many flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    It is 2 for bad input, 1 where a check of a model failed, 130 for Ctrl-C, 143 where it was
    terminated (SIGTERM), 141 where nobody reads on.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:
        # Looking for garbage is a sixth of the seconds that large libraries take to import.
        gc.set_threshold(50_000)
    options: Any = None
    with _stopped_by() as signals:
        try:
            shows_all = "--help-all" in given
            given = ["--help" if each == "--help-all" else each for each in given]
            made, told = app(wide=not given or bool({"--help", "-h"} & {*given}), shows_all=shows_all), given
            place = next((place for place, each in enumerate(given) if each.startswith("--config")), None)
            if place is not None:
                made.config, told = _config(given, place)
            run, bound, _ = made.parse_args(told, exit_on_error=False, print_error=False)
            options = next(iter(bound.arguments.values()), None)
            if isinstance(options, Command):
                options.command = shlex.join(["cs-heads", *given])
            with warnings.catch_warnings():
                warnings.showwarning = _print_warning
                status: int | None = run(*bound.args, **bound.kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            # What is left in the buffer has nowhere to go, and Python would try once more at its end.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
            return 141
        except (Exception, KeyboardInterrupt) as error:
            # A library that is interrupted while it is imported may raise an exception of its own.
            if signals or isinstance(error, KeyboardInterrupt):
                return _stopped(signals, _kept(options))
            if not isinstance(error, ValueError | OSError | MemoryError | ImportError | CycloptsError):
                raise
            if isinstance(error, MissingArgumentError):
                # Commands with methods take any flag, so that the library sees none left that a slip may have made.
                known = made.parse_commands(told)[1][-1].assemble_argument_collection()
                names = {name for argument in known for name in argument.names}
                error.unused_tokens = [flag for each in told if (flag := each.partition("=")[0]) not in names]
            said = " ".join(str(error).split()) or type(error).__name__
            strays = [*takewhile(lambda each: not each.startswith("-"), given[1:])]
            if isinstance(error, UnusedCliTokensError):
                strays = [*(error.unused_tokens or ())]
            if isinstance(error, UnusedCliTokensError) or (strays and isinstance(error, MissingArgumentError)):
                values = ", ".join(map(repr, strays))
                said = f"no option takes {values}; cs-heads {given[0]} --help lists them"
            print(f"cs-heads: error: {said}", file=sys.stderr)
            return 2
    return status or 0


def _kept(options: Any) -> str:
    """What to say of the store of a command that was stopped; nothing where it has none yet."""
    path = options.kept_in if isinstance(options, Command) else None
    results = 0
    if path is not None:
        with suppress(Exception, KeyboardInterrupt):  # there is no store yet, or what reads it is half imported
            from cs_heads.store.store import Store

            results = Store.open(path).contents().observations
    return (
        f"; {results:,} results are kept in {path}, and the same command resumes: {options.command}" if results else ""
    )


def app(*, wide: bool = False, shows_all: bool = True) -> App:
    """The commands, their help the docstrings.

    Args:
        wide: Whether help is shown, whose texts are laid out.
        shows_all: Whether help shows all flags of commands that run a model, and not the usual ones alone.
    """
    made = App(
        name="cs-heads",
        help=__doc__.partition("\n\n")[2],
        version=f"cs-heads {version('cs-heads')}",
        help_format="plaintext",
        help_formatter=_laid_out() if wide else "plain",
        default_parameter=Parameter(negative_iterable=(), negative_none=()),
        group_parameters=Group("Parameters", sort_key=1),
    )
    for command in COMMANDS:
        told, usual = help_of(command), command in RUNS and not shows_all
        if usual:
            told += f"\n\nThese are the usual flags: cs-heads {command.__name__} --help-all shows the others."
        made.command(command, help=told, default_parameter=Parameter(show=False) if usual else None)
    made.register_install_completion_command()
    if wide:
        from rich.console import Console

        made.console = Console(width=WIDTH)
    return made


def _laid_out() -> Any:
    """What shows help, the lines of a flag below each other."""
    from cyclopts.help.formatters.plain import PlainFormatter

    class LaidOut(PlainFormatter):
        def _print_plain(self, console: Any, text: str) -> None:
            if text.startswith(f"{self.indent}-"):
                text = fill(" ".join(text.split()), WIDTH, initial_indent=self.indent, subsequent_indent=" " * 8)
            super()._print_plain(console, text)

    return LaidOut()


def help_of(command: Callable[..., Any]) -> str:
    """The help of a command: its docstring, but for what it says of arguments."""
    return (inspect.getdoc(command) or "").partition("\nArgs:")[0].replace("\nExamples:\n", "\nexamples:\n").strip()


def _config(given: list[str], place: int) -> tuple[Dict, list[str]]:
    """What the file of ``--config`` says, and the arguments without it."""
    _, equals, path = given[place].partition("=")
    used = 1 if equals else 2
    path = path if equals else "".join(given[place + 1 : place + 2])
    try:
        said = tomllib.loads(read_text(path, "--config"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"--config {path}: no TOML: {error}") from None
    for key, value in said.items():
        if isinstance(value, dict):
            raise ValueError(f"--config {path}: [{key}] must be a flag and its value, as k = 5, got a table")
    said = {key.replace("_", "-"): value for key, value in said.items()}
    told = given[:place] + given[place + used :]
    # Under the command: beside commands a flag of the same name as one would be left out.
    return Dict(dict.fromkeys(told[:1], said), source=path), told


def _print_warning(message: Any, *_: Any, **__: Any) -> None:
    print(f"cs-heads: warning: {' '.join(str(message).split())}", file=sys.stderr)
