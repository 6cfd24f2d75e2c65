"""The command line of bubblewrap: what the code in the sandbox sees of this machine, which is next to nothing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

INTERPRETER_OPTIONS = ("-s", "-S", "-B", "-X", "utf8")
"""No site-packages, nothing written beside modules. The environment is what we give: the seed of hashes."""

NOBODY = 65534


def missing() -> str:
    """What this machine lacks for the sandbox, and how to get it; empty where nothing is missing."""
    if not sys.platform.startswith("linux"):
        return f"it needs Linux, and this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap)"
    try:
        from cs_heads.sandbox.seccomp import refusals

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
    stdlib = os.path.realpath(sysconfig.get_path("stdlib", vars=_base()))
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


def _base() -> dict[str, str]:
    return {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
