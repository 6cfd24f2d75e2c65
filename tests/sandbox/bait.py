"""What lies out for an attempt to get out of the sandbox, and whether it was taken: looked at from outside."""

from __future__ import annotations

import inspect
import os
import re
import secrets
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cs_heads.sandbox.bubblewrap import REFUSED, interpreter
from cs_heads.sandbox.run import Outcome, Sandbox, processors
from tests.sandbox import attempts as module
from tests.sandbox.attempts import Attempt, attempts

TESTS = "assert solve() == 42"
"""What the attempts to fake a pass are tested by."""

NARROW = Sandbox(seconds=1, wall_seconds=4, memory_mb=128, processes=4, file_mb=4, output_bytes=50_000)
"""Limits that are soon reached, for a quick check."""

REFUSALS = re.compile(
    r"it |SystemExit: 0 |AssertionError|MemoryError|RuntimeError: can't start new thread|ModuleNotFoundError: .*numpy"
    r"|\w+: \[Errno -?\d+\]|NameError: name 'solve' is not defined in the tests"
)
"""How an attempt ends that was refused: by a limit or the system; any other error is a mistake in the attempt."""


def not_held(sandbox: Sandbox = NARROW) -> dict[str, str]:
    """Try every attempt, and say of each that the sandbox did not hold what it did, or what mistake it made."""
    with ThreadPoolExecutor(processors()) as pool:
        tried = pool.map(lambda attempt: try_attempt(attempt, sandbox, sandbox.run), attempts())
        return {attempt.__name__: end.how for attempt, end in zip(attempts(), tried, strict=True) if not end.held}


@dataclass(frozen=True)
class Tried:
    """Whether an attempt did its harm, whether it was refused instead, and how it ended or what it did."""

    done: bool
    held: bool
    how: str


def try_attempt(attempt: Attempt, sandbox: Sandbox, run: Callable[[str, str], Outcome]) -> Tried:
    """Run an attempt by ``run``, with bait laid out, and look at the machine afterwards."""
    with laid_out(sandbox) as bait:
        code = "\n".join(
            [
                "from __future__ import annotations",
                "from collections.abc import Callable",
                "from typing import Any",
                f"import {', '.join(sorted(sys.stdlib_module_names.intersection(vars(module))))}",
                *(inspect.getsource(inspect.unwrap(function)) for function in (module.works, attempt)),
                f"bait = {bait.told!r}",
                f"{attempt.__name__}(bait)",
            ]
        )
        tests = TESTS if attempt.__name__.startswith("fake") else ""
        # What is left behind is found by a second run.
        outcomes = [run(code, tests) for _ in range(2 if "outlive" in attempt.__name__ else 1)]
        damage = bait.damage()
    reasons = list(dict.fromkeys(outcome.reason for outcome in outcomes))
    if damage or any(outcome.passed for outcome in outcomes):
        return Tried(True, False, damage or "it ran to its end")
    refused = all(map(REFUSALS.match, reasons))
    return Tried(False, refused, ("" if refused else "a mistake of the attempt itself: ") + "; ".join(reasons))


@dataclass
class Bait:
    """What lies out for one attempt, and how to see from outside whether it was taken."""

    told: dict[str, Any]
    victim: subprocess.Popen[bytes]
    servers: list[socket.socket]
    host: str = field(default_factory=socket.gethostname)

    def damage(self) -> str:
        """What an attempt has done to this machine, in words; empty where nothing."""
        folder = Path(self.told["folder"])
        signs = {
            "another process was ended": self.victim.poll() is not None,
            "a file was left": {path.name for path in folder.iterdir()} != {"file", "socket"},
            "a file was changed": (folder / "file").read_text() != "bait",
            "a file was left in shared memory": Path("/dev/shm", self.told["mark"]).exists(),
            "this machine was renamed": socket.gethostname() != self.host,
            "a process was left": self.told["mark"] in _names_of_processes(),
            "a server was reached": any(map(_was_reached, self.servers)),
        }
        return "; ".join(sign for sign, seen in signs.items() if seen)


@contextmanager
def laid_out(sandbox: Sandbox) -> Iterator[Bait]:
    """Bait for one attempt: files, a process, servers, a secret in the environment; gone afterwards."""
    mark = f"bait{secrets.token_hex(4)}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "file").write_text("bait")
        for path, mode in ((folder, 0o777), (folder / "file", 0o666)):
            path.chmod(mode)
        kinds = (socket.AF_INET, socket.AF_UNIX, socket.AF_UNIX)
        servers = [stack.enter_context(socket.socket(kind)) for kind in kinds]
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        addresses: list[Any] = [("0.0.0.0", 0), str(folder / "socket"), f"\0{mark}"]
        for server, address in zip(servers, addresses, strict=True):
            server.bind(address)
            server.listen()
        (folder / "socket").chmod(0o666)
        datagrams.bind(("127.0.0.1", 0))
        for server in (*servers, datagrams):
            server.setblocking(False)
        victim = stack.enter_context(
            subprocess.Popen([interpreter(), "-S", "-c", "import time; time.sleep(3600)"], stdin=subprocess.DEVNULL)
        )
        stack.callback(victim.kill)
        told = {
            "home": str(Path.home()),
            "folder": str(folder),
            "file": str(folder / "file"),
            "socket": str(folder / "socket"),
            "packages": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}),
            "interpreter": interpreter(),
            "mark": mark,
            # Something in this process's environment that code should not see.
            "secret": os.environ.get("PATH", sys.prefix),
            "victim": victim.pid,
            "port": servers[0].getsockname()[1],
            "datagrams": datagrams.getsockname()[1],
            "address": _own_address(),
            "calls": _calls(),
            "limits": sandbox.limits,
        }
        yield Bait(told, victim, [*servers, datagrams])


def _names_of_processes() -> set[str]:
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.add(path.read_text().strip())
        except OSError:
            continue
    return names


def _was_reached(server: socket.socket) -> bool:
    try:
        if server.type == socket.SOCK_DGRAM:
            server.recv(1)
        else:
            server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _own_address() -> str:
    """This machine's address on the network; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@cache
def _calls() -> dict[str, int]:
    import pyseccomp

    names = " ".join([*REFUSED.values(), "clone"]).split()
    numbers = {name: pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) for name in names}
    return {name: number for name, number in numbers.items() if number >= 0}
