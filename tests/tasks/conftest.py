"""What tests of tasks share."""

import shutil
from importlib.util import find_spec

import pytest

from cs_heads.tasks.sandbox import Sandbox


def working_sandbox() -> Sandbox:
    """A sandbox; skips where its programs are not installed, and fails where they are and it does not hold."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: generated code cannot run")
    if find_spec("pyseccomp") is None:
        pytest.skip("pyseccomp is not installed (the extra code): generated code cannot run")
    Sandbox().check()
    return Sandbox()


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """A sandbox; tests that use it are skipped where bubblewrap or pyseccomp is not installed."""
    return working_sandbox()
