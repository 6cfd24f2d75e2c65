"""How failures look: texts by themselves, and choices of a model held against its own experiment."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from cs_heads.analysis.failures import (
    FailureModes,
    Share,
    distinct,
    failures,
    is_empty,
    is_later,
    is_repetition,
    looped,
    most_common,
)
from cs_heads.experiment.experiment import Experiment
from cs_heads.tasks import Task
from cs_heads.units import HeadGrid
from tests.known_heads import WORKING, own_answers, rows_run
from tests.tiny import choice_records

GRID = HeadGrid(3, 4)


@pytest.fixture(scope="module")
def model(load_known):
    return load_known()


@pytest.fixture(scope="module")
def choices():
    return Task.from_records(choice_records(np.random.default_rng(0), 50), "choices").split(20)[0]


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("he said that he said that he said that he said that", True),
        ("no no no no no no no no", True),
        ("a b a c a b a c a b a c a b a c", True),
        ("one day a small red bird sat in the old tree", False),
        ("once upon a time there was a king, a king, a king", False),
        ("no no no", False),
        ("", False),
    ],
)
def test_repetition_is_a_loop_at_the_end_or_few_pairs_of_words(text, repeats):
    assert is_repetition(text) is repeats


def test_a_text_without_a_word_is_empty():
    assert [is_empty(text) for text in ("", " \n", "...!", "a", "42")] == [True, True, True, False, False]


def test_distinct_n_is_the_mean_over_texts():
    assert distinct(["a a", "a b"], 1) == pytest.approx((0.5 + 1) / 2)
    assert distinct(["a b a b a", "x"], 2) == 0.5
    assert math.isnan(distinct(["x"], 2))


def test_a_loop_is_counted_in_words_that_repeat_three_times():
    assert looped("x a b a b a b") == pytest.approx(6 / 7)
    assert looped("a b a b") == 0
    assert most_common(["a", "b", "a"]) == 2


def test_the_interval_of_a_share_is_wilsons():
    p, n, z = 0.3, 50, 1.959964
    middle, half = (
        (p + z * z / 2 / n) / (1 + z * z / n),
        z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n),
    )
    assert Share(15, 50).interval == pytest.approx((middle - half, middle + half), abs=1e-5)


def test_choices_are_those_that_the_experiment_scores(model, choices):
    found = failures(model, choices, {"working": WORKING})
    unseen = Experiment(model, choices.held_out)
    for name, heads in (("intact", []), ("working", WORKING)):
        mask = GRID.mask(heads)[None]
        assert found.measures[name]["score"] == pytest.approx(unseen(mask).mean())
        assert found.modes[name]["wrong"].share == pytest.approx((unseen(mask) == 0).mean())
        # The right choice is one of those whose probabilities are summed.
        assert found.measures[name]["mass"] > np.exp(unseen.logprob(mask)).mean()
    assert found.spent == 2 * 3 * 30
    assert found.modes["intact"]["choices unlikely"].count == 0


def test_the_same_place_for_every_example_is_seen(model):
    """Each example offers what the model says of its prompt at the second place, so it always picks that."""
    records = own_answers(model, 60)
    other = [" king" if r["target"] != " king" else " dog" for r in records]
    task = Task.from_records(
        [{"prompt": r["prompt"], "choices": [o, r["target"]], "answer": 0} for r, o in zip(records, other, strict=True)]
    ).split(20)[0]
    found = failures(model, task, {"working": WORKING})
    assert found.modes["intact"]["same place"] == Share(40, 40) == found.modes["intact"]["wrong"]
    assert found.measures["intact"]["entropy"] == 0
    assert found.measures["working"]["entropy"] > 0
    assert found.measures["working"]["mass"] < found.measures["intact"]["mass"]


def test_texts_are_those_of_the_experiment(model):
    task = Task.from_records(own_answers(model, 50), "said").split(25)[0]
    found = failures(model, task, list(WORKING), n=25, max_new_tokens=6)
    unseen = Experiment(model, task.held_out)
    assert list(found.texts["said"]) == unseen.generate(GRID.mask(WORKING)[None], max_new_tokens=6)[0].tolist()
    assert list(found.texts["intact"]) == unseen.generate(GRID.mask([])[None], max_new_tokens=6)[0].tolist()
    assert found.modes["intact"]["changed"].count == 0
    assert found.beyond_intact("said", "changed")
    assert "changed" in found.named("said")
    assert found.spent == 50
    assert len(json.loads(json.dumps(found.to_dict()))["texts"]["said"]) == 25
    assert len(found.to_frame()) == 10
    assert found.modes["intact"]["answer later"].count == 0
    assert list(found.measures["said"]) == ["distinct-1", "distinct-2", "words"]


def test_texts_stand_beside_their_prompts_and_the_right_answers(model, choices):
    records = [r | {"prompt": "An example.\n" + r["prompt"]} for r in own_answers(model, 40)]
    task = Task.from_records(records, "said").split(20)[0]
    found = failures(model, task, {"working": WORKING}, max_new_tokens=2)
    table = found.text_frame()
    assert list(table) == ["prompt", "right", "intact", "working"]
    assert list(table["prompt"]) == [str(e.prompt).partition("\n")[2] for e in task.held_out.examples]
    assert list(table["right"]) == [e.target for e in task.held_out.examples]
    assert list(table["working"]) == list(found.texts["working"])
    assert FailureModes.from_dict(json.loads(json.dumps(found.to_dict()))).text_frame().equals(table)
    with pytest.raises(ValueError, match="the model wrote no texts, since choices were measured"):
        failures(model, choices, list(WORKING), n=20).text_frame()


def test_texts_stand_beside_their_own_prompts_where_others_are_left_out(model):
    """The tokenizer of words reads no space: the second example is the first once more."""
    finding, unseen = Task.from_records(own_answers(model, 50), "said").split(25)
    wide = replace(unseen.examples[0], prompt=unseen.examples[0].prompt.replace(" ", "  "))
    task = replace(finding, held_out=replace(unseen, examples=(unseen.examples[0], wide, *unseen.examples[1:])))
    found = failures(model, task, {"working": WORKING}, max_new_tokens=2)
    assert found.prompts == tuple(example.prompt for example in unseen.examples)
    assert len(found.text_frame()) == 25


def test_an_answer_that_comes_later_in_the_text_is_counted(model):
    records = own_answers(model, 40)
    texts = Experiment(model, Task.from_records(records, "said")).generate(GRID.mask([])[None], max_new_tokens=3)[0]
    later = [r | {"target": " " + text.split()[-1]} for r, text in zip(records, texts, strict=True)]
    task = Task.from_records(later, "later").split(20)[0]
    found = failures(model, task, list(WORKING), n=20, max_new_tokens=3)
    # A text that says one word three times begins with it.
    expected = sum(text.split()[0] != text.split()[-1] for text in found.texts["intact"])
    assert found.modes["intact"]["answer later"] == Share(expected, 20)
    assert expected > 0


def test_the_answer_is_later_only_as_whole_words_behind_others():
    assert is_later(" Thai", " the THAI language")
    assert is_later(" New York", " it is New York")
    assert not is_later(" Thai", " Thai, Thai")
    assert not is_later(" Thai", " in Thailand")
    assert not is_later(" 7", " 17")
    assert not is_later(" Thai", "")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: failures(m, t, {"intact": WORKING}), "heads must not be named 'intact'"),
        (lambda m, t: failures(m, t, WORKING, n=3), "n must be an integer of 20 or more, got 3"),
        (lambda m, t: failures(m, t, [], texts=True), "heads must be one head or more"),
    ],
)
def test_wrong_arguments_are_refused_before_the_model_runs(model, choices, call, message):
    with rows_run(model) as rows, pytest.raises(ValueError, match=message):
        call(model, choices)
    assert rows == []


def test_a_choice_task_is_judged_by_its_texts_where_that_is_asked(model, choices):
    found = failures(model, choices, list(WORKING), n=20, texts=True, max_new_tokens=3)
    assert list(found.modes["intact"]) == ["empty", "repetition", "same text", "changed"]
    assert len(found.texts["intact"]) == 20


def test_options_of_texts_are_refused_where_choices_are_measured(model, choices):
    with rows_run(model) as rows, pytest.raises(ValueError, match="are for texts, and 'choices' is a choice task"):
        failures(model, choices, WORKING, max_new_tokens=3)
    assert rows == []
