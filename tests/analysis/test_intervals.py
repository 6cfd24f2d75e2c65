"""Intervals of drops: against published figures, and how often they hold the truth."""

import numpy as np
import pytest
from scipy.stats import beta

from cs_heads.analysis.intervals import mean_interval, paired_intervals


def table(both, lost, gained, neither):
    """Answers with no head off and with heads off, by how many are right."""
    return np.repeat([1.0, 1.0, 0.0, 0.0], [both, lost, gained, neither]), np.repeat(
        [1.0, 0.0, 1.0, 0.0], [both, lost, gained, neither]
    )


def test_the_interval_of_a_drop_is_that_of_a_published_table():
    """Airway hyper-responsiveness in 21 children: Fagerland, Lydersen and Laake (2014) give -.507 to -.026."""
    assert paired_intervals([table(1, 1, 7, 12)], 0.0)[0] == pytest.approx((-0.507, -0.026), abs=5e-4)


def test_answers_that_go_together_narrow_the_interval():
    """Of the same shares of right answers, before and after."""
    together, apart = (
        np.diff(paired_intervals([table(*counts)], 0.0)[0]) for counts in ((40, 20, 0, 40), (24, 36, 16, 24))
    )
    assert together < 0.8 * apart


@pytest.mark.parametrize("counts", [(20, 0, 0, 0), (10, 0, 0, 10), (0, 20, 0, 0), (0, 60, 0, 40)])
def test_certainty_is_never_complete(counts):
    """Nothing changed, or all was lost: the interval has a width, and the estimate in it."""
    pair = table(*counts)
    drop = float(np.mean(pair[0] - pair[1]))
    for estimate, (low, high) in zip((drop, drop / pair[0].mean()), paired_intervals([pair], 0.0)[:2], strict=True):
        assert low <= estimate <= high
        assert high - low > 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "chance"),
    [
        ([(0.9, 0.7, 0.1, 30)], 0.0),
        ([(0.6, 0.5, 0.3, 60)], 0.25),
        ([(0.95, 0.1, 0.0, 40)], 0.25),
        ([(0.8, 0.97, 0.05, 100)], 0.5),
        ([(0.9, 0.6, 0.0, 40), (0.8, 0.9, 0.0, 80)], 0.25),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(parts, chance):
    """Of each part: share right, share of these kept with heads off, share of the wrong ones gained, examples."""
    rng, held = np.random.default_rng(0), np.zeros(2)
    before = np.mean([right for right, *_ in parts])
    after = np.mean([right * kept + (1 - right) * gained for right, kept, gained, _ in parts])
    truth = before - after, (before - after) / (before - chance)
    for _ in range(150):
        drawn = []
        for right, kept, gained, n in parts:
            intact = rng.random(n) < right
            off = np.where(intact, rng.random(n) < kept, rng.random(n) < gained)
            drawn.append((intact.astype(float), off.astype(float)))
        bounds = paired_intervals(drawn, chance)
        held += [low <= value <= high for value, (low, high) in zip(truth, bounds, strict=True)]
    # At 95 % fewer than 134 of 150 are seen once in 500 runs.
    assert (held >= 134).all()


@pytest.mark.parametrize("right", [0, 1, 7, 20])
def test_of_scores_that_are_nearly_right_or_wrong_the_interval_is_the_exact_one_of_a_share(right):
    """Gaffke's bounds of zeros and ones are those of Clopper and Pearson."""
    scores = np.repeat([1 - 1e-9, 1e-9], [right, 20 - right])
    low = beta.ppf(0.025, right, 21 - right) if right else 0
    high = beta.ppf(0.975, right + 1, 20 - right) if right < 20 else 1
    assert mean_interval(scores) == pytest.approx((low, high), abs=0.02)


SKEWED = {
    "u^8": lambda rng, n: rng.random(n) ** 8,
    "1 - u^8": lambda rng, n: 1 - rng.random(n) ** 8,
    "beta(.5, 2)": lambda rng, n: rng.beta(0.5, 2, n),
    ".02 or .9": lambda rng, n: np.where(rng.random(n) < 0.95, 0.02, 0.9),
}
MEANS = {"u^8": 1 / 9, "1 - u^8": 8 / 9, "beta(.5, 2)": 0.2, ".02 or .9": 0.95 * 0.02 + 0.05 * 0.9}


def held(name: str, n: int, worlds: int) -> tuple[float, float, float]:
    """How often the interval of a mean, of a drop and of a loss holds the truth."""
    rng, seen = np.random.default_rng(0), np.zeros(3)
    for _ in range(worlds):
        scores, intact = SKEWED[name](rng, n), rng.uniform(0.7, 1.0, n)
        drop, loss = paired_intervals([(intact, intact * (1 - scores))], 0.0)
        bounds = mean_interval(scores), drop, loss
        truth = MEANS[name], 0.85 * MEANS[name], MEANS[name]
        seen += [low <= value <= high for value, (low, high) in zip(truth, bounds, strict=True)]
    return tuple(seen / worlds)


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 50])
@pytest.mark.parametrize("name", SKEWED)
def test_intervals_of_skewed_scores_hold_the_truth_as_often_as_they_say(name, n):
    # Of 400 at .95 fewer than 368 are seen once in 150 runs.
    assert min(held(name, n, 400)) >= 0.92


def test_intervals_of_many_examples_hold_few_of_their_weights_at_once(monkeypatch):
    seen = []

    class Counting(np.random.Generator):
        @classmethod
        def made(cls, seed):
            return cls(np.random.PCG64(seed))

        def standard_exponential(self, *args, **more):
            drawn = super().standard_exponential(*args, **more)
            seen.append(np.size(drawn))
            return drawn

    monkeypatch.setattr("cs_heads.analysis.intervals.np.random.default_rng", Counting.made)
    scores = np.linspace(0, 1, 14_000)
    paired_intervals([(scores, scores / 2)], 0.0)
    assert sum(seen) == 2000 * 14_001
    assert max(seen) <= 1_000_000


def test_what_cannot_be_told_is_no_number():
    # One example tells next to nothing.
    one = np.array([0.5])
    (low, high), share = paired_intervals([(one, one)], 0.1)
    assert low < -0.9 < 0.9 < high
    assert np.isnan(share).all()
    # The baseline may be at chance: its share has no bounds.
    drop, share = paired_intervals([table(20, 10, 0, 40)], 0.4)
    assert not np.isnan(drop).any()
    assert np.isnan(share).all()
