"""What a model is at a moment: what users change is seen, and what libraries put there by themselves is not."""

from functools import partial, wraps

import pytest
import torch
import transformers
from torch.nn.modules.module import register_module_forward_hook

from cs_heads.lens import ModelState, check_weights, describe, fingerprint, load_model
from cs_heads.lens import state as state_module
from cs_heads.lens.gates import hooked
from tests.tiny import load_tokenizer, make_hf_model, saved

TOKENS = torch.arange(3, 8)[None]


@pytest.fixture
def model(folders, backend):
    """One of its own: tests change it."""
    return load_model(folders("llama"), device="cpu", backend=backend)


def run(model):
    with torch.no_grad():
        return model(TOKENS)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_forward_leaves_a_model_as_it_was(folders, backend, architecture):
    model = load_model(folders(architecture), device="cpu", backend=backend)
    before = ModelState.of(model)
    run(model)
    before.check(model)
    assert ModelState.of(model).hooks == ()
    if backend == "bridge":
        # The libraries' own: on the layers of Llama and GPT-2 transformers listens to what they give.
        assert any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_transformer_lens_does_to_modules_at_loading_is_the_model(tmp_path):
    """Of OPT it hooks modules, and puts other forwards in their place."""
    config = transformers.OPTConfig(
        vocab_size=23,
        num_hidden_layers=3,
        num_attention_heads=4,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        max_position_embeddings=64,
    )
    model = load_model(saved(transformers.OPTForCausalLM(config).eval(), tmp_path), device="cpu", backend="bridge")
    before = ModelState.of(model)
    run(model)
    before.check(model)
    assert before.hooks == ()
    assert "hooks" not in describe(model)


def test_what_accelerate_does_to_modules_that_lie_on_devices_is_the_model(folders):
    accelerate = pytest.importorskip("accelerate")
    from transformer_lens.model_bridge import TransformerBridge

    plain = make_hf_model("llama")
    accelerate.dispatch_model(plain, dict.fromkeys(("model", "lm_head"), "cpu"), main_device="cpu", force_hooks=True)
    tokenizer = load_tokenizer(folders("llama"))
    model = TransformerBridge.boot_transformers(str(folders("llama")), hf_model=plain, tokenizer=tokenizer)
    assert any("forward" in vars(module) for module in plain.modules())
    before = ModelState.of(model)
    run(model)
    before.check(model)
    assert before.hooks == ()


def nothing(*_):
    """A hook that changes nothing."""


def test_hooks_of_users_are_seen_wherever_they_stand(model, backend):
    attn, point = model.blocks[1].attn, model.hook_dict["blocks.1.attn.hook_z"]
    before = ModelState.of(model)
    places = {
        "hook_z": (lambda: hooked(model, {"blocks.1.attn.hook_z": lambda z, hook: z}), "blocks.1.attn.hook_z"),
        "torch before": (lambda: attn.register_forward_pre_hook(partial(nothing, 1)), "blocks.1"),
        "backward": (lambda: attn.register_full_backward_hook(nothing), "blocks.1"),
        "on a hook point": (lambda: point.register_forward_hook(nothing), "blocks.1.attn.hook_z"),
        "on all modules": (lambda: register_module_forward_hook(nothing), "every module"),
    }
    if backend == "bridge":
        inside = model.original_model
        places["inside"] = lambda: inside.register_forward_hook(nothing), type(inside).__name__
    for kind, (put, place) in places.items():
        handle = put()
        with handle:
            stand = ModelState.of(model).places
            assert [each.startswith(place) for each in stand] == [True], kind
            assert describe(model)["hooks"] == stand
            with pytest.raises(ValueError, match=f"^model .* must be what it was when .*: hooks stand on {place}"):
                before.check(model)
        before.check(model)


def test_a_forward_that_was_replaced_is_seen_and_one_wrapped_as_a_library_s_too(model):
    mlp, before = model.blocks[1].mlp, ModelState.of(model)
    forward = type(mlp).forward.__get__(mlp)

    @wraps(forward)
    def twice(*arguments, **options):
        return 2 * forward(*arguments, **options)

    assert twice.__module__.startswith("transformer_lens")
    vars(mlp)["forward"] = twice
    with pytest.raises(ValueError, match=r"hooks stand on blocks\.1"):
        before.check(model)
    del vars(mlp)["forward"]
    before.check(model)
    handle = mlp.register_forward_hook(wraps(forward)(lambda *_: None))
    with pytest.raises(ValueError, match=r"hooks stand on blocks\.1"):
        before.check(model)
    handle.remove()


def one(model):
    return next(weight for weight in model.blocks[1].parameters() if weight.ndim > 1)


@torch.no_grad()
def scale(model, weight):
    weight.mul_(1.5)


def scale_a_quarter_past_the_version(model, weight):
    """As many as those of one of four heads."""
    weight.data[: len(weight) // 4].mul_(1.5)


def put_another(model, weight):
    weight.data = weight.data * 1.5


def replace_a_module(model, weight):
    model.blocks[1].ln2 = torch.nn.Identity()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (scale, "its weights were changed"),
        (scale_a_quarter_past_the_version, "its weights were changed"),
        (put_another, "its weights were changed"),
        (lambda model, weight: model.to(torch.bfloat16), "the dtype of its weights was float32 and is bfloat16"),
        (replace_a_module, "some of its modules are others"),
    ],
)
def test_changed_weights_are_seen(model, change, said):
    run(model)
    before = ModelState.of(model)
    before.check(model)
    change(model, one(model))
    with pytest.raises(ValueError, match=f"^model .* must be what it was when the experiment was made: {said}; "):
        before.check(model)


def test_weights_are_read_once_for_all_results_and_again_when_they_were_changed(model, monkeypatch):
    read = []
    monkeypatch.setattr(state_module, "fingerprint", lambda model: read.append(1) or fingerprint(model))
    first, again = describe(model), describe(model)
    assert first["weights"] == again["weights"] == fingerprint(model)
    assert read == [1]
    with hooked(model, {"blocks.1.attn.hook_z": lambda z, hook: z}):
        assert describe(model)["weights"] == first["weights"]
        assert read == [1]
    scale(model, one(model))
    assert describe(model)["weights"] == fingerprint(model) != first["weights"]
    assert read == [1, 1]
    # The change of one number past its version is not seen: a store reads all weights.
    one(model).data.view(-1)[5] += 1
    assert describe(model, anew=True)["weights"] == fingerprint(model)
    assert read == [1, 1, 1]


FOUND = {"name": "tiny", "dtype": "float32", "class": "TransformerBridge", "weights": "aaaa"}


def test_results_of_other_weights_do_not_meet():
    with pytest.raises(
        ValueError, match=r"^heads and the model must be of the same weights, got aaaa of 'tiny' and bb"
    ):
        check_weights("heads and the model", FOUND, {**FOUND, "weights": "bbbb", "name": "tuned"})


def test_results_that_may_be_of_the_same_weights_meet():
    """In another dtype or class they have another fingerprint though they be the same."""
    others = {"dtype": "bfloat16"}, {"class": "HookedTransformer"}
    for other in (
        None,
        {"name": "tiny"},
        {**FOUND, "weights": None},
        *({**FOUND, "weights": "b"} | one for one in others),
    ):
        check_weights("heads and the model", FOUND, other)
        check_weights("heads and the model", other, FOUND)
