"""Everyday skills: two sides that ask about different words, and answers that are right."""

import re

import pytest

from cs_heads import load_task
from cs_heads.tasks import builtin_tasks
from cs_heads.tasks import everyday as lists
from cs_heads.tasks.words import word_pairs

SKILLS = tuple(name.removeprefix("everyday/") for name in builtin_tasks() if name.startswith("everyday/"))
CHANCE = {"agreement": 0.5, "he_she": 0.5, "closing": 0.25}
WITH_SHOTS = ("antonyms", "capitals", "kinds", "past", "phrases", "plural", "sums", "upper_case")
SHORT = {"capitals": 59}


def load(skill, **options):
    return load_task(f"everyday/{skill}", **options)


def both_sides(task):
    return [*task.examples, *task.held_out.examples]


def words(text):
    return re.findall(r"[A-Za-z]+", text)


def last_line(example):
    return example.prompt.splitlines()[-1]


def asked_word(skill, example):
    """What a question is about: the word that must not be asked about on the other side."""
    line = last_line(example)
    if skill == "antonyms":
        return frozenset((line.split()[3], example.target.strip()))
    if skill == "sums":
        return frozenset(line.split()[:3:2])
    if skill == "agreement":
        return next(one for one, many in word_pairs("everyday-plural") if line.split()[1] in (one, many))
    if skill == "he_she":
        return next(name for name in lists.WOMEN + lists.MEN if name in words(line))
    return line if skill in (*WITH_SHOTS, "closing") else example.target.lower()


# What there is


@pytest.mark.parametrize("skill", SKILLS)
def test_a_skill_asks_about_some_words_on_one_side_and_about_others_on_the_other(skill):
    task = load(skill, seed=3)
    assert (task.name, len(task)) == (f"everyday/{skill}", SHORT.get(skill, 100))
    assert len(task.held_out) >= SHORT.get(skill, 100)
    assert task.chance == task.held_out.chance == CHANCE.get(skill, 0)
    found, judged = ({asked_word(skill, example) for example in side.examples} for side in (task, task.held_out))
    assert not found & judged
    prompts = [example.prompt for example in both_sides(task)]
    assert len(set(prompts)) == len(prompts)


# Worked examples


@pytest.mark.parametrize("skill", WITH_SHOTS)
def test_worked_examples_are_of_words_that_are_never_asked_about_and_change_no_question(skill):
    questions = [(last_line(e), e.question) for e in both_sides(load(skill, shots=0))]
    for shots in (3, 10):
        asked = both_sides(load(skill, shots=shots))
        assert [(last_line(example), example.question) for example in asked] == questions
        answered = {f"{last_line(example)}{example.target}" for example in asked}
        about = {asked_word(skill, example) for example in asked}
        for worked in {tuple(example.prompt.splitlines()[:-1]) for example in asked}:
            assert len(set(worked)) == shots
            assert not answered & {*worked}
            if skill in ("antonyms", "sums"):
                parts = [line.split() for line in worked]
                shown = {frozenset(each[:3:2] if skill == "sums" else (each[3], each[-1])) for each in parts}
                assert not shown & about


# Answers, by rules of their own


def test_sums_are_sums_below_forty():
    for example in both_sides(load("sums")):
        a, b = map(int, last_line(example).removesuffix(" =").split(" + "))
        assert int(example.target) == a + b < 40


@pytest.mark.parametrize("name", ["plural", "past", "capitals", "kinds", "phrases"])
def test_no_word_of_a_list_has_two_answers(name):
    asked = [word for word, _ in word_pairs(f"everyday-{name}")]
    assert len(set(asked)) == len(asked) >= 120


def test_the_verb_agrees_with_the_first_noun_and_the_second_would_mislead():
    many = {plural for _, plural in word_pairs("everyday-plural")}
    for example in both_sides(load("agreement")):
        first, last = example.prompt.split()[1], example.prompt.split()[-1]
        assert (first in many) != (last in many)
        assert (example.target in (" are", " were", " have")) == (first in many)


def test_men_are_he_and_women_are_she():
    assert not set(lists.MEN) & set(lists.WOMEN)
    for example in both_sides(load("he_she")):
        assert (example.target == " he") == bool(set(words(example.prompt)) & set(lists.MEN))


def test_what_is_given_goes_to_the_one_who_is_named_once():
    names = set(lists.MEN + lists.WOMEN)
    for example in both_sides(load("indirect_object")):
        named = [word for word in words(example.prompt) if word in names]
        assert (len(named), len(set(named))) == (3, 2)
        assert named.count(example.target.strip()) == 1


def test_code_uses_the_argument_that_is_left():
    for example in both_sides(load("code")):
        first, second = re.match(r"def \w+\((\w+), (\w+)\):", example.prompt).groups()
        assert example.prompt.endswith(tuple(f"return {first} {operator}" for operator in "+-*/"))
        assert example.target == f" {second}" != f" {first}"


def test_what_is_closed_was_open():
    opens = {")": "(", "]": "[", "}": "{", '"': '"'}
    examples = both_sides(load("closing"))
    for example in examples:
        assert [mark for mark in opens.values() if mark in example.prompt] == [opens[example.target]]
    assert {e.target for e in examples} == set(opens)


def test_what_comes_next_in_a_series_came_after_the_last_there():
    forms = [form for series in (lists.ROUND | lists.STRAIGHT).values() for form in series]
    for example in both_sides(load("succession")):
        shown = words(example.prompt)
        assert len(shown) >= 3
        following = [form[(form.index(shown[-1]) + 1) % len(form)] for form in forms if set(shown) <= set(form)]
        assert example.target.strip() in following


def test_the_word_asked_for_followed_the_last_word_before():
    for example in both_sides(load("copying", length=6)):
        assert example.prompt.count("\n") == example.prompt.count(".") == 1
        shown = words(example.prompt)
        assert len(set(shown[:6])) == 6
        assert shown[6:] == shown[: len(shown) - 6]
        assert example.target.strip() == shown[len(shown) - 6]


# What is refused
