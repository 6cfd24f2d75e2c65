"""The system calls that code in the sandbox may not make, as a filter for bubblewrap."""

from __future__ import annotations

import errno
import tempfile
from functools import cache

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
