"""Short cuts are tried on the model before they are taken."""

from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel
from transformers.models.llama import modeling_llama

import cs_heads as cs
from cs_heads.engine.forwards import Forwards
from cs_heads.lens import abilities as module
from cs_heads.lens import forward
from cs_heads.lens.abilities import Abilities, abilities, why_no_gradients
from cs_heads.lens.cache import Extension
from cs_heads.lens.forward import Resumed
from cs_heads.methods.patching import PatchingExperiment
from cs_heads.tasks.pairs import PromptPair
from tests.tiny import N_HEADS, N_LAYERS, completion_task, make_native_bridge, make_tokenizer, saved


@pytest.fixture
def untried(monkeypatch):
    """Nothing is known of any model."""
    monkeypatch.setattr(module, "_FOUND", WeakKeyDictionary())


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2", "neo"])
def test_every_architecture_takes_what_is_exact_on_it(load, backend, architecture):
    fused = backend == "bridge" and architecture != "neo"
    assert abilities(load(architecture, backend)) == Abilities(fused=fused)


@pytest.mark.usefixtures("untried")
def test_a_model_is_tried_again_where_it_is_another(load, backend, monkeypatch):
    model, tried = load("llama", backend), []
    run = module._tried
    monkeypatch.setattr(module, "_tried", lambda *of: tried.append(1) or run(*of))
    first = abilities(model)
    assert abilities(model) is first
    assert len(tried) == 1
    weight = next(model.parameters())
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1.5)
        abilities(model)
        weight.copy_(kept)
    assert len(tried) == 2


@pytest.mark.usefixtures("untried")
def test_a_model_of_another_configuration_is_tried_again_and_so_is_one_for_which_memory_did_not_suffice(
    load, monkeypatch
):
    model = load("llama")

    def no_memory(*_):
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as short:
        short.setattr(module._Trial, "extended", no_memory)
        assert not abilities(model).extend
    first = abilities(model)
    assert first.extend
    monkeypatch.setattr(model.original_model.config, "rms_norm_eps", 0.5)
    assert abilities(model) is not first


def test_a_native_bridge_ignores_stored_keys_and_values(caplog):
    """A model TransformerLens builds itself takes no cache; everything else works."""
    caplog.set_level("INFO", "cs_heads")
    able = abilities(make_native_bridge())
    assert not able.extend
    assert not able.fused
    assert "without stored keys and values on" in caplog.text


def no_numbers(monkeypatch):
    monkeypatch.setattr(module._Trial, "resumed", lambda self, fused: torch.full((1, 1), float("nan")))


def residual_of_another_layer(monkeypatch):
    monkeypatch.setattr(module, "Resumed", lambda layer, residual: Resumed(layer, residual * 1.01))


def stored_values_of_another_row(monkeypatch):
    join = Extension._join
    monkeypatch.setattr(
        Extension, "_join", lambda self, old, new: join(self, None if old is None else old.flip(0), new)
    )


def other_attention(monkeypatch):
    def values_alone(module, q, k, v, *_, **__):
        return v.repeat_interleave(2, dim=1).transpose(1, 2).contiguous(), None

    monkeypatch.setitem(modeling_llama.ALL_ATTENTION_FUNCTIONS, "sdpa", values_alone)


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        *((no_numbers, "resume"), (residual_of_another_layer, "resume")),
        *((stored_values_of_another_row, "extend"), (other_attention, "fused")),
    ],
)
def test_a_short_cut_that_gives_other_numbers_is_not_taken(load, backend, monkeypatch, fault, lost):
    fault(monkeypatch)
    assert not getattr(abilities(load("llama", backend)), lost)


def forget_what_is_stored(monkeypatch):
    """As transformers 5.24 does under TransformerLens 4.3: its own attention stores, and that of a bridge does not."""
    from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge

    monkeypatch.setattr(module, "_FOUND", WeakKeyDictionary())
    monkeypatch.setattr(AttentionBridge, "_update_kv_cache", lambda self, keys, values, **_: (keys, values))


def test_a_bridge_that_stores_nothing_is_seen_in_the_way_in_which_gradients_are_taken(load, monkeypatch, caplog):
    """Fused attention stores all the same: it alone does not tell of the others."""
    caplog.set_level("INFO", "cs_heads")
    model = load("llama")
    assert why_no_gradients(model) is None
    forget_what_is_stored(monkeypatch)
    assert abilities(model).extend
    assert why_no_gradients(model) == "not every layer stores keys and values"
    assert not abilities(model, Abilities(fused=False)).extend
    assert "without gradients through stored keys and values on" in caplog.text


def test_gradients_are_right_where_a_bridge_stores_nothing(load, monkeypatch):
    """As those of whole texts, of which what prompts begin with alike is most."""
    begun, choices = "the cat sees the dog , the ", [" runs", " sees", " one"]
    records = [{"prompt": begun + word, "choices": choices, "answer": 0} for word in ("bird", "king", "big dog")]
    task = cs.Task.from_records(records)
    gates, rows = np.full((1, N_LAYERS, N_HEADS), 0.7, dtype=np.float32), np.array([[0, 1, 2]])

    def found():
        return cs.Experiment(load("llama"), task, progress=False).probability_gradients(gates, rows, keep="gradients")

    right = found()
    forget_what_is_stored(monkeypatch)
    assert np.abs(found() - right).max() <= 1e-5 * np.abs(right).max()


def test_a_hook_that_is_put_inside_attention_later_has_what_is_then_used_tried(load, monkeypatch):
    """What was exact with fused attention need not be without."""
    forget_what_is_stored(monkeypatch)
    model = load("llama")
    forwards = Forwards(model, [])
    assert (forwards.able.fused, forwards.able.extend) == (True, True)
    model.hook_dict["blocks.1.attn.hook_pattern"].add_hook(lambda pattern, hook: pattern)
    try:
        forwards.look()
        assert (forwards.able.fused, forwards.able.extend) == (False, False)
    finally:
        model.reset_hooks()
    forwards.look()
    assert forwards.able.extend


@pytest.fixture
def gpt1(tmp_path):
    """A folder of a tiny GPT-1, whose mask in transformers is one of padding alone."""
    torch.manual_seed(0)
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 32, "vocab_size": len(make_tokenizer()), "n_positions": 64}
    model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**sizes))
    for parameter in model.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return saved(model, tmp_path)


def looks_ahead(x, hook):
    """Takes a little of what comes after each token."""
    return x + 0.1 * (x.flip(1).cumsum(1).flip(1) - x)


def looks_at_its_neighbors(x, hook):
    """Takes a little of the same token of other rows."""
    return x + 0.1 * x.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("fault", "dtype", "said"),
    [
        (looks_ahead, "bfloat16", "a later token moves an earlier logit"),
        (looks_at_its_neighbors, "float32", "a text beside longer ones has other logits than alone"),
    ],
)
def test_no_experiment_measures_a_model_that_is_run_wrongly(folders, backend, fault, said, dtype):
    model = cs.load_model(folders("llama"), device="cpu", backend=backend, dtype=dtype)
    model.hook_dict["blocks.1.hook_resid_pre"].add_hook(fault)
    experiment = cs.Experiment(model, completion_task(5), progress=False)
    ones, rows = np.ones((1, N_LAYERS, N_HEADS), dtype=np.float32), np.array([0])
    pairs = [PromptPair("the cat", "a dog", " runs"), PromptPair("one", "two", " sees")]
    for measured in (
        experiment.baseline,
        lambda: experiment.gradients(ones, rows),
        lambda: experiment.probability_gradients(ones, rows[None], keep="gradients"),
        PatchingExperiment(experiment.setup, pairs).effects,
    ):
        with pytest.raises(ValueError, match=rf"model .*llama.* cannot be measured: {said}") as error:
            measured()
        assert "\n" not in str(error.value)


def test_a_mask_of_padding_alone_that_is_taken_for_a_whole_one_is_refused(gpt1, monkeypatch):
    model = cs.load_model(gpt1, device="cpu", backend="bridge")
    cs.Experiment(model, completion_task(5), progress=False).baseline()
    monkeypatch.setattr(forward, "_MASKED_BY_PADDING_ALONE", ())
    model = cs.load_model(gpt1, device="cpu", backend="bridge")
    with pytest.raises(ValueError, match="a later token moves an earlier logit"):
        cs.Experiment(model, completion_task(5), progress=False).baseline()
    assert next(line for line in cs.check_model(model) if line.name == "later tokens").status == "fail"
