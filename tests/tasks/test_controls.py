"""Which tasks stand as controls where nobody chooses any."""

from dataclasses import replace

import pytest

from cs_heads.analysis.unseen import check_apart
from cs_heads.tasks import (
    Example,
    Task,
    check_controls,
    confirming_side,
    control_side,
    default_controls,
    load_task,
    overlapping_controls,
    search_control,
)
from cs_heads.tasks.load import names_of

SKILLS = [*names_of("everyday"), *names_of("demo")]


def small(name: str) -> Task:
    return Task.from_records([{"prompt": f"{name} {i}", "target": " x"} for i in range(4)], name)


def test_they_are_everyday_skills_with_examples_to_search_and_to_judge_with():
    controls = default_controls(small("mine"), "gpt2")
    assert [control.name for control in controls] == names_of("everyday")
    assert len(controls) == 15
    assert all(len(search_control(control, 0)) >= 50 <= len(control_side(control, 50, 0)) for control in controls)


def test_on_the_demo_model_they_are_its_other_skills():
    names = [control.name for control in default_controls(load_task("demo/code", n=20), "demo")]
    assert names == [name for name in names_of("demo") if name != "demo/code"]


@pytest.mark.parametrize("name", SKILLS)
def test_no_skill_is_a_control_of_itself_and_none_shares_examples_with_another(name):
    task = load_task(name)
    controls = default_controls(task, name.partition("/")[0])
    assert name not in [control.name for control in controls]
    assert len(controls) == len(names_of(name.partition("/")[0])) - 1
    check_apart([task, *controls], [confirming_side(task), *(control_side(control, 100, 0) for control in controls)])


def test_a_skill_under_another_name_is_known_by_its_questions():
    for seed in (0, 5):
        copied = replace(load_task("everyday/plural", seed=seed), name="mine")
        names = [control.name for control in default_controls(copied, "gpt2")]
        assert "everyday/plural" not in names
        assert len(names) == 14
        assert overlapping_controls(copied, "gpt2", seed) == ("everyday/plural",)
        assert overlapping_controls(load_task("everyday/plural", seed=seed), "gpt2", seed) == ()


@pytest.mark.parametrize(
    ("name", "skill"),
    [
        ("ioi", "indirect_object"),
        ("induction", "copying"),
        ("function_vectors/present-past", "past"),
        ("function_vectors/singular-plural", "plural"),
        ("function_vectors/antonym", "antonyms"),
        ("function_vectors/country-capital", "capitals"),
        ("function_vectors/capitalize", "upper_case"),
        ("blimp_regular_plural_subject_verb_agreement_1", "agreement"),
        ("arithmetic", "sums"),
    ],
)
def test_a_built_in_task_is_not_held_against_its_own_skill_in_another_form(name, skill):
    task = small(name) if name.startswith(("blimp", "arithmetic")) else load_task(name, n=40)
    names = [control.name for control in default_controls(task, "gpt2")]
    assert f"everyday/{skill}" not in names
    assert len(names) == 14
    assert overlapping_controls(task, "gpt2") == (f"everyday/{skill}",)


def test_kin_are_known_in_both_families():
    assert overlapping_controls(small("induction"), "demo") == ("demo/copying",)
    assert overlapping_controls(small("demo/agreement"), "gpt2") == ("everyday/agreement",)
    assert overlapping_controls(small("demo/code"), "gpt2") == ()


def test_the_same_seed_gives_the_same_examples_to_search_and_to_prove():
    task = small("mine")
    first, second, other = (default_controls(task, "gpt2", seed) for seed in (1, 1, 2))
    assert first == second
    assert first != other


@pytest.mark.parametrize("none", [None, "auto", (), []])
def test_none_given_is_none(none):
    assert list(check_controls(none, small("mine"))) == []


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ("none", "controls must be a list of tasks, 'auto' or None, got 'none'"),
        ([small("a"), small("b"), small("a")], "controls must have different names, got two or more of 'a'"),
    ],
)
def test_what_are_no_controls_is_refused(controls, message):
    with pytest.raises(ValueError, match=message):
        check_controls(controls, small("mine"))


WHOLE = Task.from_records([{"prompt": f"{i}", "choices": [" a", " b"], "answer": 0} for i in range(40)], "mine")
FINDING, UNSEEN = WHOLE.split(20)
SHUFFLED = Task.from_records([{"prompt": f"{i}", "choices": [" b", " a"], "answer": 1} for i in range(40)], "shuffled")
OTHERS = small("others")
OVERLAPPING = replace(
    OTHERS, kind="choice", examples=(WHOLE.examples[7], *SHUFFLED.examples[20:22]), name="overlapping"
)


@pytest.mark.parametrize("task", [WHOLE, FINDING, UNSEEN], ids=lambda task: task.role)
@pytest.mark.parametrize(
    "control",
    [WHOLE, FINDING, replace(WHOLE, name="copy"), SHUFFLED, SHUFFLED.split(5)[0], FINDING.chatting("auto")],
    ids=["itself", "split", "copy", "choices shuffled", "split otherwise", "in chat"],
)
def test_a_control_that_is_the_task_is_refused(task, control):
    with pytest.raises(
        ValueError, match=rf"control '{control.name}' shares .* with task 'mine': a control must be ano"
    ):
        check_controls([OTHERS, control], task)


def test_a_control_with_a_few_questions_of_the_task_is_refused_with_their_number():
    both = replace(OVERLAPPING, examples=(*OVERLAPPING.examples, Example("none", (" a", " b"))))
    with pytest.raises(ValueError, match="control 'overlapping' shares 3 of its 4 examples with task 'mine'"):
        check_controls([both], FINDING)
    assert check_controls([OTHERS], FINDING) == [OTHERS]


def test_the_task_drawn_with_another_seed_is_no_control():
    task, again = (load_task("everyday/agreement", seed=seed) for seed in (0, 1))
    with pytest.raises(ValueError, match=r"^control 'everyday/agreement' has the name of the task: a control must be"):
        check_controls([again], task)


WORDED = [
    {"prompt": f"Q: what is {n} plus one?", "choices": [f" {n + 1}", f" {n + 7}"], "answer": 0} for n in range(30)
]


@pytest.mark.parametrize(
    "change",
    [
        lambda record: {**record, "prompt": record["prompt"] + " \n"},
        lambda record: {**record, "prompt": record["prompt"].upper()},
        lambda record: {**record, "choices": [*record["choices"], " 99"]},
        lambda record: {**record, "choices": [choice.strip() for choice in record["choices"]]},
        lambda record: {"prompt": record["prompt"], "target": record["choices"][0]},
    ],
    ids=["white space", "case", "another wrong choice", "choices without space", "completion"],
)
def test_a_copy_in_another_form_is_no_control(change):
    task, copy = Task.from_records(WORDED, "sums"), Task.from_records([change(record) for record in WORDED], "others")
    with pytest.raises(ValueError, match=r"^control 'others' shares 30 of its 30 examples with task 'sums'"):
        check_controls([copy], task)


def test_the_same_words_with_another_question_are_another_task():
    task = Task.from_records(WORDED, "sums")
    others = [{**record, "prompt": record["prompt"].replace("plus one", "plus two")} for record in WORDED]
    assert len(check_controls([Task.from_records(others, "others")], task)) == 1
