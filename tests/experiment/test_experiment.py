"""The experiment: many masks in one batch give the numbers of one mask, one example at a time."""

from dataclasses import replace
from itertools import product
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch

from cs_heads import Experiment, Head, Task, designs
from cs_heads.engine import forwards
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.experiment.protocol import responding
from cs_heads.lens import encode_example
from cs_heads.tasks.responses import MAX_MARGIN
from tests.known_heads import rows_run
from tests.plain import plain_score
from tests.scores import Alike, response_of
from tests.tiny import (
    ARCHITECTURES,
    N_HEADS,
    N_LAYERS,
    WORDS,
    choice_task,
    completion_task,
    make_hf_model,
    make_tokenizer,
    sentence,
    some_masks,
)

SHAPE = (N_LAYERS, N_HEADS)


def uneven_task(seed=0, n=9):
    """Choices of one word and of more, any of which may be the answer."""
    rng = np.random.default_rng(seed)
    records = [
        {
            "prompt": sentence(rng),
            "choices": [f" {sentence(rng, length, length + 1)}" for length in rng.permutation(3) + 1],
            "answer": int(rng.integers(3)),
        }
        for _ in range(n)
    ]
    return Task.from_records(records, name="uneven")


def plain_results(hf, task, mask):
    """Score and mean target log-probability of every example from plain Hugging Face, row by row."""
    results = []
    for example in task.examples:
        tokens = encode_example(make_tokenizer(), example.prompt, example.continuations)
        rows = [plain_score(hf, tokens.prompt, target, mask) for target in tokens.continuations]
        if task.kind == "completion":
            score = float(rows[0][1])
        else:
            score = float(np.argmax([logprob for logprob, _ in rows]) == example.answer)
        results.append((score, rows[example.answer][0] / len(tokens.continuations[example.answer])))
    return np.array(results).T


TASKS = [completion_task, choice_task, uneven_task]
DIAGONAL = {("gpt2", completion_task), ("llama", uneven_task)}


@pytest.mark.parametrize(
    ("architecture", "make_task"),
    [pytest.param(*each, marks=() if each in DIAGONAL else pytest.mark.slow) for each in product(ARCHITECTURES, TASKS)],
)
def test_many_masks_at_once_equal_plain_hugging_face(load, backend, architecture, make_task):
    task, off = make_task(), some_masks(6)
    experiment = Experiment(load(architecture, backend), task)
    hf = make_hf_model(architecture)
    plain = np.array([plain_results(hf, task, mask) for mask in off])
    np.testing.assert_array_equal(experiment(off), plain[:, 0])
    np.testing.assert_allclose(experiment.logprob(off), plain[:, 1], atol=1e-4)


def test_rows_carry_their_own_examples(load, backend):
    experiment = Experiment(load("llama", backend), completion_task())
    off = some_masks(3)
    everything = Experiment(load("llama", backend), completion_task()).logprob(off)
    examples = np.array([[0, 5], [8, 8], [3, 1]])
    np.testing.assert_allclose(
        experiment.logprob(off, examples), np.take_along_axis(everything, examples, axis=1), atol=1e-5
    )
    assert experiment.spent == 5


def test_every_example_evaluation_is_counted_and_none_done_twice(load):
    experiment = Experiment(load("llama"), completion_task())
    off = some_masks(4)
    experiment(off)
    assert experiment.spent == 4 * 9
    experiment(off)
    experiment.logprob(off[:2])
    assert experiment.spent == 4 * 9
    experiment(np.concatenate([off[:1], off[:1], ~off[:1]]))
    assert experiment.spent == 5 * 9


def test_to_frame_holds_everything_measured(load):
    experiment = Experiment(load("llama"), completion_task())
    off = designs.explicit(experiment.grid, [["L0H1", "L2H3"], []])
    scores = experiment(off, np.array([[1, 2], [0, 3]]))
    frame = experiment.to_frame()
    assert frame.columns.tolist() == ["ablated", "n_ablated", "example", "score", "logprob", "margin"]
    assert frame[["ablated", "example"]].to_numpy().tolist() == [["L0H1 L2H3", 1], ["L0H1 L2H3", 2], ["", 0], ["", 3]]
    assert frame.score.tolist() == scores.ravel().tolist()
    margins = experiment.respond(off, np.array([[1, 2], [0, 3]]), "margin")
    assert frame.margin.tolist() == margins.ravel().tolist()


def test_acc_norm_divides_by_characters(load):
    """The sums of plain Hugging Face, each divided by the characters of its choice, give acc_norm."""
    model, hf, intact = load("llama"), make_hf_model("llama"), np.zeros(SHAPE, bool)
    choices = [" sees a big red dog", " runs"]
    records = [{"prompt": f"the {word}", "choices": choices, "answer": 0} for word in WORDS]
    acc, acc_norm = [], []
    for record in records:
        tokens = encode_example(model.tokenizer, record["prompt"], choices)
        long, short = (plain_score(hf, tokens.prompt, target, intact)[0] for target in tokens.continuations)
        acc.append(float(long > short))
        acc_norm.append(float(long / len("sees a big red dog") > short / len("runs")))
    assert acc != acc_norm
    assert Experiment(model, Task.from_records(records)).baseline().tolist() == acc
    normalized = Task.from_records(records, length_normalized=True)
    assert Experiment(model, normalized).baseline().tolist() == acc_norm


# Continuous responses


def normalized_task():
    return replace(uneven_task(), length_normalized=True)


def plain_probabilities(hf, task, mask):
    """Probability of every right answer from plain Hugging Face: among the choices, or of the whole target."""
    probabilities = []
    for example in task.examples:
        tokens = encode_example(make_tokenizer(), example.prompt, example.continuations)
        summed = [plain_score(hf, tokens.prompt, target, mask)[0] for target in tokens.continuations]
        if task.kind == "completion":
            probabilities.append(np.exp(summed[0]))
        else:
            if task.length_normalized:
                summed = [one / len(text.strip()) for one, text in zip(summed, example.continuations, strict=True)]
            probabilities.append(torch.tensor(summed).softmax(0)[example.answer].item())
    return np.array(probabilities)


@pytest.mark.parametrize("make_task", [completion_task, normalized_task])
def test_probabilities_and_margins_equal_plain_hugging_face(load, backend, make_task):
    task, off = make_task(), some_masks(4)
    experiment, hf = Experiment(load("llama", backend), task), make_hf_model("llama")
    plain = np.array([plain_probabilities(hf, task, mask) for mask in off])
    np.testing.assert_allclose(experiment.respond(off), plain, rtol=1e-3)
    np.testing.assert_allclose(experiment.respond(off, response="margin"), np.log(plain / (1 - plain)), atol=1e-3)


@pytest.mark.parametrize("make_task", [completion_task, choice_task])
def test_scores_and_responses_come_from_the_same_forwards(load, make_task):
    off, examples = some_masks(3), np.array([[0, 5], [8, 8], [3, 1]])
    asked = Experiment(load("llama"), make_task()), Experiment(load("llama"), make_task())
    scores, margins = asked[0](off, examples), asked[1].respond(off, examples, "margin")
    with rows_run(load("llama")) as rows:
        np.testing.assert_array_equal(asked[0].respond(off, examples, "margin"), margins)
        np.testing.assert_array_equal(asked[1](off, examples), scores)
        np.testing.assert_array_equal(asked[1].respond(off, examples, "score"), scores)
        assert not np.array_equal(asked[0].respond(off, examples), scores)
    assert rows == []
    assert [(experiment.spent, experiment.ran) for experiment in asked] == [(5, 5)] * 2


@pytest.mark.parametrize(
    "make_task", [lambda: completion_task().generated(2), lambda: replace(choice_task(), scorer=Alike(0.5))]
)
def test_what_a_scorer_judges_has_scores_alone(load, make_task):
    task = make_task()
    experiment = Experiment(load("llama"), task)
    for response in ("probability", "margin"):
        said = f"response must be 'score' for '{task.name}', which has no other, got '{response}'"
        with pytest.raises(ValueError, match=said):
            experiment.respond(some_masks(1), response=response)
        with pytest.raises(ValueError, match=said):
            responding(experiment, response)
        with pytest.raises(ValueError, match=said):
            responding(WithHeadsOff(experiment, [Head(0, 0)]), response)
    with pytest.raises(ValueError, match="response must be one of 'score', 'probability', 'margin', got 'logprob'"):
        experiment.respond(some_masks(1), response="logprob")
    assert experiment.spent == 0
    np.testing.assert_array_equal(experiment.respond(some_masks(1), response="score"), experiment(some_masks(1)))


def test_the_margin_of_a_completion_ends_where_float32_does():
    """Log-odds of the whole target, finite however sure the model is."""
    task = completion_task(n=1)

    def margin(logprob):
        return response_of(task, 0, np.array([logprob]), response="margin")

    for probability in (1e-30, 0.1, 0.5, 0.9, 0.9999):
        assert margin(np.log(probability)) == pytest.approx(np.log(probability) - np.log1p(-probability))
    assert margin(-200.0) == -200.0
    for sure in (-1e-12, 0.0, 1e-6):
        assert margin(sure) == pytest.approx(MAX_MARGIN)


def test_an_example_too_large_for_memory_is_named_and_nothing_measured_is_lost(load, monkeypatch):
    experiment, off = Experiment(load("llama"), completion_task()), some_masks(2)
    experiment(off[:1])
    monkeypatch.setattr(forwards, "token_logprobs", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(MemoryError, match=r"example \d+ \(\d+ tokens\) does not fit into memory by itself"):
        experiment(off)
    monkeypatch.undo()
    assert experiment.spent == 9
    experiment(off)
    assert experiment.spent == 18


def test_an_exception_loses_the_batch_in_flight_alone(load, monkeypatch):
    read = forwards.token_logprobs
    monkeypatch.setattr(forwards, "token_logprobs", Mock(side_effect=[*[DEFAULT] * 5, KeyboardInterrupt], wraps=read))
    experiment = Experiment(load("llama"), completion_task(), batch_tokens=30)
    with pytest.raises(KeyboardInterrupt):
        experiment(some_masks(4))
    monkeypatch.undo()
    kept = experiment.spent
    assert 0 < kept < 36
    assert len(experiment.to_frame()) == kept
    experiment(some_masks(4))
    assert experiment.spent == 36


def test_wrong_masks_and_examples_are_refused_before_the_model_runs(load):
    experiment = Experiment(load("llama"), completion_task())
    with pytest.raises(
        ValueError, match=r"layer, head = \(3, 4\), got shape \(1, 4, 3\): the masks are of another grid"
    ):
        experiment(np.zeros((1, 4, 3), dtype=bool))
    with pytest.raises(ValueError, match="masks must hold at least one row"):
        experiment(np.zeros((0, *SHAPE), dtype=bool))
    with pytest.raises(ValueError, match=r"examples must be in 0\.\.8, got 0\.\.9"):
        experiment(some_masks(1), np.array([[0, 9]]))
    assert experiment.spent == 0


def test_a_merge_over_the_border_is_said_aloud(load):
    """ "run" and "s" become the one token "runs": scored, and warned of."""
    records = [{"prompt": "the cat run", "choices": ["s .", " ."], "answer": 0}]
    with pytest.warns(UserWarning, match="in 1 of 1 examples the tokenizer merges the end of the prompt"):
        Experiment(load("llama"), Task.from_records(records, name="plural"))


def test_choices_that_are_the_same_tokens_are_refused(load):
    """Two words the tokenizer does not know are one to the model: no score could tell them apart."""
    records = [{"prompt": "the cat", "choices": [" zebra", " giraffe"], "answer": 0}]
    with pytest.raises(ValueError, match=r"example 0 \('the cat'\): two choices are the same tokens"):
        Experiment(load("llama"), Task.from_records(records))


def test_provenance_names_model_task_and_versions(load):
    origin = Experiment(load("llama"), choice_task()).provenance()
    assert origin["task"]["identity"] == choice_task().identity
    assert origin["model"]["grid"] == [N_LAYERS, N_HEADS]
    assert origin["model"]["key_value_heads"] == 2
    assert {"cs_heads", "prepend_bos"} <= set(origin)
