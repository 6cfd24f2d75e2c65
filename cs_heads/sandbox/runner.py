"""The program that the sandbox starts: it sets limits, runs the code, then the tests, and reports.

It is passed to the interpreter as text and imports the standard library alone. Tests come after the code has run, and
every report has the word of this run in it, which is read before the code is there: the pipes alone teach it nothing.
The word is in the memory of this process all the same, and code that goes through its frames finds it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

MB = 2**20


def main() -> None:
    """Talk to the process outside: a job comes in, ``started``, ``loaded`` and a verdict go out."""
    leave = os._exit
    descriptors = [_out_of_the_way(0), _out_of_the_way(int(sys.argv[1]))]
    # The lowest free number is that of standard input.
    os.open(os.devnull, os.O_RDONLY)
    sys.path[:] = [path for path in sys.path if path]
    os.environ.clear()
    job = _receive(descriptors[0])
    _drop(job["uid"])
    _limit(job["limits"])
    _send(descriptors[1], {"event": "started"})
    _send(descriptors[1], _judge(job["code"], job["word"], *descriptors))
    # No exit handlers and no waiting for threads: both belong to the code.
    leave(0)


def _judge(code: str, word: str, control: int, report: int) -> dict[str, Any]:
    # Taken before the code can put its own in their place; the code finds no module of ours by name.
    process, pid, leave, run, translate, receive = os.getpid(), os.getpid, os._exit, exec, compile, _receive
    stdout, stderr = sys.stdout, sys.stderr
    module = ModuleType("solution")
    sys.modules["solution"] = sys.modules["__main__"] = module
    namespace = module.__dict__
    part, source = "code", code
    verdict: dict[str, Any]
    try:
        run(translate(source, "<code>", "exec"), namespace)
        if pid() != process:
            leave(0)
        _send(report, {"event": "loaded", "word": word})
        part, source = "tests", receive(control)["tests"]
        run(translate(source, "<tests>", "exec"), namespace)
        verdict = {"event": "passed", "word": word}
    except BaseException as error:
        verdict = {"event": "failed", "reason": _reason(error, part, source)}
    # A copy of this process that the code made has nothing to say.
    if pid() != process:
        leave(0)
    with suppress(BaseException):
        stdout.flush()
        stderr.flush()
    return verdict


def _reason(error: BaseException, part: str, source: str) -> str:
    """The error in one line, with the line it came from."""
    try:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300].removesuffix(":")
        lines = source.splitlines()
        places = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == f"<{part}>" and f.lineno]
        where = f" at {lines[places[0] - 1].strip()[:200]!r}" if places and places[0] <= len(lines) else ""
        return f"{said} in the {part}{where}"
    except BaseException:
        return f"an error in the {part} that cannot be described"


def _drop(uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # The change of user leaves the inheritable capabilities: of no use without others, but there.
        import ctypes

        nothing = (ctypes.c_uint32 * 6)()
        ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), nothing)


def _limit(limits: dict[str, int]) -> None:
    values = {
        "RLIMIT_CPU": (limits["seconds"], limits["seconds"] + 1),
        "RLIMIT_AS": (limits["memory_mb"] * MB,) * 2,
        "RLIMIT_FSIZE": (limits["file_mb"] * MB,) * 2,
        "RLIMIT_NOFILE": (64, 64),
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_MEMLOCK": (0, 0),
        "RLIMIT_MSGQUEUE": (0, 0),
    }
    if limits["processes"]:
        values["RLIMIT_NPROC"] = (limits["processes"],) * 2
    if sys.platform == "darwin":
        # A process has more address space than that from its start there, and to set less is refused.
        del values["RLIMIT_AS"]
    for name, (soft, hard) in values.items():
        if hasattr(resource, name):
            which = getattr(resource, name)
            most = resource.getrlimit(which)[1]
            ceiling = hard if most == resource.RLIM_INFINITY else min(hard, most)
            resource.setrlimit(which, (min(soft, ceiling), ceiling))


def _out_of_the_way(descriptor: int) -> int:
    """The same pipe under a number that code does not meet by chance, above the limit on open files."""
    import fcntl

    low = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1024) // 2
    number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, low + int.from_bytes(os.urandom(2), "big") % low)
    os.close(descriptor)
    return number


def _receive(
    control: int, read: Callable[[int, int], bytes] = os.read, loads: Callable[[bytes], Any] = json.loads
) -> Any:
    sizes = _exactly(control, 8, read)
    return loads(_exactly(control, int.from_bytes(sizes, "big"), read))


def _exactly(control: int, size: int, read: Callable[[int, int], bytes]) -> bytes:
    data = b""
    while len(data) < size:
        piece = read(control, size - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return data


def _send(
    report: int,
    message: dict[str, Any],
    write: Callable[[int, bytes], int] = os.write,
    dumps: Callable[[Any], str] = json.dumps,
) -> None:
    write(report, dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
