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
  cs-heads compare --model demo --task demo/capitals --out compared  the same by several methods
  cs-heads atlas --model demo --out atlas                            the heads of many skills at once, and of all
  cs-heads report found -o page.html                                 the page once more; nothing is measured
  cs-heads reproduce --paper cs --model demo --quick --out cs-demo   a paper's tables and figures

A file of your own is a task, too: --task my_task.jsonl. With --store FILE everything
measured is kept, and the same command resumes where it was cut short. What --out DIR writes
has DIR/run.toml in it: --config DIR/run.toml repeats the run. Each command has its own --help;
cost is said in example-evaluations: one mask, one example. --dry-run says it beforehand.

The shell completes commands, flags, and names of tasks and methods, after
  pip install 'cs-heads[completion]'
  eval "$(register-python-argcomplete cs-heads)"    # bash and zsh; fish: register-python-argcomplete -s fish
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from threading import current_thread, main_thread
from types import FrameType
from typing import Any


def _interrupted(kept: str = "", by: int = signal.SIGINT) -> int:
    """Say so, and what the store has; returns the exit status."""
    print(f"cs-heads: {'interrupted' if by == signal.SIGINT else 'terminated'}{kept}", file=sys.stderr)
    return 128 + by


try:
    from cs_heads.cli import atlas, compare, find, others, reproduce
    from cs_heads.cli.completion import autocomplete
    from cs_heads.cli.parser import Help, Parser
    from cs_heads.cli.printing import colored
except KeyboardInterrupt:
    raise SystemExit(_interrupted()) from None

# In the order of the help.
_COMMANDS = (
    others.add_doctor,
    find.add,
    compare.add,
    atlas.add,
    others.add_report,
    reproduce.add,
    others.add_store,
    others.add_tasks,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    It is 2 for bad input, 1 where a check of a model failed, 130 for Ctrl-C, 143 where it was
    terminated (SIGTERM), 141 where nobody reads on.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = argparse.Namespace()
    with _ending_soon(own=arguments is None), _collecting_seldom(), _noticing_signals() as noticed:
        try:
            parser = _parser()
            autocomplete(parser)
            parser.parse_args(given, options)
            # What the file of --config says stands in the command that results name.
            said = getattr(options, "arguments", given[1:])
            options.command = shlex.join(["cs-heads", *given[:1], *said])
            with warnings.catch_warnings():
                warnings.showwarning = _print_warning
                status: int | None = options.run(options)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            # What is left in the buffer has nowhere to go, and Python would try once more at its end.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
            return 141
        except KeyboardInterrupt:
            return _interrupted(_kept(options), *noticed[:1])
        except Exception as error:
            # A library that is interrupted while it is imported may say so in an exception of its own.
            if noticed:
                return _interrupted(_kept(options), noticed[0])
            if not isinstance(error, ValueError | OSError | MemoryError | ImportError):
                raise
            said = " ".join(str(error).split()) or type(error).__name__
            print(f"cs-heads: {colored('error:', 'red', sys.stderr)} {said}", file=sys.stderr)
            return 2
    return status or 0


def _kept(options: argparse.Namespace) -> str:
    """What to say of the store of a command that was interrupted; nothing where it has none yet."""
    path = getattr(options, "store", None)
    try:
        from cs_heads.store.store import Store

        results = 0 if path is None else Store.open(path).contents().observations
    except (Exception, KeyboardInterrupt):  # what reads the store may be half imported
        results = 0
    return (
        f"; {results:,} results are kept in {path}, and the same command resumes: {options.command}" if results else ""
    )


@contextmanager
def _ending_soon(*, own: bool) -> Iterator[None]:
    """Let a process of the command line's ``own`` end without what large libraries do there, which takes a second."""
    try:
        yield
    finally:
        if own:
            # Nobody needs the garbage that they leave, nor a log of what nothing was compiled for.
            atexit.register(gc.freeze)
            log = getattr(sys.modules.get("torch._dynamo.utils"), "dump_compile_times", None)
            if log is not None:
                atexit.unregister(log)


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Look for garbage in cycles more seldom: that is a sixth of the seconds that large libraries take to import."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def _noticing_signals() -> Iterator[list[int]]:
    """A list that has Ctrl-C and SIGTERM once they came, whatever becomes of the exception; both end the command."""
    noticed: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        noticed.append(number)
        raise KeyboardInterrupt

    # Only the main thread has signals, and a handler of others stays.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    own = {number: was for number, was in usual.items() if signal.getsignal(number) is was}
    own = own if current_thread() is main_thread() else {}
    for number in own:
        signal.signal(number, note)
    try:
        yield noticed
    finally:
        for number, was in own.items():
            signal.signal(number, was)


def _parser() -> Parser:
    # The help is the docstring of the module, as that of each command.
    about, usual, epilog = __doc__.partition("the usual way:")
    description = about.partition("\n\n")[2]
    parser = Parser(prog="cs-heads", description=description, epilog=usual + epilog, formatter_class=Help)
    parser.add_argument("--version", action="version", version=f"cs-heads {version('cs-heads')}")
    parser.set_defaults(run=lambda _: parser.print_help())
    commands = parser.add_subparsers(metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    return parser


def _print_warning(message: Any, *_: Any, **__: Any) -> None:
    print(f"cs-heads: {colored('warning:', 'yellow', sys.stderr)} {' '.join(str(message).split())}", file=sys.stderr)
