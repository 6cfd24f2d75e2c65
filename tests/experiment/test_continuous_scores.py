"""Scores on a scale of their own are no right answers: what is said of them, and what they are held against."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from cs_heads.analysis.confirm import confirm
from cs_heads.experiment.baseline import (
    BaselineTooLowError,
    baseline_too_low,
    check_baseline,
    is_continuous,
    shuffled_means,
)
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.tasks import Task
from tests.known_heads import WORKING, own_answers


def closeness(example, text):
    """A scale that ends far below 1, as a strict judge has it."""
    return 0.11 if text.strip() == example.reference else 0.02


def length(example, text):
    """Reads the text alone."""
    return min(1.0, len(text) / 50)


@dataclass(frozen=True)
class Share:
    """A tenth of the probability of the target, a number of no natural scale."""

    def score_logprobs(self, example, logprobs, greedy):
        return float(np.exp(logprobs[0])) / 10


@pytest.fixture(scope="module")
def model(load_known):
    return load_known()


@pytest.fixture(scope="module")
def records(model):
    return own_answers(model, 120)


def written(records: list[dict], scorer) -> Task:
    """The model writes one word, which the scorer judges beside the answer."""
    with_answers = [{"prompt": r["prompt"], "reference": r["target"].strip()} for r in records]
    return Task.from_records(with_answers, "judged", scorer=scorer, max_new_tokens=1)


def by_lot(records: list[dict]) -> list[dict]:
    """The answers of other examples."""
    answers = np.random.default_rng(1).permutation([r["target"] for r in records])
    return [{**r, "target": str(target)} for r, target in zip(records, answers, strict=True)]


def said(result) -> str:
    return json.dumps(result.to_dict())


def test_scores_far_below_one_need_more_examples_and_nothing_is_called_right(model, records):
    """All that .11 can lose is little beside what one example might."""
    proof = confirm(model, written(records, closeness).split(50)[0], WORKING, n=60, controls=None)
    assert proof.verdict == "not localized"
    assert proof.result.loss > 0.5
    assert proof.close
    assert proof.result.baseline == pytest.approx(0.11)
    assert " right" not in said(proof)


def test_answers_exchanged_between_examples_are_what_a_mean_score_must_beat(model, records):
    for answers, low in ((records, False), (by_lot(records), True)):
        experiment = Experiment(model, written(answers, closeness))
        reason = baseline_too_low(experiment, experiment.baseline())
        assert bool(reason) == low
    assert "no better than with answers exchanged between examples" in reason
    assert " right" not in reason
    with pytest.raises(BaselineTooLowError, match="answers exchanged"):
        check_baseline(experiment)


def test_exchanged_answers_cost_no_evaluation_and_are_those_of_the_model_that_is_judged(model, records):
    experiment = Experiment(model, written(records, closeness))
    experiment.baseline()
    spent = experiment.spent
    means = shuffled_means(experiment)
    assert experiment.spent == spent
    answers, texts = [e.reference for e in experiment.task.examples], experiment.generate(np.zeros((1, 3, 4), bool))[0]
    agreed = np.mean([[text.strip() == answer for answer in answers] for text in texts])
    assert means.mean() == pytest.approx(0.02 + 0.09 * agreed, abs=0.005)
    # Without the heads that work the texts are others.
    assert shuffled_means(WithHeadsOff(experiment, WORKING)).mean() != pytest.approx(means.mean(), abs=1e-6)


def test_a_scorer_that_reads_no_answer_has_nothing_to_exchange(model, records):
    experiment = Experiment(model, written(records, length))
    assert shuffled_means(experiment) is None
    assert baseline_too_low(experiment, experiment.baseline()) is None


@pytest.mark.parametrize(("chance", "low"), [(0.0, False), (0.05, True)])
def test_without_texts_a_mean_score_is_held_against_chance(model, records, chance, low):
    experiment = Experiment(model, Task.from_records(records, "share", scorer=Share()))
    scores = experiment.baseline()
    assert 0 < scores.mean() < 0.05
    reason = baseline_too_low(experiment, scores, chance=chance)
    assert reason == (
        f"the intact model has a mean score of {scores.mean():.3f} on 120 examples, no better than chance (0.050)"
        if low
        else None
    )


def graded(example, text):
    """Full marks, or some for trying."""
    return 1.0 if text.strip() == example.reference else 0.3


def nearly(example, text):
    """The same, but one answer is worth a little less."""
    return 0.99 if example.reference == "cat" and text.strip() == "cat" else graded(example, text)


def strict(example, text):
    return float(text.strip() == example.reference)


def picky(example, text):
    """Takes words alone."""
    return float(text.split()[0] == example.reference)


@pytest.mark.parametrize("scorer", [graded, nearly])
def test_full_marks_of_a_graded_scorer_are_no_right_answers(model, records, scorer):
    """That the intact model has full marks throughout, or all but one, changes no rule."""
    experiment = Experiment(model, written(records[:10], scorer))
    scores = experiment.baseline()
    assert scores.min() > 0.98
    assert is_continuous(scores, experiment)
    # Ten right answers would be too few.
    assert baseline_too_low(experiment, scores) is None


@pytest.mark.parametrize("scorer", [strict, picky, None])
def test_scorers_of_right_and_wrong_stay_so(model, records, scorer):
    experiment = Experiment(model, written(records[:10], scorer))
    assert not is_continuous(experiment.baseline(), experiment)
    assert "10 of 10 examples right, fewer than 20" in baseline_too_low(experiment, experiment.baseline())


def test_shares_of_tokens_are_no_right_answers(model):
    """Two of three tokens right in all of 70 examples: none is right, and the model does better than chance."""
    records = [{"prompt": [1, 3 + i % 7], "target": [3, 4, 5]} for i in range(70)]
    experiment = Experiment(model, Task.from_records(records, accuracy="token"), progress=False)
    scores = np.full(70, 2 / 3)
    assert is_continuous(scores, experiment)
    assert baseline_too_low(experiment, scores) is None
    assert not is_continuous(np.ones(70), experiment), "answers that are all right are counted"
