"""Fused attention on a bridge: the same numbers, hooks still heard, everything put back."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
import torch

from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.forward import logits_at
from cs_heads.lens.fused import fused_attention, why_not_fused
from tests.tiny import N_HEADS, N_LAYERS, make_hf_model

SHAPE = (N_LAYERS, N_HEADS)


def rows(n=4, length=7, seed=0):
    """Random tokens of unequal length, their mask, random gates, and every (row, position) that holds a token."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 23, (n, length), generator=generator)
    mask = (torch.arange(length) < torch.arange(length - n + 1, length + 1)[:, None]).long()
    gates = (torch.rand(n, *SHAPE, generator=generator) > 0.3).float()
    return tokens, mask, gates, dict(zip(("row", "position"), mask.nonzero(as_tuple=True), strict=True))


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2"])
def test_fused_logits_equal_those_of_the_bridge(load, architecture):
    model = load(architecture)
    tokens, mask, gates, at = rows()
    with torch.no_grad():
        eager = logits_at(model, tokens, mask, gates=gates, **at)
        fused = logits_at(model, tokens, mask, gates=gates, fused=True, **at)
    assert why_not_fused(model) is None
    np.testing.assert_allclose(fused, eager, atol=2e-5)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2"])
def test_the_fused_kernel_is_what_runs(load, architecture, monkeypatch):
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted(*arguments, **keywords):
        calls.append(arguments[0].shape)
        return kernel(*arguments, **keywords)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    tokens, mask, gates, at = rows()
    with torch.no_grad():
        logits_at(load(architecture), tokens, mask, gates=gates, **at)
        assert not calls
        logits_at(load(architecture), tokens, mask, gates=gates, fused=True, **at)
    assert len(calls) == N_LAYERS


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_everything_is_put_back_also_after_an_exception(load, architecture):
    model = load(architecture)
    tokens, mask, gates, at = rows()

    def state():
        inner = [dict(block.attn.original_component._modules) for block in model.blocks]
        forwards = ["forward" in vars(block.attn) for block in model.blocks]
        return inner, forwards, model.original_model.config._attn_implementation

    def fail():
        with fused_attention(model):
            assert state() != before
            raise RuntimeError("stop")

    before = state()
    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert state() == before
    with torch.no_grad():
        logits_at(model, tokens, mask, gates=gates, fused=True, **at)
    assert state() == before


def test_a_listener_inside_attention_keeps_it_eager(load, caplog):
    """Whoever has a hook on the pattern gets the pattern, and the log says what that costs."""
    caplog.set_level("INFO", "cs_heads")
    model = load("llama")
    seen = []
    point = model.hook_dict["blocks.1.attn.hook_pattern"]
    point.add_hook(lambda pattern, hook: seen.append(pattern.shape))
    try:
        assert not abilities(model).fused
        assert seen
        assert "without fused attention on" in caplog.text
        assert "a hook listens inside attention" in caplog.text
    finally:
        model.reset_hooks()
    assert why_not_fused(model) is None


def test_a_listener_to_gradients_inside_attention_keeps_it_eager_too(load):
    model = load("llama")
    model.hook_dict["blocks.1.attn.hook_pattern"].add_hook(lambda gradient, hook: None, dir="bwd")
    try:
        assert why_not_fused(model) == "a hook listens inside attention"
    finally:
        model.reset_hooks()


def test_a_listener_on_hook_z_does_not(load):
    model = load("llama")
    model.hook_dict["blocks.1.attn.hook_z"].add_hook(lambda z, hook: z)
    try:
        assert why_not_fused(model) is None
    finally:
        model.reset_hooks()


def test_soft_caps_stay_eager(load, monkeypatch):
    """The fused kernel has no soft cap: Gemma 2 keeps the bridge's own attention, and so does any layer with a cap."""
    assert why_not_fused(load("gemma2")) is not None
    inner = load("llama").blocks[1].attn.original_component
    monkeypatch.setattr(inner, "attn_logit_softcapping", 30.0, raising=False)
    assert why_not_fused(load("llama")) == "the fused kernel has no soft caps and no sinks"


def test_hooked_transformer_has_nothing_to_swap(load, backend):
    assert why_not_fused(load("llama", backend)) == (None if backend == "bridge" else "the model is no bridge")


def test_a_short_cut_that_gives_other_numbers_is_not_taken(load, monkeypatch, caplog):
    from transformers.models.llama import modeling_llama

    caplog.set_level("INFO", "cs_heads")
    monkeypatch.setitem(
        modeling_llama.ALL_ATTENTION_FUNCTIONS,
        "sdpa",
        lambda module, q, k, v, *_, **__: (v.repeat_interleave(2, dim=1).transpose(1, 2).contiguous(), None),
    )
    able = abilities(load("llama"))
    assert able == Abilities(fused=False)
    assert "without fused attention on" in caplog.text


@pytest.fixture
def padded_forward():
    """A padded forward of a plain Hugging Face model, through the kernel."""
    model = make_hf_model("llama")
    model.set_attn_implementation("sdpa")
    tokens, mask, *_ = rows()

    def logits():
        with torch.no_grad():
            return model(tokens.flip(1), attention_mask=mask.flip(1)).logits[mask.flip(1).bool()]

    return logits


def in_a_thread(run):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def test_models_of_others_keep_their_masks_meanwhile_and_afterward(load, padded_forward):
    expected = padded_forward()
    with fused_attention(load("llama"), padded=False):
        # Here a mask would be left out; what another thread computes has its own.
        assert not torch.equal(padded_forward(), expected)
        assert torch.equal(in_a_thread(padded_forward), expected)
    assert torch.equal(padded_forward(), expected)
    assert torch.equal(in_a_thread(padded_forward), expected)


def test_threads_that_interleave_leave_nothing_behind(load, padded_forward):
    """A enters, B enters, A leaves, B leaves: each has its own, and in the end nobody's masks are left out."""
    expected = padded_forward()
    entered, left = Event(), Event()

    def other():
        with fused_attention(load("gpt2"), padded=True):
            entered.set()
            assert left.wait(60)
            return padded_forward()

    with ThreadPoolExecutor(1) as pool:
        with fused_attention(load("llama"), padded=False):
            running = pool.submit(other)
            assert entered.wait(60)
            without = padded_forward()
        left.set()
        np.testing.assert_allclose(running.result(), expected, atol=2e-5)
    assert not torch.equal(without, expected)
    assert torch.equal(padded_forward(), expected)
    assert torch.equal(in_a_thread(padded_forward), expected)


def test_the_innermost_block_says_whether_masks_are_left_out(load, padded_forward):
    expected = padded_forward()
    with fused_attention(load("llama"), padded=False):
        without = padded_forward()
        with fused_attention(load("gpt2"), padded=True):
            np.testing.assert_allclose(padded_forward(), expected, atol=2e-5)
        assert torch.equal(padded_forward(), without)
    assert torch.equal(padded_forward(), expected)


def test_transformers_is_told_once(load):
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

    with fused_attention(load("llama")):
        first = MASKS["sdpa"]
    with fused_attention(load("llama"), padded=False):
        assert MASKS["sdpa"] is first
    assert MASKS["sdpa"] is first
    assert not MASKS._local_mapping


def test_models_of_others_are_still_compiled_whole(load):
    """With a mask, by ``torch.compile``, which cannot trace all that Python does."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

    with fused_attention(load("llama")):
        pass

    def mask(attention_mask):
        return MASKS["sdpa"](batch_size=1, q_length=3, kv_length=3, attention_mask=attention_mask)

    given = torch.tensor([[False, True, True]])
    assert torch.equal(torch.compile(mask, backend="eager", fullgraph=True)(given), mask(given))
