import inspect

import numpy as np
import pytest
from sklearn.linear_model import Lasso
from sklearn.preprocessing import StandardScaler

from cs_heads import designs
from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.experiment.cost import BudgetTooSmallError
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.compressed_sensing import compressed_sensing, tune
from cs_heads.simulate import planted_world
from cs_heads.units import Head, HeadGrid
from tests.methods.planted import Planted

GRID = HeadGrid(6, 8)
DROPS = {Head(1, 2): 0.25, Head(3, 3): 0.15, Head(5, 7): 0.10}
DESIGNS = pytest.mark.parametrize(("design", "method"), [("stratified", "css"), ("bernoulli", "csb")])


def planted(**more) -> Planted:
    return Planted(GRID, DROPS, **more)


def noise() -> Planted:
    return Planted(GRID, {}, baseline=0.5, noise=True)


def test_a_planted_truth_is_an_experiment():
    experiment = planted()
    assert isinstance(experiment, ExperimentLike)
    intact, one_off = experiment(np.stack([GRID.mask([]), GRID.mask(["L1H2"])])).mean(axis=1)
    assert (intact, one_off) == (pytest.approx(0.9), pytest.approx(0.65))


@DESIGNS
def test_planted_heads_are_found_in_their_order(design, method):
    ranking = compressed_sensing(planted(), n_masks=200, density=0.1, design=design, seed=0)
    assert ranking.top(3) == list(DROPS)
    assert ranking.method == method


@pytest.mark.parametrize("seed", range(5))
def test_planted_heads_are_found_under_noise_whatever_the_seed(seed):
    ranking = compressed_sensing(planted(noise=True), n_masks=200, density=0.1, seed=seed)
    assert set(ranking.top(3)) == set(DROPS)


def test_importance_is_the_score_lost():
    ranking = compressed_sensing(planted(), n_masks=200, density=0.1, alpha=1e-4, seed=0)
    found = [ranking.importance[head.layer, head.head] for head in DROPS]
    assert found == pytest.approx(list(DROPS.values()), abs=0.01)
    others = np.delete(ranking.importance.ravel(), [GRID.index(head) for head in DROPS])
    assert np.abs(others).max() < 0.01


def test_importance_is_the_score_lost_whatever_the_spread_of_the_scores():
    halved = Planted(GRID, {head: drop / 2 for head, drop in DROPS.items()})
    whole = compressed_sensing(planted(), n_masks=200, density=0.1, seed=0).importance
    half = compressed_sensing(halved, n_masks=200, density=0.1, seed=0).importance
    assert half == pytest.approx(whole / 2, abs=0.01)


def test_a_head_that_interferes_has_a_negative_importance():
    experiment = Planted(GRID, {Head(0, 0): -0.3, Head(4, 1): 0.2}, baseline=0.6)
    ranking = compressed_sensing(experiment, n_masks=200, density=0.1, seed=0)
    assert ranking.order[0] == Head(4, 1)
    assert ranking.order[-1] == Head(0, 0)
    assert ranking.importance[0, 0] < -0.1


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
    assert ranking.provenance["regression"] == "lasso"


@DESIGNS
def test_the_same_seed_gives_the_same_ranking_bit_for_bit(design, method):
    first, second, other = (
        compressed_sensing(planted(noise=True), density=0.1, design=design, seed=seed) for seed in (3, 3, 4)
    )
    assert first.importance.tobytes() == second.importance.tobytes()
    assert (first.order, first.notes, first.provenance) == (second.order, second.notes, second.provenance)
    assert first.importance.tobytes() != other.importance.tobytes()


@pytest.mark.parametrize(("n_masks", "n_examples"), [(5, 100), (80, 30)])
def test_the_cost_is_what_was_measured(n_masks, n_examples):
    experiment = planted(n_examples=n_examples)
    ranking = compressed_sensing(experiment, n_masks=n_masks, density=0.1)
    assert ranking.spent == experiment.spent == (1 + n_masks) * n_examples


def test_the_r2_of_a_truth_that_a_sum_explains_is_near_one():
    ranking = compressed_sensing(planted(), n_masks=200, density=0.1, seed=0)
    assert ranking.provenance["r2_out_of_sample"] > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_the_r2_on_noise_is_out_of_sample_where_the_fit_itself_would_boast(seed):
    made = designs.stratified(GRID, 100, 0.1, seed)
    scores = noise()(made).mean(axis=1)
    ablated, standardised = made.reshape(100, -1), scores / scores.std()
    in_sample = Lasso(alpha=0.01).fit(ablated, standardised).score(ablated, standardised)
    ranking = compressed_sensing(noise(), n_masks=100, density=0.1, seed=seed)
    assert in_sample > 0.1
    assert ranking.provenance["r2_out_of_sample"] < 0


def test_the_provenance_holds_design_alpha_and_seed():
    origin = compressed_sensing(planted(), n_masks=50, density=0.1, design="bernoulli", alpha=0.02, seed=9).provenance
    assert origin["design"] == {"name": "bernoulli", "n_masks": 50, "density": 0.1, "seed": 9}
    assert origin["alpha"] == 0.02


def test_an_experiment_that_says_where_it_comes_from_is_quoted():
    class WithOrigin(Planted):
        def provenance(self):
            return {"model": {"name": "planted"}}

    origin = compressed_sensing(WithOrigin(GRID, DROPS), density=0.1).provenance
    assert origin["model"] == {"name": "planted"}
    assert origin["alpha"] == 0.01


# What the reader is told


def test_a_sound_ranking_needs_no_note():
    many = {Head(layer, 0): 0.1 for layer in range(6)}
    assert compressed_sensing(Planted(GRID, many), n_masks=200, density=0.1).notes == ()


def test_heads_that_were_hardly_ever_off_are_noted():
    notes = compressed_sensing(planted(), n_masks=100, density=0.03).notes
    assert any(note.startswith("some heads were ablated only 2 times (mean 2.1)") for note in notes)


def test_a_regression_that_predicts_nothing_is_noted():
    notes = compressed_sensing(noise(), n_masks=100, density=0.1, seed=0).notes
    assert any(note.startswith("the regression predicts no unseen mask (out-of-sample R² -") for note in notes)


def test_few_heads_above_zero_are_noted():
    notes = compressed_sensing(Planted(GRID, {Head(0, 0): 0.5}), n_masks=150, density=0.1).notes
    assert any("have an importance above the average head's; the order of others is void" in note for note in notes)


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


def test_of_settings_that_drop_alike_the_one_that_ablates_each_head_most_often_is_kept():
    ranking = tune(planted(), k=2, n_masks=(60, 40), densities=(0.1, 0.05))
    assert len({setting["drop"] for setting in ranking.provenance["tuning"]}) == 1
    assert (ranking.provenance["design"]["n_masks"], ranking.provenance["design"]["density"]) == (60, 0.1)


def test_a_mask_that_is_drawn_twice_is_asked_once():
    experiment = Planted(HeadGrid(1, 4), {Head(0, 1): 0.4})
    ranking = compressed_sensing(experiment, n_masks=60, density=0.25)
    assert ranking.spent == experiment.spent == (1 + 4) * 100
    assert ranking.top(1) == [Head(0, 1)]


def test_the_cost_of_tuning_is_that_of_every_setting():
    experiment = planted()
    ranking = tune(experiment, n_masks=(10, 20), densities=(0.001, 0.05, 0.1))
    assert ranking.spent == experiment.spent == 100 * (4 + 2 * (10 + 20) + 4)
    assert ranking.provenance["cost"] == {"forwards": ranking.spent, "backwards": 0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_masks": ()}, r"n_masks and densities must each hold one value or more, got \(\)"),
        ({"densities": (0.001,)}, r"densities must hold one of 0\.0208 or more: others ablate no head of 48"),
        ({"k": 49}, r"k must be an integer in 1\.\.48, the heads of the grid; got 49"),
        ({"n_masks": 100}, "n_masks must be a list of values to try, got 100"),
        ({"n_masks": (10.5,)}, r"n_masks must be an integer of 5 or more, .* got 10\.5"),
        ({"n_masks": (3, 100)}, "n_masks must be an integer of 5 or more"),
        ({"densities": (0.05, 1.0)}, r"density must lie between 0 and 1, got 1\.0"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_measured(wrong, message):
    experiment = planted()
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(tune)(experiment, **wrong)
    assert experiment.spent == 0


# The contrast with controls


@DESIGNS
@pytest.mark.parametrize("seed", range(3))
def test_with_a_control_heads_of_the_task_are_ranked_before_universal_ones(design, method, seed):
    made = planted_world("many_universal", HeadGrid(12, 12), seed=seed)
    plain, contrast = (
        compressed_sensing(made.task, n_masks=400, density=0.03, design=design, controls=controls)
        for controls in ((), [made.control])
    )
    assert set(plain.top(5)) <= set(made.universal)
    assert made.planted[0] == contrast.top(1)[0]
    assert not set(contrast.top(5)) & set(made.universal)
    assert len(set(contrast.top(5)) & set(made.planted)) >= 2


def test_importance_is_in_shares_of_the_score_above_chance_less_those_of_the_controls():
    """Of a score of .9 the task loses .25 with L1H2 off; of two controls one loses all of its own."""
    controls = [Planted(GRID, {Head(1, 2): 0.9}), Planted(GRID, {Head(0, 0): 0.9})]
    ranking = compressed_sensing(planted(), n_masks=400, density=0.03, alpha=1e-4, controls=controls)
    assert ranking.importance[1, 2] == pytest.approx(0.25 / 0.9 - 0.5, abs=0.05)
    assert ranking.importance[0, 0] == pytest.approx(-0.5, abs=0.05)
    assert ranking.importance[3, 3] == pytest.approx(0.15 / 0.9, abs=0.05)
    assert ranking.unit == "share of the score above chance, less that of the controls"


def test_without_controls_nothing_is_asked_of_any():
    first, second = (compressed_sensing(planted(noise=True), density=0.1, **more) for more in ({}, {"controls": ()}))
    assert first.importance.tobytes() == second.importance.tobytes()
    assert (first.spent, first.provenance, first.notes) == (second.spent, second.provenance, second.notes)
    assert "controls" not in first.provenance
    assert first.unit == "score lost"


def test_the_same_seed_gives_the_same_contrast_bit_for_bit():
    def ranked(seed):
        controls = [planted(noise=True), Planted(GRID, {}, noise=True)]
        return compressed_sensing(planted(noise=True), density=0.1, controls=controls, seed=seed)

    first, second, other = map(ranked, (3, 3, 4))
    assert first.importance.tobytes() == second.importance.tobytes() != other.importance.tobytes()
    assert first.provenance == second.provenance


def test_the_cost_holds_the_intact_runs_and_the_examples_of_the_controls():
    """Of 100 examples of each control 90 are right; each mask takes as many of both together as of the task."""
    task, controls = planted(n_examples=60), [Planted(GRID, {}), Planted(GRID, {})]
    ranking = compressed_sensing(task, n_masks=20, density=0.1, controls=controls)
    assert task.spent == 60 + 20 * 60
    assert [control.spent for control in controls] == [100 + 20 * 30] * 2
    assert ranking.spent == task.spent + sum(control.spent for control in controls)
    assert ranking.provenance["cost"] == {"forwards": ranking.spent, "backwards": 0}
    assert ranking.provenance["control_examples_a_mask"] == 60


@pytest.mark.parametrize("budget", [60 + 200 + 5 * 120, 2000, 9_999])
def test_a_budget_covers_task_and_controls(budget):
    task, controls = planted(n_examples=60), [Planted(GRID, {}), Planted(GRID, {})]
    ranking = compressed_sensing(task, density=0.1, controls=controls, budget=budget)
    assert ranking.spent == task.spent + sum(control.spent for control in controls) <= budget
    assert ranking.provenance["design"]["n_masks"] == (budget - 260) // 120


def test_controls_with_few_right_answers_leave_more_of_a_budget_for_masks():
    few = Planted(GRID, {}, n_examples=50, baseline=0.4)
    ranking = compressed_sensing(planted(), density=0.1, controls=[few], budget=5000)
    assert ranking.provenance["control_examples_a_mask"] == 20
    assert ranking.provenance["design"]["n_masks"] == (5000 - 150) // 120


def test_a_budget_too_small_for_a_contrast_says_what_is_needed():
    task, controls = planted(n_examples=60), [Planted(GRID, {}), Planted(GRID, {})]
    with pytest.raises(
        BudgetTooSmallError,
        match=r"budget must be 860 or more .*\(5 masks on 60 examples and 60 of controls, after intact runs of 260\)",
    ):
        compressed_sensing(task, density=0.1, controls=controls, budget=859)
    assert task.spent == controls[0].spent == 0


def test_what_the_ablation_of_controls_runs_before_is_counted():
    control = Planted(GRID, {})
    control.preparation = 70
    plain = compressed_sensing(planted(), n_masks=20, density=0.1, controls=[Planted(GRID, {})])
    assert compressed_sensing(planted(), n_masks=20, density=0.1, controls=[control]).spent == plain.spent + 70


def test_a_control_that_the_model_cannot_do_is_left_out_with_a_note():
    hard, easy = Planted(GRID, {}, baseline=0.02), Planted(GRID, {})
    hard.name, easy.name = "hard", "easy"
    ranking = compressed_sensing(planted(), density=0.1, controls=[hard, easy])
    assert ranking.provenance["controls"] == ["easy"]
    assert ranking.notes[0].startswith("control 'hard' is left out: the intact model answers 2 of 100 examples right")
    assert ranking.spent == 100 + 200 + 100 * (100 + 90)
    with pytest.raises(BaselineTooLowError, match=r"controls: the model can do none of them \('hard': "):
        compressed_sensing(planted(), density=0.1, controls=[hard])


def test_masks_that_take_the_same_from_the_control_rank_nothing_and_say_so():
    alike = compressed_sensing(planted(baseline=1.0), n_masks=50, density=0.1, controls=[planted(baseline=1.0)])
    assert not alike.importance.any()
    assert alike.notes[0].startswith("every mask has the same contrast (0.000): nothing can be ranked")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"controls": planted()}, "controls must be a list of experiments, got"),
        ({"controls": ["demo/code"]}, "controls must be experiments on other tasks, got 'demo/code'"),
        ({"controls": [Planted(HeadGrid(2, 2), {})]}, "controls must have the grid of the experiment, .*, got"),
        ({"controls": [planted()], "density": 0.001}, r"density 0\.001 ablates no head"),
        ({"controls": [planted()], "n_masks": 4}, "n_masks must be an integer of 5 or more, .* got 4"),
    ],
)
def test_wrong_controls_are_refused_before_anything_is_measured(wrong, message):
    experiment = planted()
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(compressed_sensing)(experiment, **wrong)
    assert experiment.spent == 0
