"""One set of questions in letters and in full."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from cs_heads.tasks import Task, full_form, letter_form
from tests.scores import response_of

RECORDS = [
    {"prompt": f"Which is number {i}?", "choices": [f" {i}", f" {i + 1}", f" {i + 2}"], "answer": i % 3}
    for i in range(8)
]


@pytest.fixture
def task():
    return Task.from_records(RECORDS, "numbers", length_normalized=True)


def test_letters_name_the_options_in_their_order(task):
    made = letter_form(task)
    assert made.examples[4].prompt == "Which is number 4?\nA. 4\nB. 5\nC. 6\nAnswer:"
    assert made.examples[4].continuations == (" A", " B", " C")
    assert [e.answer for e in made.examples] == [e.answer for e in task.examples]
    assert (made.name, made.length_normalized, made.chance) == ("numbers/letters", False, pytest.approx(1 / 3))


def test_the_form_of_the_prompt_is_the_callers(task):
    made = letter_form(task, template="{options}\n{prompt}")
    assert made.examples[0].prompt == "A. 0\nB. 1\nC. 2\nWhich is number 0?"


def test_in_full_the_answers_are_not_listed(task):
    made = full_form(task, template="{prompt} It is", length_normalized=False)
    assert made.examples[0].prompt == "Which is number 0? It is"
    assert made.examples[0].continuations == (" 0", " 1", " 2")
    assert not made.length_normalized
    assert full_form(task).length_normalized


@dataclass(frozen=True)
class LongestFirst:
    """A rule that reads the answers."""

    def score_logprobs(self, example, logprobs, greedy):
        return float(np.argmax(list(map(len, example.continuations))) == example.answer)


def test_a_scorer_of_the_answers_does_not_judge_their_letters(task):
    given = replace(task, length_normalized=False, scorer=LongestFirst()).split(4)[0]
    made = letter_form(given)
    assert made.scorer is made.held_out.scorer is None
    best = np.eye(3)[made.examples[0].answer]
    assert response_of(made, 0, np.log(best / 2 + 0.1), [False] * 3) == 1
    assert full_form(given).scorer == given.scorer


def test_in_full_a_scorer_has_a_rule_of_its_own(task):
    given = replace(task, length_normalized=False, scorer=LongestFirst())
    with pytest.raises(
        ValueError, match="length_normalized applies to choice tasks alone, of texts and without a scorer"
    ):
        full_form(given, length_normalized=True)


@pytest.mark.parametrize("form", [letter_form, full_form])
def test_unseen_examples_stay_unseen(task, form):
    finding, unseen = task.split(4)
    made = form(finding)
    assert made.role == "finding"
    assert made.held_out.role == "confirming"
    assert made.held_out.examples == form(unseen).examples
    assert not {e.question for e in made.examples} & {e.question for e in made.held_out.examples}


def test_one_question_stays_one_in_letters_after_other_examples_and_with_its_choices_in_another_order(task):
    """Else a split would put it on both sides."""
    first, second = (replace(e, asked="Which is odd?") for e in task.examples[:2])
    second = replace(second, continuations=first.continuations[::-1])
    made = letter_form(replace(task, examples=(first, second, *task.examples[2:])))
    assert made.examples[0].prompt != made.examples[1].prompt
    assert made.examples[0].question == made.examples[1].question
    assert len({e.question for e in made.examples}) == 7


@pytest.mark.parametrize("form", [letter_form, full_form])
def test_a_task_without_choices_is_refused(form):
    with pytest.raises(ValueError, match="task must be a choice task, 'sums' is a completion task"):
        form(Task.from_records([{"prompt": "2 + 2 =", "target": " 4"}], "sums"))
