from dataclasses import replace

import numpy as np
import pytest

from cs_heads.analysis.compare import Compared, Comparison, compare
from cs_heads.analysis.losses import task_drop
from cs_heads.analysis.random_heads import orders_beside
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.find import find_heads
from cs_heads.methods.registry import METHODS as REGISTRY
from cs_heads.methods.registry import Method
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task, control_side, search_control
from cs_heads.units import Grid, Head
from tests.known_heads import WORKING, own_answers
from tests.plot.studies import made_drops

METHODS = ("css", "one-shot", "greedy", "gradient")
OPTIONS = {"css": {"n_masks": 24, "density": 0.17}}
SETTINGS = {"methods": METHODS, "options": OPTIONS, "k": 2, "max_heads": 4, "n_random": 3}


@pytest.fixture(scope="module")
def task(model):
    return Task.from_records(own_answers(model, 60), "own answers").split(30)[0]


@pytest.fixture(scope="module")
def control(model):
    return Task.from_records(own_answers(model, 40, seed=9), "others")


@pytest.fixture(scope="module")
def compared(model, task, control):
    return compare(model, task, controls=[control], seed=1, **SETTINGS)


def test_every_method_gives_the_ranking_it_gives_alone(compared, model, task):
    for name, one in compared.methods.items():
        alone = find_heads(model, task, k=4, method=name, seed=1, **OPTIONS.get(name, {}), controls=None)
        assert one.ranking.importance.tobytes() == alone.importance.tobytes()
        assert one.ranking.spent == alone.spent
        assert (one.cost["spent"], one.cost["backwards"]) == (alone.spent, alone.backwards)


def test_drops_are_those_of_the_first_heads_on_unseen_examples(compared, model, task):
    unseen, grid = Experiment(model, task.held_out), Grid(3, 4)
    intact = unseen.baseline()
    for one in compared.methods.values():
        taken = [(intact, unseen(grid.mask(one.ranking.order[:k])[None])[0]) for k in (1, 2, 3, 4)]
        assert one.curve == tuple(task_drop("own answers", 0.0, [each]) for each in taken)
        assert one.drops[1] > 0.8
        assert one.control_drops["others"].interval[0] < one.controls["others"]
    assert compared.baseline == intact.mean()
    assert compared.provenance["task"]["identity"] == task.held_out.identity


def test_random_heads_are_drawn_like_those_of_each_method_in_turn():
    grid = Grid(4, 6)
    tops = [[Head(0, 1), Head(2, 2), Head(2, 3)], [Head(3, 0), Head(1, 1), Head(3, 5)]]
    universal = [Head(0, 0), Head(2, 2)]
    orders, _ = orders_beside(grid, tops, universal, 5, seed=3)
    assert len(orders) == 5
    for number, order in enumerate(orders):
        top = tops[number % 2]
        assert [head.layer for head in order] == [head.layer for head in top]
        assert not {*order} & {*top, *universal}
    assert len({tuple(sorted(order)) for order in orders}) == 5


def test_methods_that_cannot_be_told_apart_lead_together():
    curves = {"a": made_drops([0.3, 0.6]), "b": made_drops([0.3, 0.55]), "c": made_drops([0.3, 0.2])}
    orders = {"a": [[4.0, 3.0], [2.0, 1.0]], "b": [[4.0, 1.0], [2.0, 3.0]], "c": [[1.0, 2.0], [3.0, 4.0]]}
    methods = {
        name: Compared(HeadRanking(name, np.array(order), spent=0), 1.0, curves[name], {})
        for name, order in orders.items()
    }
    made = Comparison(methods, np.zeros((1, 2)), k=2, baseline=0.9, spent=0, refused={})
    assert made.leading() == ("a", "b")
    assert replace(made, k=1).leading() == ("a", "b", "c")
    assert made.agreement()["overlap@2"].tolist() == [0.5, 0.0, 0.5]


def test_the_half_of_a_whole_control_that_is_searched_with_is_not_judged_with(model, task, control):
    settings = {"k": 2, "max_heads": 4, "n_random": 1, "seed": 4, "methods": ("annealed",), "budget": 1000}
    found = compare(model, task, controls=[control], **settings).methods["annealed"]
    assert found.ranking.provenance["control_tasks"][0]["identity"] == search_control(control, 4).identity
    others = Experiment(model, control_side(control, 100, 4))
    left = others(Grid(3, 4).mask(found.ranking.top(2))[None]).mean()
    assert found.controls == {"others": pytest.approx(others.baseline().mean() - left)}


def by_lot(experiment, budget=None, seed=0, *, controls=()):
    """A method that takes controls, and says which it had."""
    experiment(np.zeros((1, *experiment.grid.shape), dtype=bool))
    importance = np.random.default_rng(seed).normal(size=experiment.grid.shape)
    return HeadRanking("lot", importance, spent=0, provenance={"had": [other.name for other in controls]})


@pytest.mark.parametrize("contrast", [False, True])
def test_controls_serve_the_search_of_the_methods_of_papers_where_contrast_is_asked_for(
    model, task, control, monkeypatch, contrast
):
    monkeypatch.setitem(REGISTRY, "lot", Method(by_lot))
    found = compare(model, task, controls=[control], contrast=contrast, methods=["lot"], k=2, max_heads=2, n_random=1)
    assert found.methods["lot"].ranking.provenance["had"] == (["others"] if contrast else [])
    assert [*found.methods["lot"].controls] == found.provenance["controls"] == ["others"]


def test_by_default_everyday_skills_are_judged_and_what_they_lose_is_one_column(model, task, monkeypatch, few_skills):
    """A model of twenty words does none of them, and a note says so."""
    monkeypatch.setitem(REGISTRY, "lot", Method(by_lot))
    found = compare(model, task, contrast=True, methods=["lot"], k=2, max_heads=2, n=40, n_random=1)
    assert found.default_controls
    names = found.provenance["controls"]
    assert found.methods["lot"].ranking.provenance["had"] == names == [*found.methods["lot"].controls] == few_skills[1:]
    assert {drop.n_examples for drop in found.methods["lot"].control_drops.values()} == {20}
    (note,) = [note for note in found.notes if "default controls" in note]
    assert note.startswith("0 of 4 default controls count")
    assert found.specificity("lot") is None
    frame = found.to_frame()
    assert {"loss", "control loss"} <= {*frame.columns}
    assert not [name for name in frame.columns if "everyday" in name]
    assert note in found.to_dict()["notes"]


def test_the_frame_has_one_row_a_method(compared):
    frame = compared.to_frame()
    assert frame["method"].tolist() == list(METHODS)
    columns = {"heads", "spent", "forwards", "backwards", "seconds", "drop@1", "drop@2", "drop@4", "control others"}
    assert columns <= set(frame.columns)
    assert (frame["spent"] == frame["forwards"] + frame["backwards"]).all()
    assert set(frame["heads"][1].split()) == set(map(str, WORKING))
    assert (frame["low"] <= frame["drop@2"]).all()
    assert frame["loss"].tolist() == pytest.approx([one.curve[1].loss for one in compared.methods.values()])
    assert frame["control loss"].tolist() == [compared.specificity(name).mean.loss for name in METHODS]
    # At most: intact, four sizes of four methods and of three random orders, on 30 examples; intact and one set a
    # method on 40 of the control.
    assert 0 < compared.spent <= 30 * (1 + 4 * (4 + 3)) + 40 * (1 + 4)


def test_a_method_that_refuses_its_budget_does_not_lose_what_others_measured(model, task):
    found = compare(
        model,
        task,
        budget=130,
        **SETTINGS | {"methods": ("gradient", "css"), "options": {"css": {"density": 0.17}}},
        controls=None,
    )
    assert set(found.methods) == {"gradient"}
    assert found.refused["css"].startswith("budget must be 180 or more")
    assert "<p>css did not run: budget must be 180 or more" in found._repr_html_()
