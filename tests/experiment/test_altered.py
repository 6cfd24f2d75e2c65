"""A model that is altered after an experiment was made, hooks that stand on it, and threads that share it."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import numpy as np
import pytest
import torch

from cs_heads import Experiment, Store, ablated, load_model
from cs_heads.methods.patching import PatchingExperiment
from cs_heads.tasks.pairs import PromptPair
from tests.tiny import N_HEADS, N_LAYERS, choice_task, completion_task, some_masks

CHANGED = "^model .* must be what it was when the experiment was made: "


def margins(experiment, masks):
    return experiment.respond(masks, response="margin")


@pytest.fixture
def model(folders, backend):
    """One of its own: tests change it."""
    return load_model(folders("llama"), device="cpu", backend=backend)


@torch.no_grad()
def scale_weights(model):
    for weight in model.parameters():
        weight.mul_(1.1)


def scale_past_versions(model):
    for weight in model.parameters():
        weight.data.mul_(1.1)


def halve(model):
    model.to(torch.bfloat16)


def hook_a_module(model):
    """As a user steers a model, with PyTorch's own hooks."""
    model.blocks[1].register_forward_hook(
        lambda module, arguments, output: (2 * output[0], *output[1:]) if isinstance(output, tuple) else 2 * output
    )


@pytest.mark.parametrize(
    ("alter", "stored"), [(scale_weights, True), (scale_past_versions, False), (halve, True), (hook_a_module, True)]
)
def test_an_altered_model_is_refused_and_its_numbers_go_nowhere(model, tmp_path, alter, stored):
    settings = {"store": tmp_path / "run.sqlite"} if stored else {}
    off, pairs = some_masks(3), [PromptPair("the cat", "a dog", " red"), PromptPair("the king", "a bird", " one")]
    experiment = Experiment(model, completion_task(6), **settings)
    patching, known = PatchingExperiment(experiment.setup, pairs), experiment(off)
    spent = experiment.spent
    alter(model)
    ones = np.ones((6, N_LAYERS, N_HEADS))
    for measure in (
        partial(experiment, off),  # also what is known: it is of another model than the next mask would be
        partial(experiment, some_masks(3, seed=1)),
        experiment.baseline,
        partial(experiment.logprob, off),
        partial(experiment.respond, off),
        partial(experiment.generate, off, max_new_tokens=2),
        partial(experiment.gradients, ones, np.arange(6)),
        partial(experiment.probability_gradients, ones[:1], np.arange(6)[None], keep="test"),
        partial(experiment.on(choice_task(6)), off),
        patching.effects,
        patching.gradients,
    ):
        with pytest.raises(ValueError, match=CHANGED):
            measure()
    assert experiment.spent == spent
    if stored:
        with pytest.raises(ValueError, match=r"is of another study|store must be None while hooks stand on"):
            Experiment(model, completion_task(6), **settings)
        assert Store.open(settings["store"]).contents().observations == spent
    # Begun anew it is measured as it is.
    other = Experiment(model, completion_task(6)).logprob(off)
    assert not np.allclose(other, experiment.to_frame()["logprob"].to_numpy().reshape(other.shape), atol=1e-3)
    assert known.shape == other.shape


def test_an_alteration_that_is_undone_is_no_alteration(model):
    experiment = Experiment(model, choice_task(6))
    wanted = margins(experiment, some_masks(3))
    handle = model.blocks[1].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=f"{CHANGED}hooks stand on blocks.1"):
        margins(experiment, some_masks(4, seed=1))
    handle.remove()
    with ablated(model, ["L0H1"]), pytest.raises(ValueError, match=rf"{CHANGED}hooks stand on blocks\.0\.attn\.hook_z"):
        experiment.baseline()
    assert (margins(experiment, some_masks(3)) == wanted).all()
    fresh = Experiment(model, choice_task(6))
    assert (margins(experiment, some_masks(4, seed=1)) == margins(fresh, some_masks(4, seed=1))).all()


def test_what_is_measured_with_a_head_off_throughout_says_so_and_is_that(model, tmp_path):
    off = some_masks(4)
    plain = Experiment(model, choice_task(6))
    assert "hooks" not in plain.provenance()["model"]
    assert plain.notes == ()
    both = off.copy()
    both[:, 0, 1] = True
    with ablated(model, ["L0H1"]):
        experiment = Experiment(model, choice_task(6))
        found = margins(experiment, off)
        with pytest.raises(ValueError, match=r"store must be None while hooks stand on .*blocks\.0\.attn\.hook_z"):
            Experiment(model, choice_task(6), store=tmp_path / "run.sqlite")
    np.testing.assert_allclose(found, margins(plain, both), atol=1e-5)
    assert experiment.provenance()["model"]["hooks"] == ["blocks.0.attn.hook_z"]
    assert experiment.notes == ("the model was measured with hooks of yours on it: blocks.0.attn.hook_z",)
    with pytest.raises(ValueError, match=f"{CHANGED}hooks are gone from"):
        experiment(some_masks(5, seed=1))


def in_threads(*calls):
    """What each call gives, all begun at once in threads of their own."""
    begin = threading.Barrier(len(calls))

    def run(call):
        begin.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


@pytest.mark.parametrize(
    "store", [pytest.param(None, marks=pytest.mark.slow), "path", pytest.param("open", marks=pytest.mark.slow)]
)
def test_two_experiments_in_two_threads_give_the_numbers_of_one(model, folders, backend, tmp_path, store):
    settings = {} if store is None else {"store": tmp_path / "run.sqlite"}
    if store == "open":
        settings["store"] = Experiment(model, choice_task(6), **settings).store

    def measure(seed, **settings):
        experiment = Experiment(model, choice_task(6, seed, f"choice {seed}"), batch_tokens=60, **settings)
        numbers = [margins(experiment, some_masks(4, seed=10 * seed + call)) for call in range(2)]
        return [*numbers, experiment.generate(some_masks(2, seed=seed), max_new_tokens=3)]

    wanted = [measure(seed) for seed in (1, 2)]
    found = in_threads(partial(measure, 1, **settings), partial(measure, 2, **settings))
    for one, other in zip(wanted, found, strict=True):
        for right, given in zip(one, other, strict=True):
            np.testing.assert_array_equal(given, right)
    if store is not None:
        # What a freshly loaded model reads from the store are its own numbers.
        fresh = load_model(folders("llama"), device="cpu", backend=backend)
        experiment = Experiment(fresh, choice_task(6, 1, "choice 1"), batch_tokens=60, store=tmp_path / "run.sqlite")
        np.testing.assert_array_equal(margins(experiment, some_masks(4, seed=10)), wanted[0][0])
        assert experiment.ran == 0


def test_two_threads_that_share_an_experiment_give_the_numbers_of_one(model):
    masks = [some_masks(5, seed=seed) for seed in range(4)]
    wanted = [margins(Experiment(model, choice_task(6)), each) for each in masks]
    shared = Experiment(model, choice_task(6), batch_tokens=60)
    calls = [
        partial(lambda chosen: [margins(shared, masks[i]) for i in chosen], range(start, 4, 2)) for start in (0, 1)
    ]
    found = in_threads(*calls)
    for start in (0, 1):
        for number, given in zip(range(start, 4, 2), found[start], strict=True):
            np.testing.assert_allclose(given, wanted[number], atol=1e-5)
    assert shared.spent == len({mask.tobytes() for each in masks for mask in each}) * 6


def test_a_thread_waits_for_the_end_of_a_block_with_heads_off(model):
    wanted = margins(Experiment(model, choice_task(6)), some_masks(3))
    # Made before, when no hook stood there.
    experiment = Experiment(model, choice_task(6))
    experiment.baseline()
    with ThreadPoolExecutor(1) as threads:
        with ablated(model, ["L1H2"]):
            waiting = threads.submit(margins, experiment, some_masks(3))
            wait([waiting], timeout=0.3)
        np.testing.assert_array_equal(waiting.result(60), wanted)
