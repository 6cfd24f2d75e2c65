"""What an experiment of one's own answers is checked where it is received."""

from functools import partial

import numpy as np
import pytest

from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.annealing import annealed
from cs_heads.methods.compressed_sensing import compressed_sensing
from cs_heads.methods.greedy import greedy
from cs_heads.units import HeadGrid

METHODS = [partial(annealed, budget=3000), partial(compressed_sensing, n_masks=10, density=0.2), greedy]


class Answering(ExperimentLike):
    """An experiment that answers with whatever ``answer`` makes of the wanted shape."""

    def __init__(self, answer):
        self.answer, self.grid, self.n_examples, self.calls = answer, HeadGrid(4, 8), 30, 0

    def __call__(self, masks, examples=None):
        self.calls += 1
        return self.answer((len(masks), self.n_examples if examples is None else examples.shape[1]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda shape: np.full(shape, np.nan), r"scores in 0\.\.1, got nan"),
        (lambda shape: np.full(shape, 85.0), r"scores in 0\.\.1, got 85\.0"),
        (lambda shape: np.ones(shape[0]), r"scores \[row, k\] = \(.*\), got shape"),
        (lambda shape: np.ones(shape).T[:, :0], r"scores \[row, k\] = \(.*\), got shape"),
    ],
)
def test_an_answer_that_is_no_score_is_refused_at_once(method, answer, message):
    experiment = Answering(answer)
    with pytest.raises(ValueError, match=message):
        method(experiment)
    assert experiment.calls == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"controls": ["x"]}, "controls must be experiments on other tasks, got 'x'"),
    ],
)
def test_what_is_no_seed_or_control_is_refused_before_anything_is_measured(wrong, message):
    experiment = Answering(np.ones)
    with pytest.raises(ValueError, match=message):
        annealed(experiment, **wrong)
    assert not experiment.calls
