import pytest

from cs_heads.methods.gating import descent
from cs_heads.tasks import Task
from tests.known_heads import own_answers


@pytest.fixture(scope="session")
def model(load_known):
    """The tiny model whose working heads are known."""
    return load_known()


@pytest.fixture(scope="session")
def task(model):
    """The finding side of a task of which it gets every example right."""
    return Task.from_records(own_answers(model, 60), "own answers").split(40)[0]


@pytest.fixture
def few_steps(monkeypatch) -> int:
    """So few steps are enough for fits of gates whose numbers are tested, and not what they settle on."""
    monkeypatch.setattr(descent, "MIN_STEPS", 6)
    return descent.MIN_STEPS
