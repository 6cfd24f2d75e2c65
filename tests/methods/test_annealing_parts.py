"""The parts of annealed sensing, each against another way of getting its number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t
from sklearn.linear_model import LinearRegression

from cs_heads.experiment.cost import Budget
from cs_heads.methods.annealing.intervals import Estimates, Taken, taken_by
from cs_heads.methods.annealing.measurements import Rows, Sensor, row_means, sparse_rows
from cs_heads.methods.annealing.regression import ContrastFit, Fit, fit_contrast, fit_controls, regress
from cs_heads.methods.annealing.schedule import DensityControl, pool_size
from cs_heads.methods.annealing.search_result import selection_frequency
from cs_heads.methods.annealing.task_search import TaskSearch
from cs_heads.methods.controls import BalancedDraws, Controls
from cs_heads.methods.losses import BothEffects, TaskLoss
from cs_heads.units import Grid
from tests.methods.planted import Planted


def some_rows(
    seed, effects, *, taken=None, general=0.0, n_rows=600, n_off=5, n_examples=60, noise=0.1, spread=0.0, differ=0.2
):
    """Rows whose scores are a sum: example, heads off (an effect that may differ by example), noise.

    With ``taken``, what each head takes from the controls, as a loss, they have four examples of these each.
    ``general`` is what a row takes from everything on top, at most.
    """
    rng = np.random.default_rng(seed)
    off = sparse_rows([rng.choice(len(effects), n_off, replace=False) for _ in range(n_rows)], len(effects))
    examples = np.argsort(rng.random((n_rows, n_examples)))[:, :8]
    of_example = np.asarray(effects)[:, None] * (1 + spread * rng.standard_normal((len(effects), n_examples)))
    level = rng.normal(0.7, differ, n_examples)
    harm = np.take_along_axis(off @ of_example, examples, axis=1)
    scores = level[examples] - harm + noise * rng.standard_normal(examples.shape)
    drawn, losses = np.zeros((n_rows, 0), dtype=int), np.zeros((n_rows, 0))
    if taken is not None:
        damage = general * rng.random((n_rows, 1))
        scores -= damage
        drawn = np.argsort(rng.random((n_rows, 30)))[:, :4]
        losses = (off @ np.asarray(taken))[:, None] + damage + noise * rng.standard_normal(drawn.shape)
        losses += rng.normal(0.0, 0.2, 30)[drawn]
    group, last = np.zeros(n_rows, dtype=int), np.ones(n_rows, dtype=bool)
    return Rows(off, examples, scores, drawn, losses, group, last)


def effects_of(size, **heads):
    """What heads take, by their number: ``effects_of(20, h3=0.2)``."""
    effects = np.zeros(size)
    for name, effect in heads.items():
        effects[int(name[1:])] = effect
    return effects


def contrast_of(rows, above_guess):
    """The contrast of rows with examples of controls."""
    return fit_contrast(rows, lost_by(rows) / above_guess, *fit_controls(rows))


def lost_by(rows):
    """What rows lost, but for a constant."""
    return -row_means(rows.scores, rows.examples)


# Draws


@given(size=st.integers(2, 40), share=st.floats(0.05, 1.0), n=st.integers(1, 30), seed=st.integers(0, 99))
def test_heads_are_drawn_equally_often_give_or_take_one(size, share, n, seed):
    draws = BalancedDraws(np.arange(100, 100 + size), np.random.default_rng(seed))
    times = np.zeros(size, dtype=int)
    for _ in range(n):
        row = draws.draw(max(1, int(share * size)))
        assert len(set(row.tolist())) == len(row) == max(1, int(share * size))
        times[row - 100] += 1
    assert times.max() - times.min() <= 1


# Example effects


def test_the_response_is_that_of_a_regression_on_rows_and_examples():
    rows = some_rows(0, np.zeros(20), n_rows=30, noise=0.3)
    row, example = np.repeat(np.arange(30), 8), rows.examples.ravel()
    dummies = np.hstack([np.eye(30)[row], np.eye(60)[example]])
    # All examples, or some: then the first row has none.
    some = (np.random.default_rng(1).random((30, 8)) < 0.7) & (np.arange(30) > 0)[:, None]
    for counted in (None, some):
        kept, seen = (slice(None), slice(None)) if counted is None else (counted.ravel(), slice(1, None))
        fitted = np.linalg.lstsq(dummies[kept], rows.scores.ravel()[kept], rcond=None)[0][:30][seen]
        made = row_means(rows.scores, rows.examples, counted, n_passes=500)
        assert np.isnan(made).tolist() == [counted is not None] + [False] * 29
        assert made[seen] - made[seen].mean() == pytest.approx(fitted - fitted.mean(), abs=1e-6)


# Regression


def test_a_group_has_an_intercept_of_its_own():
    rows = some_rows(3, effects_of(20, h3=0.2))
    group = np.repeat([0, 4], 300)
    plain = regress(rows.off, lost_by(rows), group)
    shifted = regress(rows.off, lost_by(rows) + 0.4 * (group == 4), group)
    assert shifted.effect == pytest.approx(plain.effect, abs=0.01)


def test_z_of_heads_without_effect_is_standard_normal():
    z = np.concatenate([regress(r.off, lost_by(r), r.group).z for r in (some_rows(s, np.zeros(40)) for s in range(25))])
    assert z.std() == pytest.approx(1, abs=0.12)
    assert abs(z.mean()) < 0.1


# The task beside its controls


def test_what_a_head_takes_from_both_alike_is_no_contrast():
    """On one scale: 40 points of the task, half of what it scores above guessing, are a loss of .5."""
    rows = some_rows(8, effects_of(20, h3=0.4, h7=0.2), taken=effects_of(20, h3=0.5, h9=0.3))
    known = contrast_of(rows, 0.8)
    idle = np.delete(np.arange(20), [3, 7, 9])
    assert known.task.effect[[3, 7]] - known.task.effect[idle].mean() == pytest.approx([0.5, 0.25], abs=0.025)
    taken = known.controls.effect - known.controls.effect[idle].mean()
    assert taken[[3, 7, 9]] == pytest.approx([0.5, 0, 0.3], abs=0.04)
    contrast = known.contrast - known.contrast[idle].mean()
    assert contrast[[3, 7, 9]] == pytest.approx([0.0, 0.25, -0.3], abs=0.08)
    assert known.z.argmax() == 7
    assert known.z[9] < -4
    both = known.both(3)
    assert (both.task, both.controls) == (known.task.effect[3], known.controls.effect[3])
    assert both.task / both.task_error == pytest.approx(known.task.z[3])
    assert both.controls / both.controls_error == pytest.approx(known.controls.z[3])


def test_what_rows_do_to_everything_is_taken_off_the_noise_of_the_task():
    """Rows take up to .8 from task and controls alike: that says nothing of their heads."""
    effects = effects_of(20, h3=0.1)
    rows = some_rows(10, effects, taken=np.zeros(20), general=0.8, noise=0.05)
    alone, known = regress(rows.off, lost_by(rows), rows.group), contrast_of(rows, 1.0)
    assert known.z[3] > 2.5 * alone.z[3]
    assert known.task.error[0] < alone.error[0] / 2.5
    assert known.contrast[3] - np.delete(known.contrast, 3).mean() == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("task", "controls", "shared", "large"),
    [
        ((0.5, 0.1), (0.5, 0.1), True, True),
        # Not clear on one side or the other.
        ((0.5, 0.13), (0.5, 0.1), False, True),
        ((0.5, 0.1), (0.5, 0.13), False, True),
        # Half of the task's loss, and a little more.
        ((0.6, 0.05), (0.3, 0.05), False, False),
        ((0.6, 0.05), (0.31, 0.05), True, False),
        ((-0.5, 0.05), (0.9, 0.05), False, False),
        # Never off.
        ((0.0, 0.0), (0.0, 0.0), False, False),
    ],
)
def test_a_head_is_shared_where_it_surely_takes_from_both_and_from_the_controls_more_than_half(
    task, controls, shared, large
):
    both = BothEffects(*task, *controls)
    assert (both.are_shared(), both.are_large) == (shared, large)
    own = both.to_dict()["task_interval"]
    assert own == pytest.approx((task[0] - 1.96 * task[1], task[0] + 1.96 * task[1]))


# Measuring rows


def sensor_on(task, controls, *, per_row=4, of_controls=6, budget=10_000):
    """A sensor that measures this task, and these controls where there are any."""
    n, beside = of_controls if controls else 0, Controls.able(controls, seed=3)
    return Sensor(TaskLoss.of(task), beside, per_row, n, n, Budget(budget), np.random.default_rng(0))


# Density and pool


def test_the_number_of_heads_off_settles_where_the_score_is_wanted():
    """Where each head off costs 2 %, 21 heads leave .65."""
    control = DensityControl(1000, n_off=5.0)
    for _ in range(8):
        (n_off,) = control.numbers(1000, levels=False)
        control.observe(0.98**n_off, float(n_off))
    assert control.numbers(1000, levels=False) == [21]


@given(size=st.integers(2, 300), wanted=st.floats(0.1, 500), levels=st.booleans())
def test_no_row_has_more_heads_off_than_the_bounds_allow(size, wanted, levels):
    """But for the one head that every row has."""
    control = DensityControl(size, n_off=wanted)
    assert all(1 <= number <= max(1, min(size // 2, 0.12 * size)) for number in control.numbers(size, levels))


def test_the_pool_shrinks_geometrically_between_two_fifths_and_seven_tenths():
    sizes = [pool_size(done, 1024, 20) for done in (0.0, 0.39, 0.4, 0.55, 0.7, 0.9)]
    assert sizes == [1024, 1024, 1024, round((1024 * 20) ** 0.5), 20, 20]


def test_decoys_are_neither_finalists_nor_from_the_best_quarter():
    grid, merit = Grid(10, 20), np.random.default_rng(0).normal(size=200)
    search = TaskSearch(sensor_on(Planted(grid, {}), []), 20)
    search.fit = ContrastFit.of(Fit(merit, merit), Fit.none(200), np.zeros(0))
    search.set_pool(0.7)
    ranks = np.argsort(np.argsort(-merit))
    assert sorted(ranks[search.finalists]) == list(range(20))
    assert len(search.decoys) == 6
    assert ranks[search.decoys].min() >= 50


# Inference


def lost_in(rows, level=0.7):
    """The heads off, what answers lost of an intact level that all examples have, and the examples."""
    return rows.off, level - rows.scores, rows.examples


def additive(seed, effects, **more):
    """Rows of examples that the intact model answers alike."""
    return lost_in(some_rows(seed, effects, differ=0.0, **more))


def test_effects_are_those_of_least_squares_through_the_intact_run():
    effects = effects_of(12, h0=0.3, h1=0.1, h2=-0.2)
    off, lost, examples = additive(5, effects, n_rows=200)
    known = taken_by(off, lost, examples)
    line = LinearRegression(fit_intercept=False).fit(off.toarray()[np.repeat(np.arange(200), 8)], lost.ravel())
    assert known.estimate == pytest.approx(line.coef_)
    assert known.estimate == pytest.approx(effects, abs=0.03)


def test_errors_count_rows_and_examples():
    """With effects that differ by example, estimates over many draws spread as the errors say."""
    made = [taken_by(*additive(seed, effects_of(12, h0=0.3), n_rows=150, spread=1.0)) for seed in range(60)]
    spread = np.std([one.estimate[0] for one in made])
    assert np.median([one.error[0] for one in made]) == pytest.approx(spread, rel=0.3)
    covered = [abs(one.estimate[0] - 0.3) < 1.96 * one.error[0] for one in made]
    assert np.mean(covered) >= 0.85


def of_the_last_phase(taken):
    """Estimates of heads that were never off before it."""
    n_heads = int(taken.heads.max()) + 1
    return Estimates(np.zeros(n_heads), np.full(n_heads, np.inf), 0.0, taken)


def test_claims_on_few_rows_are_hardly_ever_wrong():
    """Forty worlds without any effect, two rows a head."""
    finalists, decoys = np.arange(20), np.arange(20, 26)
    wrong = [taken_by(*additive(seed, np.zeros(26), n_rows=52)) for seed in range(40)]
    assert sum(of_the_last_phase(one).claims(finalists, decoys, beyond=0.0).any() for one in wrong) <= 5


def test_a_claim_is_about_what_a_head_takes_beyond_the_mean_decoy():
    heads = np.arange(4)
    known = of_the_last_phase(Taken(heads, np.array([0.3, 0.3, 0.2, 0.4]), np.eye(4) * 1e-4, dof=80))
    assert known.claims(heads[:2], heads[2:]).tolist() == [False, False]
    assert known.claims(heads[:2], heads[2:3]).tolist() == [True, True]


def test_z_and_interval_are_of_one_estimate_and_one_error():
    """z is above what an interval reaches, in standard errors, exactly where that interval lies above zero."""
    rng = np.random.default_rng(0)
    early, error = rng.normal(0.05, 0.1, 200), rng.uniform(0.01, 0.1, 200)
    covariance = np.diag(rng.uniform(0.01, 0.1, 200) ** 2)
    taken = Taken(np.arange(200), early + rng.normal(0, 0.1, 200), covariance, dof=30)
    known = Estimates(early, error, 2.5, taken)
    z, (low, high), reach = known.sure_of_more_than(0.0), known.interval.T, t.ppf(0.975, 30)
    assert 40 < (z > reach).sum() < 160
    assert ((z > reach) == (low > 0)).all()
    assert ((z < -reach) == (high < 0)).all()
    assert ((low < known.estimate) & (known.estimate < high)).all()
    for bound, side in ((low, 1), (high, -1)):
        assert known.sure_of_more_than(bound) == pytest.approx(side * reach)


def test_what_many_others_hide_leaves_the_estimate_to_the_last_phase():
    """Of two that agree both count, the earlier a little less; that of a large effect counts little."""
    taken = Taken(np.arange(2), np.array([0.02, 0.5]), np.eye(2) * 0.02**2, dof=80)
    known = Estimates(np.array([0.03, 0.2]), np.full(2, 0.02), 0.0, taken)
    assert known.estimate == pytest.approx([0.024, 0.4812], abs=1e-4)


def test_right_and_wrong_answers_that_all_go_alike_leave_a_doubt():
    off = sparse_rows([np.array([0])] * 2, 1)
    examples = np.arange(16).reshape(2, 8)
    alike = taken_by(off, np.zeros((2, 8)), examples)
    assert alike.error[0] == pytest.approx(np.sqrt(0.1 * 0.9 / 20))
    lost = np.linspace(0.2, 0.21, 16).reshape(2, 8)
    assert taken_by(off, lost, examples).error[0] < 0.01


def test_resampled_rows_select_the_heads_that_matter():
    """By a Lasso of few rows, and by least squares of many."""
    search = TaskSearch(sensor_on(Planted(Grid(5, 6), {}, baseline=1.0, n_examples=60), []), 20)
    search.shared = {5: BothEffects(0.0, 0.0)}
    for n_rows in (110, 600):
        search.rows = rows = some_rows(7, effects_of(30, h2=0.3, h9=0.3), n_rows=n_rows)
        search.fit = contrast_of(rows, 1.0)
        frequency = selection_frequency(search, 2, n_bootstraps=20)
        assert frequency[[2, 9]].tolist() == [1.0, 1.0]
        assert frequency.sum() == pytest.approx(2)
