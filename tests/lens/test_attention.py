import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cs_heads.lens.attention import attention_patterns
from cs_heads.units import Grid, Head
from tests.plain import units_replaced
from tests.tiny import ARCHITECTURES, N_HEADS, N_LAYERS

GRID = Grid(N_LAYERS, N_HEADS)
TOKENS = (1, 5, 9, 7, 5, 12, 3)


def plain_patterns(folder, tokens, off=()):
    """Attention ``[layer, head, query, key]`` of the same model in plain Hugging Face, computed eagerly."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad(), units_replaced(model, "heads", GRID.mask(off)):
        return torch.cat(model(torch.tensor([tokens]), output_attentions=True).attentions).numpy()


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "neo"])
@pytest.mark.parametrize("off", [(), (Head(0, 1), Head(1, 3))], ids=["intact", "heads off"])
def test_patterns_are_those_of_plain_hugging_face(load, folders, backend, architecture, off):
    expected = plain_patterns(folders(architecture), TOKENS, off)
    heads = list(GRID)
    patterns = attention_patterns(load(architecture, backend), TOKENS, heads, GRID.mask(off) if off else None)
    assert patterns.shape == (len(heads), len(TOKENS), len(TOKENS))
    np.testing.assert_allclose(patterns, expected.reshape(patterns.shape), atol=1e-5)


def test_a_model_that_does_not_show_its_patterns_is_refused(load, backend, monkeypatch):
    model = load("llama", backend)
    hooks = {name: point for name, point in model.hook_dict.items() if name != "blocks.1.attn.hook_pattern"}
    monkeypatch.setattr(type(model), "hook_dict", property(lambda _: hooks), raising=False)
    with pytest.raises(ValueError, match=r"no hook point blocks\.1\.attn\.hook_pattern"):
        attention_patterns(model, TOKENS, [Head(1, 0)])
