"""Bounds on example-evaluations, where they can be worked out by hand, and beside a planted world."""

import sys
from math import comb, log2
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cs_heads as cs
from cs_heads.simulate import planted_world

FOLDER = Path(__file__).parents[1] / "benchmarks"

if not FOLDER.is_dir():
    pytest.skip("the tests of benchmarks need a checkout", allow_module_level=True)

sys.path.insert(0, str(FOLDER))
try:
    import limit
finally:
    sys.path.remove(str(FOLDER))


def test_bits_count_the_sets_and_less_if_some_heads_may_be_wrong():
    assert limit.bits(1024, 1, 0) == 10
    assert limit.bits(1024, 5, 0) == pytest.approx(log2(comb(1024, 5)))
    # One head, wrong in a quarter of cases: Fano's inequality.
    assert limit.bits(1024, 1, 0.25) == pytest.approx(10 - (2 - 0.75 * log2(3)) - 0.25 * log2(1023))
    # A guess is wrong in 1,023 cases of 1,024, and needs nothing.
    assert limit.bits(1024, 1, 1023 / 1024) == pytest.approx(0, abs=1e-9)
    assert limit.bits(1024, 5, 5) == pytest.approx(0, abs=1e-9)


def test_a_head_that_takes_all_needs_as_many_answers_as_its_number_has_bits():
    told = limit.information(np.array([[1.0], [0.0]]), (0,), 0.5)
    assert limit.bits(64, 1, 0) / told == 6


def test_an_answer_of_chance_tells_nothing():
    assert limit.information(np.full((4, 3), 0.5), (0, 1), 0.2) == pytest.approx(0, abs=1e-12)
    # Nor one that only the other head moves.
    assert limit.information(np.array([[0.9], [0.9], [0.2], [0.2]]), (1,), 0.2) == pytest.approx(0, abs=1e-12)


def test_two_heads_that_each_take_all():
    right = np.array([[1.0], [0.0], [0.0], [0.0]])
    # The other is on half of the time, and then the answer is the head.
    assert limit.information(right, (0,), 0.5) == pytest.approx(0.5)
    assert limit.information(right, (0, 1), 0.5) == pytest.approx(2 - 0.75 * log2(3))
    # Cases count alike.
    assert limit.information(np.hstack([right, np.ones_like(right)]), (0,), 0.5) == pytest.approx(0.25)


def test_capacities_of_binary_channels():
    assert limit.capacity(np.array(1.0), np.array(0.0)) == pytest.approx(1)
    assert limit.capacity(np.array(0.7), np.array(0.7)) == pytest.approx(0, abs=1e-12)
    # Half of the ones are lost (Z channel), in the better of two cases.
    assert limit.capacity(np.array([1.0, 0.5]), np.array([0.5, 0.4])) == pytest.approx(log2(5 / 4), abs=1e-4)


def test_answers_are_right_as_often_as_in_planted_worlds():
    density, n = 0.05, 3000
    rng = np.random.default_rng(0)
    off = density ** limit.OFF.sum(axis=1) * (1 - density) ** (limit.K - limit.OFF.sum(axis=1))
    for band in (limit.RIGHT, limit.NARROW):
        measured = []
        for seed in range(4):
            made = planted_world("main", cs.Grid(16, 16), n_examples=n, seed=seed)
            fit = np.flatnonzero((made.task.margins > band[0]) & (made.task.margins < band[1]))
            masks = rng.random((200, 256)) < density
            masks[:, made.own[[0, 1, 2, -1, -2, -3, -4, -5, -6]]] = False
            examples = np.broadcast_to(fit[:500], (200, min(500, len(fit))))
            measured.append(made.task(masks.reshape(-1, 16, 16), examples).mean())
        assert np.mean(measured) == pytest.approx(off @ limit.answers(256, density, band).mean(axis=1), abs=0.035)


def test_bounds_are_in_order(monkeypatch):
    monkeypatch.setattr(limit, "DENSITIES", np.array([0.03, 0.1]))
    of = limit.limits.__wrapped__(64)
    assert of.bit < of.adaptive < of.fresh_all < of.fresh < of.fresh_exact
    assert of.bit < of.known < of.narrow < of.fresh
    assert of.hardest == (3, 4)


def test_the_decoder_names_heads_that_take_all():
    rng = np.random.default_rng(0)
    masks = rng.random((400, 20)) < 0.12
    wrong = masks[:, [2, 3, 5, 7, 11]].any(axis=1)
    likely = np.log(np.where((limit.OFF.sum(axis=1) > 0) == wrong[:, None], 0.99, 0.01))
    drawn = limit.draw_heads(masks.astype(np.float32), likely, np.arange(20), rng)
    assert sorted(np.argsort(-drawn)[:5]) == [2, 3, 5, 7, 11]


def test_where_recall_reaches_19_in_20():
    recall = [0.90, 0.94, 0.96]
    lines = pd.DataFrame({"n_examples": 100, "size": [1, 2, 3], "spent": [1000, 2000, 8000], "recall": recall})
    assert limit.reached(lines) == (pytest.approx(4000), True)
    assert limit.reached(lines[:2]) == (pytest.approx(2000), False)
    assert limit.reached(lines[2:]) == (pytest.approx(8000), True)
