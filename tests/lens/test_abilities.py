"""Short cuts are tried on the model before they are taken."""

import pytest
import torch

from cs_heads.lens.abilities import PLAIN, Abilities, abilities
from cs_heads.lens.cache import Extension
from tests.tiny import make_native_bridge


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2", "neo"])
def test_every_architecture_takes_what_is_exact_on_it(load, backend, architecture):
    fused = backend == "bridge" and architecture != "neo"
    assert abilities(load(architecture, backend)) == Abilities(fused=fused)


def test_only_what_is_wanted_is_tried(load, monkeypatch):
    from cs_heads.lens.abilities import _Trial

    monkeypatch.setattr(_Trial, "agrees", lambda self, name, *_: pytest.fail(f"tried {name}"))
    assert abilities(load("llama"), PLAIN) == PLAIN


def test_a_native_bridge_ignores_stored_keys_and_values(caplog):
    """A model TransformerLens builds itself takes no cache; everything else works."""
    caplog.set_level("INFO", "cs_heads")
    able = abilities(make_native_bridge())
    assert not able.extend
    assert not able.fused
    assert "without stored keys and values on" in caplog.text


def test_a_short_cut_whose_logits_are_no_numbers_is_not_taken(load, backend, monkeypatch):
    from cs_heads.lens.abilities import _Trial

    monkeypatch.setattr(_Trial, "resumed", lambda self, fused: torch.full((1, 1), float("nan")))
    assert not abilities(load("llama", backend)).resume


def test_stored_values_of_another_row_would_be_noticed(load, backend, monkeypatch):
    swapped = Extension._old

    def wrong_rows(self, layer, like, of_values=False):
        old = swapped(self, layer, like, of_values)
        return None if old is None else old.flip(0)

    monkeypatch.setattr(Extension, "_old", wrong_rows)
    assert not abilities(load("llama", backend)).extend


def test_a_residual_of_another_layer_would_be_noticed(load, backend, monkeypatch):
    from cs_heads.lens import abilities as module
    from cs_heads.lens.forward import Resumed

    monkeypatch.setattr(module, "Resumed", lambda layer, residual: Resumed(layer, residual * 1.01))
    assert not abilities(load("llama", backend)).resume


def test_fused_attention_that_differs_is_left_out_and_nothing_else(load, monkeypatch):
    """What resumes at a later layer is tried by it, and then once more without it."""
    from cs_heads.lens.abilities import _Trial

    logits = _Trial.logits
    wrong = {True: 1.01, False: 1.0}
    monkeypatch.setattr(_Trial, "logits", lambda self, **how: logits(self, **how) * wrong[how.get("fused", False)])
    assert abilities(load("llama")) == Abilities(fused=False)


def test_nothing_is_tried_twice(load, backend, monkeypatch):
    from cs_heads.lens.abilities import _Trial

    tried = []
    monkeypatch.setattr(_Trial, "agrees", lambda self, name, _: bool(tried.append(name)))
    assert abilities(load("llama", backend)) == PLAIN
    assert len(tried) == len({*tried})
    assert tried[-2:] == ["resuming at a later layer", "stored keys and values"]
