"""A model split over two devices: gates, caches and residuals go where each layer lies."""

import numpy as np
import pytest
import torch

from cs_heads import Experiment, Task
from cs_heads.engine import Engine
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.encoding import encode_task
from cs_heads.engine.protocol import PairMasks
from cs_heads.lens import load_model
from cs_heads.lens.batches import TokenBudget
from cs_heads.lens.differentiate import gate_gradients
from cs_heads.lens.model import devices_of
from cs_heads.lens.patch import PatchPoint, patched_effects, record_z
from tests.fake_devices import FIRST, SECOND, FakeDevices, split
from tests.on_model import losses, observed
from tests.tiny import N_HEADS, N_LAYERS, choice_records

SHAPE = (N_LAYERS, N_HEADS)


def task():
    shared = "the cat sees the dog , the bird runs . "
    records = choice_records(np.random.default_rng(0), 6)
    return Task.from_records([{**record, "prompt": shared + record["prompt"]} for record in records])


def off(n=6):
    """Masks of which some begin at a later layer."""
    masks = np.random.default_rng(1).random((n, *SHAPE)) < 0.4
    masks[n // 2 :, :2] = False
    return masks


@pytest.fixture
def whole_and_split(folders, load, backend):
    """A tiny model on one device, and again split over two."""
    parted = load_model(folders("llama"), device="cpu", backend=backend)
    split(parted)
    return load("llama", backend), parted


def test_a_gate_left_on_another_device_would_be_seen(whole_and_split):
    """The test can fail: a hook that does not move its gates breaks in the second half."""
    _, model = whole_and_split
    gate = torch.ones(1)
    with FakeDevices():
        gate = gate.to(FIRST)
        point = model.hook_dict[f"blocks.{N_LAYERS - 1}.attn.hook_z"]
        point.add_hook(lambda z, hook: z * gate)
        try:
            with pytest.raises(RuntimeError, match="on the same device"):
                list(Engine(model, encode_task(model, task(), None), 200).run(PairMasks.of(off(1)), np.array([0])))
        finally:
            model.reset_hooks()


@pytest.mark.parametrize("kind", ["zero", "resample"])
def test_a_split_model_has_the_numbers_and_the_texts_of_a_whole_one(whole_and_split, kind):
    whole, model = whole_and_split
    answers = [example.answer for example in task().examples]
    examples = encode_task(whole, task(), None)
    masks = np.unique(off(), axis=0)
    pairs = np.array([(mask, example) for mask in range(len(masks)) for example in range(6)])

    def numbers_of(model):
        ablation = None if kind == "zero" else Ablation(kind, answers)
        engine = Engine(model, examples, None, ablation)
        found = [logprobs for logprobs, _ in observed(engine, masks, pairs)]
        texts = Experiment(model, task(), ablation=kind).generate(off(3), max_new_tokens=5)
        return engine.forwards.able, np.concatenate(found), texts

    able, expected, texts = numbers_of(whole)
    with FakeDevices():
        assert devices_of(model) == [FIRST, SECOND]
        split_able, found, split_texts = numbers_of(model)
    # No short cut is left out because the model is split.
    assert split_able == able
    assert able.extend
    assert able.resume
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(split_texts, texts)


def test_gradients_and_patches_reach_every_device(whole_and_split):
    whole, model = whole_and_split
    asked = losses([(3, 4, 5), (6, 7)], [(8,), (9, 3)])
    points = [PatchPoint((3, 4, 5), (1, 2), (6, 7)), PatchPoint((3, 8, 5), (1, 2), (6, 7))]
    gates, room = np.random.default_rng(0).random((2, *SHAPE), dtype=np.float32), TokenBudget(1000)

    def both(model):
        z = record_z(model, points, room)
        patches = z.flip(0), np.array([0, 1]), np.ones((2, *SHAPE), dtype=np.float32)
        effects = patched_effects(model, points, *patches, room=room)
        return *gate_gradients(model, asked, gates, room, of="loss"), effects

    expected = both(whole)
    with FakeDevices():
        found = both(model)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_device_map_is_that_of_transformers_in_place_of_a_device(folders, monkeypatch):
    from transformer_lens.model_bridge import TransformerBridge

    boot, given = TransformerBridge.boot_transformers, []
    monkeypatch.setattr(
        TransformerBridge, "boot_transformers", lambda name, **options: given.append(options) or boot(name, **options)
    )
    whole, mapped = load_model(folders("llama"), device="cpu"), load_model(folders("llama"), device_map={"": "cpu"})
    assert [("device" in options, options.get("device_map")) for options in given] == [
        (True, None),
        (False, {"": "cpu"}),
    ]
    np.testing.assert_array_equal(Experiment(mapped, task()).logprob(off(2)), Experiment(whole, task()).logprob(off(2)))


@pytest.mark.parametrize("arguments", [{"device": "cpu"}, {"backend": "hooked"}])
def test_a_device_map_stands_in_place_of_a_device_and_for_a_bridge_alone(folders, arguments):
    with pytest.raises(
        ValueError, match="device_map must be None where device is given or backend is 'hooked', got 'auto'"
    ):
        load_model(folders("llama"), device_map="auto", **arguments)
