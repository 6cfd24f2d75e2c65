"""Heads of a model ablated on their own unseen examples, on siblings, controls and suites."""

import numpy as np
import pytest

from cs_heads.analysis.columns import Column
from cs_heads.analysis.drops import specificity
from cs_heads.analysis.sparsity import measure_sparsity, sparsity_curve
from cs_heads.experiment.experiment import Experiment
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task, control_side
from cs_heads.tasks.splits import check_apart
from cs_heads.units import Grid, Head
from tests.known_heads import IDLE, WORKING, own_answers
from tests.methods.planted import Planted


@pytest.fixture(scope="module")
def tasks(model):
    """A split task, a whole one, and two for a suite, of different examples."""
    records = own_answers(model, 150)
    return [
        Task.from_records(records[:50], "own").split(25)[0],
        Task.from_records(records[50:100], "other"),
        Task.from_records(records[100:125], "first").split(5)[0],
        Task.from_records(records[125:], "second").split(5)[0],
    ]


def ranking(*heads):
    importance = np.zeros((3, 4))
    for rank, head in enumerate(heads):
        importance[head.layer, head.head] = 1 - rank / 10
    return HeadRanking("known", importance, spent=0)


def test_every_score_is_that_of_the_unseen_examples(model, tasks):
    own, other, first, second = tasks
    found = specificity(
        model, own, {"working": WORKING, "idle": IDLE}, controls=[other], suites={"suite": [first, second]}, n=20
    )
    mask = Grid(3, 4).mask(WORKING)[None]
    unseen, judged = Experiment(model, own.held_out.take(20)), Experiment(model, control_side(other, 20, 0))
    parts = [Experiment(model, side.held_out) for side in (first, second)]
    working = found.drops["working"]
    assert working["own"].score == unseen(mask).mean()
    assert working["other"].score == judged(mask).mean()
    assert working["suite"].score == pytest.approx(np.mean([part(mask).mean() for part in parts]))
    assert working["own"].drop > 0.8
    assert all(drop.drop == 0 for drop in found.drops["idle"].values())
    assert found.roles == {"own": "own", "other": "control", "suite": "suite"}
    assert found.spent == 3 * 20 * 4
    assert found.provenance["tasks"]["own"][0]["identity"] == own.held_out.take(20).identity


def test_the_matrix_has_the_own_task_on_its_diagonal(model, tasks):
    own, second = tasks[0], Task.from_records(own_answers(model, 90, seed=7)[45:], "later").split(20)[0]
    found = specificity(model, [own, second], {"own": WORKING, "later": [IDLE[0]]}, n=20)
    assert found.own == {"own": "own", "later": "later"}
    assert (found.matrix("drop").loc["own"] > 0.8).all()
    assert (found.matrix("drop").loc["later"] == 0).all()


def test_the_curve_ablates_one_head_more_at_each_point(model, tasks):
    curve = sparsity_curve(model, tasks[0], ranking(*WORKING, IDLE[0]), controls=[tasks[1]], max_heads=3, n=20)
    unseen = Experiment(model, tasks[0].held_out.take(20))
    heads = [*WORKING, IDLE[0]]
    expected = [unseen(Grid(3, 4).mask(heads[:k])[None]).mean() for k in range(4)]
    assert [drop.score for drop in curve.drops["own"]] == expected
    assert curve.drops["own"][0].drop == 0
    assert curve.own == "own"
    assert curve.spent == 4 * 20 * 2
    assert set(curve.to_frame()["k"]) == {0, 1, 2, 3}


def test_random_heads_grow_through_the_layers_of_the_found_ones_and_are_none_of_them():
    grid = Grid(4, 5)
    asked = []

    class Watched(Planted):
        def __call__(self, masks, examples=None):
            asked.extend(masks)
            return super().__call__(masks, examples)

    drops = {head: 0.01 * (1 + grid.index(head)) for head in grid}
    heads = [Head(2, 0), Head(0, 1), Head(2, 3)]
    curve = measure_sparsity([Column("own", "own", (Watched(grid, drops, baseline=1.0),))], heads, n_random=2)
    assert curve.random_drops.shape == (2, 4)
    assert (curve.random_drops[:, 0] == 0).all()
    once = curve.spent // 100 - 4
    random = asked[-once:]
    assert not any(mask[head.layer, head.head] for mask in random for head in heads)
    steps = {1: [0, 0, 1, 0], 2: [1, 0, 1, 0], 3: [1, 0, 2, 0]}
    assert all(mask.sum(axis=1).tolist() == steps[mask.sum()] for mask in random if mask.any())
    own = {tuple(np.flatnonzero(mask)): sum(drops[grid.unit(int(i))] for i in np.flatnonzero(mask)) for mask in random}
    np.testing.assert_allclose(sorted({0.0, *own.values()}), sorted({*curve.random_drops.ravel().round(9)}), atol=1e-6)


def test_heads_for_half_are_counted_above_chance():
    grid = Grid(4, 4)
    heads = [Head(0, 0), Head(1, 1), Head(2, 2)]
    task = Planted(grid, dict(zip(heads, (0.2, 0.2, 0.3), strict=True)), baseline=0.9)
    curve = measure_sparsity([Column("own", "own", (task,))], heads)
    # .9 falls to .7, .5 and .2: .45 is half.
    assert (curve.heads_for(0.5), curve.heads_for(0.2), curve.heads_for(0.9)) == (3, 1, None)
    with pytest.raises(ValueError, match=r"share must lie in \(0, 1\], got 0"):
        curve.heads_for(0.0)


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_task_judges_with_may_not_be_what_another_searches_with_whichever_is_named_first(order):
    records = [{"prompt": f"{number} and", "target": " more"} for number in range(60)]
    own, control = (
        Task.from_records(records[at : at + 20], name).with_holdout(Task.from_records(records[at + 20 : at + 40], name))
        for at, name in ((0, "own"), (20, "control"))
    )
    tasks = [own, control][::order]
    with pytest.raises(ValueError, match="task 'own' shares 20 examples with the finding side of 'control'"):
        check_apart(tasks, [task.held_out for task in tasks])
