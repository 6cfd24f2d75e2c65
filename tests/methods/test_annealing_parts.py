"""The parts of annealed sensing, each against another way of getting its number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import t
from sklearn.linear_model import LinearRegression

from cs_heads.methods.annealing import rows as rows_module
from cs_heads.methods.annealing.inference import Contrasts, contrasts, selection_frequency
from cs_heads.methods.annealing.regression import regress
from cs_heads.methods.annealing.rows import BalancedDraws, Rows, sparse_rows
from cs_heads.methods.annealing.schedule import DensityControl, Groups, finalists_and_decoys, pool_size


def some_rows(seed, effects, *, n_rows=600, per_row=8, n_examples=60, noise=0.1, spread=0.0):
    """Rows whose scores are a sum: example, heads off (an effect that may differ by example), noise."""
    rng = np.random.default_rng(seed)
    off = sparse_rows([rng.choice(len(effects), 5, replace=False) for _ in range(n_rows)], len(effects))
    examples = np.argsort(rng.random((n_rows, n_examples)))[:, :per_row]
    of_example = np.asarray(effects)[:, None] * (1 + spread * rng.standard_normal((len(effects), n_examples)))
    level = rng.normal(0.7, 0.2, n_examples)
    harm = np.take_along_axis(off @ of_example, examples, axis=1)
    scores = level[examples] - harm + noise * rng.standard_normal(examples.shape)
    return Rows(off, examples, scores, np.zeros(n_rows, dtype=int), np.ones(n_rows, dtype=bool))


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
    made = rows.response(n_passes=500)
    assert made - made.mean() == pytest.approx(fitted - fitted.mean(), abs=1e-6)


def test_hard_examples_are_not_blamed_on_the_row():
    hard, easy = some_rows(1, np.zeros(20)), some_rows(1, np.zeros(20))
    hard.scores[hard.examples < 30] -= 0.5
    assert hard.response().std() < 1.2 * easy.response().std()


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


def test_contrasts_are_those_of_least_squares_with_example_dummies():
    effects = np.zeros(12)
    effects[[0, 1]] = 0.3, 0.1
    rows = some_rows(5, effects, n_rows=200)
    known = contrasts(rows, np.arange(4), np.arange(4, 12))
    X = np.hstack([rows.off.toarray()[np.repeat(np.arange(200), 8)], np.eye(60)[rows.examples.ravel()]])
    coefficients = -LinearRegression(fit_intercept=False).fit(X[:, 1:], rows.scores.ravel()).coef_
    # Dropping one head for collinearity shifts all coefficients alike, and no contrast.
    heads = np.concatenate([[0.0], coefficients[:11]])
    assert known.estimate == pytest.approx(heads[:4] - heads[4:].mean(), abs=0.02)
    assert known.estimate[:2] == pytest.approx([0.3, 0.1], abs=0.03)


def test_errors_count_rows_and_examples():
    """With effects that differ by example, estimates over many draws spread as the errors say."""
    effects = np.zeros(12)
    effects[0] = 0.3
    made = [contrasts(some_rows(s, effects, n_rows=150, spread=1.0), np.arange(2), np.arange(2, 12)) for s in range(60)]
    spread = np.std([one.estimate[0] for one in made])
    assert np.median([one.error[0] for one in made]) == pytest.approx(spread, rel=0.3)
    covered = [low <= 0.3 <= high for low, high in (one.interval()[0] for one in made)]
    assert np.mean(covered) >= 0.85


def test_without_decoys_or_rows_there_are_no_contrasts():
    rows = some_rows(6, np.zeros(12))
    assert contrasts(rows, np.arange(3), np.zeros(0, dtype=int)) is None
    assert contrasts(Rows.none(12, 8), np.arange(3), np.arange(3, 6)) is None


def test_contrasts_need_two_rows_a_head():
    rows = some_rows(6, np.zeros(12), n_rows=24)
    assert contrasts(rows, np.arange(8), np.arange(8, 12)).dof == 24 - 1 - 12
    assert contrasts(rows[np.arange(23)], np.arange(8), np.arange(8, 12)) is None


def test_claims_on_few_rows_are_hardly_ever_wrong():
    """Forty worlds without any effect, two rows a head."""
    wrong = [contrasts(some_rows(s, np.zeros(26), n_rows=52), np.arange(20), np.arange(20, 26)) for s in range(40)]
    assert sum(one.claims(beyond=0.0).any() for one in wrong) <= 5


def test_claims_are_those_of_holm():
    p = np.array([0.001, 0.04, 0.011, 0.6])  # against .05 / 4, / 3, / 2: the third falls, and the last with it
    estimate = 0.02 + t.isf(p, 80) * 0.01
    known = Contrasts(estimate, np.full(4, 0.01), dof=80)
    assert known.claims().tolist() == [True, False, True, False]
    assert Contrasts(np.full(3, 0.5), np.full(3, 0.01), dof=80).claims().all()


def test_resampled_rows_select_the_heads_that_matter():
    effects = np.zeros(30)
    effects[[2, 9]] = 0.3
    rows = some_rows(7, effects)
    merit = regress(rows.off, rows.response(), rows.group).z
    merit[5] = -np.inf
    frequency = selection_frequency(rows, merit, np.zeros(30), k=2, n_bootstraps=20, rng=np.random.default_rng(0))
    assert frequency[[2, 9]].tolist() == [1.0, 1.0]
    assert frequency.sum() == pytest.approx(2)
