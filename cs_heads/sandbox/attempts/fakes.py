"""Attempts to pass without having passed; they are run with tests that no honest code passes."""

from __future__ import annotations

from typing import Any


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


def fake_by_the_pipes(bait: dict[str, Any]) -> None:
    """Say in every open pipe that the code has loaded, and answer with what comes back."""
    import json
    import os
    import select

    def written(descriptor: int, message: dict[str, Any]) -> bool:
        try:
            os.write(descriptor, json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def frames(descriptor: int) -> list[dict[str, Any]]:
        found = b""
        while select.select([descriptor], [], [], 0.3)[0] and (piece := os.read(descriptor, 65536)):
            found += piece
        messages = []
        while found:
            size = 8 + int.from_bytes(found[:8], "big")
            messages.append(json.loads(found[8:size]))
            found = found[size:]
        return messages

    descriptors = []
    for descriptor in range(3, 70000):
        try:
            os.fstat(descriptor)
            descriptors.append(descriptor)
        except OSError:
            continue
    assert descriptors
    writers = [descriptor for descriptor in descriptors if written(descriptor, {"event": "loaded"})]
    known: dict[str, Any] = {}
    for descriptor in descriptors:
        if descriptor not in writers:
            for message in frames(descriptor):
                known |= message
    for descriptor in writers:
        written(descriptor, {**known, "event": "passed"})
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
    time.sleep(60)
