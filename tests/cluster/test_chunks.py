"""Chunks of work depend on what is wanted alone, and hold every pair once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_heads.cluster.engine import chunk_size, cut
from cs_heads.engine.protocol import PairMasks


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_every_pair_is_in_one_chunk_and_a_mask_in_as_few_as_hold_it(seed, size):
    rng = np.random.default_rng(seed)
    masks = np.unique(rng.random((12, 3, 4)) < 0.2, axis=0)
    pairs = [(m, e) for m in range(len(masks)) for e in range(10) if rng.random() < 0.7] or [(0, 0)]
    rng.shuffle(pairs)
    which, examples = np.array(pairs).T
    prompts = [tuple(rng.integers(0, 3, 4).tolist()) for _ in range(10)]
    chunks = cut(PairMasks.of(masks[which]), examples, prompts, size)
    assert sorted(np.concatenate(chunks).tolist()) == list(range(len(examples)))
    assert max(map(len, chunks)) <= size
    for mask in range(len(masks)):
        holding = sum((which[chunk] == mask).any() for chunk in chunks)
        assert holding == -(-(which == mask).sum() // size)


def test_a_mask_of_too_many_pairs_is_split_between_unlike_prompts():
    """Ten examples of two few-shot prompts: each chunk keeps to one, so that it runs once."""
    prompts = [(i % 2, i) for i in range(10)]
    chunks = cut(PairMasks.of(np.zeros((10, 3, 4), dtype=bool)), np.arange(10), prompts, 5)
    assert [sorted(chunk.tolist()) for chunk in chunks] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_masks_that_begin_at_the_same_layer_share_a_chunk():
    """What is before the first ablated layer runs once for them all."""
    masks = np.zeros((8, 4, 2), dtype=bool)
    layers = [3, 0, 2, 3, 0, 1, 1, 2]
    masks[np.arange(8), layers, 0] = True
    chunks = cut(PairMasks.of(masks), np.zeros(8, dtype=int), [(1,)], 2)
    assert [[layers[pair] for pair in chunk] for chunk in chunks] == [[0, 0], [1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("n_pairs", "cost", "size"),
    [
        (32_000, 10.0, 200),  # no more than fit a few forwards
        (3_200, 10.0, 100),  # enough for many workers
        (32, 10.0, 50),  # not crumbled
        (32, 1e6, 1),
    ],
)
def test_large_work_is_cut_for_many_workers_and_small_work_is_not_crumbled(n_pairs, cost, size):
    assert chunk_size(n_pairs, cost, least=500.0, most=2000.0) == size
