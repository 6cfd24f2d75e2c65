"""Attempts on the files of this machine."""

from __future__ import annotations

from typing import Any


def read_home(bait: dict[str, Any]) -> None:
    """See the files in the home folder."""
    import os

    assert set(os.listdir(bait["home"])) - set(bait["interpreter"].split("/"))


def read_a_file(bait: dict[str, Any]) -> None:
    """Read a file that everybody on this machine may read."""
    with open(bait["file"]) as file:
        assert file.read() == "bait"


def read_the_users(bait: dict[str, Any]) -> None:
    """Read who the users of this machine are."""
    with open("/etc/passwd") as file:
        assert file.read()


def read_other_packages(bait: dict[str, Any]) -> None:
    """Import an installed package."""
    import sys

    sys.path += bait["packages"]
    import numpy  # noqa: F401


def climb_out(bait: dict[str, Any]) -> None:
    """Reach a file through the parents of the root folder."""
    import os

    root = os.open("/", os.O_RDONLY)
    os.close(os.open("../../../.." + bait["file"], os.O_RDONLY, dir_fd=root))


def follow_a_link(bait: dict[str, Any]) -> None:
    """Reach a file through a symbolic link of its own."""
    import os

    os.symlink(bait["file"], "link")
    with open("link") as file:
        assert file.read() == "bait"


def race_a_link(bait: dict[str, Any]) -> None:
    """Change a file through a link that moves between look and use."""
    import os

    for _ in range(200):
        with open("moving", "w"):
            pass
        assert not os.path.islink("moving")
        os.symlink(bait["file"], "other")
        os.replace("other", "moving")
        fd = os.open("moving", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"")
        os.close(fd)
        os.remove("moving")


def link_hard(bait: dict[str, Any]) -> None:
    """Hold a file by a hard link."""
    import os

    os.link(bait["file"], bait["file"] + ".link")


def write_beside(bait: dict[str, Any]) -> None:
    """Write into a folder of this machine that everybody may write to."""
    with open(bait["folder"] + "/written", "w") as file:
        file.write("harm")


def write_system(bait: dict[str, Any]) -> None:
    """Write into a system folder."""
    import os

    written = []
    for folder in ("/", "/etc", "/usr", "/usr/bin", "/lib", "/dev", "/var/tmp", "/root", "/home"):
        try:
            path = os.path.join(folder, bait["mark"])
            with open(path, "w"):
                written.append(path)
        except OSError:
            continue
    assert written


def write_library(bait: dict[str, Any]) -> None:
    """Change the standard library for whoever runs next."""
    import os

    with open(os.__file__, "a"):
        pass


def leave_an_import(bait: dict[str, Any]) -> None:
    """Leave a ``.pth`` file or a ``sitecustomize`` that the next interpreter runs."""
    import os

    left = []
    for folder in [*bait["packages"], os.path.dirname(os.__file__), os.path.dirname(os.__file__) + "/site-packages"]:
        for name in (f"{bait['mark']}.pth", "sitecustomize.py"):
            try:
                with open(os.path.join(folder, name), "a"):
                    left.append(name)
            except OSError:
                continue
    assert left


def make_the_interpreter_writable(bait: dict[str, Any]) -> None:
    """Change the mode of the interpreter."""
    import os

    os.chmod(bait["interpreter"], 0o777)


def write_shared_memory(bait: dict[str, Any]) -> None:
    """Leave a file in shared memory."""
    with open(f"/dev/shm/{bait['mark']}", "w") as file:
        file.write("harm")


def read_a_device(bait: dict[str, Any]) -> None:
    """Open memory, the kernel's log or a disk."""
    names = ("mem", "kmsg", "port", "vda", "sda", "nvme0n1", "dm-0", "loop0", "kvm", "fuse", "net/tun", "tty")
    opened = []
    for name in names:
        try:
            with open(f"/dev/{name}", "rb"):
                opened.append(name)
        except OSError:
            continue
    assert opened


def make_a_device(bait: dict[str, Any]) -> None:
    """Make a device node of the disk."""
    import os
    import stat

    os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))


def run_a_shell(bait: dict[str, Any]) -> None:
    """Start a program of this machine, such as one with the rights of its owner."""
    import subprocess

    started = []
    for command in (["/bin/sh", "-c", "true"], ["/usr/bin/su", "--version"], ["/usr/bin/mount"], ["/usr/bin/env"]):
        try:
            started.append(subprocess.run(command, capture_output=True, check=False).returncode == 0)
        except OSError:
            continue
    assert any(started)
