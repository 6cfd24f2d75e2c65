"""Attempts to get out of the sandbox: into files, processes, the kernel and the network.

Each function is run inside as text, with ``bait`` laid out by ``self_check``; it raises unless it did the harm that
its docstring names.
"""

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


def read_other_processes(bait: dict[str, Any]) -> None:
    """See what another process runs."""
    with open(f"/proc/{bait['victim']}/cmdline", "rb") as file:
        assert file.read()


def trace_a_process(bait: dict[str, Any]) -> None:
    """Trace itself, a parent, or another process."""
    import ctypes
    import os

    libc = ctypes.CDLL(None)
    assert 0 in (libc.ptrace(0, 0, 0, 0), libc.ptrace(16, os.getppid(), 0, 0), libc.ptrace(16, bait["victim"], 0, 0))


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
    while environment and environment[index]:
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


def connect_to_loopback(bait: dict[str, Any]) -> None:
    """Connect to a server on this machine."""
    import socket

    socket.create_connection(("127.0.0.1", bait["port"]), timeout=1).close()


def connect_outside(bait: dict[str, Any]) -> None:
    """Connect to an address of the network."""
    import socket

    socket.create_connection((bait["address"], bait["port"]), timeout=1).close()


def send_a_datagram(bait: dict[str, Any]) -> None:
    """Send a datagram."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"harm", ("127.0.0.1", bait["datagrams"]))


def ask_for_a_name(bait: dict[str, Any]) -> None:
    """Ask for a host by name."""
    import socket

    assert socket.getaddrinfo("localhost.localdomain", 80) or socket.getaddrinfo("example.org", 80)


def connect_to_a_socket_file(bait: dict[str, Any]) -> None:
    """Connect to a service by its socket in the file system."""
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(bait["socket"])


def connect_to_an_abstract_socket(bait: dict[str, Any]) -> None:
    """Connect to a service by a socket that has no file."""
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + bait["mark"])


def listen_raw(bait: dict[str, Any]) -> None:
    """Listen to all traffic."""
    import socket

    kinds = ((socket.AF_PACKET, socket.SOCK_RAW, 3), (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
    opened = []
    for family, kind, protocol in kinds:
        try:
            opened.append(socket.socket(family, kind, protocol))
        except OSError:
            continue
    assert opened


def talk_to_the_host(bait: dict[str, Any]) -> None:
    """Open a kind of socket that no network namespace holds back, or one that configures the network."""
    import socket

    opened = []
    for family in ("AF_VSOCK", "AF_NETLINK", "AF_ALG"):
        try:
            opened.append(socket.socket(getattr(socket, family), socket.SOCK_RAW if family == "AF_NETLINK" else 1))
        except (OSError, AttributeError):
            continue
    assert opened


def rename_the_host(bait: dict[str, Any]) -> None:
    """Rename this machine."""
    import socket

    socket.sethostname("harm")


def set_the_clock(bait: dict[str, Any]) -> None:
    """Set the clock."""
    import time

    time.clock_settime(time.CLOCK_REALTIME, time.time())
