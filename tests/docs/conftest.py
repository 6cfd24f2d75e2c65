import warnings

import pytest

from tests.docs.pages import START, run_examples


@pytest.fixture(scope="session")
def started(tmp_path_factory):
    """What the page Start leaves: a model, a task, heads and their proof."""
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        patched.chdir(tmp_path_factory.mktemp("start"))
        warnings.simplefilter("ignore", UserWarning)  # its budget is small, and says so
        return run_examples(START, {})
