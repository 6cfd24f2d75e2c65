"""Forwards in another dtype than that of the weights: the numbers of a model loaded so, and the weights untouched."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from cs_heads import Experiment, Task, confirm, find_heads
from cs_heads.engine import plan
from cs_heads.experiment import setup as experiment_setup
from cs_heads.experiment.plan import Observed
from cs_heads.lens import load_model
from cs_heads.lens.casts import InDtype
from tests.known_heads import own_answers
from tests.tiny import N_HEADS, N_LAYERS, completion_task, some_masks

pytestmark = pytest.mark.lens
PROMPTS = [(3, 4, 5, 6), (7, 8, 9)]


MASKS = some_masks(4)


def bits(model):
    """Every weight and buffer, as it lies in memory."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, before):
    return all(
        value.dtype == before[name].dtype and torch.equal(value, before[name]) for name, value in bits(model).items()
    )


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_numbers_are_those_of_the_model_loaded_in_that_dtype(load, folders, backend, dtype):
    model, loaded = load("llama", backend), load_model(folders("llama"), device="cpu", dtype=dtype, backend=backend)
    before = bits(model)
    experiment, other = (
        Experiment(model, completion_task(6), compute_dtype=dtype),
        Experiment(loaded, completion_task(6)),
    )
    np.testing.assert_array_equal(experiment.logprob(MASKS), other.logprob(MASKS))
    assert (experiment.generate(MASKS, max_new_tokens=4) == other.generate(MASKS, max_new_tokens=4)).all()
    assert same(model, before)
    assert experiment.provenance()["compute_dtype"] == dtype
    assert experiment.provenance()["model"]["dtype"] == "float32"


def test_gradients_of_probabilities_are_those_of_the_model_loaded_in_that_dtype(load, folders, backend, tmp_path):
    model = load("llama", backend)
    loaded = load_model(folders("llama"), device="cpu", dtype="bfloat16", backend=backend)
    before, examples = bits(model), np.array([[0, 1], [2, 3], [1, 3]])
    half, whole, other = (
        Experiment(model, completion_task(6), compute_dtype="bfloat16", store=tmp_path / "run.sqlite"),
        Experiment(model, completion_task(6), store=tmp_path / "run.sqlite"),
        Experiment(loaded, completion_task(6)),
    )
    gates = np.random.default_rng(0).random((3, *half.grid.shape)).astype(np.float32)
    found, exact, wanted = (each.probability_gradients(gates, examples, keep="screen") for each in (half, whole, other))
    np.testing.assert_array_equal(found, wanted)
    assert same(model, before)
    # The store tells both apart.
    assert not np.array_equal(found, exact)
    assert np.corrcoef(found.ravel(), exact.ravel())[0, 1] > 0.98
    again = Experiment(model, completion_task(6), compute_dtype="bfloat16", store=tmp_path / "run.sqlite")
    np.testing.assert_array_equal(again.probability_gradients(gates, examples, keep="screen"), found)
    assert again.ran == 0


def test_the_weights_are_the_models_own_while_results_are_taken_in_and_after_an_exception(load, backend, monkeypatch):
    model = load("llama", backend)
    before, seen = bits(model), []
    experiment = Experiment(model, completion_task(6), compute_dtype="bfloat16", batch_tokens=20)
    keep = Observed.keep
    monkeypatch.setattr(Observed, "keep", lambda *taken: (seen.append(same(model, before)), keep(*taken)))
    experiment(MASKS)
    assert len(seen) > 1
    assert all(seen)
    cast = InDtype(model, torch.bfloat16)
    with pytest.raises(KeyboardInterrupt), cast, cast:
        raise KeyboardInterrupt
    assert same(model, before)


def test_weights_are_cast_once_for_experiments_that_are_alike_and_anew_where_they_change(folders, backend, monkeypatch):
    model, casts = load_model(folders("llama"), device="cpu", backend=backend), []
    to = torch.Tensor.to
    first = next(model.parameters())

    def counting(tensor, *arguments, **options):
        if tensor.shape == first.shape and arguments == (torch.bfloat16,) and tensor.data_ptr() == first.data_ptr():
            casts.append(tensor)
        return to(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", counting)
    experiment = Experiment(model, completion_task(6), compute_dtype="bfloat16")
    other = experiment.on(completion_task(4))
    for each in (experiment, other):
        each(MASKS)
        each(some_masks(6))
    assert len(casts) == 1
    before = other.logprob(MASKS)
    with torch.no_grad():
        first *= 1.5
    changed = Experiment(model, completion_task(5), compute_dtype="bfloat16").logprob(MASKS)
    assert len(casts) == 2
    assert not np.allclose(changed[:, :4], before, atol=1e-3)


def test_a_store_keeps_what_forwards_of_another_dtype_gave_apart(load, tmp_path):
    path, model = tmp_path / "run.sqlite", load("llama")
    half = Experiment(model, completion_task(6), compute_dtype="bfloat16", store=path)
    half(MASKS)
    whole = Experiment(model, completion_task(6), store=path)
    np.testing.assert_array_equal(whole.logprob(MASKS), Experiment(model, completion_task(6)).logprob(MASKS))
    assert whole.ran == 24
    again = Experiment(model, completion_task(6), compute_dtype="bfloat16", store=path)
    np.testing.assert_array_equal(again.logprob(MASKS), half.logprob(MASKS))
    assert again.ran == 0


@pytest.fixture
def large(monkeypatch):
    """Every model is large, products are faster in bfloat16, and fewer decisions must be alike."""
    monkeypatch.setattr(plan, "LARGE", 0)
    monkeypatch.setattr(plan, "matrix_rate", lambda device, dtype: {torch.float32: 1.0, torch.bfloat16: 2.5}[dtype])
    monkeypatch.setattr(plan, "_ALIKE", 0.7)


def test_a_faster_dtype_that_decides_alike_is_taken(load, backend, large):
    model = load("llama", backend)
    before = bits(model)
    assert plan.faster_dtype(model, PROMPTS) == "bfloat16"
    assert same(model, before)


@pytest.mark.parametrize(
    ("what", "name", "value"),
    [
        (plan, "LARGE", 10**9),
        (plan, "matrix_rate", lambda device, dtype: {torch.float32: 1.0, torch.bfloat16: 1.2}[dtype]),
        (plan, "_ALIKE", 1.1),
        (plan, "free_memory", lambda device: 1000),
        (InDtype, "__enter__", Mock(side_effect=RuntimeError("not implemented"))),
    ],
    ids=["small", "slow", "otherwise", "no memory", "fails"],
)
def test_the_dtype_of_the_weights_is_kept_where_another_would_not_serve(load, large, monkeypatch, what, name, value):
    monkeypatch.setattr(what, name, value)
    assert plan.faster_dtype(load("llama"), PROMPTS) is None


def test_a_dtype_that_decides_otherwise_with_heads_off_alone_is_not_taken(load, large, monkeypatch):
    """Of four texts two have heads off: half of all decisions are alike, and none of theirs."""
    rows = torch.repeat_interleave(torch.arange(4), 3)
    calls = iter(
        [torch.eye(12) * 9.0, torch.where(rows[:, None] % 2 == 1, torch.eye(12).roll(1, 1), torch.eye(12)) * 9.0]
    )
    monkeypatch.setattr(plan, "logits_at", lambda *given, **more: next(calls))
    monkeypatch.setattr(plan, "_ALIKE", 0.4)
    assert plan.faster_dtype(load("llama"), [(1, 2, 3)] * 4) is None


def test_a_faster_dtype_is_that_of_the_store_or_as_asked(load, tmp_path, monkeypatch):
    """What a store began with it goes on with, whatever the machine is fast with by then."""
    said = ["bfloat16"]
    monkeypatch.setattr(experiment_setup, "faster_dtype", lambda model, texts: said[0])

    def taken(**settings):
        return Experiment(load("llama"), completion_task(6), **settings).in_faster_dtype().compute_dtype

    path = tmp_path / "run.sqlite"
    assert (taken(), taken(store=path), taken(compute_dtype="float32")) == ("bfloat16", "bfloat16", "float32")
    said[0] = None
    assert (taken(), taken(store=path)) == ("float32", "bfloat16")


@pytest.mark.slow
def test_heads_are_searched_in_the_faster_dtype_and_proved_in_that_of_the_weights(load_known, tmp_path, monkeypatch):
    """What a store began with it goes on with, whatever the machine is fast with by then."""
    known = load_known()
    task = Task.from_records(own_answers(known, 60), "own answers").split(30)[0]
    said = ["bfloat16"]
    monkeypatch.setattr(experiment_setup, "faster_dtype", lambda model, texts: said[0])
    path, settings = tmp_path / "run.sqlite", {"controls": None, "budget": 600, "k": 2, "n_bootstraps": 0}
    found = find_heads(known, task, **settings, store=path)
    assert found.provenance["compute_dtype"] == "bfloat16"
    assert found.provenance["model"]["dtype"] == "float32"
    proof = confirm(known, task, found, n=20, n_random=3, controls=None, store=path)
    assert proof.provenance["compute_dtype"] == "float32"
    said[0] = None
    again = find_heads(known, task, **settings, store=path)
    assert json.dumps(again.provenance, default=str) == json.dumps(found.provenance, default=str)
    np.testing.assert_array_equal(again.importance, found.importance)
    asked = find_heads(known, task, **settings, compute_dtype="float32")
    assert asked.provenance["compute_dtype"] == "float32"


def test_a_store_has_no_gradients_for_another_task_with_the_same_right_answers(load, tmp_path):
    """Other wrong choices, and what choices are weighed by, give another probability."""
    model, gates = load("llama"), np.full((1, N_LAYERS, N_HEADS), 0.5, dtype=np.float32)
    tasks = [
        Task.from_records(
            [{"prompt": "the cat", "choices": [" runs", wrong], "answer": 0}], length_normalized=by_length
        )
        for wrong, by_length in ((" sees a king", False), (" one", False), (" sees a king", True))
    ]

    def slopes(task, **store):
        return Experiment(model, task, **store).probability_gradients(gates, np.array([[0]]), keep="screen")

    for task in tasks:
        kept = slopes(task, store=tmp_path / "run.sqlite")
        np.testing.assert_array_equal(kept, slopes(task))
