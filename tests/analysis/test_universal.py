import json

import numpy as np
import pytest

from cs_heads.analysis.universal import universal_heads
from cs_heads.experiment.experiment import Experiment
from cs_heads.tasks import Task
from cs_heads.units import Grid, Head
from tests.known_heads import own_answers
from tests.methods.planted import Planted

GRID = Grid(4, 4)
ALL, MOST, HALF, OWN = Head(0, 1), Head(1, 1), Head(2, 2), Head(3, 3)


def worlds():
    """Four tasks and a control: one head breaks all, one most, one half of them, one a single task and the control."""
    broken = {"a": [ALL, MOST, HALF], "b": [ALL, MOST, HALF], "c": [ALL, MOST], "d": [ALL, OWN]}
    tasks = {name: Planted(GRID, dict.fromkeys(heads, 0.7)) for name, heads in broken.items()}
    return tasks, Planted(GRID, dict.fromkeys([ALL, MOST, HALF, OWN], 0.7))


def test_universal_heads_break_the_control_and_more_than_half_of_the_tasks():
    tasks, control = worlds()
    found = universal_heads(tasks, [ALL, "L1H1", HALF, OWN, (0, 0)], control, n=100)
    assert found.heads == (ALL, MOST)
    frame = found.to_frame().set_index("head")
    assert frame.loc["L2H2", ["a", "b", "c", "d", "control"]].tolist() == pytest.approx([2 / 9, 2 / 9, 1, 1, 2 / 9])
    assert frame.loc["L0H0", "control"] == 1.0
    assert frame["universal"].tolist() == [False, True, True, False, False]


def test_what_guessing_leaves_of_a_task_does_not_count():
    """With the head off the task is at chance, .5 of .9: a share of .56, and of nothing above chance."""
    tasks = {name: Planted(GRID, {ALL: 0.4, HALF: 0.2}) for name in "ab"}
    control = Planted(GRID, {ALL: 0.4, HALF: 0.2})
    assert universal_heads(tasks, [ALL, HALF], control, n=100).heads == ()
    for experiment in (*tasks.values(), control):
        experiment.chance = 0.5
    found = universal_heads(tasks, [ALL, HALF], control, n=100)
    assert found.heads == (ALL,)
    assert found.left == pytest.approx(np.array([[0.0] * 3, [0.5] * 3]))


def test_the_cost_is_what_was_asked():
    tasks, control = worlds()
    found = universal_heads(tasks, [ALL, MOST], control, n=20)
    assert found.spent == control.spent + sum(task.spent for task in tasks.values()) == 5 * (100 + 2 * 20)
    control.preparation = 60
    assert universal_heads(tasks, [ALL, MOST], control, n=20).spent == 60 + 5 * (100 + 2 * 20)


def test_the_share_left_has_an_interval_as_wide_as_its_examples_are_few():
    tasks, control = worlds()
    few, many = (universal_heads(tasks, [ALL, HALF], control, n=n) for n in (25, 100))
    for found in (few, many):
        assert (found.interval[..., 0] <= found.left).all()
        assert (found.left <= found.interval[..., 1]).all()
    assert (np.diff(few.interval)[..., 0] > np.diff(many.interval)[..., 0]).all()
    frame = many.to_frame().set_index("head")
    assert frame.loc["L0H1", "control low"] == many.interval[0, -1, 0]


def test_the_result_is_json_and_says_where_it_is_from():
    tasks, control = worlds()
    record = json.loads(json.dumps(universal_heads(tasks, [ALL], control, n=30, seed=2).to_dict()))
    assert record["heads"] == ["L0H1"]
    assert record["interval"][0][-1][0] < record["left"][0][-1] < 0.4
    assert record["provenance"] == {"tasks": {name: {} for name in [*"abcd", "control"]}, "n_examples": 30, "seed": 2}


def test_a_task_at_chance_can_miss_no_head():
    """At .28 where guessing gives .25 a head that takes three points would leave nothing."""
    tasks = {name: Planted(GRID, {ALL: 0.03}, baseline=0.28) for name in "ab"}
    for task in tasks.values():
        task.chance = 0.25
    with pytest.raises(ValueError, match=r"the baseline of task 'a' is too low: .* no better than chance"):
        universal_heads(tasks, [ALL], Planted(GRID, {ALL: 0.9}))


def test_a_question_asked_twenty_times_counts_once(load_known):
    model = load_known()
    few = own_answers(model, 25)
    tasks = [Task.from_records(records, "own") for records in (few, few * 20)]
    once, often = (
        universal_heads(dict.fromkeys("ab", made), ["L0H3"], made)
        for made in (Experiment(model, task) for task in tasks)
    )
    assert np.array_equal(once.interval, often.interval)
    assert often.notes[0] == "task 'own' asks 25 different questions in 500 examples: one example of each counts"
    assert (once.notes, often.spent) == ((), once.spent)
