"""An experiment on a task that is scored by what the model says."""

import numpy as np
import pytest

from cs_heads import Experiment, Task, designs
from tests.known_heads import own_answers

RECORDS = [{"prompt": prompt, "target": " runs"} for prompt in ("the cat", "a dog sees", "the big king", "one two")]


def length(example, text):
    return min(1.0, len(text) / 40)


def off(experiment):
    return designs.explicit(experiment.grid, [["L0H1"], ["L1H0", "L2H3"], []])


def test_scores_are_those_of_the_texts_generated_under_each_mask(load, backend):
    task = Task.from_records(RECORDS, scorer=length, max_new_tokens=5, stop=["."])
    experiment = Experiment(load("llama", backend), task)
    scores = experiment(off(experiment))
    texts = Experiment(experiment.model, task).generate(off(experiment), max_new_tokens=5, stop=["."])
    assert scores.tolist() == [[length(None, text) for text in row] for row in texts]
    assert experiment.spent == scores.size


def test_writing_one_token_scores_as_the_most_likely_token_does(load):
    model = load("llama")
    completion = Task.from_records(own_answers(model, 10) + RECORDS)
    choose, write = Experiment(model, completion), Experiment(model, completion.generated(1))
    assert (choose(off(choose)) == write(off(write))).all()
    assert 0 < write.baseline().mean() < 1


def test_the_log_probability_is_that_of_the_target_and_a_run_of_its_own(load):
    model = load("llama")
    task = Task.from_records(RECORDS, max_new_tokens=3)
    experiment, other = Experiment(model, task), Experiment(model, Task.from_records(RECORDS))
    np.testing.assert_allclose(experiment.logprob(off(experiment)), other.logprob(off(other)), atol=1e-5)
    assert experiment.spent == 12
    experiment(off(experiment))
    assert experiment.spent == 24
    frame = experiment.to_frame()
    assert len(frame) == 12
    assert not frame[["score", "logprob"]].isna().any(axis=None)


def test_without_a_target_there_is_no_log_probability(load):
    task = Task.from_records([{"prompt": "the cat"}] * 2, scorer=length, max_new_tokens=3)
    experiment = Experiment(load("llama"), task)
    assert experiment(off(experiment)).shape == (3, 2)
    with pytest.raises(ValueError, match="example 'the cat' has no target"):
        experiment.logprob(off(experiment))


def test_a_scorer_that_fails_loses_no_text(load):
    def broken(example, text):
        raise RuntimeError("no dictionary")

    experiment = Experiment(load("llama"), Task.from_records(RECORDS, scorer=broken, max_new_tokens=3))
    with pytest.raises(RuntimeError, match="no dictionary"):
        experiment(off(experiment))
    spent = experiment.spent
    experiment.generate(off(experiment))
    assert 0 < spent <= experiment.spent == 12
