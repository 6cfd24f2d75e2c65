"""Sets whose heads take shares of what the others leave, each part against another way of getting its number."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.stats import multivariate_normal

from cs_heads.methods.annealing.head_sets import HeadSets, Posterior, posterior_of_losses, posterior_of_shares
from cs_heads.methods.annealing.measurements import measure
from cs_heads.methods.annealing.regression import ContrastFit, Fit
from cs_heads.methods.annealing.task_search import TaskSearch
from cs_heads.methods.losses import TaskLoss
from cs_heads.tasks import Task
from cs_heads.tasks.task import with_fields
from cs_heads.units import Grid, Head
from tests.methods.planted import Planted
from tests.methods.test_annealing_parts import sensor_on


def sets_of(task, controls, mean, error, k):
    """Sets of all heads of a grid, of which so much is known, and a budget of 4,000."""
    size = task.grid.size
    known = ContrastFit.of(Fit(mean, mean / error), Fit.none(size), np.zeros(0))
    sensor = sensor_on(task, controls, per_row=8, of_controls=8, budget=4000)
    search = TaskSearch(sensor, size)
    search.fit, search.finalists = known, np.arange(size)
    return HeadSets(search, k)


def known_sets(shares, losses, error=0.01, *, k=2):
    """Sets of which so much is known: the shares that heads take of a task, and what they take from the controls."""
    grid, size = Grid(2, 3), len(shares)
    sets = sets_of(Planted(grid, {}), [Planted(grid, {})], np.arange(0.6, 0.0, -0.1), np.full(6, 0.1), k)
    sets.shares, *sets.losses = (Posterior(np.array(each), np.eye(size) * error**2) for each in (shares, losses))
    return sets


def test_sets_leave_out_heads_that_every_task_needs_together_and_take_those_that_work_together():
    """By what is known of single heads a universal trio comes first, and of a redundant pair neither head counts."""
    grid = Grid(3, 4)
    trio, pair = (Head(0, 0), Head(0, 1), Head(0, 2)), (Head(2, 0), Head(2, 1))
    task = Planted(grid, {Head(1, 1): 0.1}, groups={trio: 0.6, pair: 0.4}, baseline=0.95)
    control = Planted(grid, {}, groups={trio: 0.7}, baseline=0.95)
    mean = np.array([0.15, 0.15, 0.15, 0.01, 0.01, 0.1, 0.01, 0.01, 0.05, 0.05, 0.01, 0.01])
    sets = sets_of(task, [control], mean, np.full(12, 0.05), k=3)
    assert sets.candidates[:3].tolist() == [0, 1, 2]
    for _ in range(6):
        (rows,) = measure([sets.plan(40)])
        sets.add(rows)
    assert sets.sensor.budget.spent == 6 * 40 * 16
    best = set(sets.best().tolist())
    assert best > {8, 9}
    assert len(best & {0, 1, 2}) <= 1


def sets_in_form(drops, form_drops, *, n_form=2, matched=True):
    """Sets of two, measured in six rounds, beside eight controls that lose nothing and some in the form of the task."""
    grid = Grid(3, 4)
    task, form = Planted(grid, drops), [Planted(grid, form_drops) for _ in range(n_form)]
    for each in form:
        each.task = with_fields(Task.from_records([{"prompt": "a", "target": " b"}]), matched=matched)
    mean = np.array([drops.get(grid.unit(head), 0.01) for head in range(grid.size)])
    sets = sets_of(task, [*(Planted(grid, {}) for _ in range(8)), *form], mean, np.full(grid.size, 0.1), k=2)
    # What the form loses no row has told.
    sets._of_sides = [(known, np.full(grid.size, 0.5)) for known, _ in sets._of_sides]
    for _ in range(6):
        (rows,) = measure([sets.plan(40)])
        sets.add(rows)
    return sets


def test_sets_leave_out_what_carries_the_form_of_the_task_and_hardly_shows_among_all_controls():
    """The first head takes half of the task, and as much from the two of ten controls that are in its form."""
    drops, form = {Head(0, 0): 0.5, Head(0, 1): 0.3, Head(0, 2): 0.25}, {Head(0, 0): 0.5}
    sets = sets_in_form(drops, form)
    best = sets.best()
    assert set(best.tolist()) == {1, 2}
    assert [*sets.of_form(best)] == [0]
    sets = sets_in_form(drops, form, matched=False)
    assert (set((best := sets.best()).tolist()), sets.of_form(best)) == ({0, 1}, {})


def test_where_only_heads_of_the_form_take_a_quarter_of_the_task_it_counts_as_one_control_of_many():
    sets = sets_in_form({Head(0, 0): 0.5, Head(0, 1): 0.1, Head(0, 2): 0.05}, {Head(0, 0): 0.5})
    best = sets.best()
    assert set(best.tolist()) == {0, 1}
    assert sets.of_form(best) == {}


def test_sets_are_made_of_finalists_and_of_decoys_that_clearly_take_much():
    """Two redundant heads may both be drawn as decoys, and rows with both off be the first to show them."""
    z = np.array([9.0, 1.0, 2.0, 1.0, 9.0, 3.0])
    search = TaskSearch(sensor_on(Planted(Grid(2, 3), {}), []), 2)
    search.fit = ContrastFit.of(Fit(0.1 * z, z), Fit.none(6), np.zeros(0))
    search.finalists, search.decoys = np.array([3, 1]), np.array([4, 5])
    assert search.candidates.tolist() == [1, 3, 4]


def test_what_controls_lose_is_a_bayesian_regression_whose_priors_and_noise_make_the_sets_likeliest():
    """By the marginal likelihood of a multivariate normal, and least squares with the priors as further rows."""
    rng = np.random.default_rng(0)
    for wider, levels in product((1.0, 4.0), (False, True)):
        mean, error = rng.normal(0.2, 0.1, 8), rng.uniform(0.05, 0.1, 8)
        truth = mean + wider * error * rng.standard_normal(8)
        members = np.stack([rng.permutation(8) < 4 for _ in range(60)]).astype(float)
        lost = 0.3 + members @ truth + 0.15 * rng.standard_normal(60)
        X, y = (members, lost) if levels else (members - members.mean(axis=0), lost - lost.mean())
        settings = [(factor, share * y.var()) for factor in (1, 1.5, 2, 3, 5) for share in (0.3, 0.5, 0.7, 0.9)]
        likelihood = [
            multivariate_normal(X @ mean, X @ np.diag((factor * error) ** 2) @ X.T + noise * np.eye(60)).logpdf(y)
            for factor, noise in settings
        ]
        factor, noise = settings[int(np.argmax(likelihood))]
        rows = np.vstack([X / np.sqrt(noise), np.diag(1 / (factor * error))])
        answers = np.concatenate([y / np.sqrt(noise), mean / (factor * error)])
        known = posterior_of_losses(members, lost, mean, error, levels=levels)
        assert known.mean == pytest.approx(np.linalg.lstsq(rows, answers, rcond=None)[0])
        assert known.covariance == pytest.approx(np.linalg.inv(rows.T @ rows))


def test_a_head_is_exchanged_for_one_that_is_better_by_more_than_a_standard_error():
    """Of what controls lose; that of the difference of two is .14."""
    for ahead, chosen in ((0.1, [0, 1]), (0.2, [0, 4])):
        losses = 1 - np.array([0.6, 0.4, 0.1, 0.1, 0.4 + ahead, 0.1])
        assert sorted(known_sets(np.zeros(6), losses, 0.1).best().tolist()) == chosen


def test_no_control_gains_by_a_head():
    """The last head seems to spare the controls; what the second takes of the task is worth more."""
    shares, losses = [1.0, 0.2, 0.0, 0.0, 0.0, 0.05], [0.0, 0.0, 0.0, 0.0, 0.0, -0.3]
    assert sorted(known_sets(shares, losses).best().tolist()) == [0, 1]


def test_where_a_set_takes_all_of_the_task_a_head_gains_nothing_but_what_it_spares_the_controls():
    """The second head takes half of the task alone; beside the first, which takes 95 %, the harmless last is better."""
    shares = [3.0, 0.7, 0.1, 0.1, 0.1, 0.1]
    assert sorted(known_sets(shares, [0.0, 0.1, 0.1, 0.1, 0.1, 0.0]).best().tolist()) == [0, 5]
    # Where the first takes half, the second is worth what it costs.
    shares[0] = 0.7
    assert sorted(known_sets(shares, [0.0, 0.1, 0.1, 0.1, 0.1, 0.0]).best().tolist()) == [0, 1]


def test_a_set_under_a_draw_is_the_best_of_all_there_are():
    """Where losses are many sizes, by every pair of six heads."""
    rng, pairs = np.random.default_rng(0), np.array([*combinations(range(6), 2)])
    sets, gaps = known_sets(np.zeros(6), np.zeros(6)), []
    for _ in range(200):
        shares, losses = rng.exponential(0.8, 6), rng.exponential(0.1, 6)
        value = 1 - np.exp(-shares[pairs].sum(axis=1)) - losses[pairs].sum(axis=1)
        chosen, _ = sets._best_by(shares, losses)
        gaps.append(value.max() - (1 - np.exp(-shares[chosen].sum()) - losses[chosen].sum()))
    # Some sets are best at no rate: by how little they are better.
    assert np.mean(np.array(gaps) < 1e-9) > 0.9
    assert np.mean(gaps) < 0.002


def test_what_sets_take_is_fitted_as_shares_of_what_is_left():
    """By least squares with the priors as further rows, under the settings that make the sets likeliest (Laplace)."""
    rng, most = np.random.default_rng(2), 1.5
    mean, error = rng.uniform(0.0, 0.6, 8), rng.uniform(0.05, 0.1, 8)
    truth = 1.4 * mean + error * rng.standard_normal(8)
    members = np.stack([rng.permutation(8) < 4 for _ in range(40)]).astype(float)
    lost = most * (1 - np.exp(-members @ truth)) + 0.1 * rng.standard_normal(40)
    evidence, modes = [], []
    for more, wider, noise in product((1.0, 1.4, 2.0), (1.0, 1.5, 2.0, 3.0, 5.0), (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)):
        spread = more * wider * error

        def misfit(shares, more=more, noise=noise, spread=spread):
            fitted = most * (1 - np.exp(-members @ shares))
            return np.concatenate([(lost - fitted) / noise, (shares - more * mean) / spread])

        found = least_squares(misfit, more * mean)
        _, size = np.linalg.slogdet(found.jac.T @ found.jac)
        evidence.append(-found.cost - 40 * np.log(noise) - np.log(spread).sum() - size / 2)
        modes.append(found.x)
    known = posterior_of_shares(members, lost, mean, error, most)
    assert known.mean == pytest.approx(modes[int(np.argmax(evidence))], abs=2e-3)
    assert np.abs(known.mean - truth).max() < 4 * np.sqrt(np.diag(known.covariance)).max()


def test_heads_that_take_nothing_seem_to_take_no_more_than_their_errors_say():
    """In rows of a task barely above guessing, which lose and gain more than all of it by chance."""
    rng, ratios, noise = np.random.default_rng(0), [], 1.5
    for _ in range(6):
        members = np.stack([rng.permutation(20) < 5 for _ in range(90)]).astype(float)
        lost = noise * rng.standard_normal(90)
        known = posterior_of_shares(members, lost, np.zeros(20), np.full(20, 0.2), 5.2)
        ratios.append(known.mean / np.sqrt(np.diag(known.covariance)))
    assert np.sqrt(np.mean(np.square(ratios))) < 1.15


def test_a_loss_can_reach_all_that_a_score_has_above_guessing_and_more():
    """A score of 0 loses a task more than all where guesses are right, too."""
    task = Planted(Grid(2, 3), {}, baseline=0.9)
    assert TaskLoss.of(task).most == pytest.approx(1.0)
    task.chance = 0.5
    half = TaskLoss.of(task)
    assert half.most == pytest.approx(half.level / (half.level - 0.5))
