"""What is run, and how much of it at once."""

import numpy as np
import pytest
import torch

from cs_heads import Experiment, Task, designs
from cs_heads.engine import Engine, forwards, plan
from cs_heads.engine.plan import token_budget
from cs_heads.lens.abilities import Abilities
from cs_heads.lens.batches import default_tokens
from tests.engine.test_engine import workload
from tests.on_model import observed
from tests.tiny import N_HEADS, N_LAYERS

SHAPE = (N_LAYERS, N_HEADS)
FEW_SHOT = "the cat sees a dog . " * 5
RECORDS = [
    {"prompt": f"{FEW_SHOT}the {word}", "choices": [" runs .", " sees a bird ."], "answer": 0}
    for word in ("cat", "dog", "bird", "king", "cat runs", "dog sees")
]


@pytest.fixture
def forwarded(monkeypatch):
    """Tokens of every row that is run, forward by forward."""
    seen, read = [], forwards.token_logprobs

    def spy(model, tokens, attention_mask, *arguments, **options):
        rows = zip(tokens, attention_mask, strict=True)
        seen.append([tuple(row[mask.bool()].tolist()) for row, mask in rows])
        return read(model, tokens, attention_mask, *arguments, **options)

    monkeypatch.setattr(forwards, "token_logprobs", spy)
    return seen


def test_a_shared_prefix_runs_once_for_a_mask(load, backend, forwarded):
    """The few-shot prompt once, each question once, then the choices."""
    experiment = Experiment(load("llama", backend), Task.from_records(RECORDS))
    off = designs.explicit(experiment.grid, [["L0H0"], ["L0H1", "L2H2"]])
    experiment.logprob(off)
    long = [row for batch in forwarded for row in batch if len(row) >= 30]
    assert len(long) == len(off)
    n_run = sum(len(row) for batch in forwarded for row in batch)
    engine = Engine(load("llama", backend), experiment._engine.examples, ideas=Abilities(extend=False))
    apart = engine.lay_out(tuple(range(len(RECORDS)))).n_tokens
    assert n_run < 0.25 * len(off) * apart


def test_the_plan_does_not_change_the_order_of_results(load):
    examples, off, _ = workload(3, 6, 4)
    pairs = np.array([(m, e) for m in range(len(off)) for e in range(6)])
    orders = [np.arange(len(pairs)), np.random.default_rng(0).permutation(len(pairs))]
    results = []
    for order, batch_tokens in zip(orders, (4096, 40), strict=True):
        found = observed(Engine(load("llama"), examples, batch_tokens), off, pairs[order])
        results.append(np.concatenate([found[place][0] for place in np.argsort(order)]))
    np.testing.assert_allclose(*results, atol=1e-5)


def test_the_same_call_gives_the_same_numbers_bit_for_bit(load, backend):
    task = Task.from_records(RECORDS)
    off = designs.single(Experiment(load("llama", backend), task).grid)
    twice = [Experiment(load("llama", backend), task).logprob(off) for _ in range(2)]
    np.testing.assert_array_equal(*twice)


def test_the_budget_is_what_the_device_is_fast_with_or_what_memory_holds(load, monkeypatch):
    model = load("llama")
    assert token_budget(model) == default_tokens(model, "scoring")
    monkeypatch.setattr(plan, "free_memory", lambda device: 2**20)
    short = token_budget(model)
    assert 1 <= short < default_tokens(model, "scoring")
    monkeypatch.setattr(plan, "free_memory", lambda device: 2**19)
    assert token_budget(model) == pytest.approx(short / 2, abs=1)
    monkeypatch.setattr(plan, "free_memory", lambda device: 0)
    assert token_budget(model) == 1


def test_residuals_are_thinned_out_where_memory_is_short(load, monkeypatch):
    first, model = np.repeat([0, 1, 2], 50), load("llama")
    tokens = [100] * len(first)
    assert forwards.layers_to_store(model, first, tokens, 100) == [1, 2]
    row = 100 * model.cfg.d_model * 4
    monkeypatch.setattr(forwards, "free_memory", lambda device: 15 * row)
    assert forwards.layers_to_store(model, first, tokens, 100) == [1]
    monkeypatch.setattr(forwards, "free_memory", lambda device: 5 * row)
    assert forwards.layers_to_store(model, first, tokens, 100) == []


def test_an_intact_run_that_would_not_be_paid_back_is_not_made(load):
    assert forwards.layers_to_store(load("llama"), np.array([0, 0, 1]), [100] * 3, 100) == []
    assert forwards.layers_to_store(load("llama"), np.array([0, 1, 1]), [100] * 3, 100) == []
    assert forwards.layers_to_store(load("llama"), np.array([0, 1, 1]), [2000] * 3, 100) == [1]


def test_half_precision_weights_are_scored_in_float32(folders):
    """Every short cut stays within what half precision itself costs."""
    from cs_heads.lens import load_model

    examples, off, pairs = workload(5, 5, 4)
    model = load_model(folders("llama"), device="cpu", backend="bridge", dtype=torch.bfloat16)
    exact = load_model(folders("llama"), device="cpu", backend="bridge")

    def run(model):
        return np.concatenate([logprobs for logprobs, _ in observed(Engine(model, examples), off, pairs)])

    half = run(model)
    assert half.dtype == np.float64
    np.testing.assert_allclose(half, run(exact), rtol=0.05, atol=0.1)
