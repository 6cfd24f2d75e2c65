"""Gates come and go without a trace, whatever happens inside."""

import pytest
import torch

from cs_heads.lens import gated
from tests.tiny import N_HEADS, N_LAYERS

TOKENS = torch.tensor([[1, 4, 5, 6]])
ALL_OFF = torch.zeros(1, N_LAYERS, N_HEADS)


def hooks_of(model):
    return {name: list(point.fwd_hooks) for name, point in model.hook_dict.items() if point.fwd_hooks}


def torch_hooks_of(model):
    return sum(len(point._forward_hooks) for point in model.hook_dict.values())


def test_gates_are_gone_after_the_block_and_when_the_model_itself_raises(load, backend):
    model = load("gpt2", backend)
    before, count = model(TOKENS), torch_hooks_of(model)
    with gated(model, ALL_OFF):
        assert not torch.allclose(model(TOKENS), before, atol=1e-2)
    assert torch.equal(model(TOKENS), before)
    with pytest.raises(ValueError, match="gates have 1 rows, the batch has 2"), gated(model, ALL_OFF):
        model(TOKENS.repeat(2, 1))
    assert (hooks_of(model), torch_hooks_of(model)) == ({}, count)


def test_hooks_of_others_stay_and_fire(load, backend):
    """A user's own hook on the same point survives, permanent or not, and sees the intact z first."""
    model = load("llama", backend)
    point = model.hook_dict["blocks.1.attn.hook_z"]
    seen = []
    point.add_hook(lambda z, hook: seen.append(z.detach().abs().sum().item()))
    point.add_hook(lambda z, hook: seen.append(z.detach().abs().sum().item()), is_permanent=True)
    handles = list(point.fwd_hooks)
    try:
        with gated(model, ALL_OFF):
            model(TOKENS)
        assert list(point.fwd_hooks) == handles
        assert len(seen) == 2
        assert min(seen) > 0
        model(TOKENS)
        assert len(seen) == 4
    finally:
        model.reset_hooks(including_permanent=True)


def test_output_bias_stays_when_every_head_is_off(load, backend):
    """With all heads off the attention output is exactly b_O."""
    model = load("gpt2", backend)
    outputs = []
    with gated(model, ALL_OFF):
        model.run_with_hooks(
            TOKENS, fwd_hooks=[("blocks.0.hook_attn_out", lambda x, hook: outputs.append(x.detach().clone()))]
        )
    torch.testing.assert_close(outputs[0][0, 2], model.blocks[0].attn.b_O.detach())


def test_gates_of_another_grid_are_refused(load):
    with (
        pytest.raises(ValueError, match=r"gates must be \[batch, 3, 4\], got \[1, 4, 3\]"),
        gated(load("llama"), torch.ones(1, 4, 3)),
    ):
        pass
