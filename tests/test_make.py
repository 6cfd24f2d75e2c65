"""Every target that ``make help`` lists, in a fresh clone.

Those in ``RUN`` are run, ``test`` targets only to collect. ``package`` is run where a registry answers. Of the others,
and of ``package`` where none does, the commands are printed and not run.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.waiting import run_program

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
"""Targets that are run, and what makes them short: tests are collected."""
PRINTED = "atlas", "docs-serve", "notebook", "mutants"
"""Those that take hours or wait for a reader: their commands are printed, and not run."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone with the environments of this checkout, which are not made anew."""
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    done = run_program(["git", "clone", "--quiet", ROOT, folder])
    assert done.returncode == 0, done.stderr
    for name in (".venv", ".venv-hooked"):
        (folder / name).symlink_to((ROOT / name).resolve())
    return folder


def make(clone, target, *given, path=None, venv=".venv"):
    made = (each for name in (venv, ".venv-hooked") for each in ("-o", f"{name}/.stamp"))
    env = {**os.environ, "PYTHONPATH": str(clone if path is None else path), "OMP_NUM_THREADS": "1"}
    return run_program(["make", *made, target, f"VENV={venv}", *given], cwd=clone, env=env)


def test_help_lists_no_other_target(clone):
    listed = re.findall(r"^  make (\S+)", make(clone, "help").stdout, flags=re.MULTILINE)
    assert {*listed} | {"help"} == {*RUN, *PRINTED, "package"}


@pytest.mark.parametrize("target", RUN)
def test_a_target_runs_in_a_fresh_clone(clone, target):
    done = make(clone, target, *RUN[target])
    assert done.returncode == 0, done.stdout + done.stderr


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
