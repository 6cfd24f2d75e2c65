"""Circuits of single tokens, and one head off at one place, are what plain Hugging Face gives by hand."""

import numpy as np
import pytest
import torch

from cs_heads.lens.batches import TokenBudget
from cs_heads.lens.circuits import Margins, logits_written, token_circuits
from cs_heads.units import Grid, Head
from tests.lens.test_direct import difference, without
from tests.plain import units_given, units_replaced
from tests.tiny import N_HEADS, N_LAYERS, make_hf_model

HEADS = [Head(0, 1), Head(2, 3)]
TOKENS = [*range(3, 23)]
ROWS = [(1, 4, 5, 9), (1, 7, 3, 2, 8, 6)]
ANSWERS = np.array([[5, 9], [3, 14]])
ROOM = TokenBudget(64)


@pytest.fixture(params=["gpt2", "llama", "qwen2", "gemma2"])
def architecture(request):
    return request.param


def by_hand(architecture, head):
    """z, queries and keys of a head from each token's embedding, and the logits that it writes without a scale."""
    hf = make_hf_model(architecture)
    embedded = hf.get_input_embeddings().weight[TOKENS] * (32**0.5 if architecture == "gemma2" else 1)
    block = hf.transformer.h[head.layer] if architecture == "gpt2" else hf.model.layers[head.layer]
    mine, group = (slice(8 * index, 8 * index + 8) for index in (head.head, head.head // 2))
    if architecture == "gpt2":
        first = hf.transformer.h[0]
        embedded = embedded + first.mlp(first.ln_2(embedded)) if head.layer else embedded
        queries, keys, z = (part[:, mine] for part in block.attn.c_attn(block.ln_1(embedded)).split(32, dim=1))
        out, last = block.attn.c_proj.weight[mine], hf.transformer.ln_f
        read = last.weight[:, None] * hf.lm_head.weight.T
        return z, queries, keys, (z @ out - (z @ out).mean(dim=1, keepdim=True)) @ read[:, TOKENS]
    if head.layer:
        first = hf.model.layers[0]
        if architecture == "gemma2":
            added = first.post_feedforward_layernorm(first.mlp(first.pre_feedforward_layernorm(embedded)))
        else:
            added = first.mlp(first.post_attention_layernorm(embedded))
        embedded = embedded + added
    attention, x = block.self_attn, block.input_layernorm(embedded)
    z, keys, queries = attention.v_proj(x)[:, group], attention.k_proj(x)[:, group], attention.q_proj(x)[:, mine]
    weight = hf.model.norm.weight + (architecture == "gemma2")
    written = z @ attention.o_proj.weight[:, mine].T
    if architecture == "gemma2":
        # The norm behind the heads, its scale that of the whole layer.
        values = attention.v_proj(x).unflatten(1, (2, 8)).repeat_interleave(2, dim=1).flatten(1)
        whole = attention.o_proj(values)
        scale = (whole.square().mean(dim=1, keepdim=True) + 1e-6).sqrt()
        written = written / scale * (1 + block.post_attention_layernorm.weight)
    return z, queries, keys, (written * weight) @ hf.lm_head.weight.T[:, TOKENS]


def centered(table):
    return table - table.mean(0, keepdims=True) - table.mean(1, keepdims=True) + table.mean()


def test_single_tokens_make_heads_do_what_their_weights_say(load, architecture, backend):
    found = token_circuits(load(architecture, backend), TOKENS, len(TOKENS), HEADS)
    for place, head in enumerate(HEADS):
        with torch.no_grad():
            z, queries, keys, written = (part.numpy() for part in by_hand(architecture, head))
        np.testing.assert_allclose(found.z[place], z, atol=1e-4)
        np.testing.assert_allclose(found.matches[place], queries @ keys.T, atol=1e-3)
        scale = found.moves[place].std() / centered(written).std()
        np.testing.assert_allclose(found.moves[place], scale * centered(written), atol=1e-3 * found.moves[place].std())
        values = np.linalg.eigvals(centered(written).astype(float))
        expected = values.real.sum() / np.abs(values).sum()
        assert found.copying[head.layer, head.head] == pytest.approx(expected, abs=1e-3)
    assert all(not point.fwd_hooks for point in load(architecture, backend).hook_dict.values())


def test_logits_that_heads_write_are_those_lost_with_the_scales_of_norms_held(load, architecture, backend):
    plain = make_hf_model(architecture)
    z, logits = logits_written(load(architecture, backend), ROWS, HEADS, ROOM)
    given = torch.stack([units_given(plain, "heads", row, N_HEADS)[:, -1] for row in ROWS])
    assert logits.mean(axis=1) == pytest.approx(np.zeros(len(HEADS)), abs=1e-5)
    for place, head in enumerate(HEADS):
        np.testing.assert_allclose(z[:, place], given[:, head.layer, head.head], atol=1e-4)
        for right, wrong in [(5, 9), (3, 14), (22, 0)]:
            pair = right, wrong
            lost = [
                difference(plain, row, pair) - without(plain, row, pair, head.layer, head.head, held=True)
                for row in ROWS
            ]
            assert logits[place, right] - logits[place, wrong] == pytest.approx(np.mean(lost), abs=1e-4)


def test_a_head_is_off_at_the_places_given_alone(load, architecture, backend):
    model, plain = load(architecture, backend), make_hf_model(architecture)
    margins = Margins(model, ROWS, ANSWERS, HEADS, ROOM)
    order, places = [1, 0, 1, 1], [[2, 5], [0, 1, 2, 3], [], [2]]
    off = [np.isin(np.arange(len(ROWS[row])), where) for row, where in zip(order, places, strict=True)]
    for head in HEADS:
        mask = Grid(N_LAYERS, N_HEADS).mask([head])
        for row, where, margin in zip(order, places, margins.without(head, off, order), strict=True):
            with units_replaced(plain, "heads", mask, where=where):
                expected = difference(plain, ROWS[row], ANSWERS[row])
            assert margin == pytest.approx(expected, abs=1e-4)
            acts = bool(where) and (head.layer < N_LAYERS - 1 or len(ROWS[row]) - 1 in where)
            assert (abs(margin - margins.intact[row]) > 1e-4) == acts


def test_with_a_head_off_the_blocks_before_it_do_not_run_again(load, backend):
    model, ran = load("llama", backend), list[int]()
    margins = Margins(model, ROWS, ANSWERS, HEADS, ROOM)
    for layer in range(N_LAYERS):
        model.hook_dict[f"blocks.{layer}.attn.hook_z"].add_hook(lambda z, hook, layer=layer: ran.append(layer))
    try:
        margins.without(HEADS[1], [np.ones(len(row), dtype=bool) for row in ROWS])
    finally:
        model.reset_hooks()
    assert ran == [2]
