from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch

from cs_heads.tasks import ExactMatch, Example, Task
from cs_heads.tasks.scorer import as_scorer
from tests.scores import response_of

SUMS = [{"prompt": "2 + 2 =", "target": " 4"}, {"prompt": "1 + 1 =", "target": " 2"}]


class Least:
    """Scores 1 where the right continuation is the least likely."""

    def score_logprobs(self, example, logprobs, greedy):
        return float(np.argmin(logprobs) == example.answer)


def contains(example: Example, text: str) -> float:
    return float(example.reference in text)


def contains_not(example: Example, text: str) -> float:
    return float(example.reference not in text)


# Scorers


def test_exact_match_forgives_white_space_at_the_ends_alone():
    scored = ExactMatch().score_texts([Example("", reference=" 4 2")] * 4, ["4 2", " 4 2\n", "42", "4 2 3"])
    assert scored == [1.0, 1.0, 0.0, 0.0]


def test_a_function_becomes_a_scorer_and_a_scorer_stays_what_it_is():
    assert as_scorer(contains).score_texts([Example("", reference="4")], ["it is 4"]) == [1.0]
    assert as_scorer(contains) == as_scorer(contains)
    given = Least()
    assert as_scorer(given) is given


@pytest.mark.parametrize("given", [None, 3, "exact", ExactMatch, Least])
def test_what_is_no_scorer_is_refused(given):
    with pytest.raises(ValueError, match="scorer must be a function of an example and a text, or a Scorer, got"):
        as_scorer(given)


def test_the_sides_of_a_task_have_one_scorer():
    one, other = (Task.from_records(SUMS, max_new_tokens=2, scorer=scorer) for scorer in (contains, contains_not))
    with pytest.raises(ValueError, match=r"unseen must be scored as task 'task' is \(scorer .*contains"):
        replace(one, examples=one.examples[:1]).with_holdout(replace(other, examples=other.examples[1:]))


# Tasks that are scored by what the model says


def test_a_generation_task_holds_a_text_against_its_reference_or_its_target():
    records = [{"prompt": "2 + 2 =", "reference": "4"}, {"prompt": "1 + 1 =", "target": " 2"}]
    task = Task.from_records(records, "sums", max_new_tokens=2, stop=["."])
    assert (task.kind, task.chance, task.stop) == ("generation", 0.0, (".",))
    assert task.examples == (Example("2 + 2 =", (), 0, "4"), Example("1 + 1 =", (" 2",), 0, " 2"))
    assert task.score_texts([0, 1], ["4", "3"]).tolist() == [1.0, 0.0]


def test_a_completion_task_may_be_written_out_and_its_unseen_examples_with_it():
    finding, unseen = Task.from_records(SUMS, "sums").split(1)
    written = finding.generated(3, stop=["."])
    assert written.held_out == unseen.generated(3, stop=["."])
    assert written.score_texts([0], [finding.examples[0].target.strip()]).tolist() == [1.0]
    with pytest.raises(ValueError, match="only completion tasks of texts are written out; task 'sums' is none"):
        written.generated(3)


NO_NUMBERS = [1.5, -0.1, float("nan"), 10**400, Decimal("sNaN"), torch.ones(2), np.ones(2), "1", None, 1j]


@pytest.mark.parametrize("score", NO_NUMBERS, ids=lambda score: type(score).__name__)
def test_a_score_that_is_no_number_between_0_and_1_is_refused_in_one_line(score):
    task = Task.from_records(SUMS, scorer=lambda example, text: score, max_new_tokens=3)
    with pytest.raises(ValueError, match=r"^scorer '.*<lambda>' must give 1 numbers in 0\.\.1, got ") as got:
        task.score_texts([0], ["4"])
    assert "\n" not in str(got.value)
    assert len(str(got.value)) < 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens of task 'task' must be an integer of 1 or more, got 0"),
        ({"max_new_tokens": 3, "stop": "."}, "stop must be a list of texts, got '.'"),
        ({"max_new_tokens": 3, "stop": [""]}, "stop must be texts, none empty"),
        ({"stop": ["."]}, "max_new_tokens and stop are for generation tasks; task 'task' is a completion"),
        ({"scorer": contains}, "scorer must be a LogprobScorer"),
        ({"scorer": Least(), "max_new_tokens": 3}, "scorer must be a Scorer"),
    ],
)
def test_settings_that_do_not_fit_the_kind_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Task.from_records(SUMS, **options)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "a", "target": " "}, '"target" must be a text of more than white space'),
        ({"prompt": "a", "reference": 4}, '"reference" must be a text of more than white space, got 4'),
        ({"target": "a"}, '"prompt" must be a text, got None'),
    ],
)
def test_a_malformed_generation_record_is_named(record, message):
    with pytest.raises(ValueError, match=f"record 0: {message}"):
        Task.from_records([record], max_new_tokens=3)


# Rules of others for log-probabilities


def test_a_logprob_scorer_takes_the_place_of_the_rule():
    task = Task.from_records([{"prompt": "a", "choices": [" b", " c"], "answer": 0}], scorer=Least())
    assert response_of(task, 0, np.array([-2.0, -1.0]), [False, True]) == 1.0
    assert response_of(task, 0, np.array([-1.0, -2.0]), [True, False]) == 0.0
