"""Forwards that start at a later layer: blocks are skipped and put back. Their numbers: ``tests/engine``."""

import pytest
import torch

from cs_heads.lens.forward import Resumed, logits_at, recorded, resumed
from tests.lens.test_fused import rows
from tests.tiny import N_LAYERS


def record(model, tokens, mask, layers):
    kept = {}
    with torch.no_grad(), recorded(model, layers, lambda layer, residual: kept.update({layer: residual.clone()})):
        logits_at(model, tokens, mask)
    return kept


def test_skipped_blocks_do_not_run(load, backend):
    model = load("llama", backend)
    tokens, mask, _ = rows()
    kept = record(model, tokens, mask, [1, 2])
    ran = []
    for layer in range(N_LAYERS):
        model.hook_dict[f"blocks.{layer}.attn.hook_z"].add_hook(lambda z, hook, layer=layer: ran.append(layer))
    try:
        with torch.no_grad():
            logits_at(model, tokens, mask, start=Resumed(2, kept[2]))
        assert ran == [2]
        ran.clear()
        record(model, tokens, mask, [1])
        assert ran == [0]
    finally:
        model.reset_hooks()


def test_blocks_are_put_back_also_after_an_exception(load, backend):
    model = load("llama", backend)
    tokens, mask, _ = rows()
    kept = record(model, tokens, mask, [2])

    def fail():
        with resumed(model, Resumed(2, kept[2])):
            assert "forward" in vars(model.blocks[0])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert not any("forward" in vars(block) or block._forward_pre_hooks for block in model.blocks)
