"""Attempts to take more than the limits give."""

from __future__ import annotations

from typing import Any


def fork_without_end(bait: dict[str, Any]) -> None:
    """Start far more processes than allowed."""
    import os
    import time

    for _ in range(10 * bait["limits"]["processes"]):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)


def fork_in_a_tree(bait: dict[str, Any]) -> None:
    """Double until the machine stands still."""
    import os
    import time

    failed = 0
    for _ in range(12):
        try:
            os.fork()
        except OSError:
            failed += 1
    time.sleep(1)
    assert not failed


def start_threads_without_end(bait: dict[str, Any]) -> None:
    """Start far more threads than allowed."""
    import threading
    import time

    for _ in range(10 * bait["limits"]["processes"]):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def take_all_memory(bait: dict[str, Any]) -> None:
    """Take far more memory than allowed, in one piece."""
    bytearray(b"x") * (bait["limits"]["memory_mb"] * 2**20 * 4)


def take_memory_in_pieces(bait: dict[str, Any]) -> None:
    """Take far more memory than allowed, a piece at a time."""
    pieces = [bytearray(b"x") * 2**20 for _ in range(bait["limits"]["memory_mb"] * 4)]
    assert pieces


def map_memory(bait: dict[str, Any]) -> None:
    """Take far more memory than allowed by maps that children share."""
    import mmap

    pieces = [mmap.mmap(-1, 2**24) for _ in range(bait["limits"]["memory_mb"] // 4)]
    for piece in pieces:
        piece[::4096] = b"x" * (2**24 // 4096)


def raise_limits(bait: dict[str, Any]) -> None:
    """Lift its own limits."""
    import resource

    lifted = []
    for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE"):
        try:
            which = getattr(resource, name)
            resource.setrlimit(which, (resource.getrlimit(which)[1] + 1,) * 2)
            lifted.append(name)
        except (ValueError, OSError):
            continue
    assert lifted


def write_a_huge_file(bait: dict[str, Any]) -> None:
    """Write one file beyond the limit."""
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("huge", "wb") as file:
        for _ in range(4 * bait["limits"]["file_mb"]):
            file.write(b"x" * 2**20)


def write_many_files(bait: dict[str, Any]) -> None:
    """Write many files that are beyond the limit together."""
    for index in range(4 * bait["limits"]["file_mb"]):
        with open(f"part{index}", "wb") as file:
            file.write(b"x" * 2**20)


def make_a_file_with_holes(bait: dict[str, Any]) -> None:
    """Make a file whose size alone is beyond the limit."""
    import os

    with open("holes", "wb") as file:
        os.ftruncate(file.fileno(), 2**40)


def open_files_without_end(bait: dict[str, Any]) -> None:
    """Open thousands of files."""
    import os

    for _ in range(5000):
        os.open("/dev/null", os.O_RDONLY)


def flood_the_output(bait: dict[str, Any]) -> None:
    """Print far more than allowed."""
    for _ in range(10):
        print("x" * bait["limits"]["output_bytes"])


def flood_the_errors(bait: dict[str, Any]) -> None:
    """Write far more to standard error than allowed."""
    import os

    for _ in range(10 * bait["limits"]["output_bytes"] // 1000):
        os.write(2, b"x" * 1000)


def compute_without_end(bait: dict[str, Any]) -> None:
    """Use far more processor time than allowed."""
    import signal
    import time

    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + 2 * bait["limits"]["wall_seconds"]
    while time.monotonic() < end:
        pass


def sleep_without_end(bait: dict[str, Any]) -> None:
    """Sleep far longer than allowed."""
    import time

    time.sleep(2 * bait["limits"]["wall_seconds"])


def stop_itself(bait: dict[str, Any]) -> None:
    """Stop, to be waited for without end."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSTOP)


def dump_core(bait: dict[str, Any]) -> None:
    """Leave a dump of its memory."""
    import os
    import resource

    assert resource.getrlimit(resource.RLIMIT_CORE)[1] != 0
    os.abort()
