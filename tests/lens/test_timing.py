"""The speed of matrix products, which is timed on matrices as large as take long enough."""

import numpy as np
import pytest
import torch

from cs_heads.lens import timing
from cs_heads.lens.timing import matrix_rate


def clock_reads(monkeypatch, *products):
    """Products of matrices of sides 100, 200 and 400 take these seconds, four of each side."""
    seconds = [each for four in products for each in (0.0, *four)]
    times = iter(np.cumsum(seconds).tolist())
    monkeypatch.setattr(timing, "perf_counter", lambda: next(times))
    monkeypatch.setattr(timing, "_LEAST_SIDE", 100)
    monkeypatch.setitem(timing._SIDE, "cpu", 400)


def test_the_matrix_rate_is_that_of_the_fastest_of_the_largest_products(monkeypatch):
    clock_reads(monkeypatch, [5.0, 0.001, 0.001, 0.001], [0.5, 0.002, 0.004, 0.003], [0.5, 0.2, 0.4, 0.3])
    assert matrix_rate.__wrapped__(torch.device("cpu"), torch.float32) == pytest.approx(2 * 400**3 / 0.2)
