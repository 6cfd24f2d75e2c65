"""How failures look: texts by themselves, and choices of a model held against its own experiment."""

import json

import numpy as np
import pytest

from cs_heads.analysis.failures import FailureModes, Share, failures
from cs_heads.experiment.experiment import Experiment
from cs_heads.tasks import Task
from cs_heads.units import Grid
from tests.known_heads import WORKING, own_answers
from tests.tiny import choice_records

GRID = Grid(3, 4)


@pytest.fixture(scope="module")
def choices():
    return Task.from_records(choice_records(np.random.default_rng(0), 50), "choices").split(20)[0]


def test_choices_are_those_that_the_experiment_scores(model, choices):
    found = failures(model, choices, {"working": WORKING})
    unseen = Experiment(model, choices.held_out)
    for name, heads in (("intact", []), ("working", WORKING)):
        mask = GRID.mask(heads)[None]
        assert found.modes[name]["wrong"].share == pytest.approx((unseen(mask) == 0).mean())
    assert found.spent == 2 * 30
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
    assert found.modes["working"]["same place"].count < 40


def test_texts_are_those_of_the_experiment(model):
    task = Task.from_records(own_answers(model, 50), "said").split(25)[0]
    found = failures(model, task, list(WORKING), n=25, max_new_tokens=6)
    unseen = Experiment(model, task.held_out)
    assert list(found.texts["said"]) == unseen.generate(GRID.mask(WORKING)[None], max_new_tokens=6)[0].tolist()
    assert list(found.texts["intact"]) == unseen.generate(GRID.mask([])[None], max_new_tokens=6)[0].tolist()
    assert found.modes["intact"]["changed"].count == 0
    assert found.beyond_intact("said", "changed")
    assert found.spent == 50
    assert len(json.loads(json.dumps(found.to_dict()))["texts"]["said"]) == 25
    assert len(found.to_frame()) == 10
    assert found.modes["intact"]["answer later"].count == 0


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
