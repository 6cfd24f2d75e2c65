"""The one place where tests wait. Only what hangs reaches the limit, and the failure names what was waited for."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

HANG = 20 * 60
"""Seconds after which a wait is a hang, on any machine and whatever else it does."""


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait until something is so; ``what`` says in words what did not come."""
    deadline = time.monotonic() + HANG
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {HANG // 60} minutes for {what}")
        time.sleep(0.1)


def ended(process: subprocess.Popen, what: str) -> tuple[str | None, str | None]:
    """What a program wrote to its pipes, once it has ended; its ``returncode`` is known then."""
    try:
        return process.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        # What it has started may still hold its pipes: they are not read to their end.
        process.kill()
        pytest.fail(f"waited {HANG // 60} minutes for the end of {what}")


def next_line(process: subprocess.Popen, what: str) -> str:
    """The next line a program writes, empty where it has ended."""
    lines: Queue[str] = Queue()
    Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()
    try:
        return lines.get(timeout=HANG)
    except Empty:
        pytest.fail(f"waited {HANG // 60} minutes for a line of {what}")


def pause(process: subprocess.Popen, seconds: float) -> None:
    """Let a program go on for a while or to its end: for what is done at random moments, and may not depend on them."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def run_program(command: list, **options: Any) -> subprocess.CompletedProcess:
    """Run a program to its end and keep what it writes, as text; its exit status is the caller's to judge."""
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    ) as process:
        out, err = ended(process, " ".join(str(part) for part in command)[:200])
    return subprocess.CompletedProcess(command, process.returncode, out, err)
