"""What heads take from tasks, on planted truths: the numbers against the plants."""

import json
import re

import numpy as np
import pytest

from cs_heads.analysis.columns import Column
from cs_heads.analysis.confirm import prove
from cs_heads.analysis.drops import measure_drops
from cs_heads.analysis.found_heads import heads_of
from cs_heads.analysis.losses import task_drop
from cs_heads.analysis.sparsity import measure_sparsity
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(4, 4)
MATHS, CODE, BOTH = Head(0, 1), Head(2, 2), Head(3, 0)


def columns():
    """Two tasks with a head each and one in common, and a suite of two tasks of which one has a head."""
    maths, code = Planted(GRID, {MATHS: 0.5, BOTH: 0.2}), Planted(GRID, {CODE: 0.6, BOTH: 0.3})
    parts = (Planted(GRID, {CODE: 0.4}, n_examples=30), Planted(GRID, {}, n_examples=50, baseline=0.5))
    return [Column("maths", "own", (maths,)), Column("code", "own", (code,)), Column("general", "suite", parts)]


SETS = {"maths": [MATHS, BOTH], "code": [CODE, BOTH]}


def test_each_cell_is_the_planted_drop():
    found = measure_drops(columns(), SETS, {"maths": "maths", "code": "code"})
    assert found.matrix("drop").to_numpy() == pytest.approx(np.array([[0.7, 0.3, 0.0], [0.2, 0.9, 0.2]]), abs=0.011)
    assert found.drops["maths"]["maths"].loss == pytest.approx(0.7 / 0.9, abs=0.01)


def test_a_suite_is_the_mean_of_its_parts_whatever_their_size():
    general = measure_drops(columns(), SETS, {"maths": "maths", "code": "code"}).drops["code"]["general"]
    assert general.baseline == pytest.approx((0.9 + 0.5) / 2, abs=0.01)
    assert general.drop == pytest.approx(0.4 / 2, abs=0.01)
    assert general.n_examples == 80


def test_a_part_at_floor_is_not_hidden_by_the_rest_of_its_suite():
    """One of two parts is guessed: the mean of .7 says nothing of it."""
    guessed = np.tile([1.0, 0.0, 0.0, 0.0], 20)
    drop = task_drop("suite", [0.0, 0.25], [(np.ones(40), np.ones(40)), (guessed, guessed)])
    assert "part 2 of 2: the intact model scores 0.250" in drop.too_low
    assert drop.chance == 0.125
    assert np.isnan(drop.loss)


def test_tasks_that_can_show_nothing_have_no_loss():
    """A control that falls from 2 % to nothing has lost all, and a sibling at nothing can lose nothing."""
    made = [
        Column("own", "own", (Planted(GRID, {MATHS: 0.5}),)),
        Column("failed sibling", "sibling", (Planted(GRID, {}, baseline=0.0),)),
        Column("control", "control", (Planted(GRID, {MATHS: 0.1}),)),
        Column("failed control", "control", (Planted(GRID, {MATHS: 0.02}, baseline=0.02),)),
    ]
    found = measure_drops(made, {"h": [MATHS]}, {"h": "own"})
    assert np.isnan(found.matrix().loc["h", ["failed sibling", "failed control"]].to_numpy(float)).all()
    assert found.matrix().loc["h", "control"] == pytest.approx(0.1 / 0.9)
    assert json.loads(json.dumps(found.to_dict()))["drops"]["h"]["failed control"]["loss"] is None


def test_each_different_mask_is_asked_once_and_counted():
    made = columns()
    found = measure_drops(
        made, {"a": [MATHS], "same": [MATHS], "none": []}, dict.fromkeys(("a", "same", "none"), "maths")
    )
    assert found.spent == sum(part.spent for c in made for part in c.parts) == 2 * (100 + 100 + 30 + 50)
    assert found.drops["none"]["maths"].drop == 0


def test_the_result_is_json_and_has_one_row_a_cell():
    found = measure_drops(columns(), SETS, {"maths": "maths", "code": "code"})
    assert len(json.loads(json.dumps(found.to_dict()))["drops"]) == 2
    frame = found.to_frame().set_index(["found", "task"])
    assert len(frame) == 6
    assert frame.loc[("maths", "maths"), "role"] == "own"
    assert frame.loc[("maths", "code"), "role"] == "control"
    assert (frame["low"] <= frame["drop"]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made[:1] + made[:1], "tasks must have different names, got two or more of 'maths'"),
        (
            lambda made: [*made, Column("x", "control", (Planted(Grid(2, 2), {}),))],
            "tasks must all be measured on one",
        ),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_measured(change, message):
    made = change(columns())
    with pytest.raises(ValueError, match=message):
        measure_drops(made, SETS, {"maths": "maths", "code": "code"})
    assert all(part.spent == 0 for column in made for part in column.parts)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "heads must be one head or more, none twice; got none"),
        (["L0H1", (0, 1)], "none twice; got L0H1, L0H1"),
        ("L0H1", "heads must be a ranking or a list of heads, got str"),
        (["L9H9"], "head L9H9 is not in the grid"),
        (
            HeadRanking("css", np.ones((2, 2)), spent=0),
            "heads must be ranked on the grid of the model, 4 × 4 heads, got 2 × 2 heads",
        ),
    ],
)
def test_wrong_heads_are_refused(found, message):
    with pytest.raises(ValueError, match=message):
        heads_of(GRID, found, 2)


def test_chance_is_that_of_the_task_of_each_part():
    part = Planted(GRID, {})
    part.chance = 0.5
    found = measure_drops([Column("two", "suite", (part, Planted(GRID, {})))], {"h": [MATHS]}, {})
    assert found.drops["h"]["two"].chance == 0.25


@pytest.mark.parametrize("score", [7.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_score_is_refused_by_example_and_value(score):
    """An experiment of another's making: a verdict on a score of 7 would read like any other."""

    class Wrong(Planted):
        def __call__(self, masks, examples=None):
            scores = super().__call__(masks, examples)
            scores[0, 5] = score
            return scores

    wrong, said = Wrong(GRID, {MATHS: 0.5}), f"must answer with scores in 0..1, got {score} for example 5 of 'control'"
    for ask in (
        lambda: measure_drops([Column("maths", "own", (wrong,))], {"maths": [MATHS]}, {"maths": "maths"}),
        lambda: prove(wrong, [MATHS]),
        lambda: measure_sparsity([Column("maths", "own", (wrong,))], [MATHS], n_random=2),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            ask()
