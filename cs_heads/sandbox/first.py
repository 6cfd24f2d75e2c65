"""The first process of the sandbox: with it ends everything inside."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

SECONDS = 10.0
"""How long the kernel may take to end everything that was killed."""


class First:
    """A process by its id, held so that no later process of the same id is taken for it.

    The kernel ends a process namespace with its first process, and that one is over only when all others are.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._handle: int | None = None
        # An interpreter built for old kernels lacks it, and a process that has ended already has none.
        with suppress(AttributeError, OSError):
            self._handle = os.pidfd_open(pid)

    def end(self) -> bool:
        """Kill it, and wait until it and all others are gone; whether they are."""
        if self._handle is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            return self._wait()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        waiting = select.poll()
        waiting.register(self._handle, select.POLLIN)
        return bool(waiting.poll(SECONDS * 1000))

    def close(self) -> None:
        """Let go of it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _wait(self) -> bool:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                state = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return True
            if state in "ZX":
                return True
            time.sleep(0.001)
        return False
