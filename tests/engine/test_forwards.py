"""Which rows share a forward, and what happens where they do not fit."""

import numpy as np
import pytest
import torch

from cs_heads.engine import Engine
from cs_heads.engine.forwards import Forwards
from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import PLAIN
from cs_heads.lens.batches import like_lengths
from cs_heads.lens.cache import KeyValues
from tests.on_model import observed

GRID = (3, 4)


@pytest.mark.parametrize(
    ("lengths", "overhead", "first"),
    [
        ((40, 5, 5, 5), 0, 1),
        ((40, 5, 5, 5), 90, 1),
        ((40, 5, 5, 5), 110, 4),
        ((8, 7, 6), 10, 3),
        ((8, 7, 6), 0, 1),
        ((30, 29, 2, 2, 2, 2), 50, 2),
        ((4,), 50, 1),
    ],
)
def test_rows_share_a_forward_where_padding_costs_less_than_another(lengths, overhead, first):
    assert like_lengths(np.array(lengths), 4096, overhead) == first


def few_shot_examples(n_prefixes, n_questions):
    """Examples of some tasks, each with worked examples of its own length, which all its questions share."""
    rng = np.random.default_rng(0)
    prefixes = [tuple(rng.integers(3, 23, 8 + 6 * number).tolist()) for number in range(n_prefixes)]
    return [
        EncodedExample((*prefix, 3 + question, 4 + question), ((5,),), False)
        for prefix in prefixes
        for question in range(n_questions)
    ]


@pytest.fixture
def seen(monkeypatch):
    """The rows and the longest row of each forward."""
    forwards, plain = [], Forwards._forward

    def forward(self, batch, *rest):
        forwards.append((len(batch), max(len(row.piece.tokens) for row in batch)))
        return plain(self, batch, *rest)

    monkeypatch.setattr(Forwards, "_forward", forward)
    return forwards


def run(engine, masks, n_examples):
    pairs = np.array([(mask, example) for mask in range(len(masks)) for example in range(n_examples)])
    return np.array([logprobs for logprobs, _ in observed(engine, masks, pairs)])


@pytest.fixture
def cheap(monkeypatch):
    """Forwards that cost little beside their tokens: rows of unlike lengths run apart."""
    monkeypatch.setattr("cs_heads.engine.forwards._OVERHEAD", {"cpu": (4, 4), "cuda": (4, 4)})


def work(n_prefixes, n_questions, n_masks):
    masks = np.eye(12, dtype=bool)[[0, 5, 11]].reshape(3, *GRID)[:n_masks]
    return few_shot_examples(n_prefixes, n_questions), masks


def whole(model, examples, masks):
    """The numbers of examples that share nothing."""
    return run(Engine(model, examples, ideas=PLAIN), masks, len(examples))


def test_what_follows_several_forwards_fills_forwards_together(load, seen, cheap):
    """Worked examples of unlike lengths run apart, the questions after all of them in one forward."""
    model, (examples, masks) = load("llama"), work(3, 5, 2)
    found = run(Engine(model, examples), masks, len(examples))
    assert seen == [(2, 20), (2, 14), (2, 8), (30, 2)]
    np.testing.assert_allclose(found, whole(model, examples, masks), atol=1e-4)


@pytest.mark.parametrize(
    "fits",
    [
        lambda tried: tried[-1] <= 1,
        lambda tried: tried[-1] <= 7,
        # Once, the third prefix of four, or what follows them.
        lambda tried: len(tried) != 3,
        lambda tried: len(tried) != 5,
    ],
)
def test_forwards_that_do_not_fit_are_made_smaller_and_cost_no_result(load, monkeypatch, cheap, fits):
    model, (examples, masks) = load("llama"), work(4, 4, 3)
    wanted, plain, tried = whole(model, examples, masks), Forwards._forward, []

    def forward(self, batch, *rest):
        tried.append(len(batch))
        if not fits(tried):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, batch, *rest)

    engine = Engine(model, examples)
    assert engine.forwards.able.extend
    monkeypatch.setattr(Forwards, "_forward", forward)
    np.testing.assert_allclose(run(engine, masks, len(examples)), wanted, atol=1e-4)
    assert len(tried) > 5


def test_what_does_not_fit_together_makes_no_forward_smaller(load, monkeypatch, cheap):
    """Keys and values of several prefixes are too many, and no forward is."""
    model, (examples, masks) = load("llama"), work(4, 4, 3)
    engine, joined = Engine(model, examples), KeyValues.joined
    budget = engine.forwards.budget.tokens

    def join(parts):
        if len(parts) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return joined(parts)

    monkeypatch.setattr(KeyValues, "joined", join)
    engine.forwards.budget.tokens = 3 * 26
    found = run(engine, masks, len(examples))
    assert engine.forwards.budget.tokens == 3 * 26 < budget
    np.testing.assert_allclose(found, whole(model, examples, masks), atol=1e-4)


def test_pools_are_as_small_as_keys_and_values_allow(load, seen, cheap):
    model, (examples, masks) = load("llama"), work(3, 5, 2)
    engine = Engine(model, examples)
    engine.forwards._most_pooled = 1
    found = run(engine, masks, len(examples))
    assert seen == [(2, 20), (10, 2), (2, 14), (10, 2), (2, 8), (10, 2)]
    np.testing.assert_allclose(found, whole(model, examples, masks), atol=1e-4)
