import os
import shutil
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from cs_heads.sandbox import Outcome, Sandbox, SandboxError, bubblewrap, run, runner
from tests.conftest import working_sandbox
from tests.sandbox import attempts as harm
from tests.sandbox.attempts import attempts
from tests.sandbox.bait import NARROW, TESTS, Tried, not_held, try_attempt
from tests.waiting import HANG, run_program

# Attempts that are harmless on this machine and need no right that a user lacks: outside the sandbox they succeed.
OUTSIDE = [
    harm.read_a_file,
    harm.read_the_users,
    harm.climb_out,
    harm.follow_a_link,
    harm.race_a_link,
    harm.link_hard,
    harm.write_beside,
    harm.run_a_shell,
    harm.gain_privileges,
    harm.share_memory,
    harm.make_a_memory_file,
    harm.read_kernel_settings,
    harm.read_other_processes,
    harm.signal_a_process,
    harm.type_into_the_terminal,
    harm.outlive_as_an_orphan,
    harm.connect_to_loopback,
    harm.connect_outside,
    harm.send_a_datagram,
    harm.connect_to_a_socket_file,
    harm.connect_to_an_abstract_socket,
    harm.talk_to_the_host,
    harm.fork_without_end,
]

PATIENT = replace(NARROW, wall_seconds=HANG)
NAMES = {"ids": lambda attempt: attempt.__name__}


@pytest.fixture(scope="module")
def sandbox(sandbox) -> Sandbox:
    """The sandbox with narrow limits, but on the time that a busy machine takes."""
    return PATIENT


@pytest.fixture
def no_bubblewrap(monkeypatch):
    """A machine on which bubblewrap is not installed."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *a, **k: None if name == "bwrap" else which(name, *a, **k))
    run._works.cache_clear()
    yield
    run._works.cache_clear()


def misspelt(bait):
    """Do harm."""
    assert bait["flie"]


def run_outside(code: str, tests: str = "") -> Outcome:
    return PATIENT._converse(code, tests, safe=False)


# Verdicts


@pytest.mark.parametrize(
    ("code", "tests", "reason"),
    [
        ("def double(x): return 2 * x", "assert double(2) == 4", ""),
        (
            "def double(x): return x",
            "assert double(0) == 0\nassert double(2) == 4",
            "AssertionError in the tests at 'as",
        ),
        ("def double(x): return y", "assert double(2) == 4", "NameError: name 'y' is not defined in the tests at"),
        ("raise KeyError('k')", "", "KeyError: 'k' in the code at \"raise KeyError"),
        ("def double(x):", "assert True", "IndentationError: expected an indented block"),
        ("a = '''", "'''", "SyntaxError: unterminated triple-quoted string"),
        ("input()", "", "EOFError"),
        ("import sys; sys.exit(0)", "", "SystemExit: 0 in the code"),
        ("import os; os._exit(0)", "assert False", "it left with exit status 0 before its tests had ended"),
        ("import os; os.kill(os.getpid(), 11)", "", "it was ended by SIGSEGV before its tests had"),
        ("x = bytearray(10**9)", "", "MemoryError"),
        ("while True: pass", "", "it used up its seconds of processor time"),
        ("while True: print('x' * 1000)", "", "it wrote more than 50000 bytes of output"),
    ],
)
def test_a_program_passes_when_code_and_tests_run_to_their_end(sandbox, code, tests, reason):
    outcome = sandbox.run(code, tests)
    assert outcome.passed == (reason == "")
    assert outcome.reason.startswith(reason)


def test_what_a_program_writes_is_kept_up_to_the_limit(sandbox):
    said = sandbox.run("import sys\nprint('out')", "print('err', file=sys.stderr)").output
    assert sorted(said.split()) == ["err", "out"]
    assert len(sandbox.run("print('x' * 10**6)").output) == sandbox.output_bytes


def test_code_has_the_standard_library_a_thread_a_process_and_a_folder_for_files(sandbox):
    code = """
import ctypes, dataclasses, decimal, hashlib, json, math, os, random, re, sqlite3, ssl, tempfile, threading
thread = threading.Thread(target=print, args=("a thread",))
thread.start(); thread.join()
with tempfile.NamedTemporaryFile("w") as file: file.write("text")
if os.fork() == 0: os._exit(0)
os.wait()
@dataclasses.dataclass
class Point: x: int
"""
    assert sandbox.run(code, "assert Point(1) == Point(1) and os.getcwd() == '/tmp'") == Outcome(True, "", "a thread\n")


def test_the_same_program_has_the_same_order_of_sets_in_every_run(sandbox):
    assert len({sandbox.run("print({'one', 'two', 'three', 'four', 'five'})").output for _ in range(4)}) == 1


def test_many_programs_keep_their_order(sandbox):
    programs = [("", f"assert {i} % 3") for i in range(12)]
    assert [outcome.passed for outcome in sandbox.run_all(programs)] == [i % 3 > 0 for i in range(12)]


def test_a_long_program_with_long_tests_arrives_whole(sandbox):
    code = f"text = {'x' * 300_000!r}"
    assert sandbox.run(code, f"assert text == {'x' * 300_000!r}").passed


def test_nothing_is_left_open(sandbox):
    sandbox.run("")
    before = set(os.listdir("/proc/self/fd"))
    sandbox.run_all([("import os; os._exit(3)", ""), ("", ""), ("while True: print('x' * 1000)", "")])
    assert set(os.listdir("/proc/self/fd")) == before


# Escapes and harms


def test_no_attempt_to_escape_or_to_fake_a_pass_succeeds(sandbox):
    assert len(attempts()) >= 70
    assert not_held() == {}


@pytest.mark.parametrize("attempt", OUTSIDE, **NAMES)
def test_the_same_attempt_succeeds_outside_the_sandbox(sandbox, attempt):
    tried = try_attempt(attempt, sandbox, run_outside)
    assert tried.done, tried.how


def test_an_attempt_that_fails_by_a_mistake_of_its_own_is_not_held(sandbox):
    tried = try_attempt(misspelt, sandbox, sandbox.run)
    assert not tried.done
    assert not tried.held
    assert tried.how.startswith("a mistake of the attempt itself: KeyError: 'flie'")


@pytest.fixture
def no_filter(monkeypatch):
    """The sandbox with a filter of system calls that refuses none."""
    import pyseccomp

    with tempfile.TemporaryFile() as file:
        pyseccomp.SyscallFilter(pyseccomp.ALLOW).export_bpf(file)
        file.seek(0)
        allowing = file.read()
    monkeypatch.setattr(bubblewrap, "refusals", lambda: allowing)


def test_without_the_filter_the_namespaces_hold_by_themselves(sandbox, no_filter):
    """With it, a socket is refused before there is a network to look for."""
    assert sandbox.run("import socket", "assert socket.if_nameindex() == [(1, 'lo')]\nsocket.socket()").passed
    outside = sandbox.run("import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=1)")
    assert outside.reason.startswith("OSError: [Errno 101] Network is unreachable")
    reaching = [
        *(harm.connect_to_loopback, harm.connect_outside),
        *(harm.connect_to_a_socket_file, harm.connect_to_an_abstract_socket, harm.listen_raw),
        *(harm.signal_a_process, harm.read_other_processes, harm.mount_a_file_system),
        *(harm.change_root, harm.rename_the_host, harm.set_the_clock, harm.become_root),
    ]
    tried = {attempt.__name__: try_attempt(attempt, sandbox, sandbox.run) for attempt in reaching}
    assert {name: end.how for name, end in tried.items() if not end.held} == {}
    # A datagram to nobody is sent without an error: no server was reached by it.
    assert try_attempt(harm.send_a_datagram, sandbox, sandbox.run).how == "it ran to its end"


def test_a_pass_without_the_word_of_the_run_is_none(sandbox):
    """Found in the pipes is what the fake needs to know, and the word is not among it."""
    tried = try_attempt(harm.fake_by_the_pipes, sandbox, sandbox.run)
    assert tried == Tried(False, True, "it sent a report that is none")


def test_a_program_that_closes_its_report_and_stays_is_not_waited_for(sandbox):
    tried = try_attempt(harm.fake_by_silence, sandbox, sandbox.run)
    assert tried == Tried(False, True, "it closed its report before its tests had ended")


def test_a_pass_that_is_reported_without_the_word_at_once_is_none(sandbox):
    """The report goes by some descriptor above the usual ones: a line is written to them all."""
    code = """
import os
for descriptor in range(3, 2**16):
    try:
        os.write(descriptor, b'{"event": "passed", "word": "open"}\\n')
    except OSError:
        pass
"""
    outcome = sandbox.run(code, "assert False")
    assert outcome == Outcome(False, "it sent a report that is none", "")


def test_a_pass_beyond_a_limit_is_none_though_both_are_told_at_once(sandbox, monkeypatch):
    class Both(run.Conversation):
        def hold(self):
            super().hold()
            assert self.verdict["event"] == "passed"
            self.stopped = "it wrote more than 50000 bytes of output"

    monkeypatch.setattr(run, "Conversation", Both)
    assert not sandbox.run("x = 1", "assert x == 1").passed


@pytest.mark.parametrize("cheat", harm.CHEATS, **NAMES)
def test_what_the_sandbox_says_it_cannot_prevent_does_pass(sandbox, cheat):
    """A cheat that is held one day belongs among the attempts."""
    tried = try_attempt(cheat, sandbox, lambda code, tests: sandbox.run(code, TESTS))
    assert tried.done, tried.how
    assert cheat not in attempts()


@pytest.mark.slow
def test_the_sandbox_holds_as_well_for_a_user_who_is_not_root(sandbox, tmp_path):
    """In a user namespace, with the system's interpreter: that of the tests may lie where only root may look."""
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("needs root, and an interpreter of the same version that other users may run")
    script = "from tests.sandbox.bait import attempts, not_held\nprint(*not_held(), len(attempts()))"
    paths = [str(Path(__file__).parents[2]), *(path for path in sys.path if path.endswith("site-packages"))]
    done = run_program(
        [python, "-B", "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths), "HOME": "/nonexistent"},
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
    )
    if "Permission denied" in done.stderr or "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"another user cannot read the packages: {done.stderr.splitlines()[-1]}")
    assert done.stdout.split() == [str(len(attempts()))], done.stderr


# Where there is no sandbox


def test_without_bubblewrap_it_refuses_and_names_what_to_install(no_bubblewrap):
    with pytest.raises(SandboxError, match=r"install bubblewrap \(apt-get install bubblewrap.*unsafe=True"):
        Sandbox().run("")
    with pytest.raises(SandboxError, match="install bubblewrap"):
        Sandbox().run_all([("", "")])


def test_unsafe_runs_without_bubblewrap_and_warns_loudly(no_bubblewrap):
    unsafe, hasty = (Sandbox(seconds=1, wall_seconds=wall, unsafe=True) for wall in (HANG, 2))
    lacks = "WITHOUT A SANDBOX.*no limit on processes.*a session of its own is not ended"
    with pytest.warns(RuntimeWarning, match=lacks):
        outcomes = unsafe.run_all(
            [
                ("import os; print(len(os.environ))", ""),
                ("import os; os._exit(0)", ""),
                ("while True: pass", ""),
                ("x = bytearray(10**9)", ""),
            ]
        )
    with pytest.warns(RuntimeWarning, match=lacks):
        late = hasty.run("import time; time.sleep(3600)")
    assert outcomes[0] == Outcome(True, "", "0\n")
    assert [outcome.passed for outcome in outcomes] == [True, False, False, False]
    assert late == Outcome(False, "it took more than 2 s of time", "")


def test_unsafe_runs_where_the_system_tells_no_processors(no_bubblewrap, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    with pytest.warns(RuntimeWarning, match="WITHOUT A SANDBOX"):
        assert Sandbox(unsafe=True).run_all([("", "")]) == [Outcome(True, "", "")]


def test_unsafe_runs_where_no_signal_reaches_a_group_that_has_ended(no_bubblewrap, monkeypatch):
    """macOS says "not permitted" of a group of which nothing runs any more."""

    def refuse(group, number):
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    with pytest.warns(RuntimeWarning, match="WITHOUT A SANDBOX"):
        assert Sandbox(unsafe=True).run("x = 1", "assert x == 1") == Outcome(True, "", "")


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_memory_is_limited_but_on_macos_which_refuses_that_limit(monkeypatch, system):
    given = {}
    monkeypatch.setattr(runner.resource, "setrlimit", lambda which, values: given.update({which: values}))
    monkeypatch.setattr(runner.sys, "platform", system)
    runner._limit({**Sandbox().limits, "processes": 0})
    assert (runner.resource.RLIMIT_AS in given) == (system == "linux")
    assert runner.resource.RLIMIT_CPU in given


def test_unsafe_is_safe_where_there_is_a_sandbox(sandbox):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Sandbox(unsafe=True).run("open('/etc/passwd')").passed


def test_a_bubblewrap_that_cannot_start_is_told_with_its_own_words(monkeypatch, tmp_path, sandbox):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run._works.cache_clear()
    with pytest.raises(SandboxError, match=r"No permissions to create new namespace.*allow it user namespaces"):
        Sandbox().run("")
    monkeypatch.undo()
    assert Sandbox().run("").passed


def test_a_sandbox_that_does_not_work_is_a_failure_and_one_that_is_not_installed_a_test_left_out(monkeypatch, sandbox):
    def broken():
        raise SandboxError("broken")

    monkeypatch.setattr(run, "_works", broken)
    with pytest.raises(SandboxError, match="broken"):
        working_sandbox()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(pytest.skip.Exception, match="bubblewrap is not installed"):
        working_sandbox()


# Limits


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"seconds": 0}, "seconds must be an integer of 1 or more, got 0"),
        ({"output_bytes": -1}, "output_bytes must be an integer of 1 or more, got -1"),
        ({"memory_mb": 8}, "memory_mb must be 64 or more, for the interpreter itself, got 8"),
    ],
)
def test_a_limit_that_is_none_is_refused(limits, message):
    with pytest.raises(ValueError, match=message):
        Sandbox(**limits)
