"""Chunks of work depend on what is wanted alone, and hold every pair once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cs_heads.cluster.engine import cut
from cs_heads.engine.protocol import PairMasks


def wanted(seed, n_masks=12, n_examples=10, share=0.7):
    """Some pairs of random masks and examples, and a prompt for each example."""
    rng = np.random.default_rng(seed)
    masks = np.unique(rng.random((n_masks, 3, 4)) < 0.2, axis=0)
    pairs = [(m, e) for m in range(len(masks)) for e in range(n_examples) if rng.random() < share] or [(0, 0)]
    rng.shuffle(pairs)
    which, examples = np.array(pairs).T
    prompts = [tuple(rng.integers(0, 3, 4).tolist()) for _ in range(n_examples)]
    return masks[which], examples, prompts


@given(st.integers(0, 10_000), st.floats(1, 20), st.floats(1, 20))
def test_every_pair_is_in_one_chunk_of_bounded_cost(seed, a, b):
    masks, examples, prompts = wanted(seed)
    least, most = sorted((a, b))
    chunks = cut(PairMasks.of(masks), examples, len, prompts, least=least, most=most)
    assert sorted(np.concatenate(chunks).tolist()) == list(range(len(examples)))
    assert max(map(len, chunks)) <= np.ceil(most)


def test_a_mask_is_not_split_where_it_fits():
    masks, examples, prompts = wanted(0)
    chunks = cut(PairMasks.of(masks), examples, len, prompts, least=1.0, most=10.0)
    of_mask = {mask.tobytes(): set() for mask in masks}
    for number, chunk in enumerate(chunks):
        for pair in chunk:
            of_mask[masks[pair].tobytes()].add(number)
    assert all(len(numbers) == 1 for numbers in of_mask.values())


def test_a_mask_that_costs_too_much_is_split_between_unlike_prompts():
    """Ten examples of two few-shot prompts: each chunk keeps to one, so that it runs once."""
    prompts = [(i % 2, i) for i in range(10)]
    chunks = cut(PairMasks.of(np.zeros((10, 3, 4), dtype=bool)), np.arange(10), len, prompts, least=1.0, most=5.0)
    assert [sorted(chunk.tolist()) for chunk in chunks] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_large_work_is_cut_small_enough_for_many_workers_and_small_work_is_not_crumbled():
    masks = np.eye(600, dtype=bool).reshape(600, 20, 30)
    examples, prompts = np.zeros(600, dtype=int), [(1,)]
    assert 30 <= len(cut(PairMasks.of(masks), examples, len, prompts, least=2.0, most=100.0)) <= 34
    assert [
        len(chunk) for chunk in cut(PairMasks.of(masks[:7]), examples[:7], len, prompts, least=4.0, most=100.0)
    ] == [4, 3]


def test_masks_that_begin_at_the_same_layer_share_a_chunk():
    """What is before the first ablated layer runs once for them all."""
    masks = np.zeros((8, 4, 2), dtype=bool)
    layers = [3, 0, 2, 3, 0, 1, 1, 2]
    masks[np.arange(8), layers, 0] = True
    chunks = cut(PairMasks.of(masks), np.zeros(8, dtype=int), len, [(1,)], least=2.0, most=2.0)
    assert [[layers[pair] for pair in chunk] for chunk in chunks] == [[0, 0], [1, 1], [2, 2], [3, 3]]
