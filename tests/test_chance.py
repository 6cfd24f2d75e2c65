"""A model that knows nothing is at chance on every choice task that is made here."""

import pytest
from scipy.stats import binomtest

from cs_heads import Experiment, load_task
from cs_heads.lens import load_model
from tests.tiny import save_byte_model

N = 100
FAST, SLOW = ["ioi"], ["symbolic/aba", "symbolic/abb", "symbolic/both", "everyday/agreement", "everyday/closing"]


@pytest.fixture(scope="module")
def ignorant(tmp_path_factory):
    """A model of random weights that reads any text, a byte a token."""
    return load_model(save_byte_model(tmp_path_factory.mktemp("bytes")), device="cpu")


def interval(model, task):
    """Whether chance lies in the 99 % interval of the score, and the score."""
    scores = Experiment(model, task, progress=False).baseline()
    bounds = binomtest(round(scores.sum()), len(scores)).proportion_ci(0.99)
    return bounds.low <= task.chance <= bounds.high, float(scores.mean())


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_model_of_random_weights_is_at_chance(ignorant, name):
    task = load_task(name, n=40)
    # Scored on the side there is more of.
    at_chance, score = interval(ignorant, task.held_out.take(N))
    assert at_chance, score
