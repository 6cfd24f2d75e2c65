"""Losses of a task and its controls: their intervals hold the truth as often as they say."""

import numpy as np
import pytest

from cs_heads.analysis.losses import Loss, Specificity, loss_of, task_drop, weighted_sum

# For each task: share right, share of these kept with the heads off, share of the wrong ones mended, examples, chance.
CLEAR = [(0.9, 0.15, 0.0, 100, 0.0), (0.95, 0.95, 0.1, 100, 0.0), (0.8, 0.9, 0.2, 60, 0.25), (0.85, 0.6, 0.05, 40, 0.0)]
ALIKE = [(0.9, 0.4, 0.05, 60, 0.0)] + [(0.9, 0.5, 0.05, 40, 0.0)] * 3
BORDER = [(1.0, 0.02, 0.0, 40, 0.0), (0.97, 1.0, 0.0, 40, 0.0), (1.0, 0.99, 0.0, 40, 0.0)]


def drawn(truth, rng, soft=1.0) -> Specificity:
    losses = []
    for right, kept, mended, n, chance in truth:
        intact = rng.random(n) < right
        off = np.where(intact, rng.random(n) < kept, rng.random(n) < mended)
        drop = task_drop("t", chance, [(soft * intact, soft * off)], seed=int(rng.integers(1000)))
        losses.append(loss_of(drop))
    return Specificity(losses[0], {f"control {number}": loss for number, loss in enumerate(losses[1:])})


def true_losses(truth, soft=1.0) -> dict[str, float]:
    losses = []
    for right, kept, mended, _, chance in truth:
        off = right * kept + (1 - right) * mended
        losses.append(soft * (right - off) / (soft * right - chance))
    own, *controls = losses
    mean = float(np.mean(controls))
    return {"own": own, "mean": mean, "worst": max(controls), "difference": own - mean}


@pytest.mark.slow
@pytest.mark.parametrize("truth", [CLEAR, ALIKE, BORDER], ids=["clear", "alike", "border"])
def test_intervals_hold_the_truth_as_often_as_they_say(truth):
    rng = np.random.default_rng(0)
    expected = true_losses(truth)
    held = dict.fromkeys(expected, 0)
    for _ in range(200):
        found = drawn(truth, rng)
        for name, value in expected.items():
            loss = getattr(found, name)
            held[name] += loss.low <= value <= loss.high
    assert min(held.values()) >= 180, held


@pytest.mark.parametrize("soft", [1.0, 0.5])
@pytest.mark.parametrize("n", [20, 100])
def test_nothing_or_everything_lost_is_no_certainty(n, soft):
    """Also where scores are neither right nor wrong, and no resample differs from the sample."""
    intact, gone = np.full(n, soft), np.zeros(n)
    nothing = loss_of(task_drop("t", 0.0, [(np.append(intact, np.ones(n)), np.append(intact, np.ones(n)))]))
    assert nothing.low < -0.01
    assert nothing.high > 0.01
    everything = loss_of(task_drop("t", 0.0, [(np.append(intact, np.ones(n)), np.append(gone, gone))]))
    assert everything.low < 0.99 < everything.high == pytest.approx(1)
    both = Specificity(everything, {"a": nothing, "b": nothing})
    assert both.mean.low < 0 < both.mean.high
    assert both.difference.low < 1 < both.difference.high


def test_the_mean_of_alike_controls_is_known_better_than_each():
    one = Loss(0.3, 0.2, 0.4)
    mean = Specificity(one, dict.fromkeys("abcd", one)).mean
    assert (mean.loss, mean.low, mean.high) == pytest.approx((0.3, 0.25, 0.35))


def test_a_difference_reaches_as_far_as_both_its_sides():
    """By hand: 3-4-5, down by the own side below and the control's above."""
    difference = weighted_sum([Loss(0.8, 0.77, 0.88), Loss(0.1, 0.04, 0.14)], [1.0, -1.0])
    assert (difference.loss, difference.low, difference.high) == pytest.approx((0.7, 0.65, 0.8))


def test_the_worst_of_many_controls_has_an_interval_that_allows_for_the_choice():
    alone, other = Loss(0.3, 0.2, 0.4), Loss(0.25, 0.1, 0.5)
    one = Specificity(alone, {"a": alone}).worst
    assert (one.loss, one.low, one.high) == pytest.approx((0.3, 0.2, 0.4))
    found = Specificity(alone, {"a": alone, "b": other})
    assert (found.worst_control, found.worst.loss, found.worst.high) == ("a", 0.3, 0.5)
    assert 0.1 < found.worst.low < 0.2


def test_a_task_that_can_show_nothing_has_no_loss():
    few, at_chance = np.arange(100) < 10, np.arange(100) < 30
    assert loss_of(task_drop("t", 0.0, [(few * 1.0, few * 0.0)])) is None
    assert loss_of(task_drop("t", 0.25, [(at_chance * 1.0, at_chance * 1.0)])) is None


def test_a_loss_outside_of_its_interval_is_refused():
    with pytest.raises(ValueError, match=r"low, loss and high must be numbers in this order, got 0\.2, 0\.1, nan"):
        Loss(0.1, 0.2, float("nan"))
