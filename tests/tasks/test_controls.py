"""Which tasks stand as controls where nobody chooses any."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cs_heads as cs
from cs_heads.tasks import (
    Example,
    Task,
    check_controls,
    confirming_side,
    control_side,
    controls,
    default_controls,
    default_kin,
    load_task,
    search_control,
)
from cs_heads.tasks.controls import alike, alike_in_answers
from cs_heads.tasks.load import names_of
from cs_heads.tasks.splits import check_apart

SKILLS = [*names_of("everyday"), *names_of("demo")]


def small(name: str) -> Task:
    return Task.from_records([{"prompt": f"{name} {i}", "target": " x"} for i in range(4)], name)


def kin_names(*arguments: Any) -> tuple[str, ...]:
    return tuple(kin.name for kin in default_kin(*arguments))


def test_worked_examples_of_a_file_are_known_by_the_form_of_its_last_line():
    words = ("old", "fast", "slow", "young", "cold", "warm")
    shown = "The comparative of tall is taller.\nThe comparative of wide is wider.\n"
    mine = Task.from_records(
        [{"prompt": f"{shown}The comparative of {word} is", "target": f" {word}er"} for word in words], "comparative"
    )
    headed = Task.from_records(
        [{"prompt": f"Give the comparative.\nWhat is {word}?", "target": f" {word}er"} for word in words], "headed"
    )
    skills = {name: load_task(f"everyday/{name}", n=20) for name in ("plural", "upper_case", "copying", "agreement")}
    assert alike(mine, skills) == ["plural", "upper_case"]
    assert not {"plural", "upper_case"} & {*alike(headed, skills)}


def test_they_are_everyday_skills_with_examples_to_search_and_to_judge_with():
    controls = default_controls(small("mine"), "gpt2")
    assert [control.name for control in controls] == names_of("everyday")
    assert len(controls) == 15
    assert all(len(search_control(control, 0)) >= 50 <= len(control_side(control, 50, 0)) for control in controls)


@pytest.mark.parametrize("name", SKILLS)
def test_no_skill_is_a_control_of_itself_and_none_shares_examples_with_another(name):
    task = load_task(name)
    controls = default_controls(task, name.partition("/")[0])
    family, _, skill = name.partition("/")
    asked = {control.name.rpartition("/")[2] for control in controls if control.name != "matched/copying"}
    assert asked == {each.rpartition("/")[2] for each in names_of(family)} - {skill}
    check_apart([task, *controls], [confirming_side(task), *(control_side(control, 100, 0) for control in controls)])


@pytest.mark.parametrize("seed", [0, 5])
def test_a_skill_under_another_name_is_known_by_its_questions_whatever_seed_drew_them(seed):
    task = load_task("everyday/plural", seed=seed)
    assert kin_names(task, "gpt2") == ()
    copied = replace(task, name="mine")
    assert kin_names(copied, "gpt2") == ("everyday/plural",)
    matched = {f"everyday/{skill}": f"matched/{skill}" for skill in ("past", "upper_case")}
    assert [control.name for control in default_controls(copied, "gpt2")] == [
        *(matched.get(name, name) for name in names_of("everyday") if name != "everyday/plural"),
        "matched/copying",
    ]


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
    assert kin_names(task, "gpt2") == (f"everyday/{skill}",)


def reworded(name: str, frame: str, n: int, others: int = 0) -> Task:
    """The questions of a skill in another frame, and others besides."""
    asked = [(str(e.prompt).split()[-2], e.target) for e in load_task(name, n=n).examples]
    asked += [(f"zib{i}", f" zab{i}") for i in range(others)]
    return Task.from_records([{"prompt": frame.format(word), "target": target} for word, target in asked], "mine")


def test_a_skill_asked_for_in_other_words_is_kin_by_the_same_answers_to_the_same_words():
    frame = "big -> small\nrich -> poor\n{} ->"
    assert kin_names(reworded("everyday/antonyms", frame, 30, others=30), "gpt2") == ("everyday/antonyms",)
    # A word or two in common are not the same skill.
    assert kin_names(reworded("everyday/antonyms", frame, 5, others=55), "gpt2") == ()
    # Nor are the same words with other answers.
    turned = [{"prompt": f"{e.target} is to {i}", "target": f" w{i}"} for i, e in enumerate(load_task("ioi").examples)]
    assert kin_names(Task.from_records(turned, "turned"), "gpt2") == ()


@pytest.mark.parametrize(
    ("frame", "answer"),
    [
        ("{} ->", " {}."),
        ('"{}" is the opposite of', ' "{}"'),
        ("Word: {}\nThe opposite is", " {}"),
        ("Word: {}\nGive the opposite.\nAnswer:", " {}"),
        ('Question: what is the opposite of "{}"?\nThe answer is', " {}"),
    ],
)
def test_pairs_of_ones_own_are_known_in_whatever_lines_and_marks(frame, answer):
    pairs = [(str(one.asked).split()[-2], one.target.strip()) for one in load_task("everyday/antonyms", n=60).examples]
    records = [{"prompt": frame.format(word), "target": answer.format(right)} for word, right in pairs]
    assert kin_names(Task.from_records(records, "mine"), "gpt2") == ("everyday/antonyms",)


def test_pairs_the_other_way_round_may_be_the_same_skill():
    skill = load_task("everyday/antonyms", n=60)
    records = [
        {"prompt": f"{one.target.strip()} ->", "target": f" {str(one.asked).split()[-2]}"} for one in skill.examples
    ]
    turned = Task.from_records(records, "turned")
    assert kin_names(turned, "gpt2") == ()
    assert alike_in_answers(turned, {"antonyms": skill, "plural": load_task("everyday/plural", n=60)}) == ["antonyms"]


def test_the_guide_lists_the_kin_of_every_everyday_skill():
    text = (Path(__file__).parents[2] / "docs/guides/controls.md").read_text("utf-8")
    listed = {}
    for row in re.findall(r"^\| (`everyday/.*) \| (.*) \|$", text, re.M):
        listed |= {skill: re.findall("`([^`]+)`", row[1]) for skill in re.findall("`([^`]+)`", row[0])}
    assert sorted(listed) == sorted(names_of("everyday"))
    for skill, kin in listed.items():
        patterns = controls._KIN.get(skill.partition("/")[2], "").split()
        assert kin == [pattern.replace("*/", "demo/") for pattern in patterns]


def test_tasks_share_a_form_by_their_usual_words_or_by_worked_examples():
    names = ("capitals", "antonyms", "plural", "copying", "succession")
    capitals, antonyms, plural, copying, succession = (load_task(f"everyday/{name}", n=20) for name in names)
    assert alike(capitals, {"antonyms": antonyms, "plural": plural, "copying": copying}) == ["antonyms", "plural"]
    assert alike(copying, {"copying": copying, "succession": succession}) == []
    # The last line alone has no worked examples before it.
    bare = tuple(replace(each, prompt=each.asked, asked=None) for each in plural.examples)
    assert alike(replace(plural, examples=bare, held_out=None), {"antonyms": antonyms}) == []


def test_tasks_may_be_kin_by_their_answers_alone():
    """Another's nouns under the same question: no word is in both."""
    records = [
        {"prompt": f"The {noun}{ending} near the door", "target": target}
        for noun in ("foo", "bar", "baz")
        for ending, target in (("", " was"), ("s", " were"))
    ]
    task = Task.from_records(records)
    skills = {name: load_task(f"everyday/{name}", n=40) for name in ("agreement", "he_she", "plural")}
    assert alike_in_answers(task, skills) == ["agreement"]


class Untouched:
    """A model that fails the test where anything is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        pytest.fail(f"the model is asked for {name}")


SEARCHES: dict[str, Callable[[Task, list[Task]], object]] = {
    "find_heads": lambda task, controls: cs.find_heads(Untouched(), task, controls=controls),
    "confirm": lambda task, controls: cs.confirm(Untouched(), task, ["L0H1"], controls=controls),
    "compare": lambda task, controls: cs.compare(Untouched(), task, controls=controls),
}


def refused(task: Task, *controls: Task) -> str:
    """What every search and proof says of controls before it looks at the model."""
    said = set()
    for search in SEARCHES.values():
        with pytest.raises(ValueError, match="control") as error:
            search(task, list(controls))
        said.add(str(error.value))
    assert len(said) == 1
    return said.pop()


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
    [WHOLE, FINDING, replace(WHOLE, name="copy"), SHUFFLED, SHUFFLED.split(5)[0], FINDING.with_chat_template("auto")],
    ids=["itself", "split", "copy", "choices shuffled", "split otherwise", "in chat"],
)
def test_a_control_that_is_the_task_is_refused(task, control):
    line = refused(task, OTHERS, control)
    assert line.startswith(f"control '{control.name}' shares ")
    assert line.endswith(" with task 'mine': a control must be another task")


def test_a_control_with_a_few_questions_of_the_task_is_refused_with_their_number():
    both = replace(OVERLAPPING, examples=(*OVERLAPPING.examples, Example("none", (" a", " b"))))
    assert refused(FINDING, both).startswith("control 'overlapping' shares 3 of its 4 examples with task 'mine'")
    assert check_controls([OTHERS], FINDING) == [OTHERS]


def test_the_task_drawn_with_another_seed_is_no_control():
    task, again = (load_task("everyday/agreement", seed=seed) for seed in (0, 1))
    assert refused(task, again).startswith("control 'everyday/agreement' has the name of the task: a control must be")


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
    assert refused(task, copy).startswith("control 'others' shares 30 of its 30 examples with task 'sums'")


WORKED = "Q: what is 90 plus one? 91\n\nQ: what is 80 plus one? 81\n\n"
REWORDED = (
    "in the words of task 'sums', after worked examples, with other marks or for an answer worded otherwise: "
    "a control must be another"
)


def written(records: list[dict[str, Any]], name: str, **more: Any) -> Task:
    """A task whose answers the model writes, with a reference in other words than the choice."""
    asked = [{"prompt": each["prompt"], "reference": f"It is{each['choices'][0]}."} for each in records]
    return Task.from_records(asked, name, max_new_tokens=8, **more)


def shown_first(records: list[dict[str, Any]], n: int = 30) -> list[dict[str, Any]]:
    """The first ``n`` records with worked examples before them, and as many others."""
    others = [{**each, "prompt": f"How much is {each['prompt'][11:]}"} for each in records[n:]]
    return [{**each, "prompt": WORKED + each["prompt"]} for each in records[:n]] + others


@pytest.mark.parametrize(
    "control",
    [
        written(WORDED, "others"),
        Task.from_records(shown_first(WORDED), "others"),
        Task.from_records([{**each, "prompt": each["prompt"].upper()} for each in shown_first(WORDED)], "others"),
        written(shown_first(WORDED), "others"),
    ],
    ids=["written", "worked examples", "worked examples, another case", "written after worked examples"],
)
def test_the_questions_of_the_task_put_in_another_way_are_no_control(control):
    task = Task.from_records(WORDED, "sums")
    assert f"control 'others' asks 30 of its 30 questions {REWORDED}" in refused(task, control)
    line = refused(control, task)
    assert "control 'sums' asks 30 of its 30 questions in the words of task 'others'" in line


@pytest.mark.parametrize(
    ("before", "behind", "end"),
    [("", "\nAnswer:", ""), ("", " A:", ""), ('"', '"', ""), ("", " !", ""), ("", "\u200b", ""), ("", "", ".")],
    ids=["answer", "a", "quoted", "another mark", "no width", "a full stop behind the answer"],
)
def test_the_questions_of_the_task_with_other_marks_are_no_control(before, behind, end):
    task = Task.from_records(WORDED, "sums")
    marked = [
        {"prompt": f"{before}{each['prompt']}{behind}", "target": each["choices"][each["answer"]] + end}
        for each in WORDED
    ]
    control = Task.from_records(marked, "others")
    assert f"control 'others' asks 30 of its 30 questions {REWORDED}" in refused(task, control)
    assert f"control 'sums' asks 30 of its 30 questions {REWORDED.replace('sums', 'others')}" in refused(control, task)


def test_signs_of_sums_and_brackets_are_no_marks():
    def task(sign: str, name: str) -> Task:
        asked = [{"prompt": f"so we know that {n} {sign} 1", "reference": f"{n}"} for n in range(30)]
        return Task.from_records(asked, name, max_new_tokens=2)

    others = [task(sign, sign) for sign in "*-/%(["]
    assert check_controls(others, task("+", "plus")) == others


def test_up_to_a_tenth_of_the_questions_may_be_alike():
    task = Task.from_records(WORDED, "sums")
    some, more = (Task.from_records(shown_first(WORDED, n), "others") for n in (3, 4))
    assert check_controls([some], task) == [some]
    assert f"control 'others' asks 4 of its 30 questions {REWORDED}" in refused(task, more)


HOT = [{"prompt": f"word{n}:", "target": f" opposite{n}"} for n in range(30)]


@pytest.mark.parametrize(
    "control",
    [
        Task.from_records([{"prompt": "hot: chaud\n" + each["prompt"], "target": " mot"} for each in HOT], "french"),
        Task.from_records(
            [{"prompt": "hot: chaud\n" + each["prompt"], "reference": " mot"} for each in HOT],
            "french",
            max_new_tokens=2,
        ),
        Task.from_records([{**each, "target": " mot"} for each in HOT], "french"),
    ],
    ids=["worked examples", "written after worked examples", "same prompts"],
)
def test_tasks_that_share_a_short_template_are_two(control):
    assert check_controls([control], Task.from_records(HOT, "opposites")) == [control]
