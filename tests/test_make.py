"""Every target that ``make help`` lists, in a fresh clone.

Those in ``RUN`` are run, ``test`` targets only to collect, and ``docs-serve`` until it serves. ``package`` is run where
a registry answers. Of the others, and of ``package`` where none does, the commands are printed and not run.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from socket import socket
from urllib.request import urlopen

import pytest

from tests.waiting import ended, next_line, run_program

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / ".git").exists() or not (ROOT / ".venv-hooked").exists() or shutil.which("make") is None,
        reason="needs a checkout with both environments, and make",
    ),
]

COLLECTED = ("PYTEST=-m pytest -q -n0 --collect-only",)
RUN = {
    "help": (),
    "demo": (),
    "atlas": ("ATLAS=--tasks everyday/past,everyday/plural --budget 2000 --n-unseen 20",),
    "docs": (),
    "notebooks": ("NAMES=06_your_model",),
    "test": COLLECTED,
    "test-all": (*COLLECTED, "ONLY=units"),
    "lint": (),
    "format": (),
    "test-main": COLLECTED,
    "test-hooked": COLLECTED,
    "venv": (),
    "venv-hooked": (),
    "system": (),
    "clean": (),
}
"""Targets that are run, and what makes them short: tests are collected, the atlas is of two skills."""
PRINTED = "notebook", "mutants"
"""Both install more into the environment, and one waits for a reader, the other takes hours: they are not run."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone with the environments of this checkout, which are not made anew."""
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    done = run_program(["git", "clone", "--quiet", ROOT, folder])
    assert done.returncode == 0, done.stderr
    for name in (".venv", ".venv-hooked"):
        (folder / name).symlink_to((ROOT / name).resolve())
    return folder


def call(clone, target, *given, path=None, venv=".venv"):
    """The command that makes a target, and where it runs."""
    made = (each for name in (venv, ".venv-hooked") for each in ("-o", f"{name}/.stamp"))
    env = {**os.environ, "PYTHONPATH": str(clone if path is None else path), "OMP_NUM_THREADS": "1"}
    return ["make", *made, target, f"VENV={venv}", *given], {"cwd": clone, "env": env}


def make(clone, target, *given, **options):
    command, where = call(clone, target, *given, **options)
    return run_program(command, **where)


def test_help_lists_no_other_target(clone):
    listed = re.findall(r"^  make (\S+)", make(clone, "help").stdout, flags=re.MULTILINE)
    assert {*listed} | {"help"} == {*RUN, *PRINTED, "docs-serve", "package"}


@pytest.mark.parametrize("target", RUN)
def test_a_target_runs_in_a_fresh_clone(clone, target):
    done = make(clone, target, *RUN[target])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_documentation_is_served(clone):
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command, where = call(clone, "docs-serve", f"ADDRESS={address}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes, **where, start_new_session=True) as server:
        try:
            while "Serving on" not in (line := next_line(server, "docs-serve")):
                assert line
            with urlopen(f"http://{address}/") as page:
                assert b"cs-heads" in page.read()
        finally:
            os.killpg(server.pid, signal.SIGINT)
            ended(server, "docs-serve")


def test_the_package_is_made_where_a_registry_answers(clone, tmp_path):
    """The wheel runs the lines of the README where no checkout is on the path."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--retries",
        "0",
        "--dest",
        tmp_path,
        "build",
    ]
    given = [] if run_program(pip).returncode == 0 else ["--dry-run"]
    assert run_program([sys.executable, "-m", "venv", tmp_path / "venv"]).returncode == 0
    done = make(clone, "package", *given, path="", venv=tmp_path / "venv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "twine check" in done.stdout


@pytest.mark.parametrize("target", PRINTED)
def test_the_commands_of_a_target_that_takes_long_can_be_made(clone, target):
    done = make(clone, target, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
