from decimal import Decimal

import numpy as np
import pytest
import torch

from cs_heads.tasks import ExactMatch, Example, LogprobScorer, Scorer, Task
from cs_heads.tasks.scorer import FunctionScorer, as_scorer

SUMS = [{"prompt": "2 + 2 =", "target": " 4"}, {"prompt": "1 + 1 =", "target": " 2"}]


class Least:
    """Scores 1 where the right continuation is the least likely."""

    identity = "least/1"

    def score_logprobs(self, example, logprobs, greedy):
        return float(np.argmin(logprobs) == example.answer)


def contains(example: Example, text: str) -> float:
    return float(example.reference in text)


def contains_not(example: Example, text: str) -> float:
    return float(example.reference not in text)


# Scorers


def test_exact_match_forgives_white_space_at_the_ends_alone():
    scored = ExactMatch()([Example("", reference=" 4 2")] * 4, ["4 2", " 4 2\n", "42", "4 2 3"])
    assert scored == [1.0, 1.0, 0.0, 0.0]


def test_a_function_becomes_a_scorer_that_its_code_tells_from_another():
    one, other = as_scorer(contains), as_scorer(contains_not)
    assert one([Example("", reference="4")], ["it is 4"]) == [1.0]
    assert one.identity == as_scorer(contains).identity != other.identity
    assert one.identity.startswith("contains/")
    assert isinstance(one, Scorer)
    assert not isinstance(one, LogprobScorer)


def longer_than(least):
    def scorer(example, text):
        return float(len(text) > least)

    return scorer


def with_defaults(least, *, most=10):
    def scorer(example, text, least=least, *, most=most):
        return float(least < len(text) < most)

    return scorer


LIMIT = 3


def reads_a_global(example, text):
    return float(len(text) > LIMIT)


def calls_another(example, text):
    return reads_a_global(example, text)


def test_functions_of_one_source_that_read_other_values_differ(monkeypatch):
    """Closures, defaults, keyword defaults and globals are part of a scorer, and so are functions it calls."""
    identities = [
        as_scorer(made).identity
        for made in (longer_than(0), longer_than(10**6), with_defaults(1), with_defaults(2), with_defaults(1, most=9))
    ]
    assert len({*identities}) == 5
    assert as_scorer(longer_than(0)).identity == identities[0]
    before = [as_scorer(scorer).identity for scorer in (reads_a_global, calls_another)]
    monkeypatch.setitem(globals(), "LIMIT", 4)
    after = [as_scorer(scorer).identity for scorer in (reads_a_global, calls_another)]
    assert not {*before} & {*after}


def test_functions_on_one_line_differ():
    one, other = (lambda example, text: 1.0), (lambda example, text: 0.0)
    assert as_scorer(one).identity != as_scorer(other).identity


def test_a_function_that_reads_what_cannot_be_identified_is_refused():
    words = (word for word in ("a", "b"))
    message = r"reads 'words', a generator, which cannot be identified: give an object with identity and __call__"
    with pytest.raises(ValueError, match=message):
        as_scorer(lambda example, text: float(text in words))


def test_a_scorer_stays_what_it_is():
    given = Least()
    assert as_scorer(given) is given


class Lenient(ExactMatch):
    def __call__(self, examples, texts):
        return [0.75 for _ in texts]


class Loud:
    def __call__(self, examples, texts):
        return [float(text.isupper()) for text in texts]


class LoudMatch(Loud, ExactMatch):
    """Scores as ``Loud``, named as ``ExactMatch``."""


class Shorter(FunctionScorer):
    def __call__(self, examples, texts):
        return [score / 2 for score in super().__call__(examples, texts)]


class Named:
    def __init__(self, identity="named/1"):
        self.identity = identity

    def __call__(self, examples, texts):
        return [1.0 for _ in texts]


class NamedAnew(Named):
    def __call__(self, examples, texts):
        return [0.0 for _ in texts]


class Stricter(Least):
    graded = True


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (Lenient(), "scorer 'Lenient' must define identity: it has '__call__' of its own, and takes its identity, "),
        (LoudMatch(), "scorer 'LoudMatch' must define identity: it has '__call__' of its own"),
        (Shorter(contains), "scorer 'Shorter' must define identity: .* from 'FunctionScorer'"),
        (NamedAnew(), "scorer 'NamedAnew' must define __init__: .* takes its identity, 'named/1', from 'Named'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_scorer_that_overrides_another_must_say_its_own_identity(scorer, message):
    with pytest.raises(ValueError, match=message):
        Task.from_records(SUMS, max_new_tokens=2, scorer=scorer)


def test_a_scorer_of_continuations_that_overrides_another_must_say_its_own_identity():
    with pytest.raises(ValueError, match="scorer 'Stricter' must define identity: it has 'graded' of its own"):
        Task.from_records(SUMS, scorer=Stricter())


def test_a_scorer_that_overrides_another_and_says_so_is_taken():
    class Other(Lenient):
        """Another, by its name."""

        identity = "other/1"

    class Same(Other):
        """Scores as ``Other`` does."""

    for scorer in (Other(), Same()):
        assert Task.from_records(SUMS, max_new_tokens=2, scorer=scorer).scoring["scorer"] == "other/1"


@pytest.mark.parametrize(
    "identity", [None, "", " ", 3, b"named/1", lambda: "named/1"], ids=lambda value: repr(value)[:9]
)
def test_an_identity_that_is_no_text_is_refused(identity):
    message = "identity of scorer 'Named' must be a text that names it and its settings, got "
    with pytest.raises(ValueError, match=message):
        Task.from_records(SUMS, max_new_tokens=2, scorer=Named(identity))


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
    with pytest.raises(ValueError, match=r"only completion tasks are written out by generated\(\); task 'sums' is gen"):
        written.generated(3)


@pytest.mark.parametrize(
    "changed",
    [
        {"max_new_tokens": 4},
        {"stop": ["!"]},
        {"scorer": contains},
        {"records": [SUMS[0] | {"reference": "four"}, SUMS[1]]},
    ],
)
def test_whatever_can_change_a_score_is_in_the_identity(changed):
    def identity(records=SUMS, max_new_tokens=3, **more):
        return Task.from_records(records, max_new_tokens=max_new_tokens, **more).identity

    assert identity() == identity()
    assert identity(**changed) != identity()


def test_sides_that_are_scored_differently_are_not_of_one_task():
    written = Task.from_records(SUMS[:1], max_new_tokens=3)
    with pytest.raises(ValueError, match=r"unseen must be scored as task 'task' is \(max_new_tokens 3\), got 4"):
        written.with_holdout(Task.from_records(SUMS[1:], max_new_tokens=4))


NO_NUMBERS = [10**400, 10**5000, Decimal("sNaN"), torch.ones(2), np.ones(2), "1", None, 1j]


@pytest.mark.parametrize("score", NO_NUMBERS, ids=lambda score: type(score).__name__)
def test_a_score_that_is_no_number_of_python_is_refused_in_one_line(score):
    task = Task.from_records(SUMS, scorer=lambda example, text: score, max_new_tokens=3)
    with pytest.raises(ValueError, match=r"^scorer '.*<lambda>' must give a number in 0\.\.1, got ") as got:
        task.score_texts([0], ["4"])
    assert "\n" not in str(got.value)
    assert len(str(got.value)) < 300


@pytest.mark.parametrize("digits", [400, 5000])
def test_log_probabilities_scored_by_an_integer_beyond_floats_are_refused_in_one_line(digits):
    class Huge(Least):
        identity = "huge/1"

        def score_logprobs(self, example, logprobs, greedy):
            return 10**digits

    task = Task.from_records(SUMS, scorer=Huge())
    with pytest.raises(ValueError, match=r"^scorer 'huge/1' must give 1 numbers in 0\.\.1, got "):
        task.score(0, np.array([-1.0]), [True])


@pytest.mark.parametrize("score", [1.5, -0.1, float("nan")])
def test_a_score_outside_zero_to_one_is_refused(score):
    task = Task.from_records(SUMS, scorer=lambda example, text: score, max_new_tokens=3)
    with pytest.raises(ValueError, match=r"must give 1 numbers in 0\.\.1, got"):
        task.score_texts([0], ["4"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens of task 'task' must be an integer of 1 or more, got 0"),
        ({"max_new_tokens": 3, "stop": "."}, "stop must be a list of texts, got '.'"),
        ({"max_new_tokens": 3, "stop": [""]}, "stop must be texts, none empty"),
        ({"stop": ["."]}, "max_new_tokens and stop are for generation tasks; task 'task' is completion"),
        ({"scorer": contains}, "scorer of completion task 'task' must be a LogprobScorer"),
        ({"scorer": Least(), "max_new_tokens": 3}, "scorer of generation task 'task' must be a Scorer"),
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
    assert task.score(0, np.array([-2.0, -1.0]), [False, True]) == 1.0
    assert task.score(0, np.array([-1.0, -2.0]), [True, False]) == 0.0
    assert task.identity != Task.from_records([{"prompt": "a", "choices": [" b", " c"], "answer": 0}]).identity
