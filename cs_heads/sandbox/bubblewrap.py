"""The command line of bubblewrap: what code in the sandbox sees of this machine, and the system calls it may make."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path

INTERPRETER_OPTIONS = ("-s", "-S", "-B", "-X", "utf8")
"""No site-packages, nothing written beside modules. The environment is what we give: the seed of hashes."""

NOBODY = 65534


REFUSED = {
    "sockets, some kinds of which are in no network namespace": "socket",
    "other processes": "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd perf_event_open",
    "namespaces": "pivot_root chroot setns unshare",
    "mounts": "mount umount umount2 mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick swapon swapoff",
    "files without a path": "open_by_handle_at name_to_handle_at fanotify_init mknod mknodat quotactl quotactl_fd acct",
    "the kernel's keys and programs": "keyctl add_key request_key bpf io_uring_setup io_uring_enter io_uring_register",
    "its modules": "init_module finit_module delete_module kexec_load kexec_file_load lookup_dcookie nfsservctl uselib",
    "memory that no limit counts": "shmget shmat msgget semget mq_open memfd_create memfd_secret userfaultfd",
    "where memory lies": "move_pages migrate_pages mbind set_mempolicy",
    "the clock": "settimeofday clock_settime clock_adjtime adjtimex",
    "the machine": "reboot syslog personality sethostname setdomainname iopl ioperm vhangup",
}
"""The system calls that answer "not permitted", by what they would give."""

NEW_NAMESPACES = (0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x00000080)
"""The flags of ``clone`` that make a namespace: user, pid, net, mount, cgroup, uts, ipc, time."""

TERMINAL_REQUESTS = (0x5412, 0x541C)
"""The ``ioctl`` requests that type into a terminal: TIOCSTI, TIOCLINUX."""


def missing() -> str:
    """What this machine lacks for the sandbox, and how to get it; empty where nothing is missing."""
    if not sys.platform.startswith("linux"):
        return f"it needs Linux, and this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap)"
    try:
        refusals()
    except ImportError:
        return "install the extra: pip install 'cs-heads[code]'"
    except RuntimeError:
        return "install libseccomp (apt-get install libseccomp2, dnf install libseccomp)"
    if shutil.which("ldd") is None:
        return "install ldd (apt-get install libc-bin)"
    return ""


def program(uid: int | None, tmp_mb: int, seccomp: int, info: int) -> list[str]:
    """The command that starts an interpreter in a sandbox; its own arguments follow.

    ``uid`` is the user that root becomes inside (None: the present user, in a user namespace of its own), ``tmp_mb``
    the size of ``/tmp`` in MiB, ``seccomp`` the descriptor that the filter is read from, ``info`` the one that
    bubblewrap tells the first process of the new namespace on.
    """
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    # Root has no use for a user namespace: it becomes a user that owns nothing, and keeps only what that takes.
    own = ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
    root = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [
        *(bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *(own if uid is None else root),
        *("--die-with-parent", "--new-session", "--hostname", "sandbox", "--seccomp", str(seccomp)),
        *("--info-fd", str(info)),
        *("--clearenv", "--setenv", "PYTHONHASHSEED", "0"),
        *_system(),
        *("--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom"),
        *("--perms", "0777", "--size", str(tmp_mb * 2**20), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"),
        *("--", interpreter(), *INTERPRETER_OPTIONS),
    ]


def interpreter() -> str:
    """The interpreter itself, not its link in a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def spare_user() -> int | None:
    """For root, a user id that nobody has, another at each call; None for other users, or where root has but one id."""
    if os.geteuid() != 0:
        return None
    extents = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    start, _, count = max(extents, key=lambda extent: extent[2])
    # Chance alone: two sandboxes with one id would share their count of processes, so no seed may repeat it.
    return None if count < 2**12 else start + count // 4 + random.SystemRandom().randrange(count // 4)


@cache
def _system() -> tuple[str, ...]:
    """Read-only: the interpreter, the standard library without other packages, and the libraries they link to."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
    stdlib = os.path.realpath(sysconfig.get_path("stdlib", vars=base))
    modules = [str(path) for path in Path(stdlib, "lib-dynload").glob("*.so")]
    binds = {interpreter(): interpreter(), stdlib: stdlib}
    listing = subprocess.run(["ldd", interpreter(), *modules], capture_output=True, text=True, check=False).stdout
    for library in (word for line in listing.splitlines() for word in line.split() if word.startswith("/")):
        if os.path.isfile(library) and not os.path.realpath(library).startswith(stdlib + os.sep):
            binds[library] = os.path.realpath(library)
            # The C library opens this one by itself when a thread ends.
            gcc = os.path.join(os.path.dirname(library), "libgcc_s.so.1")
            if os.path.basename(library).startswith("libc.") and os.path.isfile(gcc):
                binds[gcc] = os.path.realpath(gcc)
    above = {str(parent) for path in binds for parent in Path(path).parents} - {"/"}
    options: list[str] = []
    # bubblewrap would close what lies under a closed folder, as /root is, to the user that root becomes.
    for folder in sorted(above):
        options += ["--perms", "0755", "--dir", folder]
    for inside, outside in binds.items():
        options += ["--ro-bind", outside, inside]
    for packages in ("site-packages", "dist-packages"):
        if os.path.isdir(folder := os.path.join(stdlib, packages)):
            options += ["--tmpfs", folder, "--remount-ro", folder]
    return tuple(options)


@cache
def refusals() -> bytes:
    """The filter as a BPF program for this machine, made by libseccomp.

    Raises ``ImportError`` without the package pyseccomp, ``RuntimeError`` without the library libseccomp.
    """
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)
    native = pyseccomp.system_arch()
    for name in " ".join(REFUSED.values()).split():
        # An older libseccomp does not know the newest calls, and numbers below zero are of another machine.
        if pyseccomp.resolve_syscall(native, name) >= 0:
            rules.add_rule(refuse, name)
    for flag in NEW_NAMESPACES:
        rules.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for request in TERMINAL_REQUESTS:
        rules.add_rule(refuse, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, request))
    # clone3 hides its flags behind a pointer; with "no such call" the C library falls back to clone.
    if pyseccomp.resolve_syscall(native, "clone3") >= 0:
        rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
