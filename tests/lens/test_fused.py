"""Fused attention on a bridge: the same numbers, hooks still heard, everything put back."""

import pytest
import torch

from cs_heads.lens.abilities import abilities
from cs_heads.lens.forward import logits_at
from cs_heads.lens.fused import fused_attention, why_not_fused
from tests.tiny import N_HEADS, N_LAYERS

SHAPE = (N_LAYERS, N_HEADS)


def rows(n=4, length=7, seed=0):
    """Random tokens of unequal length, their mask, and random gates."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 23, (n, length), generator=generator)
    mask = (torch.arange(length) < torch.arange(length - n + 1, length + 1)[:, None]).long()
    gates = (torch.rand(n, *SHAPE, generator=generator) > 0.3).float()
    return tokens, mask, gates


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_fused_kernel_is_what_runs(load, architecture, monkeypatch):
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted(*arguments, **keywords):
        calls.append(arguments[0].shape)
        return kernel(*arguments, **keywords)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    tokens, mask, gates = rows()
    with torch.no_grad():
        logits_at(load(architecture), tokens, mask, gates=gates)
        assert not calls
        logits_at(load(architecture), tokens, mask, gates=gates, fused=True)
    assert len(calls) == N_LAYERS


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_everything_is_put_back_also_after_an_exception(load, architecture):
    model = load(architecture)
    tokens, mask, gates = rows()

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
        logits_at(model, tokens, mask, gates=gates, fused=True)
    assert state() == before


def test_a_listener_inside_attention_keeps_it_eager(load, caplog):
    """Whoever has a hook on the pattern gets the pattern, and the log says what that costs."""
    caplog.set_level("INFO", "cs_heads")
    model = load("llama")
    seen = []
    # One on z is heard all the same.
    model.hook_dict["blocks.1.attn.hook_z"].add_hook(lambda z, hook: z)
    assert why_not_fused(model) is None
    model.hook_dict["blocks.1.attn.hook_pattern"].add_hook(lambda pattern, hook: seen.append(pattern.shape))
    try:
        assert not abilities(model).fused
        assert seen
        assert "without fused attention on" in caplog.text
        assert "a hook listens inside attention" in caplog.text
    finally:
        model.reset_hooks()
    assert why_not_fused(model) is None


def test_soft_caps_stay_eager(load, monkeypatch):
    """The fused kernel has no soft cap: Gemma 2 keeps the bridge's own attention, and so does any layer with a cap."""
    assert why_not_fused(load("gemma2")) is not None
    inner = load("llama").blocks[1].attn.original_component
    monkeypatch.setattr(inner, "attn_logit_softcapping", 30.0, raising=False)
    assert why_not_fused(load("llama")) == "the fused kernel has no soft caps and no sinks"
