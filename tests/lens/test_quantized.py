"""Packed weights under the bridge: heads are gated rightly, or the model is refused by name."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

import cs_heads as cs
from cs_heads.lens import fingerprint, load_model, settings_of
from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.checks import checks_of
from cs_heads.lens.gates import gated
from cs_heads.lens.model import evaluating
from cs_heads.units import HeadGrid
from tests.plain import units_replaced
from tests.tiny import choice_records, saved

N_LAYERS, N_HEADS = 3, 4
TOKENS = torch.tensor([[1, 4, 5, 6, 7, 8], [1, 9, 10, 3, 4, 5]])


class Packed(nn.Module):
    """A linear map as GPTQ's modules keep it: four bits a weight, eight of them a word, a scale for each output."""

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.abs().amax(dim=1, keepdim=True) / 7
        bits = ((linear.weight / scale).round().long() + 8).reshape(linear.out_features, -1, 8)
        words = (bits << (4 * torch.arange(8))).sum(dim=2)
        self.register_buffer("qweight", (words - (words >= 2**31) * 2**32).int())
        self.register_buffer("scales", scale)

    def forward(self, x):
        bits = (self.qweight[:, :, None] >> (4 * torch.arange(8, dtype=torch.int32))) & 15
        return x @ ((bits.flatten(1) - 8) * self.scales).T


@pytest.fixture
def plain():
    """A tiny Llama, and the folder of its configuration and tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=2,
        hidden_size=128,
        intermediate_size=192,
        vocab_size=23,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture
def folder(plain, tmp_path):
    return saved(plain, tmp_path)


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


def check_right(hf, folder):
    """The bridge around a packed model has its log-probabilities, heads off or not, and every shortcut; the bridge."""
    masks = [HeadGrid(N_LAYERS, N_HEADS).mask(off) for off in ([], ["L0H1"], ["L1H2"], ["L2H3"])]
    expected = []
    for mask in masks:
        with torch.no_grad(), units_replaced(hf, "heads", mask):
            expected.append(hf(TOKENS, use_cache=False).logits.log_softmax(dim=-1))
    model = load_model(bridged(hf, folder))
    for number, (mask, wanted) in enumerate(zip(masks, expected, strict=True)):
        assert not number or (wanted - expected[0]).abs().max() > 0.01
        gates = torch.from_numpy(~mask).float().expand(len(TOKENS), -1, -1)
        with evaluating(model), gated(model, gates):
            found = model(TOKENS).log_softmax(dim=-1)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    assert abilities(model) == Abilities()
    return model


def check_measured(model):
    """Masks and texts of a batch are those of each pair by itself."""
    task = cs.Task.from_records(choice_records(np.random.default_rng(0), 4))
    masks = np.random.default_rng(1).random((3, N_LAYERS, N_HEADS)) < 0.3
    together, alone = (cs.Experiment(model, task, batch_tokens=n, progress=False) for n in (400, 1))
    np.testing.assert_allclose(together.logprob(masks), alone.logprob(masks), atol=1e-4)
    assert together.generate(masks[:1], max_new_tokens=4).shape == (1, 4)


def test_heads_of_a_gptq_like_model_are_those_of_plain_hugging_face(plain, folder):
    model = check_right(pack(plain), folder)
    check_measured(model)
    found = {check.name: check for check in checks_of(model, None)}
    assert found["hook_z"].status == "ok", str(found["hook_z"])
    # What is packed is told apart in a store, scales and all.
    before = settings_of(model)["buffers"]
    model.blocks[0].attn.o.original_component.scales.mul_(2)
    assert settings_of(model)["buffers"] != before


def test_a_gate_that_does_not_reach_a_packed_projection_is_seen(plain, folder):
    """The check can fail: here W_O takes z from before the hook."""
    model = load_model(bridged(pack(plain), folder))
    attention = model.blocks[1].attn
    kept = []
    attention.o.hook_in.register_forward_pre_hook(lambda module, arguments: kept.append(arguments[0].clone()))
    attention.o.original_component.register_forward_pre_hook(lambda module, arguments: (kept[-1].clone(),))
    found = {check.name: check for check in checks_of(model, None)}
    assert found["hook_z"].status == "fail"


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
def test_other_packed_weights_are_refused_by_name(plain, folder, packed, why):
    model = bridged(plain, folder)
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


def test_heads_of_a_4_bit_model_are_those_of_plain_hugging_face(folder):
    pytest.importorskip("bitsandbytes", reason="4-bit weights are tried where bitsandbytes is installed")
    options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
    how = {"quantization_config": BitsAndBytesConfig(**options), "device_map": "cpu", "dtype": "float32"}
    model = check_right(AutoModelForCausalLM.from_pretrained(folder, **how), folder)
    check_measured(model)
    found = {check.name: check for check in checks_of(model, None)}
    assert found["hook_z"].status == "ok", str(found["hook_z"])
    before = fingerprint(model)
    model.blocks[0].attn.o.original_component.weight.quant_state.absmax.mul_(2)
    assert fingerprint(model) != before
