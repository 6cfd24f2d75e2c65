"""The form of worked examples, and controls that are asked in the form of a task."""

from itertools import permutations

import pytest

from cs_heads.tasks import Task, load_task
from cs_heads.tasks.controls import alike, default_controls
from cs_heads.tasks.words import word_pairs

NOUNS = [
    "house",
    "tree",
    "river",
    "stone",
    "table",
    "chair",
    "garden",
    "window",
    "door",
    "road",
    "bridge",
    "cloud",
    "paper",
    "letter",
    "bottle",
    "basket",
]
NOUNS += [
    "market",
    "village",
    "castle",
    "ship",
    "train",
    "horse",
    "sheep",
    "rabbit",
    "tiger",
    "lion",
    "eagle",
    "bread",
    "butter",
    "cheese",
    "apple",
    "lemon",
]
NOUNS += [
    "sugar",
    "pepper",
    "coffee",
    "winter",
    "summer",
    "morning",
    "evening",
    "doctor",
    "lawyer",
    "farmer",
    "soldier",
    "teacher",
    "student",
]
PAST = dict(word_pairs("everyday-past"))

LAYOUTS = {
    "lines": ("{0}: {1}\n{2}: {3}\n", "{}:"),
    "two lines each": ("Word: {0}\nLetter: {1}\n\nWord: {2}\nLetter: {3}\n\n", "Word: {}\nLetter:"),
    "one line": ("The letter of {0} is {1}. The letter of {2} is {3}. ", "The letter of {} is"),
    "below a heading": ("Give the letter.\n{0} -> {1}\n{2} -> {3}\n", "{} ->"),
}


def letters(shown: str, form: str) -> Task:
    """The task of naming the first letter of a noun."""
    return Task.from_records([{"prompt": f"{shown}{form.format(noun)}", "target": f" {noun[0]}"} for noun in NOUNS])


@pytest.mark.parametrize(("shown", "form"), LAYOUTS.values(), ids=LAYOUTS)
def test_other_forms_of_words_are_controls_in_the_layout_of_the_task(shown, form):
    task = letters(shown.format("bird", "b", "fish", "f"), form)
    controls = {control.name: control for control in default_controls(task, "gpt2")}
    past = controls["matched/past"]
    assert "everyday/past" not in controls
    assert {"everyday/capitals", "everyday/code", "matched/plural", "matched/upper_case"} <= controls.keys()
    examples = (*past.examples, *past.held_out.examples)
    (worked,) = {example.prompt.removesuffix(example.asked) for example in examples}
    (verbs,) = (
        two for two in permutations(PAST, 2) if worked == shown.format(two[0], PAST[two[0]], two[1], PAST[two[1]])
    )
    for example in examples:
        (verb,) = (verb for verb in PAST if form.format(verb) == example.asked)
        assert example.target == f" {PAST[verb]}"
        assert verb not in verbs


@pytest.mark.parametrize(("shown", "form"), LAYOUTS.values(), ids=LAYOUTS)
def test_its_own_words_are_copied(shown, form):
    task = letters(shown.format("bird", "b", "fish", "f"), form)
    (copying,) = (control for control in default_controls(task, "gpt2") if control.name == "matched/copying")
    copied = {(example.asked, example.target) for example in (*copying.examples, *copying.held_out.examples)}
    assert copied < {(form.format(noun), f" {noun}") for noun in NOUNS}
    assert len(copied) == len(NOUNS) - 2


def test_a_word_that_is_asked_about_to_find_heads_is_copied_to_find_heads():
    task, _ = letters("bird: b\nfish: f\n", "{}:").split(seed=0)
    *_, copying = default_controls(task, "gpt2")
    assert {one.asked for one in copying.examples} < {str(one.prompt).splitlines()[-1] for one in task.examples}
    unseen = {str(one.prompt).splitlines()[-1] for one in task.held_out.examples}
    assert {one.asked for one in copying.held_out.examples} == unseen


@pytest.mark.parametrize(
    "shown", ["", "bird: b\n", "Give the letter.\nThe letter is said.\n"], ids=["none", "one", "a heading"]
)
def test_without_worked_examples_controls_stay_as_they_are(shown):
    names = [control.name for control in default_controls(letters(shown, "{}:"), "gpt2")]
    assert not [name for name in names if name.startswith("matched")]


def test_a_task_that_copies_has_no_copying_for_a_control():
    records = [{"prompt": f"bird: bird\nfish: fish\n{noun}:", "target": f" {noun}"} for noun in NOUNS]
    names = [control.name for control in default_controls(Task.from_records(records, "mine"), "gpt2")]
    assert "matched/past" in names
    assert "matched/copying" not in names


@pytest.mark.parametrize("n_shown", [10, 40])
def test_of_few_words_none_are_copied(n_shown):
    shown = "".join(f"{noun}: {noun[0]}\n" for noun in NOUNS[:n_shown])
    records = [{"prompt": f"{shown}{noun}:", "target": f" {noun[0]}"} for noun in NOUNS[-4:]]
    names = [control.name for control in default_controls(Task.from_records(records, "mine"), "gpt2")]
    assert "matched/past" in names
    assert "matched/copying" not in names


@pytest.mark.parametrize("ends", ["\r\n", "\x0b"])
def test_whatever_ends_lines_a_prompt_is_read(ends):
    records = [{"prompt": f"bird{ends}b: {noun}{ends}of:", "target": f" {noun[0]}"} for noun in NOUNS]
    assert len(default_controls(Task.from_records(records, "mine"), "gpt2")) == 15


def test_the_demo_model_has_its_own_words():
    assert not [each for each in default_controls(load_task("demo/capitals", n=20), "demo") if "matched" in each.name]


@pytest.mark.parametrize(("shown", "form"), LAYOUTS.values(), ids=LAYOUTS)
def test_tasks_of_any_layout_share_the_form_of_worked_examples(shown, form):
    assert alike(letters(shown.format("bird", "b", "fish", "f"), form), {"plural": load_task("everyday/plural")}) == [
        "plural"
    ]
