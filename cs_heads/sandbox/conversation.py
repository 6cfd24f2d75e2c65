"""One conversation with a program that is not trusted: what it says, how it ended, and that it has ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import compare_digest
from typing import Any

START_SECONDS = 60.0
"""How long the program may take to say ``started``: on a busy machine, longer than the limit on the code."""

LAST_SECONDS = 5.0
"""How long a program that let go of its report may take to end, and what was killed to let go of its pipes."""


class NotStartedError(RuntimeError):
    """The program never said that it had started; the message is what it wrote instead."""


@dataclass(frozen=True)
class Started:
    """A program that runs: its reports, how to end it with all it started (and whether it did), the user it becomes."""

    process: subprocess.Popen[bytes]
    report: int
    kill: Callable[[], bool]
    uid: int | None = None


@dataclass
class Conversation:
    """Sends ``first``, then ``second`` when the code has loaded; keeps the verdict and the first bytes of output.

    The process of ``started`` reads from its standard input and reports on the other end of its ``report``; its output
    comes on its standard output. That the code has loaded or passed is believed with the ``word`` alone.
    """

    started: Started
    first: bytes
    second: bytes
    word: str
    wall_seconds: int
    output_bytes: int
    output: bytearray = field(default_factory=bytearray)
    verdict: Mapping[str, Any] | None = None
    stopped: str = ""
    alone: bool = False
    _said: bytearray = field(default_factory=bytearray)
    _unsent: bytearray = field(default_factory=bytearray)
    _started: bool = False
    _loaded: bool = False
    _deadline: float = 0.0

    def hold(self) -> None:
        """Talk until there is a verdict, an end or a limit; raises ``NotStartedError`` where nothing began.

        All is killed at the end in any case; ``alone`` then says whether nothing of it is left.
        """
        assert self.started.process.stdin is not None
        assert self.started.process.stdout is not None
        control, output = self.started.process.stdin.fileno(), self.started.process.stdout.fileno()
        self._unsent += self.first
        self._deadline = time.monotonic() + START_SECONDS
        for descriptor in (control, output, self.started.report):
            os.set_blocking(descriptor, False)
        with selectors.DefaultSelector() as waiting:
            waiting.register(output, selectors.EVENT_READ)
            waiting.register(self.started.report, selectors.EVENT_READ)
            while self.started.report in waiting.get_map() and not self.verdict and not self.stopped:
                if self._unsent and control not in waiting.get_map():
                    waiting.register(control, selectors.EVENT_WRITE)
                ready = waiting.select(max(0.0, self._deadline - time.monotonic()))
                if not ready and time.monotonic() >= self._deadline:
                    self.stopped = f"it took more than {self.wall_seconds} s of time"
                for key, _ in ready:
                    if not self._serve(key.fd, control, output):
                        waiting.unregister(key.fd)
        if not self.verdict and not self.stopped:
            # It has let go of its report: it is about to end, and how it ends is worth a moment's wait.
            try:
                self.started.process.wait(LAST_SECONDS)
            except subprocess.TimeoutExpired:
                self.stopped = "it closed its report before its tests had ended"
        killed = self.started.kill()
        self.started.process.wait()
        self.alone = self._last_words(output) and killed
        if not self._started:
            raise NotStartedError(self.output.decode(errors="replace").strip() or self._ending())

    def _serve(self, descriptor: int, control: int, output: int) -> bool:
        """One read or write; whether the descriptor is worth another look."""
        if descriptor == control:
            try:
                del self._unsent[: os.write(control, self._unsent[:65536])]
            except BrokenPipeError:
                self._unsent.clear()
            return bool(self._unsent)
        data = os.read(descriptor, 65536)
        if descriptor == output:
            self._keep(data)
        else:
            self._said += data
            self._listen()
        return bool(data)

    def _keep(self, data: bytes) -> None:
        room = self.output_bytes - len(self.output)
        self.output += data[:room]
        if len(data) > room and not self.stopped:
            self.stopped = f"it wrote more than {self.output_bytes} bytes of output"

    def _listen(self) -> None:
        if len(self._said) > 2**16:
            self.stopped = "it sent more than a report"
        while (end := self._said.find(b"\n")) >= 0 and not self.verdict:
            try:
                message = json.loads(bytes(self._said[:end]))
                event = message["event"]
                if event in ("loaded", "passed") and not compare_digest(message["word"].encode(), self.word.encode()):
                    raise ValueError
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                message, event = {"event": "failed", "reason": "it sent a report that is none"}, "failed"
            del self._said[: end + 1]
            if event == "started" and not self._started:
                self._started = True
                self._deadline = time.monotonic() + self.wall_seconds
            elif event == "loaded" and self._started and not self._loaded:
                self._loaded = True
                self._unsent += self.second
            else:
                self.verdict = message

    def _last_words(self, output: int) -> bool:
        """Read what is left; whether the pipe has ended, which means that nobody holds it any more."""
        deadline = time.monotonic() + LAST_SECONDS
        with selectors.DefaultSelector() as waiting:
            waiting.register(output, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if waiting.select(left):
                    data = os.read(output, 65536)
                    if not data:
                        return True
                    self._keep(data)
        return False

    def _ending(self) -> str:
        status = self.started.process.returncode
        number = -status if status < 0 else status - 128
        if number == signal.SIGXCPU:
            return "it used up its seconds of processor time"
        if number > 0:
            return f"it was ended by {_signal_name(number)} before its tests had"
        return f"it left with exit status {status} before its tests had ended"

    @property
    def ending(self) -> str:
        """Why it did not report, in words."""
        return self.stopped or self._ending()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
