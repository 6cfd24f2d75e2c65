"""The clock of forwards: every second is credited to one part, and every token to the layers it ran through."""

import itertools

import numpy as np
import pytest
import torch

from cs_heads.lens import timing
from cs_heads.lens.logprobs import token_logprobs, with_targets
from cs_heads.lens.timing import PARTS, clocked, matrix_rate, timed
from cs_heads.units import HeadGrid
from tests.tiny import make_hf_model

PROMPTS, TARGETS = [[3, 4, 5, 6], [7, 8], [3, 9, 4]], [[5, 3], [4], [6]]


@pytest.fixture
def ticks(monkeypatch):
    """Each look at the time is a second after the one before; gives all of them."""
    seen = []
    ever = itertools.count()

    def look():
        seen.append(float(next(ever)))
        return seen[-1]

    monkeypatch.setattr(timing, "perf_counter", look)
    return seen


def run(model, start=None):
    grid = HeadGrid.from_model(model)
    gates = torch.ones(len(PROMPTS), *grid.shape)
    gates[0, 1, 2] = gates[1, 0, 0] = 0
    return token_logprobs(model, *with_targets(PROMPTS, TARGETS), gates=gates)


def hooks(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


def test_the_parts_of_a_forward_sum_to_its_time(load, backend, ticks):
    model = load("llama", backend)
    with clocked(model) as clock:
        run(model)
    assert tuple(clock.seconds) == PARTS
    assert all(clock.seconds[part] > 0 for part in PARTS)
    assert sum(clock.seconds.values()) == ticks[-1] - ticks[0]


def test_a_part_has_no_time_of_the_parts_inside_it(load, ticks):
    with clocked(load("llama")) as clock, timed("attention"):
        with timed("hooks and gates"):
            pass
        with timed("hooks and gates"):
            pass
    assert (clock.seconds["attention"], clock.seconds["hooks and gates"], clock.seconds["outside forwards"]) == (
        3,
        2,
        2,
    )


def test_a_forward_that_fails_ends_all_parts_inside_it_and_the_next_is_timed_as_ever(load, backend, ticks):
    model = load("llama", backend)
    found = []
    for fails in (False, True):
        with clocked(model) as clock:
            if fails:
                handle = model.blocks[1].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    run(model)
                handle.remove()
                assert clock.depth == 1
                for part in PARTS:
                    clock.seconds[part] = 0
            run(model)
        found.append({part: clock.seconds[part] for part in PARTS if part != "outside forwards"})
    assert found[0] == found[1]


def test_a_clock_leaves_no_hook_and_changes_no_number(load, backend):
    model = load("llama", backend)
    before, plain = hooks(model), run(model)
    with clocked(model):
        clocked_numbers = run(model)
    np.testing.assert_array_equal(clocked_numbers.logprob, plain.logprob)
    with pytest.raises(RuntimeError, match="stop"), clocked(model):
        raise RuntimeError("stop")
    assert hooks(model) == before
    assert timing._clock is None


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_tokens_without_padding_are_counted_and_multiplied_by_the_weights_of_their_layers(load, backend, architecture):
    model = load(architecture, backend)
    with clocked(model) as clock:
        run(model)
    n_tokens, n_read = 5 + 2 + 3, 4
    hf = make_hf_model(architecture)
    weights = [p.numel() for name, p in hf.named_parameters() if p.ndim == 2 and (".layers." in name or ".h." in name)]
    assert (clock.forwards, clock.tokens, clock.padded) == (1, n_tokens, 15)
    flops = 2 * (n_tokens * sum(weights) + n_read * hf.lm_head.weight.numel())
    # A HookedTransformer has biases by head, which are matrices too.
    assert clock.flops == flops if backend == "bridge" else flops <= clock.flops < 1.1 * flops


def clock_reads(monkeypatch, *products):
    """Products of matrices of sides 100, 200 and 400 take these seconds, four of each side."""
    seconds = [each for four in products for each in (0.0, *four)]
    times = iter(np.cumsum(seconds).tolist())
    monkeypatch.setattr(timing, "perf_counter", lambda: next(times))
    monkeypatch.setattr(timing, "_LEAST_SIDE", 100)
    monkeypatch.setitem(timing._SIDE, "cpu", 400)


def test_the_matrix_rate_is_that_of_the_fastest_of_the_largest_products(load, monkeypatch):
    clock_reads(monkeypatch, [5.0, 0.001, 0.001, 0.001], [0.5, 0.002, 0.004, 0.003], [0.5, 0.2, 0.4, 0.3])
    assert matrix_rate(torch.device("cpu"), torch.float32) == pytest.approx(2 * 400**3 / 0.2)


def test_no_larger_product_is_timed_where_one_takes_long(load, monkeypatch):
    clock_reads(monkeypatch, [5.0, 0.001, 0.001, 0.001], [0.5, 0.2, 0.4, 0.3])
    assert matrix_rate(torch.device("cpu"), torch.float32) == pytest.approx(2 * 200**3 / 0.2)
