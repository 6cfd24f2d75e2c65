"""The parts of annealed sensing, each against another way of getting its number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import multivariate_normal, t
from sklearn.linear_model import LinearRegression

from cs_heads.experiment.cost import Budget
from cs_heads.methods.annealing import rows as rows_module
from cs_heads.methods.annealing.blame import Blame, blame
from cs_heads.methods.annealing.fit import Fit, beyond_doubt, regress, standard_error
from cs_heads.methods.annealing.intervals import Estimates, Taken, selection_frequency, taken_by
from cs_heads.methods.annealing.rows import Rows, Sensor, row_means, sparse_rows
from cs_heads.methods.annealing.search import DensityControl, Groups, finalists_and_decoys, pool_size
from cs_heads.methods.annealing.sets import Known, SummingSets, posterior
from cs_heads.methods.annealing.shares import SaturatingSets
from cs_heads.methods.controls import BalancedDraws, BothEffects, Controls, TaskLoss
from cs_heads.units import Head, HeadGrid
from tests.methods.planted import Planted


def some_rows(
    seed,
    effects,
    *,
    taken=None,
    general=0.0,
    n_rows=600,
    n_off=5,
    per_row=8,
    n_examples=60,
    noise=0.1,
    spread=0.0,
    level_spread=0.2,
):
    """Rows whose scores are a sum: example, heads off (an effect that may differ by example), noise.

    With ``taken``, what each head takes from the controls, as a loss, they have four examples of these each.
    ``general`` is what a row takes from everything on top, at most.
    """
    rng = np.random.default_rng(seed)
    off = sparse_rows([rng.choice(len(effects), n_off, replace=False) for _ in range(n_rows)], len(effects))
    examples = np.argsort(rng.random((n_rows, n_examples)))[:, :per_row]
    of_example = np.asarray(effects)[:, None] * (1 + spread * rng.standard_normal((len(effects), n_examples)))
    level = rng.normal(0.7, level_spread, n_examples)
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


def test_masks_come_in_parts_and_lose_nothing(monkeypatch):
    monkeypatch.setattr(rows_module, "_MAX_ENTRIES", 7 * 20)
    off = some_rows(0, np.zeros(20), n_rows=30).off
    parts = list(rows_module.in_chunks(off))
    assert [masks.shape for _, masks in parts] == [(7, 20)] * 4 + [(2, 20)]
    assert np.array_equal(np.concatenate([masks for _, masks in parts]), off.toarray() == 1)
    assert [rows.start for rows, _ in parts] == [0, 7, 14, 21, 28]


# Example effects


def test_the_response_is_that_of_a_regression_on_rows_and_examples():
    rows = some_rows(0, np.zeros(20), n_rows=30, noise=0.3)
    row, example = np.repeat(np.arange(30), 8), rows.examples.ravel()
    dummies = np.hstack([np.eye(30)[row], np.eye(60)[example]])
    fitted = np.linalg.lstsq(dummies, rows.scores.ravel(), rcond=None)[0][:30]
    made = row_means(rows.scores, rows.examples, n_passes=500)
    assert made - made.mean() == pytest.approx(fitted - fitted.mean(), abs=1e-6)


def test_hard_examples_are_not_blamed_on_the_row():
    hard, easy = some_rows(1, np.zeros(20)), some_rows(1, np.zeros(20))
    hard.scores[hard.examples < 30] -= 0.5
    assert hard.response().std() < 1.2 * easy.response().std()


def test_hard_examples_of_the_controls_are_not_blamed_on_the_row():
    rows, hard = (some_rows(1, np.zeros(20), taken=np.zeros(20)) for _ in range(2))
    hard.losses[hard.drawn < 15] += 0.5
    assert hard.control_response().std() < 1.2 * rows.control_response().std()
    assert rows.control_response().std() < 1.3 * 0.1 / np.sqrt(4)


# Regression


def test_effects_are_those_of_least_squares_where_there_are_few_heads():
    effects = np.zeros(20)
    effects[[3, 7]] = 0.2, 0.1
    rows = some_rows(2, effects)
    fit = regress(rows.off, rows.response(), rows.group)
    assert fit.effect[[3, 7]] - np.delete(fit.effect, [3, 7]).mean() == pytest.approx([0.2, 0.1], abs=0.02)
    assert fit.z.argmax() == 3
    assert (np.abs(np.delete(fit.z, [3, 7])) < 4).all()


def test_a_group_has_an_intercept_of_its_own():
    effects = np.zeros(20)
    effects[3] = 0.2
    rows = some_rows(3, effects)
    group = np.repeat([0, 4], 300)
    plain = regress(rows.off, rows.response(), group)
    shifted = regress(rows.off, rows.response() - 0.4 * (group == 4), group)
    assert shifted.effect == pytest.approx(plain.effect, abs=0.01)


def test_z_of_heads_without_effect_is_standard_normal():
    z = np.concatenate(
        [regress(r.off, r.response(), r.group).z for r in (some_rows(s, np.zeros(40)) for s in range(25))]
    )
    assert z.std() == pytest.approx(1, abs=0.12)
    assert abs(z.mean()) < 0.1


def test_heads_that_were_never_off_have_no_effect():
    rows = some_rows(4, np.zeros(20))
    wider = sparse.hstack([rows.off, sparse.csr_array((len(rows), 3))], format="csr")
    fit = regress(wider, rows.response(), rows.group)
    assert not fit.effect[20:].any()
    assert not fit.z[20:].any()


# Blame: the task beside its controls


def test_a_row_without_controls_blames_as_the_regression_does():
    rows = some_rows(2, effects_of(20, h3=0.2, h7=0.1))
    fit, known = regress(rows.off, rows.response(), rows.group), blame(rows, 0.8)
    assert np.array_equal(known.task.effect, fit.effect)
    assert np.array_equal(known.z, fit.z)
    assert np.array_equal(known.contrast, fit.effect / 0.8)
    assert not known.controls.effect.any()


def test_what_a_head_takes_from_both_alike_is_no_contrast():
    """On one scale: 40 points of the task, half of what it scores above guessing, are a loss of .5."""
    rows = some_rows(8, effects_of(20, h3=0.4, h7=0.2), taken=effects_of(20, h3=0.5, h9=0.3))
    known = blame(rows, 0.8)
    idle = np.delete(np.arange(20), [3, 7, 9])
    assert known.task.effect[[3, 7]] - known.task.effect[idle].mean() == pytest.approx([0.4, 0.2], abs=0.02)
    taken = known.controls.effect - known.controls.effect[idle].mean()
    assert taken[[3, 7, 9]] == pytest.approx([0.5, 0, 0.3], abs=0.04)
    contrast = known.contrast - known.contrast[idle].mean()
    assert contrast[[3, 7, 9]] == pytest.approx([0.0, 0.25, -0.3], abs=0.08)
    assert known.z.argmax() == 7
    assert known.z[9] < -4
    both = known.both(3)
    assert (both.task, both.controls) == (known.task.effect[3] / 0.8, known.controls.effect[3])
    assert both.task / both.task_error == pytest.approx(known.task.z[3])
    assert both.controls / both.controls_error == pytest.approx(known.controls.z[3])


def test_of_the_controls_effects_what_is_beyond_doubt_counts_alone():
    """Two standard errors are .1 for each of these heads."""
    effect = np.array([0.3, 0.11, 0.1, 0.05, -0.3, 0.0])
    fit = Fit(effect, effect / 0.05)
    assert standard_error(fit) == pytest.approx([0.05] * 5 + [0.0])
    assert beyond_doubt(fit) == pytest.approx([0.2, 0.01, 0, 0, 0, 0])


def test_noise_in_the_controls_does_not_spread_into_the_contrast():
    rows = some_rows(9, effects_of(20, h3=0.2), taken=np.zeros(20), noise=0.4)
    known = blame(rows, 1.0)
    doubtful = known.controls.z <= 2
    assert doubtful.sum() >= 18
    assert np.array_equal(known.contrast[doubtful], known.task.effect[doubtful])


def test_what_rows_do_to_everything_is_taken_off_the_noise_of_the_task():
    """Rows take up to .8 from task and controls alike: that says nothing of their heads."""
    effects = effects_of(20, h3=0.1)
    rows = some_rows(10, effects, taken=np.zeros(20), general=0.8, noise=0.05)
    alone, known = regress(rows.off, rows.response(), rows.group), blame(rows, 1.0)
    assert known.z[3] > 2.5 * alone.z[3]
    assert standard_error(known.task)[0] < standard_error(alone)[0] / 2.5
    assert known.contrast[3] - np.delete(known.contrast, 3).mean() == pytest.approx(0.1, abs=0.02)


def test_controls_that_go_their_own_way_change_no_blame():
    rows = some_rows(11, effects_of(20, h3=0.2), taken=np.zeros(20), noise=0.2)
    alone, known = regress(rows.off, rows.response(), rows.group), blame(rows, 1.0)
    assert known.contrast == pytest.approx(alone.effect, abs=0.02)
    assert known.z == pytest.approx(alone.z, rel=0.1, abs=0.5)


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
        ((0.3, 0.05), (0.9, 0.05), True, False),
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
    own, others = (both.to_dict()[f"{side}_interval"] for side in ("task", "controls"))
    assert own == pytest.approx((task[0] - 1.96 * task[1], task[0] + 1.96 * task[1]))
    assert others == pytest.approx((controls[0] - 1.96 * controls[1], controls[0] + 1.96 * controls[1]))


def test_a_small_weight_of_the_controls_leaves_to_the_task_what_takes_more_from_it():
    both = BothEffects(0.6, 0.05, 0.5, 0.05)
    assert [both.are_shared(weight) for weight in (3.0, 1.0, 0.7, 0.5, 0.0)] == [True, True, True, False, False]


# Measuring rows


def sensor_on(task, controls, *, per_row=4, of_controls=6, budget=10_000):
    """A sensor that measures this task, and these controls where there are any."""
    right = np.flatnonzero(task(np.zeros((1, *task.grid.shape), dtype=bool), None)[0] > 0.5)
    return Sensor(
        task=TaskLoss(task, right, np.ones(len(right)), guess=0.0),
        controls=Controls(controls, seed=3),
        per_row=per_row,
        of_controls=of_controls if controls else 0,
        budget=Budget(budget),
        rng=np.random.default_rng(0),
    )


def test_rows_carry_what_the_controls_lose_and_are_paid_for_on_both_sides():
    """Half of what the first control answers goes with one head; the second does not mind."""
    grid, head = HeadGrid(3, 4), Head(1, 1)
    first, second = Planted(grid, {head: 0.4}, baseline=0.8, n_examples=40), Planted(grid, {}, n_examples=40)
    sensor = sensor_on(Planted(grid, {}), [first, second])
    off = sparse_rows([np.array([grid.index(head)])] * 60, grid.size)
    (rows,) = rows_module.measure([sensor.plan(off, np.zeros(60, dtype=int))])
    assert (rows.scores.shape, rows.losses.shape) == ((60, 4), (60, 6))
    assert sensor.budget.spent == 60 * sensor.cost == 600
    of = sensor.controls.of(rows.drawn)
    assert rows.losses[of == 0].mean() == pytest.approx(0.5, abs=0.03)
    assert not rows.losses[of == 1].any()
    assert (of == 0).sum() == pytest.approx(180, abs=6)
    assert rows.control_response().mean() == pytest.approx(rows.losses.mean())
    alone = sensor_on(Planted(grid, {}), [])
    (without,) = rows_module.measure([alone.plan(off, np.zeros(60, dtype=int), last=True)])
    assert without.losses.shape == without.drawn.shape == (60, 0)


def test_no_more_is_paid_than_there_is():
    budget = Budget(10)
    budget.pay(6)
    assert (budget.spent, budget.left) == (6, 4)
    with pytest.raises(AssertionError, match="5 example-evaluations are more than the 4 left"):
        budget.pay(5)


# Sets


def test_what_sets_say_is_a_bayesian_regression_whose_priors_and_noise_make_them_likeliest():
    """By the marginal likelihood of a multivariate normal, and least squares with the priors as further rows."""
    rng = np.random.default_rng(0)
    for wider in (1.0, 4.0):
        mean, error = rng.normal(0.2, 0.1, 8), rng.uniform(0.05, 0.1, 8)
        truth = mean + wider * error * rng.standard_normal(8)
        members = np.zeros((60, 8))
        for row in members:
            row[rng.choice(8, 4, replace=False)] = 1
        contrast = 0.3 + members @ truth + 0.15 * rng.standard_normal(60)
        X, y = members - members.mean(axis=0), contrast - contrast.mean()
        settings = [(factor, share * y.var()) for factor in (1, 1.5, 2, 3, 5) for share in (0.3, 0.5, 0.7, 0.9)]
        likelihood = [
            multivariate_normal(X @ mean, X @ np.diag((factor * error) ** 2) @ X.T + noise * np.eye(60)).logpdf(y)
            for factor, noise in settings
        ]
        factor, noise = settings[int(np.argmax(likelihood))]
        rows = np.vstack([X / np.sqrt(noise), np.diag(1 / (factor * error))])
        answers = np.concatenate([y / np.sqrt(noise), mean / (factor * error)])
        known = posterior(members, contrast, mean, error)
        assert known.mean == pytest.approx(np.linalg.lstsq(rows, answers, rcond=None)[0])
        assert known.covariance == pytest.approx(np.linalg.inv(rows.T @ rows))


def test_sets_that_go_as_foreseen_leave_what_is_known_as_it_is():
    rng = np.random.default_rng(1)
    mean, error = rng.normal(0.2, 0.1, 8), np.full(8, 0.02)
    members = np.stack([rng.permutation(8) < 4 for _ in range(60)]).astype(float)
    known = posterior(members, members @ mean, mean, error)
    assert known.mean == pytest.approx(mean, abs=1e-9)
    assert (np.diag(known.covariance) <= 0.02**2).all()


def sets_of(task, controls, mean, error, k, kind=SummingSets):
    """Sets of all heads of a grid, of which so much is known, and a budget of 4,000."""
    size = task.grid.size
    nothing = Fit(np.zeros(size), np.zeros(size))
    known = Blame(Fit(mean, mean / error), nothing, np.zeros(0), 1.0, mean, mean / error)
    sensor = sensor_on(task, controls, per_row=8, of_controls=8, budget=4000)
    return kind(sensor, np.argsort(-mean, kind="stable"), known, k)


def duel(sets, n):
    return sets.winner(rows_module.measure(sets.plan_duel(n))).tolist()


def sets_with_a_trio_and_a_pair(kind=SummingSets):
    """Heads 0, 1 and 2 break the control too; 5 alone, and 8 and 9 together, carry the task."""
    grid = HeadGrid(3, 4)
    trio, pair = (Head(0, 0), Head(0, 1), Head(0, 2)), (Head(2, 0), Head(2, 1))
    task = Planted(grid, {Head(1, 1): 0.1}, groups={trio: 0.6, pair: 0.4}, baseline=0.95)
    control = Planted(grid, {}, groups={trio: 0.7}, baseline=0.95)
    mean = np.array([0.15, 0.15, 0.15, 0.01, 0.01, 0.1, 0.01, 0.01, 0.05, 0.05, 0.01, 0.01])
    return sets_of(task, [control], mean, np.full(12, 0.05), k=3, kind=kind)


def test_a_head_is_exchanged_for_one_that_is_far_better_alone():
    grid = HeadGrid(2, 3)
    sets = sets_of(Planted(grid, {}), [Planted(grid, {})], np.arange(0.6, 0.0, -0.1), np.full(6, 0.1), k=2)
    chosen = {}
    for ahead in (0.5, 0.62):
        # The fifth head is this much better than the second, and four standard errors of the difference are .57.
        sets.known = Known(np.array([0.6, 0.4, 0.1, 0.1, 0.4 + ahead, 0.1]), np.diag(np.full(6, 0.1**2)))
        chosen[ahead] = sorted(sets.best().tolist())
    assert chosen == {0.5: [0, 1], 0.62: [0, 4]}


def test_the_likeliest_set_replaces_the_first_where_it_proves_better_on_the_same_examples():
    """The first breaks the control as well; the other, which is not clearly better head by head, does not."""
    sets = sets_with_a_trio_and_a_pair()
    likely = np.isin(sets.candidates, [5, 8, 9]) * 0.2
    sets.known = Known(likely, np.diag(np.full(12, 0.1**2)))
    assert set(sets.best().tolist()) == set(duel(sets, 0)) == {0, 1, 2}
    assert set(duel(sets, 10)) == {5, 8, 9}


def test_the_best_of_a_set_comes_first():
    grid = HeadGrid(2, 3)
    sets = sets_of(Planted(grid, {}), [Planted(grid, {})], np.arange(0.6, 0.0, -0.1), np.full(6, 0.1), k=3)
    sets.known = Known(np.array([0.3, 0.5, 0.4, 0.0, 0.0, 0.0]), np.diag(np.full(6, 0.1**2)))
    assert sets.best().tolist() == [1, 2, 0]


@pytest.mark.parametrize("kind", [SummingSets, SaturatingSets])
def test_sets_leave_out_heads_that_every_task_needs_together_and_take_those_that_work_together(kind):
    """By what is known of single heads a universal trio comes first, and of a redundant pair neither head counts."""
    sets = sets_with_a_trio_and_a_pair(kind)
    assert sets.candidates[:3].tolist() == [0, 1, 2]
    rng = np.random.default_rng(0)
    for _ in range(6):
        (rows,) = rows_module.measure([sets.plan(40, rng)])
        sets.add(rows)
    assert sets.sensor.budget.spent == 6 * 40 * 16
    best = set(sets.best().tolist())
    assert best > {8, 9}
    assert len(best & {0, 1, 2}) <= 1


# Density and pool


def test_the_number_of_heads_off_settles_where_the_score_is_wanted():
    """Where each head off costs 2 %, 21 heads leave .65."""
    control = DensityControl(1000, target=0.65, max_density=0.12, n_off=5.0)
    for _ in range(8):
        (n_off,) = control.numbers(1000, levels=False)
        control.observe(0.98**n_off, float(n_off))
    assert control.numbers(1000, levels=False) == [21]


def test_a_step_is_bounded_and_the_number_too():
    control = DensityControl(1000, target=0.65, max_density=0.12, n_off=10.0)
    control.observe(1.0, 10.0)
    assert control.n_off == pytest.approx(17)
    control.n_off = 500.0
    assert control.numbers(1000, levels=False) == [120]
    control.n_off = 500.0
    assert control.numbers(26, levels=True) == [8, 13, 13]
    control.n_off = 0.1
    assert control.numbers(26, levels=True) == [1, 1, 1]


@given(size=st.integers(2, 300), share=st.floats(0.01, 0.9), wanted=st.floats(0.1, 500), levels=st.booleans())
def test_no_row_has_more_heads_off_than_the_bounds_allow(size, share, wanted, levels):
    """But for the one head that every row has."""
    control = DensityControl(size, target=0.65, max_density=share, n_off=wanted)
    assert all(1 <= number <= max(1, min(size // 2, share * size)) for number in control.numbers(size, levels))


def test_the_pool_shrinks_geometrically_between_two_fifths_and_seven_tenths():
    sizes = [pool_size(done, 1024, 20) for done in (0.0, 0.39, 0.4, 0.55, 0.7, 0.9)]
    assert sizes == [1024, 1024, 1024, round((1024 * 20) ** 0.5), 20, 20]


def test_groups_are_told_apart_by_heads_off_and_pool():
    groups = Groups()
    assert [groups.of(30, 1000), groups.of(34, 1000), groups.of(40, 1000), groups.of(30, 500), groups.of(31, 900)] == [
        0,
        0,
        1,
        2,
        0,
    ]


def test_decoys_are_neither_finalists_nor_from_the_best_quarter():
    merit = np.random.default_rng(0).normal(size=200)
    best, decoys = finalists_and_decoys(merit, 20, 100, np.random.default_rng(1))
    ranks = np.argsort(np.argsort(-merit))
    assert sorted(ranks[best]) == list(range(20))
    assert len(decoys) == 100
    assert ranks[decoys].min() >= 50


# Inference


def lost_in(rows, level=0.7):
    """The heads off, what answers lost of an intact level that all examples have, and the examples."""
    return rows.off, level - rows.scores, rows.examples


def additive(seed, effects, **more):
    """Rows of examples that the intact model answers alike."""
    return lost_in(some_rows(seed, effects, level_spread=0.0, **more))


def test_effects_are_those_of_least_squares_through_the_intact_run():
    effects = np.zeros(12)
    effects[[0, 1, 2]] = 0.3, 0.1, -0.2
    off, lost, examples = additive(5, effects, n_rows=200)
    known = taken_by(off, lost, examples)
    line = LinearRegression(fit_intercept=False).fit(off.toarray()[np.repeat(np.arange(200), 8)], lost.ravel())
    assert known.estimate == pytest.approx(line.coef_)
    assert known.estimate == pytest.approx(effects, abs=0.03)


def test_rows_of_one_size_tell_the_level_of_all_heads():
    """Where each takes as much, a free intercept would say that none takes anything."""
    known = taken_by(*additive(5, np.full(12, 0.1), n_rows=200))
    assert known.estimate == pytest.approx(np.full(12, 0.1), abs=0.02)


def test_errors_count_rows_and_examples():
    """With effects that differ by example, estimates over many draws spread as the errors say."""
    effects = np.zeros(12)
    effects[0] = 0.3
    made = [taken_by(*additive(seed, effects, n_rows=150, spread=1.0)) for seed in range(60)]
    spread = np.std([one.estimate[0] for one in made])
    assert np.median([one.error[0] for one in made]) == pytest.approx(spread, rel=0.3)
    covered = [abs(one.estimate[0] - 0.3) < 1.96 * one.error[0] for one in made]
    assert np.mean(covered) >= 0.85


def test_effects_need_rows():
    assert taken_by(*lost_in(Rows.none(12, 8))) is None
    rows = some_rows(6, np.zeros(12), n_rows=24)
    assert taken_by(*lost_in(rows)).dof == 24 - 12
    assert taken_by(*lost_in(rows[np.arange(23)])) is None
    assert taken_by(*lost_in(rows), rows_a_head=3) is None


def of_the_last_phase(taken):
    """Estimates of heads that were never off before it."""
    n_heads = int(taken.heads.max()) + 1
    return Estimates(np.zeros(n_heads), np.full(n_heads, np.inf), 0.0, taken)


def test_claims_on_few_rows_are_hardly_ever_wrong():
    """Forty worlds without any effect, two rows a head."""
    finalists, decoys = np.arange(20), np.arange(20, 26)
    wrong = [taken_by(*additive(seed, np.zeros(26), n_rows=52)) for seed in range(40)]
    assert sum(of_the_last_phase(one).claims(finalists, decoys, beyond=0.0).any() for one in wrong) <= 5


def test_claims_are_those_of_holm():
    p = np.array([0.001, 0.04, 0.011, 0.6])  # against .05 / 4, / 3, / 2: the third falls, and the last with it
    estimate = 0.02 + t.isf(p, 80) * 0.01
    heads, decoys = np.arange(4), np.zeros(0, dtype=int)
    known = of_the_last_phase(Taken(heads, estimate, np.eye(4) * 0.01**2, dof=80))
    assert known.claims(heads, decoys).tolist() == [True, False, True, False]
    all_four = of_the_last_phase(Taken(heads, np.full(4, 0.5), np.eye(4) * 0.01**2, dof=80))
    assert all_four.claims(heads, decoys).all()


def test_a_claim_is_about_what_a_head_takes_beyond_the_mean_decoy():
    heads = np.arange(4)
    known = of_the_last_phase(Taken(heads, np.array([0.3, 0.3, 0.2, 0.4]), np.eye(4) * 1e-4, dof=80))
    assert known.claims(heads[:2], heads[2:]).tolist() == [False, False]
    assert known.claims(heads[:2], heads[2:3]).tolist() == [True, True]


@pytest.mark.parametrize("passed", [0.0, 2.5])
def test_z_and_interval_are_of_one_estimate_and_one_error(passed):
    """z is above what an interval reaches, in standard errors, exactly where that interval lies above zero."""
    rng = np.random.default_rng(0)
    early, error = rng.normal(0.05, 0.1, 200), rng.uniform(0.01, 0.1, 200)
    covariance = np.diag(rng.uniform(0.01, 0.1, 200) ** 2)
    taken = Taken(np.arange(200), early + rng.normal(0, 0.1, 200), covariance, dof=30)
    known = Estimates(early, error, passed, taken)
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


def test_a_head_that_chance_may_have_chosen_needs_more_than_its_earlier_rows():
    taken = Taken(np.arange(1), np.zeros(1), np.eye(1) * 0.03**2, dof=80)
    fair, chosen = (Estimates(np.array([0.06]), np.array([0.02]), passed, taken) for passed in (0.0, 2.9))
    assert fair.sure_of_more_than(0.0) > 2
    assert chosen.sure_of_more_than(0.0) < 1
    assert chosen.interval[0, 0] < 0


def test_right_and_wrong_answers_that_all_go_alike_leave_a_doubt():
    off = sparse_rows([np.array([0])] * 2, 1)
    examples = np.arange(16).reshape(2, 8)
    alike = taken_by(off, np.zeros((2, 8)), examples)
    assert alike.error[0] == pytest.approx(np.sqrt(0.1 * 0.9 / 20))
    lost = np.linspace(0.2, 0.21, 16).reshape(2, 8)
    assert taken_by(off, lost, examples).error[0] < 0.01


def test_frequency_by_the_intact_model_is_of_heads_that_all_cost_something():
    """Four heads, one of them off in each row: against each other two do harm, against the intact model all do."""
    effects = np.array([0.9, 0.9, 0.6, 0.2])
    rows = some_rows(0, effects, n_rows=80, n_off=1)
    known, lost = blame(rows, 1.0), 1.0 - rows.response()
    for k, expected in ((4, np.ones(4)), (2, np.array([1.0, 1.0, 0.0, 0.0]))):
        rng = np.random.default_rng(0)
        drawn = selection_frequency(rows, known, np.zeros(4), effects, lost=lost, k=k, n_bootstraps=20, rng=rng)
        assert drawn == pytest.approx(expected)


def test_resampled_rows_select_the_heads_that_matter():
    effects = np.zeros(30)
    effects[[2, 9]] = 0.3
    rows = some_rows(7, effects)
    merit = regress(rows.off, rows.response(), rows.group).z
    merit[5] = -np.inf
    known, rng = blame(rows, 1.0), np.random.default_rng(0)
    frequency = selection_frequency(rows, known, np.zeros(30), merit, k=2, n_bootstraps=20, rng=rng)
    assert frequency[[2, 9]].tolist() == [1.0, 1.0]
    assert frequency.sum() == pytest.approx(2)
