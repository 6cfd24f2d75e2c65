"""Runs code that nobody has read: in a fresh process under bubblewrap, within limits, and gone at the end."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from cs_heads.arguments import check_integer, check_type
from cs_heads.sandbox import bubblewrap
from cs_heads.sandbox.bubblewrap import INTERPRETER_OPTIONS, interpreter, missing, program, spare_user
from cs_heads.sandbox.conversation import Conversation, NotStartedError, Started

END_SECONDS = 10.0
"""How long the kernel may take to end everything that was killed."""

UNSAFE = (
    "WITHOUT A SANDBOX, as this user: with all files and the network, no limit on processes (on macOS none on memory), "
    "and what it starts in a session of its own is not ended"
)
"""What running code unprotected means."""


class SandboxError(OSError):
    """This machine does not run code safely; the message says what to do."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        passed: Whether it passed.
        reason: Why not, in words; empty where it did.
        output: What it wrote to standard output and error.
    """

    passed: bool
    reason: str
    output: str


@dataclass(frozen=True)
class Sandbox:
    """A sandbox for Python code by its limits; every run is a fresh process that sees none of this machine.

    Inside there is no network, no file of this machine but a read-only interpreter with its standard
    library, an empty ``/tmp`` of its own, no environment, no capability and no process but its own.
    Without bubblewrap a run raises ``SandboxError``, naming what to install, unless ``unsafe``: then the
    code runs as the present user, with a ``RuntimeWarning``. It may read, change and send whatever that user may;
    of the limits it lacks those on processes and on the size of ``/tmp`` together (on macOS that on memory, too), and
    what it starts in a session of its own runs on after the end.

    Attributes:
        seconds: Processor time of each process, in seconds.
        wall_seconds: Time of a run, in seconds.
        memory_mb: Address space of each process, MiB, 64 or more.
        processes: Processes and threads at once.
        file_mb: Size of ``/tmp``, and of one file, MiB.
        output_bytes: Bytes of standard output and error together.
        unsafe: Run without protection where there is none.

    Raises:
        ValueError: A limit that is no integer of 1 or more, or less memory than the interpreter needs.

    >>> Sandbox(seconds=2).limits["seconds"]
    2
    """

    seconds: int = 6
    wall_seconds: int = 20
    memory_mb: int = 512
    processes: int = 4
    file_mb: int = 16
    output_bytes: int = 100_000
    unsafe: bool = False

    def __post_init__(self) -> None:
        check_type("unsafe", self.unsafe, bool)
        for name, value in self.limits.items():
            check_integer(name, value, 1)
        if self.memory_mb < 64:
            raise ValueError(f"memory_mb must be 64 or more, for the interpreter itself, got {self.memory_mb}")

    @property
    def limits(self) -> dict[str, int]:
        """Every limit by name: what can change a verdict."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "unsafe"}

    def check(self) -> bool:
        """Whether code runs protected here; where it does not and ``unsafe`` allows that, a warning.

        Raises:
            SandboxError: It does not, and ``unsafe`` does not allow that.
        """
        try:
            _works()
        except SandboxError as error:
            if not self.unsafe:
                raise
            warnings.warn(f"generated code runs {UNSAFE}: {error}", RuntimeWarning, stacklevel=2)
            return False
        return True

    def run(self, code: str, tests: str = "") -> Outcome:
        """Run code, then tests in the same namespace; it passes when both run to their end without an error.

        Leaving early, whatever the exit status, is no pass: reports hold a word that is in no pipe when the code
        starts. What the code does to this machine is held back by the kernel; a verdict is not, since tests and code
        share an interpreter as they do in HumanEval and MBPP. Code that is written to cheat passes: by an object
        equal to everything, or by the word from the frames of the program that judges.

        Args:
            code: The program.
            tests: What is run after it, in the same namespace.

        Returns:
            Whether it passed, why not, and what it wrote to standard output and error.

        Raises:
            SandboxError: Code does not run protected here, and ``unsafe`` does not allow that.

        >>> Sandbox().run("def double(x): return x + x", "assert double(2) == 5").reason  # doctest: +SKIP
        "AssertionError in the tests at 'assert double(2) == 5'"
        """
        return self._converse(code, tests, safe=self.check())

    def run_all(self, programs: Iterable[tuple[str, str]]) -> list[Outcome]:
        """Run many pairs of code and tests, as many at once as there are processors.

        Args:
            programs: The pairs.

        Raises:
            SandboxError: Code does not run protected here, and ``unsafe`` does not allow that.
        """
        programs = list(programs)
        if not programs:
            return []
        safe = self.check()
        with ThreadPoolExecutor(processors()) as pool:
            return list(pool.map(lambda program: self._converse(program[0], program[1], safe), programs))

    def _converse(self, code: str, tests: str, safe: bool) -> Outcome:
        word = secrets.token_hex(16)
        with _protected(self) if safe else _unprotected() as started:
            # In a user namespace of its own, the first process of bubblewrap counts with the code's.
            processes = self.processes + (started.uid is None) if safe else 0
            limits = {**self.limits, "processes": processes}
            talk = Conversation(
                started=started,
                first=_framed({"code": code, "word": word, "uid": started.uid, "limits": limits}),
                second=_framed({"tests": tests}),
                word=word,
                wall_seconds=self.wall_seconds,
                output_bytes=self.output_bytes,
            )
            try:
                talk.hold()
            except NotStartedError as error:
                raise SandboxError(f"the sandbox does not start on this machine: {error}") from error
        if safe and not talk.alone:
            raise SandboxError("generated code outlived its sandbox by seconds: stop, and look for its processes")
        output = bytes(talk.output).decode(errors="replace")
        verdict = talk.verdict
        if talk.stopped or verdict is None:
            return Outcome(False, talk.ending, output)
        if verdict["event"] == "passed":
            return Outcome(True, "", output)
        return Outcome(False, str(verdict.get("reason", "it sent a report that is none"))[:1000], output)


def _is_over(pid: int) -> bool:
    """Whether the first process of a sandbox ends in time.

    The kernel ends a process namespace with its first process, and that one is over only when all others are.
    """
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.001)
    return False


@contextmanager
def _protected(sandbox: Sandbox) -> Iterator[Started]:
    """The program inside, under bubblewrap."""
    uid = spare_user()
    with ExitStack() as stack:
        rules, filled = os.pipe()
        stack.callback(os.close, rules)
        with os.fdopen(filled, "wb") as file:
            file.write(bubblewrap.refusals())
        told, info = os.pipe()
        with os.fdopen(told, "rb") as telling:
            try:
                command = program(uid, sandbox.file_mb, rules, info)
                process, report = stack.enter_context(_program(command, (rules, info), cwd="/", env={}))
            finally:
                os.close(info)
            said = telling.read()
        # Where bubblewrap fails before there is an inside, it says nothing here.
        first = json.loads(said)["child-pid"] if said else None

        def kill() -> bool:
            # The first process of the sandbox dies with its parent, bubblewrap itself.
            process.kill()
            return first is None or _is_over(first)

        yield Started(process, report, kill, uid)


@contextmanager
def _unprotected() -> Iterator[Started]:
    """The same program as the present user, in a session and a folder of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [interpreter(), *INTERPRETER_OPTIONS]
        with _program(command, (), cwd=folder, env={"PYTHONHASHSEED": "0"}, start_new_session=True) as started:
            process, report = started

            def kill() -> bool:
                # PermissionError: what macOS says of a group of which nothing runs any more.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                return True

            yield Started(process, report, kill)


@contextmanager
def _program(
    command: list[str], passed: tuple[int, ...], **options: Any
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    report, reported = os.pipe()
    try:
        try:
            process = subprocess.Popen(
                [*command, "-c", _inside(), str(reported)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=(reported, *passed),
                **options,
            )
        finally:
            os.close(reported)
        try:
            with process:
                try:
                    yield process, report
                finally:
                    process.kill()
        except BrokenPipeError:
            pass
    finally:
        os.close(report)


def processors() -> int:
    """How many processors this process may use; where the system does not say, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _inside() -> str:
    return Path(__file__).with_name("runner.py").read_text(encoding="utf-8")


def _framed(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return len(data).to_bytes(8, "big") + data


@cache
def _works() -> None:
    """Raise ``SandboxError`` unless a first program passes in the sandbox; asked again until it does."""
    if trouble := _trouble():
        raise SandboxError(f"{trouble}; or run it unprotected with unsafe=True (--unsafe-code)")


def _trouble() -> str:
    if lack := missing():
        return f"running generated code needs a sandbox: {lack}"
    try:
        outcome = Sandbox()._converse("", "", safe=True)
        said = "" if outcome.passed else f"an empty program does not pass: {outcome.reason} {outcome.output}"
    except SandboxError as error:
        said = str(error)
    return said and (
        f"running generated code needs a sandbox, and bubblewrap cannot make one here ({said.strip()}): allow it user "
        "namespaces (in a container by --privileged, or a seccomp profile that has them)"
    )
