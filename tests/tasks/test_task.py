from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cs_heads.tasks import Example, Task, confirming_side, control_side, finding_side, search_control
from cs_heads.tasks.splits import distinct
from tests.scores import response_of

CHOICE = {"prompt": "The king", "choices": [" aa", " bbbb bbbb"], "answer": 1}


def counting(n: int) -> Task:
    return Task.from_records([{"prompt": f"{i} and one make", "target": f" {i + 1}"} for i in range(n)], "counting")


def some_twice(copies: list[int]) -> Task:
    """One example for each entry, as many copies of it as the entry says."""
    return Task.from_records(
        [{"prompt": f"{i} and one make", "target": f" {i + 1}"} for i, n in enumerate(copies) for _ in range(n)]
    )


def identities(task: Task) -> Counter[str]:
    return Counter(example.identity for example in task.examples)


# What a task is


def test_choice_records_make_a_choice_task_whose_chance_is_one_over_the_choices():
    task = Task.from_records([CHOICE, CHOICE | {"choices": [" a", " b", " c", " d"]}], "kings")
    assert (task.name, task.kind, len(task), task.role) == ("kings", "choice", 2, "whole")
    assert task.chance == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert task.examples[0] == Example("The king", (" aa", " bbbb bbbb"), 1)


def test_the_identity_changes_with_anything_that_changes_a_score():
    task = Task.from_records([CHOICE, CHOICE | {"prompt": "The queen"}])
    others = [
        Task.from_records([CHOICE | {"prompt": "The queen"}, CHOICE]),
        Task.from_records([CHOICE, CHOICE | {"prompt": "The queen "}]),
        Task.from_records([CHOICE, CHOICE | {"prompt": "The queen", "answer": 0}]),
        Task.from_records([CHOICE, CHOICE | {"prompt": "The queen", "choices": [" aa", " bbbb"]}]),
        replace(task, length_normalized=True),
        task.take(1),
    ]
    assert len({task.identity, *(other.identity for other in others)}) == 1 + len(others)
    assert task.identity == replace(task, name="another name").identity


# How an answer is scored


def test_acc_norm_leaves_out_one_space_before_a_choice_and_nothing_else():
    """lm-eval divides by the length of the choice, and its delimiter of one space is no part of that."""
    records = [{"prompt": "a", "choices": [" bb", "\n\nbb", "  bb", "bb"], "answer": 0}]
    (example,) = Task.from_records(records, length_normalized=True).examples
    assert Task("words", "choice", (example,)).characters.tolist() == [[2, 4, 3, 2]]


def test_acc_takes_the_likeliest_choice_and_acc_norm_the_likeliest_a_character():
    acc, acc_norm = (Task.from_records([CHOICE], length_normalized=normalized) for normalized in (False, True))
    # " aa": 2 characters, -8 / 2 = -4 nats each; " bbbb bbbb": 9 characters, -18 / 9 = -2 nats each.
    logprobs = np.array([-8.0, -18.0])
    assert response_of(acc, 0, logprobs, [False, False]) == 0.0
    assert response_of(acc_norm, 0, logprobs, [False, False]) == 1.0


# Which examples are kept for the proof


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=30), st.integers(1, 60), st.integers(0, 9))
def test_a_split_shares_no_example_and_loses_none_also_where_examples_occur_twice(copies, n, seed):
    task = some_twice(copies)
    assume(min(copies) <= n < len(task))
    finding, confirming = task.split(n, seed)
    assert len(finding) <= n
    assert not identities(finding).keys() & identities(confirming).keys()
    assert identities(finding) + identities(confirming) == identities(task)
    assert len(finding) > 0 < len(confirming)
    assert (finding.role, confirming.role, finding.held_out) == ("finding", "confirming", confirming)


@settings(max_examples=15)
@given(st.integers(2, 60), st.data())
def test_a_split_of_different_examples_finds_with_exactly_n(size, data):
    n = data.draw(st.integers(1, size - 1))
    finding, confirming = counting(size).split(n)
    assert (len(finding), len(confirming)) == (n, size - n)


@pytest.mark.parametrize(("size", "n"), [(2, 1), (199, 99), (500, 100)])
def test_the_default_split_finds_with_a_hundred_or_half_of_a_small_task(size, n):
    assert len(counting(size).split()[0]) == n


def test_a_control_is_its_unseen_side_or_from_half_of_the_whole():
    task = counting(50)
    finding, confirming = task.split(20)
    assert control_side(finding, 5, seed=0) == control_side(confirming, 5, seed=1) == confirming.take(5)
    drawn = control_side(task, 10, seed=0)
    assert (len(drawn), drawn.role) == (10, "whole")
    assert drawn == control_side(task, 10, seed=0) != control_side(task, 10, seed=1)
    assert drawn != task.take(10)
    assert len(control_side(task, 500, seed=0)) == 25


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_example_of_a_control_both_searches_and_judges(seed):
    task = counting(51)
    searched, judged = search_control(task, seed), control_side(task, 500, seed)
    assert {*searched.examples} | {*judged.examples} == {*task.examples}
    assert not {*searched.examples} & {*judged.examples}
    assert (searched.role, judged.role) == ("whole", "whole")
    finding, _ = task.split(20)
    assert search_control(finding, seed) == finding


def test_choices_that_tie_share_the_point():
    """A model that cannot tell two choices apart is not right about them."""
    task = Task.from_records([{"prompt": "x", "choices": [" a", " b", " c"], "answer": 0}])
    assert response_of(task, 0, np.array([-1.0, -1.0, -2.0]), [False] * 3) == 0.5
    assert response_of(task, 0, np.array([-1.0, -2.0, -2.0]), [False] * 3) == 1.0
    assert response_of(task, 0, np.array([-2.0, -1.0, -1.0]), [False] * 3) == 0.0


def test_the_margin_of_a_choice_is_its_log_odds_among_the_choices():
    """Worked out by hand: shares of one half, one quarter, one quarter."""
    record = {"prompt": "a", "choices": [" bb", " c", " d"], "answer": 0}
    task = Task.from_records([record])
    shares = np.log([0.02, 0.01, 0.01])
    assert response_of(task, 0, shares, response="margin") == pytest.approx(0.0)
    assert response_of(task, 0, np.log([0.03, 0.01, 0.01]), response="margin") == pytest.approx(np.log(1.5))
    assert response_of(task, 0, np.array([-1.0, -1001.0, -1002.0]), response="margin") == pytest.approx(
        1000 - np.log1p(np.exp(-1))
    )
    by_character = Task.from_records([record], length_normalized=True)
    assert response_of(by_character, 0, np.log([0.0004, 0.01, 0.01]), response="margin") == pytest.approx(
        np.log(0.02) - np.log(0.02)
    )


def test_unseen_examples_may_be_given_if_none_is_shared_and_all_are_scored_alike():
    task = counting(4)
    unseen = Task.from_records([{"prompt": "9 and one make", "target": " 10"}])
    finding = task.with_holdout(unseen)
    assert (finding.role, finding.examples) == ("finding", task.examples)
    assert confirming_side(finding) == replace(unseen, role="confirming")
    with pytest.raises(ValueError, match=r"must share no question with task 'counting'; 2 of 2 do"):
        task.with_holdout(counting(2))
    with pytest.raises(
        ValueError, match=r"unseen must be scored as task 'counting' is \(kind completion\), got choice"
    ):
        task.with_holdout(Task.from_records([CHOICE]))


def test_a_shell_shows_a_task_in_one_line_however_many_examples_it_has():
    records = [{"prompt": f"{number}, then", "target": f" {number + 1}"} for number in range(1000)]
    whole = Task.from_records(records, name="counting")
    assert repr(whole) == "Task('counting': completion, 1000 examples)"
    finding, confirming = whole.split(100)
    assert repr(finding) == "Task('counting': completion, 100 finding examples, 900 held out)"
    assert repr(confirming) == "Task('counting': completion, 900 confirming examples)"


# One question, however it is written


def completions(*pairs):
    return Task.from_records([{"prompt": prompt, "target": target} for prompt, target in pairs], "pairs")


def asked_alike(task):
    """Which examples no split puts on two sides: the groups that stay together under forty seeds."""
    places = {id(example): place for place, example in enumerate(task.examples)}
    sides = [{places[id(example)] for example in task.split(seed=seed)[0].examples} for seed in range(40)]
    return {frozenset(j for j in places.values() if all((i in s) == (j in s) for s in sides)) for i in places.values()}


CAPITALS = [(f"The capital of {country} is", f" {city}") for country, city in (("Peru", "Lima"), ("Mali", "Bamako"))]


@pytest.mark.filterwarnings("ignore:task .* the same question has different answers")
@pytest.mark.parametrize(
    "same",
    [
        [("The capital of France is ", "Paris"), ("The capital of France is", " Paris")],
        [("The capital of France is\n", "Paris"), ("The capital of France is", "\nParis")],
        [("The capital of France", " is Paris"), ("The capital of France is", " Paris")],
        [("The capital of France is", " Paris"), ("The capital of France is", " Rome")],
        [("The capital of France is", " Paris")] * 3,
        [("", "The capital of France is Paris"), ("The capital of France is", " Paris")],
    ],
    ids=["white space", "line break", "words", "other target", "thrice", "no prompt"],
)
def test_one_question_written_in_two_ways_is_on_one_side_of_every_split_and_counts_once(same):
    task = completions(*same, *CAPITALS, ("The capital of Fiji is", " Suva"))
    one = frozenset(range(len(same)))
    assert asked_alike(task) == {one, *(frozenset([place]) for place in range(len(same), len(task)))}
    assert len(distinct(task)[0]) == 4
    with pytest.raises(
        ValueError, match=r"unseen examples \(held_out\) must share no question with task 'pairs'; \d of"
    ):
        Task(
            "pairs", "completion", task.examples[:1], role="finding", held_out=replace(task, examples=task.examples[1:])
        )


def test_one_question_behind_several_worked_examples_counts_once_where_it_is_named():
    records = [
        {"prompt": f"{shown}: {shown}\nword {i}:", "target": f" {i}", "asked": f"word {i}"}
        for i in range(20)
        for shown in "abc"
    ]
    finding, unseen = Task.from_records(records, "few").split(30, seed=0)
    assert (len(finding), len(distinct(unseen)[0])) == (30, 10)
    assert not {example.asked for example in finding.examples} & {example.asked for example in unseen.examples}


def test_a_split_never_finds_with_more_than_n():
    records = [{"prompt": f"{i} is", "target": " a", "sequence": "long" if i < 30 else None} for i in range(36)]
    task = Task.from_records(records, "uneven")
    assert {len(task.split(6, seed=seed)[0]) for seed in range(40)} <= {5, 6}
    alike = Task.from_records([{**each, "sequence": i % 2} for i, each in enumerate(records)], "two")
    assert len(alike.split()[0]) == 18
    with pytest.raises(ValueError, match="n must be 18 or more, the fewest examples that stay together, got n=6"):
        alike.split(6)


@pytest.mark.filterwarnings("ignore:task .* the same question has different answers")
def test_the_same_tokens_under_another_cut_and_with_other_targets_are_one_question():
    ids = [((1, 2, 3), (4, 5)), ((1, 2, 3, 4), (5,)), ((1, 2, 3), (6,)), ((7, 2, 3), (4, 5)), ((8, 2, 3), (4,))]
    task = completions(*((list(prompt), list(target)) for prompt, target in ids))
    assert asked_alike(task) == {frozenset([0, 1, 2]), frozenset([3]), frozenset([4])}


@pytest.mark.filterwarnings("ignore:task .* the same question has different answers")
@pytest.mark.parametrize("prompt", ["", "Which is right?"])
def test_where_prompts_say_nothing_the_choices_are_the_question(prompt):
    """As in minimal pairs: BLiMP has an empty prompt before all of its sentences."""
    pairs = [[f" {name} sleeps.", f" {name} sleep."] for name in ("Ada", "Bo", "Cleo", "Dan")]
    again = [pairs[0][::-1]]
    records = [{"prompt": prompt, "choices": each, "answer": 0} for each in pairs + again]
    assert asked_alike(Task.from_records(records)) == {frozenset([0, 4]), *map(frozenset, ([1], [2], [3]))}


def test_choices_with_prompts_of_their_own_are_the_question():
    schemas = [[f"{one} thanked {two} as {each}" for each in (one, two)] for one, two in ("AB", "CD", "EF")]
    examples = [
        Example(prompts[answer], (" left.", " left."), answer, prompts=tuple(prompts))
        for prompts, answer in ((schemas[0], 0), (schemas[0][::-1], 1), (schemas[1], 0), (schemas[2], 1))
    ]
    assert asked_alike(Task("schemas", "choice", tuple(examples))) == {
        frozenset([0, 1]),
        frozenset([2]),
        frozenset([3]),
    }


def test_what_was_seen_is_left_out_with_its_sequence():
    records = [
        {"prompt": f"{i} and {j} make", "target": f" {i + j}", "sequence": i} for i in range(4) for j in range(3)
    ]
    task = Task.from_records(records, "sums")
    seen = replace(task, examples=task.examples[:1]).known[0]
    side, (note,) = distinct(task, seen)
    assert [example.sequence for example in side.examples] == [example.sequence for example in task.examples[3:]]
    assert note == "3 of 12 examples of task 'sums' are left out: heads were found on them"
    with pytest.raises(ValueError, match="task 'sums' has no examples to judge on: 12 of 12 examples"):
        distinct(task, {key for keys in task.known for key in keys})


# What is refused


def one_question() -> Task:
    return completions(("One, two,", " three"), ("One, two, ", "three"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Task.from_records([], "nothing"), "task 'nothing' is empty: it needs at least one example"),
        (lambda: Example("x", (" a", " b"), 5), "answer must be the index of one of 2 continuations, got 5"),
        (lambda: Task("t", "choice", (Example("x", (" a",)),)), "0: a choice example has two continuations or more"),
        (lambda: counting(5).take(-1), "n must be an integer of 1 or more, got -1"),
        (lambda: counting(10).split(0), "on both sides of the split: got n=0 with 10 examples"),
        (lambda: counting(10).split(-1), "on both sides of the split: got n=-1 with 10 examples"),
        (lambda: counting(10).split(10), "on both sides of the split: got n=10 with 10 examples"),
        (counting(10).split()[0].split, "is the finding side of a split; split the whole task"),
        (counting(10).split()[1].split, "is the confirming side of a split; split the whole task"),
        (lambda: finding_side(counting(50)), r"is not split into examples .*: give task\.split"),
        (lambda: confirming_side(counting(50)), r"is not split into examples .*: give task\.split"),
        (lambda: search_control(counting(50).split()[1], 0), "is the confirming side of a split"),
        # What finds heads never judges them.
        (lambda: search_control(one_question(), 0), r"must ask two questions or more.* all of its 2 examples"),
        (
            lambda: control_side(one_question(), 10, 0),
            r"must ask two questions or more.* all of its 2 examples",
        ),
    ],
)
def test_what_is_no_task_or_no_side_of_one_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
