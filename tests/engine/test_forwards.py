"""Which rows share a forward, and what happens where they do not fit."""

import numpy as np
import pytest
import torch

from cs_heads.engine import Engine
from cs_heads.engine.forwards import Forwards, like_lengths
from cs_heads.engine.protocol import PairMasks
from cs_heads.lens import EncodedExample

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


def test_a_forward_more_that_the_budget_asks_for_anyway_costs_nothing_more():
    """Rows that fill two forwards as it is are cut where their length changes."""
    lengths = [20] * 10 + [15] * 10
    assert like_lengths(np.array(lengths), 200, 100) == 10
    assert like_lengths(np.array(lengths), 400, 100) == 20


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
    found = {}
    for batch in engine.run(PairMasks.of(masks[pairs[:, 0]]), pairs[:, 1], progress=False):
        found |= {pair: logprobs for pair, logprobs, _ in batch}
    return np.array([found[pair] for pair in range(len(pairs))])


def test_what_follows_several_forwards_fills_forwards_together(load, seen, monkeypatch):
    """Worked examples of unlike lengths run apart, the questions after all of them in one forward."""
    monkeypatch.setattr("cs_heads.engine.forwards._OVERHEAD", {"cpu": (4, 4), "cuda": (4, 4)})
    examples, masks = few_shot_examples(3, 5), np.eye(12, dtype=bool)[[0, 5]].reshape(2, *GRID)
    run(Engine(load("llama"), examples), masks, len(examples))
    assert seen == [(2, 20), (2, 14), (2, 8), (30, 2)]


@pytest.mark.parametrize("most", [1, 3, 7])
def test_rows_whose_followers_do_not_fit_run_in_smaller_pools(load, seen, monkeypatch, most):
    examples, masks = few_shot_examples(4, 4), np.eye(12, dtype=bool)[[0, 5, 11]].reshape(3, *GRID)
    wanted = run(Engine(load("llama"), examples), masks, len(examples))
    plain = Forwards._forward

    def forward(self, batch, *rest):
        if len(batch) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, batch, *rest)

    monkeypatch.setattr(Forwards, "_forward", forward)
    np.testing.assert_allclose(run(Engine(load("llama"), examples), masks, len(examples)), wanted, atol=1e-4)


def test_pools_are_as_small_as_keys_and_values_allow(load, seen):
    examples, masks = few_shot_examples(3, 5), np.eye(12, dtype=bool)[[0, 5]].reshape(2, *GRID)
    engine = Engine(load("llama"), examples)
    engine.forwards._most_pooled = 1
    alone = run(engine, masks, len(examples))
    assert [rows for rows, longest in seen if longest > 2] == [1] * 6
    np.testing.assert_allclose(run(Engine(load("llama"), examples), masks, len(examples)), alone, atol=1e-4)
