"""Faithfulness of the first units of a ranking: by planted truths worked out by hand, and on a tiny model."""

import json

import numpy as np
import pytest

from cs_heads.analysis.compare import compare
from cs_heads.analysis.faithfulness import SHARES, Faithfulness, faithfulness
from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.experiment.experiment import Experiment
from cs_heads.ranking import HeadRanking
from cs_heads.simulate import PlantedExperiment
from cs_heads.tasks import Task
from cs_heads.units import Grid, Head, Unit
from tests.known_heads import WORKING, own_answers
from tests.methods.planted import Planted

GRID = Grid(4, 5)
TRUE = (Head(0, 1), Head(2, 2), Head(3, 4))


def ranking(*first: Unit, grid: Grid = GRID, **more) -> HeadRanking:
    """These units first, and the others in an order of their own."""
    importance = -np.arange(1.0, grid.size + 1)
    importance[[grid.index(unit) for unit in first]] = np.arange(len(first), 0, -1)
    return HeadRanking("made", importance.reshape(grid.shape), spent=0, grid=grid, **more)


def planted(damage, n=50, grid=GRID, **more) -> PlantedExperiment:
    """Margins of 4 on average, from which each of the heads takes so much when it is off."""
    taken = np.zeros((grid.size, n))
    for head, each in damage.items():
        taken[grid.index(head)] = each
    return PlantedExperiment(grid, np.linspace(3, 5, n), taken, **more)


def test_three_heads_that_have_all_the_effect_are_faithful_from_the_third_on():
    """By hand, on 20 heads, shares of .05 each: f is 1/3, 2/3, 1, and 1 from there to the end."""
    experiment = planted(dict.fromkeys(TRUE, 2.0))
    found = faithfulness(None, experiment, ranking(*TRUE), shares=(0, 0.05, 0.1, 0.15, 0.5, 1), n_random=0)
    curve = found.curves["made"]
    assert found.kept == (0, 1, 2, 3, 10, 20)
    assert (found.response, found.unit) == ("margin", "head")
    assert (found.intact, found.empty) == (pytest.approx(4), pytest.approx(-2))
    assert curve.responses == pytest.approx([-2, 0, 2, 4, 4, 4])
    assert curve.faithfulness == pytest.approx([0, 1 / 3, 2 / 3, 1, 1, 1])
    # Trapezoids of width .05: 1/6, 1/2 and 5/6 high; then .85 at 1.
    assert curve.cpr == pytest.approx(0.05 * 1.5 + 0.85)
    assert curve.cmd == pytest.approx(0.05 * 1.5)
    assert found.random is None


def test_what_is_better_than_the_intact_model_counts_for_cpr_and_against_cmd():
    """By hand: a head that does harm is kept last, and f is 1.25 from the fourth head on, at .2, to .9."""
    harmful = Head(1, 1)
    experiment = planted({**dict.fromkeys(TRUE, 2.0), Head(0, 0): 4.0, harmful: -2.0})
    # With all off: 4 - 6 - 4 + 2; kept but for the harmful one: 4 + 2.
    order = HeadRanking("made", ranking(*TRUE, Head(0, 0)).importance, spent=0, shared=(harmful,))
    found = faithfulness(None, experiment, order, shares=(0.2, 0.95), n_random=0)
    curve = found.curves["made"]
    assert found.kept == (0, 4, 19, 20)
    assert curve.faithfulness == pytest.approx([0, 1.25, 1.25, 1])
    assert curve.cpr == pytest.approx(0.2 * 1.25 / 2 + 0.75 * 1.25 + 0.05 * 2.25 / 2)
    assert curve.cmd == pytest.approx(0.2 * 1.25 / 2 + 0.75 * 0.25 + 0.05 * 0.25 / 2)
    assert found.notes == ("made keeps 1 shared head after all others",)


def test_the_order_is_that_of_the_ranking_chosen_first_and_shared_and_off_last():
    asked = []

    class Watched(PlantedExperiment):
        def respond(self, masks, examples=None, response="probability"):
            asked.extend(masks)
            return super().respond(masks, examples, response)

    taken = np.zeros((GRID.size, 50))
    taken[[GRID.index(head) for head in TRUE]] = 2.0
    made = ranking(*TRUE, chosen=(Head(1, 0),), shared=(TRUE[0],), off=(TRUE[1],))
    found = faithfulness(None, Watched(GRID, np.full(50, 4.0), taken), made, shares=(0.05, 0.1, 0.95), n_random=0)
    kept = [{*GRID.units(~mask)} for mask in asked]
    assert {*GRID} in kept
    assert set() in kept
    assert [units for units in kept if len(units) in (1, 2, 19)] == [
        {Head(1, 0)},
        {Head(1, 0), TRUE[2]},
        {*GRID} - {TRUE[1]},
    ]
    assert found.kept == (0, 1, 2, 19, 20)


def test_shares_that_keep_as_many_units_are_measured_once():
    """Of 20 heads the first six shares of MIB keep one head at least, and no more."""
    experiment = planted(dict.fromkeys(TRUE, 2.0))
    found = faithfulness(None, experiment, ranking(*TRUE), n_random=0)
    assert SHARES == (0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
    assert found.kept == (0, 1, 2, 4, 10, 20)
    assert found.shares.tolist() == [0, 0.05, 0.1, 0.2, 0.5, 1]
    assert found.spent == (6 + 1) * 50
    assert found.notes == ()
    again = faithfulness(None, experiment, ranking(*TRUE), shares=[1, 0.5, 0.5, 0.2, 0.1, 0.05, 0], n_random=0)
    assert again.curves["made"].to_dict() == found.curves["made"].to_dict()
    assert again.notes == ()


def test_random_orders_and_rankings_stand_beside_each_other_and_equal_masks_are_measured_once():
    experiment = planted(dict.fromkeys(TRUE, 2.0))
    rankings = {"good": ranking(*TRUE), "same": ranking(*TRUE), "bad": ranking(Head(1, 0), Head(1, 1), Head(1, 2))}
    found = faithfulness(None, experiment, rankings, shares=(0.15, 0.5), n_random=3, seed=5)
    assert found.random.shape == (3, 4)
    assert (found.random[:, 0] == 0).all()
    assert (found.random[:, -1] == 1).all()
    # Intact, twice (the score, too), empty, and at each share two rankings and three random orders.
    assert found.spent == (3 + 2 * 5) * 50
    assert found.curves["good"].cpr == found.curves["same"].cpr > found.curves["bad"].cpr
    assert found.leading() == ("good", "same")
    areas = found.areas().set_index("found")
    assert list(areas.index) == ["good", "same", "bad", "random"]
    assert areas.loc["good", "cpr"] > areas.loc["random", "cpr_high"]
    assert areas.loc["random", "cpr_low"] <= areas.loc["random", "cpr"] <= areas.loc["random", "cpr_high"]
    frame = found.to_frame()
    assert list(frame.columns) == ["found", "kept", "share", "response", "faithfulness", "low", "high"]
    assert len(frame) == 4 * 4
    row = frame[(frame["found"] == "good") & (frame["kept"] == 3)].iloc[0]
    assert row[["share", "response", "faithfulness"]].tolist() == pytest.approx([0.15, 4, 1])
    with_more = faithfulness(None, experiment, rankings, shares=(0.15, 0.5), n_random=5, seed=5)
    assert (with_more.random[:3] == found.random).all()
    assert with_more.curves["bad"].to_dict() == found.curves["bad"].to_dict()


# Intervals


def covered(truth, interval):
    return interval[0] - 1e-9 <= truth <= interval[1] + 1e-9


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """Damage differs between examples: f of the first head is 1/3 on average, with an error of its own."""
    rng, found = np.random.default_rng(0), []
    # 1 from .15 on is not measured: from .1 the line goes straight to 1.
    cpr = 0.05 * (1 / 6 + 1 / 2) + 0.9 * 5 / 6
    for seed in range(60):
        damage = {head: np.maximum(0, rng.normal(2, 1.5, size=100)) for head in TRUE}
        made = faithfulness(None, planted(damage, 100), ranking(*TRUE), shares=(0.05, 0.1), n_random=0, seed=seed)
        curve = made.curves["made"]
        pairs = [(1 / 3, curve.bounds[1]), (2 / 3, curve.bounds[2]), (cpr, curve.cpr_interval)]
        found.append([covered(*pair) for pair in (*pairs, (1 - cpr, curve.cmd_interval))])
        assert (curve.bounds[[0, -1]] == [[0, 0], [1, 1]]).all()
    shares = np.mean(found, axis=0)
    # Of 60 at .95 fewer than 52 come once in 500 times.
    assert (shares >= 52 / 60).all()
    assert (shares < 1).all()


@pytest.mark.slow
def test_the_interval_of_cmd_holds_the_truth_where_circuits_are_as_good_as_the_model():
    """Noise makes no negative distance: the estimate is too large on average, and the interval reaches down."""
    rng, found, estimates = np.random.default_rng(1), [], []
    for seed in range(60):
        damage = {head: np.maximum(0, rng.normal(2, 1.5, size=100)) for head in TRUE}
        damage[Head(1, 0)] = rng.normal(size=100)
        made = faithfulness(None, planted(damage, 100), ranking(*TRUE), shares=(0.15, 0.5), n_random=0, seed=seed)
        curve = made.curves["made"]
        estimates.append(curve.cmd)
        found.append([covered(0.075, curve.cmd_interval), covered(0.925, curve.cpr_interval)])
    assert min(estimates) > 0.075
    assert (np.mean(found, axis=0) >= 52 / 60).all()


def test_resamples_are_paired():
    """What examples have in common does not widen an interval: f is 1/3 in each of them, however they differ."""
    damage = dict.fromkeys(TRUE, np.linspace(0.5, 4, 50))
    found = faithfulness(None, planted(damage), ranking(*TRUE), shares=(0.05,), n_random=0)
    assert found.curves["made"].bounds[1] == pytest.approx([1 / 3, 1 / 3])


def test_answers_that_are_all_right_do_not_make_a_score_certain():
    """By Wilson, none of 50 may be 7 % of all: f and its areas may be off by as much."""
    experiment = Planted(GRID, dict.fromkeys(TRUE, 0.3), baseline=1.0, n_examples=50)
    found = faithfulness(None, experiment, ranking(*TRUE), shares=(0.15, 0.5), n_random=0)
    curve = found.curves["made"]
    assert (found.response, found.intact, found.empty) == ("score", 1.0, pytest.approx(0.1))
    assert curve.faithfulness.tolist() == [0, 1, 1, 1]
    reach = 0.0713 / 0.9
    assert curve.bounds[1] == pytest.approx([1 - reach, 1 + reach], abs=1e-3)
    assert curve.cpr == pytest.approx(0.925)
    assert curve.cpr_interval == pytest.approx([0.925 - reach * 0.675, 0.925 + reach * 0.675], abs=1e-3)
    assert curve.cmd_interval[0] >= 0


# What is refused


@pytest.mark.parametrize(
    ("experiment", "response", "message"),
    [
        (planted({}), None, r"the mean margin of the intact model, 4\.000, must be clearly above that with every head"),
        (planted(dict.fromkeys(TRUE, -1.0)), None, "by 3 standard errors"),
        (planted({TRUE[0]: np.random.default_rng(0).normal(0.1, 1, 50)}), None, "must be clearly above"),
        (planted(dict.fromkeys(TRUE, 0.2)), "score", r"the mean score of the intact model, 1\.000"),
        (PlantedExperiment(GRID, np.full(50, -1.0), np.ones((20, 50))), None, "answers 0 of 50 examples right"),
    ],
)
def test_where_there_is_nothing_to_keep_no_ratio_is_given(experiment, response, message):
    spent = experiment.spent
    with pytest.raises(BaselineTooLowError, match=message):
        faithfulness(None, experiment, ranking(*TRUE), response=response)
    assert experiment.spent - spent <= 3 * 50


# On a model


@pytest.fixture(scope="module")
def task(model):
    return Task.from_records(own_answers(model, 60), "own answers").split(30)[0]


def test_neurons_kept_and_all_others_at_their_mean_are_as_by_hand_from_an_experiment(model, task):
    experiment = Experiment(model, task.held_out.take(25), ablation="mean", units="neurons")
    grid = experiment.grid
    made = HeadRanking("lot", np.random.default_rng(3).normal(size=grid.shape), spent=0, grid=grid)
    found = faithfulness(model, task, made, shares=(0.1, 0.5), n=25, n_random=1, ablation="mean", units="neurons")
    assert found.kept == (0, 14, 72, 144)
    masks = np.ones((4, *grid.shape), dtype=bool)
    for mask, k in zip(masks, found.kept, strict=True):
        for unit in made.order[:k]:
            mask[unit.layer, unit.index] = False
    responses = experiment.respond(masks, response="margin").mean(axis=1)
    f = (responses - responses[0]) / (responses[-1] - responses[0])
    curve = found.curves["lot"]
    np.testing.assert_allclose(curve.responses, responses, atol=1e-4)
    np.testing.assert_allclose(curve.faithfulness, f, atol=1e-4)
    assert curve.cpr == pytest.approx(np.trapezoid(f, np.array(found.kept) / 144), abs=1e-4)
    assert curve.cmd == pytest.approx(np.trapezoid(np.abs(1 - f), np.array(found.kept) / 144), abs=1e-4)
    assert found.unit == "neuron"
    # Intact, twice (the score, too), empty, and two sets of two orders; the means take one run of each example.
    assert found.spent == (7 + 1) * 25
    assert found.provenance["units"] == "neurons"
    assert found.provenance["task"]["identity"] == task.held_out.take(25).identity


def test_a_result_is_read_back_as_it_was(model, task):
    found = faithfulness(model, task, ranking(*WORKING, grid=Grid(3, 4)), n=20, n_random=2)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert Faithfulness.from_dict(record).to_dict() == found.to_dict()
    assert "cpr_low" in record["curves"]["made"]


# Beside other methods


SETTINGS = {"methods": ("one-shot", "gradient"), "k": 2, "max_heads": 3, "n_random": 2, "controls": None}


@pytest.fixture(scope="module")
def compared(model, task):
    return compare(model, task, shares=SHARES, **SETTINGS)


def test_without_shares_a_comparison_is_what_it_was(compared, model, task):
    plain = compare(model, task, **SETTINGS)
    assert plain.to_dict()["faithfulness"] is None
    assert not {"cpr", "cmd"} & {*plain.to_frame().columns}
    assert 0 < compared.spent - plain.spent <= compared.faithfulness.spent - 30
    assert plain.random_drops.tolist() == compared.random_drops.tolist()
