"""Annealed sensing on a model of 128 layers of 128 heads; ``benchmarks/recovery.py`` takes the time."""

import numpy as np
import pytest

from cs_heads.methods.annealing import annealed
from cs_heads.simulate import planted_world
from cs_heads.units import HeadGrid

pytestmark = pytest.mark.slow


def test_planted_heads_among_sixteen_thousand_are_found_within_the_budget():
    recall = []
    for seed in range(3):
        made = planted_world("main", HeadGrid(128, 128), seed=seed)
        found = annealed(made.task, controls=[made.control], budget=20_000, seed=seed)
        assert made.task.spent + made.control.spent == found.spent <= 20_000
        assert set(found.shared) >= set(made.universal)
        recall.append(len(set(found.top(5)) & set(made.planted)) / 5)
    assert np.mean(recall) >= 0.9
