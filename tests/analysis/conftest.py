import pytest


@pytest.fixture(scope="module")
def model(load_known):
    """The tiny model whose working heads are known."""
    return load_known()
