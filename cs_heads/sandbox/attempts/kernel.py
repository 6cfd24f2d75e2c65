"""Attempts on the kernel: rights, namespaces, system calls."""

from __future__ import annotations

from typing import Any


def become_root(bait: dict[str, Any]) -> None:
    """Become another user."""
    import os

    os.setresuid(0, 0, 0)
    assert os.getuid() == 0


def hold_a_capability(bait: dict[str, Any]) -> None:
    """Hold any capability."""
    import ctypes

    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capget(header, data) == 0
    assert any(data)


def gain_privileges(bait: dict[str, Any]) -> None:
    """Be free to gain privileges through a program of root's."""
    import ctypes

    assert ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 0


def change_root(bait: dict[str, Any]) -> None:
    """Change the root folder."""
    import os

    os.chroot("/tmp")


def mount_a_file_system(bait: dict[str, Any]) -> None:
    """Mount the process file system or a memory disk."""
    import ctypes
    import os

    os.makedirs("here", exist_ok=True)
    libc = ctypes.CDLL(None)
    assert libc.mount(b"proc", b"here", b"proc", 0, None) == 0 or libc.mount(b"t", b"here", b"tmpfs", 0, None) == 0


def make_a_namespace(bait: dict[str, Any]) -> None:
    """Be root in a user namespace of its own."""
    import ctypes
    import os

    libc = ctypes.CDLL(None)
    if libc.unshare(0x10000000) != 0:
        child = libc.syscall(bait["calls"]["clone"], 0x10000000 | 17, None, None, None, None)
        if child == 0:
            os._exit(0)
        assert child > 0


def call_the_kernel(bait: dict[str, Any]) -> None:
    """Reach a system call that has been a way out of sandboxes: keys, programs, handles, modules, io_uring, ..."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    reached = []
    for name, number in bait["calls"].items():
        if name in ("clone", "unshare"):
            continue
        ctypes.set_errno(0)
        answer = libc.syscall(number, -1, -1, -1, -1, -1)
        if answer >= 0 or ctypes.get_errno() not in (1, 38):
            reached.append(name)
    assert reached, reached


def keep_a_key(bait: dict[str, Any]) -> None:
    """Keep a key in the kernel's ring."""
    import ctypes

    assert ctypes.CDLL(None).syscall(bait["calls"]["add_key"], b"user", b"bait", b"harm", 4, -3) >= 0


def share_memory(bait: dict[str, Any]) -> None:
    """Take shared memory, which no limit on a process counts."""
    import ctypes

    assert ctypes.CDLL(None).shmget(0, 2**20, 0o1600) >= 0


def make_a_memory_file(bait: dict[str, Any]) -> None:
    """Run a program from memory."""
    import os

    os.close(os.memfd_create("harm"))


def read_kernel_settings(bait: dict[str, Any]) -> None:
    """See the devices and settings of the kernel."""
    import os

    assert os.listdir("/sys") or os.listdir("/proc/sys")


def rename_the_host(bait: dict[str, Any]) -> None:
    """Rename this machine."""
    import socket

    socket.sethostname("harm")


def set_the_clock(bait: dict[str, Any]) -> None:
    """Set the clock."""
    import time

    time.clock_settime(time.CLOCK_REALTIME, time.time())
