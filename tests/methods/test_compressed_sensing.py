import inspect

import numpy as np
import pytest
from sklearn.linear_model import Lasso
from sklearn.preprocessing import StandardScaler

from cs_heads import designs
from cs_heads.methods.compressed_sensing import compressed_sensing, tune
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted

GRID = Grid(6, 8)
DROPS = {Head(1, 2): 0.25, Head(3, 3): 0.15, Head(5, 7): 0.10}
DESIGNS = pytest.mark.parametrize(("design", "method"), [("stratified", "css"), ("bernoulli", "csb")])


def planted(**more) -> Planted:
    return Planted(GRID, DROPS, **more)


def noise() -> Planted:
    return Planted(GRID, {}, baseline=0.5, noise=True)


@DESIGNS
def test_the_importance_is_that_of_the_paper(design, method):
    """Lasso at alpha .01 of the standardised mean score on which heads are off, sign turned."""
    made = {"stratified": designs.stratified, "bernoulli": designs.bernoulli}[design](GRID, 150, 0.08, 4)
    scores = planted(noise=True)(made).mean(axis=1, keepdims=True)
    scaler = StandardScaler().fit(scores)
    lasso = Lasso(alpha=0.01, max_iter=50_000)
    lasso.fit(made.reshape(150, GRID.size).astype(float), scaler.transform(scores)[:, 0])
    score_lost = -lasso.coef_ * scaler.scale_[0]

    ranking = compressed_sensing(planted(noise=True), n_masks=150, density=0.08, design=design, seed=4)
    above_mean = ranking.importance.ravel() - ranking.importance.mean()
    np.testing.assert_allclose(above_mean, score_lost - score_lost.mean(), atol=1e-12)
    assert set(ranking.top(3)) == set(DROPS)
    assert (ranking.method, ranking.provenance["regression"]) == (method, "lasso")


def test_the_r2_on_noise_is_out_of_sample_where_the_fit_itself_would_boast():
    made = designs.stratified(GRID, 100, 0.1, 0)
    scores = noise()(made).mean(axis=1)
    ablated, standardised = made.reshape(100, -1), scores / scores.std()
    in_sample = Lasso(alpha=0.01).fit(ablated, standardised).score(ablated, standardised)
    ranking = compressed_sensing(noise(), n_masks=100, density=0.1, seed=0)
    assert in_sample > 0.1
    assert ranking.provenance["r2_out_of_sample"] < 0


# What the reader is told


def test_heads_that_were_hardly_ever_off_are_noted():
    notes = compressed_sensing(planted(), n_masks=100, density=0.03).notes
    assert any(note.startswith("some heads were ablated only 2 times (mean 2.1)") for note in notes)


def test_masks_that_all_score_the_same_rank_nothing_and_say_so():
    ranking = compressed_sensing(Planted(GRID, {}), n_masks=50, density=0.1)
    assert not ranking.importance.any()
    assert ranking.provenance["r2_out_of_sample"] is None
    assert ranking.notes[0].startswith("every mask scored the same (0.900): nothing can be ranked")


# What is refused, before anything is measured


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"design": "css"}, "design must be one of stratified, bernoulli, got 'css'"),
        ({"n_masks": 4}, "n_masks must be an integer of 5 or more, .* got 4"),
        ({"alpha": 0.0}, r"alpha must be positive, got 0\.0"),
        ({"density": 0.02}, r"density 0\.02 ablates no head"),
        ({"density": 1.0}, r"density must lie between 0 and 1, got 1\.0"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_measured(wrong, message):
    experiment = planted()
    with pytest.raises(ValueError, match=message):
        compressed_sensing(experiment, **wrong)
    assert experiment.spent == 0


# The paper's search over masks and densities


def test_tuning_keeps_the_setting_whose_heads_drop_the_score_most():
    """Each setting measured by hand: the same ranking, and the drop of its top heads."""
    ranking = tune(planted(noise=True), k=2, n_masks=(20, 60), densities=(0.05, 0.1), seed=1)
    drops = {}
    for n_masks in (20, 60):
        for density in (0.05, 0.1):
            found = compressed_sensing(planted(noise=True), n_masks=n_masks, density=density, seed=1)
            off = np.stack([GRID.mask([]), GRID.mask(found.top(2))])
            intact, ablated = planted(noise=True)(off).mean(axis=1)
            drops[n_masks, density] = intact - ablated
    tried = {(t["n_masks"], t["density"]): t["drop"] for t in ranking.provenance["tuning"]}
    assert tried == pytest.approx(drops)
    chosen = ranking.provenance["design"]["n_masks"], ranking.provenance["design"]["density"]
    assert drops[chosen] == max(drops.values()) > min(drops.values())


def test_what_is_prepared_is_paid_once_in_all_settings():
    settings = {"k": 2, "n_masks": (5, 6), "densities": (0.1,)}
    plain, prepared = planted(), planted()
    prepared.preparation = 30
    without, found = (tune(each, **settings) for each in (plain, prepared))
    assert found.spent == without.spent + 30 == prepared.spent + 30
    assert [each["spent"] for each in found.provenance["tuning"]] == [600, 700]


def test_a_mask_that_is_drawn_twice_is_asked_once():
    experiment = Planted(Grid(1, 4), {Head(0, 1): 0.4})
    ranking = compressed_sensing(experiment, n_masks=60, density=0.25)
    assert ranking.spent == experiment.spent == (1 + 4) * 100
    assert ranking.top(1) == [Head(0, 1)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_masks": ()}, r"n_masks must be a list of values to try, got \(\)"),
        ({"densities": (0.001,)}, r"densities must hold one of 0\.0208 or more: others ablate no head of 48"),
        ({"k": 49}, r"k must be an integer in 1\.\.48, the heads of the grid; got 49"),
        ({"n_masks": 100}, "n_masks must be a list of values to try, got 100"),
        ({"n_masks": (3, 100)}, "n_masks must be an integer of 5 or more"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_measured(wrong, message):
    experiment = planted()
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(tune)(experiment, **wrong)
    assert experiment.spent == 0


# The contrast with controls


def test_importance_is_in_shares_of_the_score_above_chance_less_those_of_the_controls():
    """Of a score of .9 the task loses .25 with L1H2 off; of two controls one loses all of its own."""
    controls = [Planted(GRID, {Head(1, 2): 0.9}), Planted(GRID, {Head(0, 0): 0.9})]
    ranking = compressed_sensing(planted(), n_masks=400, density=0.03, alpha=1e-4, controls=controls)
    assert ranking.importance[1, 2] == pytest.approx(0.25 / 0.9 - 0.5, abs=0.05)
    assert ranking.importance[0, 0] == pytest.approx(-0.5, abs=0.05)
    assert ranking.importance[3, 3] == pytest.approx(0.15 / 0.9, abs=0.05)
    assert ranking.unit == "share of the score above chance, less that of the controls"


def test_the_cost_holds_the_intact_runs_and_the_examples_of_the_controls():
    """Of 100 examples of each control 90 are right; each mask takes as many of both together as of the task."""
    task, controls = planted(n_examples=60), [Planted(GRID, {}), Planted(GRID, {})]
    ranking = compressed_sensing(task, n_masks=20, density=0.1, controls=controls)
    assert task.spent == 60 + 20 * 60
    assert [control.spent for control in controls] == [100 + 20 * 30] * 2
    assert ranking.spent == task.spent + sum(control.spent for control in controls)
    assert ranking.provenance["control_examples_a_mask"] == 60
