"""What a batch sends to its device and takes back: pinned, nothing in float64, and one result that is waited for."""

from collections import Counter

import numpy as np
import pytest
import torch

from cs_heads import Experiment
from cs_heads.engine import Engine
from cs_heads.engine import forwards as engine_forwards
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.encoding import encode_task
from cs_heads.engine.generation import Generation
from cs_heads.engine.protocol import PairMasks
from cs_heads.lens import load_model
from tests.fake_devices import GPU, WatchedDevices, lay
from tests.lens.test_devices import task
from tests.tiny import N_HEADS, N_LAYERS

SHAPE = (N_LAYERS, N_HEADS)
KINDS = ("downloads", "waits", "blocking uploads", "float64")


def masks(n=6):
    """Masks of which some begin at a later layer; no two are equal."""
    drawn = np.random.default_rng(1).random((n, *SHAPE)) < 0.4
    drawn[n // 2 :, 0] = False
    return drawn


def all_of(seen):
    """By cs-heads, not by the libraries that run the model."""
    return {what: seen[what] for what in KINDS}


@pytest.fixture
def memory(monkeypatch):
    """A GPU of 80 GB, of which nothing is taken."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * 10**10, 8 * 10**10))
    for asked in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, asked, lambda device: 0)


@pytest.fixture
def on_gpu(folders, backend, memory):
    """A tiny model on a GPU that is not there."""
    model = load_model(folders("llama"), device="cpu", backend=backend)
    lay(model, GPU)
    return model


@pytest.fixture
def counted(monkeypatch):
    """How many forwards of rows ran, and how many steps of decoding."""
    ran = Counter()

    def count(cls, name, what):
        method = getattr(cls, name)

        def counting(self, *args, **kwargs):
            ran[what] += 1
            return method(self, *args, **kwargs)

        monkeypatch.setattr(cls, name, counting)

    count(engine_forwards.Forwards, "_forward", "forwards")
    count(Generation, "_step", "steps")
    return ran


def test_what_makes_a_host_wait_is_counted():
    """The tests below can fail: a number asked of a device, an upload from pageable memory, float64 there."""
    with WatchedDevices() as devices:
        at = torch.ones(3).to(GPU)
        assert all_of(devices.seen)["blocking uploads"] == 1
        assert bool((at > 0).all())
        at[torch.tensor([True, False, True]).to(GPU)]
        assert all_of(devices.seen) == {"downloads": 0, "waits": 2, "blocking uploads": 2, "float64": 0}
        at.double().cpu()
        assert all_of(devices.seen) == {"downloads": 1, "waits": 2, "blocking uploads": 2, "float64": 1}
        with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            at.pin_memory()


@pytest.mark.parametrize(("kind", "units", "positions"), [("resample", "neurons", "prompt"), ("zero", "kv", "last")])
def test_a_batch_is_waited_for_once(on_gpu, counted, kind, units, positions):
    model = on_gpu
    answers = [example.answer for example in task().examples]
    width = {"heads": N_HEADS, "kv": 2, "neurons": model.cfg.d_mlp}[units]
    off = np.random.default_rng(1).random((6, N_LAYERS, width)) < 0.4
    off[3:, 0] = False
    pairs, numbers = PairMasks(off, np.repeat(np.arange(6), 6)), np.tile(np.arange(6), 6)
    with WatchedDevices() as devices:
        # A few pieces a forward, so that some go on from what others stored.
        engine = Engine(
            model, encode_task(model, task(), None), 60, Ablation(kind, answers, units=units, positions=positions)
        )
        assert engine.forwards.able.resume
        devices.seen.clear()
        counted.clear()
        assert sum(map(len, engine.run(pairs, numbers))) == 36
    assert counted["forwards"] > 3
    assert all_of(devices.seen) == {"downloads": counted["forwards"], "waits": 0, "blocking uploads": 0, "float64": 0}


def test_a_step_of_decoding_is_waited_for_once(on_gpu, counted):
    with WatchedDevices() as devices:
        experiment = Experiment(on_gpu, task(), progress=False, batch_tokens=200)
        experiment.generate(masks(1), max_new_tokens=2)
        devices.seen.clear()
        counted.clear()
        experiment.generate(masks(4)[1:], max_new_tokens=6)
    assert counted["steps"] >= 4
    # And once for the whole call, to see that the model is what it was.
    runs = counted["forwards"] + counted["steps"] + 1
    assert all_of(devices.seen) == {"downloads": runs, "waits": 0, "blocking uploads": 0, "float64": 0}
