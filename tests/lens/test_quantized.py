"""Packed weights under the bridge: heads are gated rightly, or the model is refused by name."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

import cs_heads as cs
from cs_heads.lens import fingerprint, load_model, settings_of
from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.checks import checks_of
from tests.plain import plain_logprob, units_replaced
from tests.tiny import N_HEADS, N_LAYERS, choice_records, make_hf_model


class Packed(nn.Module):
    """A linear map as GPTQ's modules keep it: four bits a weight, eight of them a word, a scale for each output."""

    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(dim=1, keepdim=True) / 7
        bits = ((weight / scale).round().long() + 8).reshape(linear.out_features, -1, 8)
        words = (bits << (4 * torch.arange(8))).sum(dim=2)
        self.register_buffer("qweight", (words - (words >= 2**31) * 2**32).int())
        self.register_buffer("scales", scale)

    def forward(self, x):
        bits = (self.qweight[:, :, None] >> (4 * torch.arange(8, dtype=torch.int32))) & 15
        return x @ ((bits.flatten(1) - 8) * self.scales).T


def pack(model):
    """Every linear map of the layers in four bits, as a GPTQ checkpoint has them."""
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, nn.Linear):
                    setattr(part, name, Packed(linear))
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    return model


def bridged(model, folder):
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(
        str(folder), hf_model=model, tokenizer=AutoTokenizer.from_pretrained(folder), device="cpu"
    )


def checked(hf, folder):
    """The bridge around a packed model, which has its log-probabilities, heads off or not, and every shortcut."""
    # A bridge puts modules of its own into the model that it is made of.
    plain, model = copy.deepcopy(hf), load_model(bridged(hf, folder))
    assert abilities(model) == Abilities()
    task = cs.Task.from_records(choice_records(np.random.default_rng(0), 4))
    masks = np.random.default_rng(1).random((3, N_LAYERS, N_HEADS)) < 0.3
    together, alone = (cs.Experiment(model, task, batch_tokens=n, progress=False) for n in (400, 1))
    found = together.logprob(masks)
    np.testing.assert_allclose(found, alone.logprob(masks), atol=1e-4)
    for mask, row in zip(masks, found, strict=True):
        with units_replaced(plain, "heads", mask):
            for example, tokens, logprob in zip(task.examples, together.encoded, row, strict=True):
                wanted = plain_logprob(plain, tokens.prompt, tokens.continuations[example.answer])
                assert logprob == pytest.approx(wanted, abs=1e-4)
    found = {check.name: check for check in checks_of(model, None)}
    assert found["hook_z"].status == "ok", str(found["hook_z"])
    return model


def test_heads_of_a_gptq_like_model_are_those_of_plain_hugging_face(folders):
    model = checked(pack(make_hf_model("llama")), folders("llama"))
    # What is packed is told apart in a store, scales and all.
    before = settings_of(model)["buffers"]
    model.blocks[0].attn.o.original_component.scales.mul_(2)
    assert settings_of(model)["buffers"] != before


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        ({"quant_method": "hqq"}, "its weights are quantized by hqq, under which hook_z has not been tried"),
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            "its weights are quantized by bitsandbytes 8-bit, which makes a row's numbers depend on those that share "
            "its batch",
        ),
    ],
)
def test_other_packed_weights_are_refused_by_name(folders, packed, why):
    model = bridged(make_hf_model("llama"), folders("llama"))
    model.original_model.config.quantization_config = packed
    with pytest.raises(ValueError, match=f"is not supported: {why}; load it in bfloat16, or as a bridge"):
        load_model(model)


def test_a_hooked_transformer_that_packs_its_weights_is_refused(load, backend, monkeypatch):
    model = load("llama", backend)
    monkeypatch.setattr(model.cfg, "load_in_4bit", True, raising=False)
    with pytest.raises(
        ValueError, match="quantized by HookedTransformer itself, under which hook_z has not been tried"
    ):
        load_model(model)


def test_heads_of_a_4_bit_model_are_those_of_plain_hugging_face(folders):
    pytest.importorskip("bitsandbytes", reason="4-bit weights are tried where bitsandbytes is installed")
    options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
    how = {"quantization_config": BitsAndBytesConfig(**options), "device_map": "cpu", "dtype": "float32"}
    model = checked(AutoModelForCausalLM.from_pretrained(folders("llama"), **how), folders("llama"))
    before = fingerprint(model)
    model.blocks[0].attn.o.original_component.weight.quant_state.absmax.mul_(2)
    assert fingerprint(model) != before
