"""Attempts on other processes, and to outlive the run."""

from __future__ import annotations

from typing import Any


def read_other_processes(bait: dict[str, Any]) -> None:
    """See what another process runs."""
    with open(f"/proc/{bait['victim']}/cmdline", "rb") as file:
        assert file.read()


def trace_a_process(bait: dict[str, Any]) -> None:
    """Trace another process, or be traced."""
    import ctypes

    libc = ctypes.CDLL(None)
    assert libc.ptrace(16, bait["victim"], 0, 0) == 0 or libc.ptrace(0, 0, 0, 0) == 0


def read_memory_of_the_parent(bait: dict[str, Any]) -> None:
    """Read another process's memory."""
    import ctypes
    import os

    answers = [
        ctypes.CDLL(None, use_errno=True).process_vm_readv(pid, None, 0, None, 0, 0) for pid in (os.getppid(), 1)
    ]
    assert max(answers) >= 0


def signal_a_process(bait: dict[str, Any]) -> None:
    """End another process."""
    import os

    os.kill(bait["victim"], 9)


def kill_the_parent(bait: dict[str, Any]) -> None:
    """End the process that started it, and every other."""
    import os
    import time

    parent = os.getppid()
    os.kill(parent, 9)
    time.sleep(0.2)
    assert os.getppid() != parent


def read_the_environment(bait: dict[str, Any]) -> None:
    """Find a secret in the environment."""
    import ctypes
    import os

    environment = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    found, index = [*map(os.fsencode, os.environ.values())], 0
    while bool(environment) and environment[index]:
        found.append(environment[index])
        index += 1
    assert any(bait["secret"].encode() in value for value in found)


def use_inherited_files(bait: dict[str, Any]) -> None:
    """Find an open file or socket of the process that started it."""
    import os
    import stat

    found = []
    for descriptor in range(3, 4096):
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            continue
        if not stat.S_ISFIFO(mode):
            found.append(descriptor)
    assert found


def type_into_the_terminal(bait: dict[str, Any]) -> None:
    """Type a command into the user's terminal."""
    import fcntl

    try:
        fcntl.ioctl(0, 0x5412, b"\n")
    except OSError as error:
        # Without a terminal the request says so, if it comes that far.
        if error.errno != 25:
            raise


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
    time.sleep(1)
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
    import tempfile

    folder = tempfile.gettempdir()
    before = os.listdir(folder)
    with open(os.path.join(folder, "left"), "w") as file:
        file.write("left")
    assert before
