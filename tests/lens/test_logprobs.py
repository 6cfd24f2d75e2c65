"""Scores under per-row gates equal plain Hugging Face, one row at a time."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cs_heads.lens import load_model
from cs_heads.lens.forward import logits_at, pad
from tests.on_model import target_logprobs
from tests.plain import plain_score
from tests.tiny import N_HEADS, N_LAYERS, make_hf_model, make_tokenizer, saved

SHAPE = (N_LAYERS, N_HEADS)


@pytest.fixture
def hand_worked(tmp_path):
    """One layer, two heads of two dimensions, uniform attention, W_O swaps the heads' places.

    Token 0 embeds as (1, 1, 1, 1), token 1 as (1, -1, 1, -1); both have root mean square 1, so the
    first norm changes nothing. V is the identity, so after tokens 0, 1 each head's z is their mean,
    (1, 0). W_O doubles z and moves head 0 to dimensions 2, 3 and head 1 to dimensions 0, 1. The
    unembedding reads dimensions 0 and 2.
    """
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2,
            hidden_size=4,
            intermediate_size=4,
            max_position_embeddings=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            rms_norm_eps=1e-12,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        for parameter in (attention.q_proj, attention.k_proj, model.model.layers[0].mlp.down_proj):
            parameter.weight.zero_()
        attention.v_proj.weight.copy_(torch.eye(4))
        attention.o_proj.weight.copy_(2 * torch.eye(4)[[2, 3, 0, 1]])
        model.model.embed_tokens.weight.copy_(torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1]]))
        model.lm_head.weight.copy_(torch.eye(4)[[0, 2]])
    return saved(model, tmp_path)


def test_ablated_output_equals_the_one_worked_out_by_hand(hand_worked, backend):
    """After tokens 0, 1 the residual is (1, -1, 1, -1) + (2, 0 | 2, 0), the left part from head 1."""
    model = load_model(hand_worked, device="cpu", backend=backend)
    gates = torch.tensor([[[1.0, 1.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[0.0, 0.0]], [[0.5, 1.0]]])
    scores = target_logprobs(model, [[0, 1]] * 5, [[0]] * 5, gates)

    def logprob_of_token_0(x0, x2):
        rms = math.sqrt((x0**2 + 1 + x2**2 + 1) / 4)
        return -math.log(1 + math.exp((x2 - x0) / rms))

    by_hand = [logprob_of_token_0(*x) for x in [(3, 3), (3, 1), (1, 3), (1, 1), (3, 2)]]
    np.testing.assert_allclose(scores.logprob, by_hand, atol=1e-5)


def test_heads_are_cut_before_w_o(hand_worked, backend):
    """Cutting head 0 out of the attention output, after W_O, would raise token 1 and not token 0."""
    model = load_model(hand_worked, device="cpu", backend=backend)
    cut = target_logprobs(model, [[0, 1]], [[0]], torch.tensor([[[0.0, 1.0]]])).logprob[0]
    after_w_o = -math.log(1 + math.exp((3 - 1) / math.sqrt(3)))
    assert cut == pytest.approx(-math.log(1 + math.exp((1 - 3) / math.sqrt(3))), abs=1e-5)
    assert abs(cut - after_w_o) > 1


def test_logits_exist_only_where_targets_are_predicted(load, backend):
    """However long the prompt, one row of logits comes back for each target token."""
    model = load("gpt2", backend)
    tokens, attention_mask = pad([[5] * 40] * 3)
    sizes = []
    handle = model.unembed.register_forward_hook(lambda module, arguments, output: sizes.append(output.shape))
    try:
        with torch.no_grad():
            logits = logits_at(model, tokens, attention_mask, (torch.tensor([0, 2]), torch.tensor([39, 5])))
    finally:
        handle.remove()
    assert logits.shape == (2, len(make_tokenizer()))
    assert sizes == [(1, 2, len(make_tokenizer()))]


def test_log_softmax_is_float32_for_half_precision_weights(folders, backend):
    """Log-probabilities of a bfloat16 model over the whole vocabulary sum to one far closer than bfloat16 could."""
    model = load_model(folders("llama"), device="cpu", dtype="bfloat16", backend=backend)
    vocabulary = range(len(make_tokenizer()))
    scores = target_logprobs(model, [[1, 4, 5]] * len(vocabulary), [[token] for token in vocabulary])
    assert np.exp(scores.logprob).sum() == pytest.approx(1, abs=1e-5)
    reference = plain_score(make_hf_model("llama"), [1, 4, 5], [7], np.zeros(SHAPE, bool))[0]
    assert scores.logprob[7] == pytest.approx(reference, abs=0.15)
