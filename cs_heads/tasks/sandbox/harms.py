"""Attempts to do harm inside the sandbox, to outlive it, and to pass without having passed.

Each function is run inside as text, as those of ``escapes`` are; it raises unless it did the harm that its docstring
names. Those that begin with ``fake`` are run with tests that no honest code passes.
"""

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


def outlive_as_an_orphan(bait: dict[str, Any]) -> None:
    """Run on as an orphan in a session of its own after the program has ended."""
    import ctypes
    import os
    import time

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, bait["mark"].encode(), 0, 0, 0)
            for descriptor in range(4096):
                try:
                    os.close(descriptor)
                except OSError:
                    continue
            time.sleep(60)
        os._exit(0)
    time.sleep(0.2)
    raise AssertionError("what runs on is looked for from outside")


def outlive_as_a_zombie(bait: dict[str, Any]) -> None:
    """Leave a dead process that nobody buries."""
    import ctypes
    import os
    import time

    ctypes.CDLL(None).prctl(15, bait["mark"].encode(), 0, 0, 0)
    if os.fork() == 0:
        os._exit(0)
    time.sleep(0.2)
    raise AssertionError("what is left is looked for from outside")


def outlive_in_tmp(bait: dict[str, Any]) -> None:
    """Find what an earlier program left in its folder for temporary files."""
    import os

    before = os.listdir("/tmp")
    with open("/tmp/left", "w") as file:
        file.write("left")
    assert before


def fake_by_exit(bait: dict[str, Any]) -> None:
    """Leave with status 0 before the tests."""
    import sys

    sys.exit(0)


def fake_by_hard_exit(bait: dict[str, Any]) -> None:
    """Leave with status 0 without a goodbye."""
    import os

    os._exit(0)


def fake_by_exit_in_the_tests(bait: dict[str, Any]) -> None:
    """Leave with status 0 when the tests call."""
    import os
    import sys

    def leave() -> int:
        os._exit(0)

    vars(sys.modules["solution"])["solve"] = leave


def fake_by_exception(bait: dict[str, Any]) -> None:
    """End the tests by an exception that is no error."""
    import sys

    def leave() -> int:
        raise SystemExit(0)

    vars(sys.modules["solution"])["solve"] = leave


def fake_by_printing(bait: dict[str, Any]) -> None:
    """Print what a pass might look like."""
    import os

    print('{"event": "passed", "word": ""}', flush=True)
    os._exit(0)


def fake_a_report(bait: dict[str, Any]) -> None:
    """Write a pass to every open pipe."""
    import os

    for event in ("loaded", "passed"):
        for descriptor in range(3, 4096):
            try:
                os.write(descriptor, b'{"event": "%s", "word": ""}\n' % event.encode())
            except OSError:
                continue
    os._exit(0)


def fake_by_other_builtins(bait: dict[str, Any]) -> None:
    """Replace what runs the tests by what does nothing."""
    import builtins
    import json
    import os

    os_getpid = os.getpid
    vars(builtins).update(exec=lambda *_: None, AssertionError=ValueError)
    vars(json).update(loads=lambda *_: {"tests": "", "word": ""}, dumps=lambda *_: '{"event": "passed"}')
    vars(os).update(read=lambda *_: b"", getpid=os_getpid)


def fake_by_the_main_module(bait: dict[str, Any]) -> None:
    """Replace parts of the program that judges, by its name."""
    import sys

    vars(sys.modules["__main__"]).update(_judge=None, _receive=lambda *_: {"tests": "", "word": ""}, _send=None)


def fake_by_a_copy(bait: dict[str, Any]) -> None:
    """Let a copy of the process go through the tests."""
    import os
    import sys

    vars(sys.modules["solution"])["solve"] = lambda: 0
    if os.fork():
        os.wait()
        os._exit(0)


def fake_at_exit(bait: dict[str, Any]) -> None:
    """Change the exit status after a failure."""
    import atexit
    import os

    atexit.register(lambda: os._exit(0))


def fake_by_silence(bait: dict[str, Any]) -> None:
    """Close every pipe and wait."""
    import os
    import time

    os.closerange(0, 4096)
    time.sleep(1)
