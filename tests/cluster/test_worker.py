"""A worker, and a model on its way to one, without Ray."""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cs_heads import Cluster, Experiment
from cs_heads.cluster import cluster, session
from cs_heads.cluster.engine import ClusterEngine
from cs_heads.cluster.pool import WorkerPool
from cs_heads.cluster.session import workers_for
from cs_heads.cluster.worker import Job, Sent, Worker
from cs_heads.engine import Engine, plan
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.encoding import encode_task
from cs_heads.engine.protocol import PairMasks, StoppingCriteria, TextRequest
from cs_heads.experiment.inputs import encode_prompts
from cs_heads.lens import describe, fingerprint, load_model
from cs_heads.lens.model import ModelInfo
from cs_heads.lens.serialization import model_info, packed_model, unpacked_model
from cs_heads.units import Grid
from tests.fake_devices import FakeDevices, split
from tests.on_model import target_logprobs
from tests.tiny import N_LAYERS, choice_task, skip_unless_loaded, some_masks

GATES = torch.tensor([[[0.5, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1]]])


task = partial(choice_task, 6)


def pairs(n_masks=4, n_examples=6):
    return np.repeat(some_masks(n_masks, seed=1), n_examples, axis=0), np.tile(np.arange(n_examples), n_masks)


def logprob(model):
    return target_logprobs(model, [[3, 4, 5]], [[6, 7]], GATES).logprob[0]


@pytest.fixture
def home(monkeypatch):
    """How this process lives already, so that a worker changes nothing of it."""
    monkeypatch.setattr(plan, "_sharers", 1)
    return "cpu", torch.get_num_threads(), 1


@pytest.mark.parametrize(
    "architecture",
    ["llama", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gpt2", "qwen2", "gemma2", "neo"))],
)
def test_a_model_arrives_as_it_was_sent_though_it_ran_before(folders, load, backend, architecture):
    skip_unless_loaded(architecture, backend)
    model = load(architecture, backend)
    before = logprob(model)
    copy = unpacked_model(packed_model(model), "cpu")
    assert type(copy) is type(model)
    assert logprob(copy) == pytest.approx(before, abs=1e-5)
    # And a copy that ran can be sent on.
    assert logprob(unpacked_model(packed_model(copy), "cpu")) == logprob(copy)
    assert copy.tokenizer("the cat")["input_ids"] == model.tokenizer("the cat")["input_ids"]


def test_hooks_that_stand_on_a_model_go_with_it(load):
    model = load("llama")
    before = logprob(model)
    model.hook_dict["blocks.1.hook_out"].add_hook(lambda residual, hook: residual * 2)
    try:
        hooked, copy = logprob(model), unpacked_model(packed_model(model), "cpu")
    finally:
        model.reset_hooks()
    assert abs(hooked - before) > 1e-2
    assert logprob(copy) == pytest.approx(hooked, abs=1e-5)


def test_a_model_that_cannot_be_sent_is_refused(load, tmp_path):
    model = load("llama")
    with (tmp_path / "log").open("w") as log:
        model.hook_dict["blocks.1.hook_out"].add_hook(lambda residual, hook: print(hook, file=log))
        try:
            with pytest.raises(ValueError, match=r"cannot be sent to workers .*: give its name or folder"):
                packed_model(model)
        finally:
            model.reset_hooks()


def test_what_is_told_of_a_model_stands_for_it_where_texts_are_tokenised(load, backend):
    model = load("llama", backend)
    info = model_info(model)
    assert isinstance(info, ModelInfo)
    assert describe(info) == describe(model)
    assert load_model(info) is info
    assert encode_task(info, task(), None) == encode_task(model, task(), None)
    assert encode_prompts(info, task(), None, 8) == encode_prompts(model, task(), None, 8)


@pytest.mark.parametrize(
    ("kind", "units"),
    [
        ("zero", "heads"),
        ("mean", "neurons"),
        *(pytest.param(kind, "heads", marks=pytest.mark.slow) for kind in ("position_mean", "resample", "optimal")),
    ],
)
def test_a_worker_gives_the_numbers_of_the_engine(folders, load, home, kind, units):
    folder, model = str(folders("llama")), load("llama")
    examples, answers = encode_task(model, task(), None), [e.answer for e in task().examples]
    grid, numbers = Grid.from_model(model, units), pairs()[1]
    masks = np.repeat(np.random.default_rng(1).random((4, *grid.shape)) < 0.3, 6, axis=0)

    def ablation():
        return Ablation(kind, answers, units=units)

    worker, other = Worker(folder, *home), Worker(folder, *home)
    # What heads become is prepared by one worker for all.
    prepared = worker.prepare(Put(Job(examples, 512, fingerprint(model), ablation())))
    job = Put(Job(examples, 512, fingerprint(model), prepared))
    expected = {
        pair: said.tolist()
        for batch in Engine(model, examples, 512, ablation()).run(PairMasks.of(masks), numbers)
        for pair, said in batch
    }
    for one in (worker, other):
        assert {
            pair: said.tolist() for pair, said in one.run(job, PairMasks.of(masks), numbers, None, None)
        } == expected


class Put(Sent):
    """In this process."""

    def get(self):
        return self.reference


class Here(WorkerPool):
    """A pool of one worker, of this process."""

    def __init__(self, worker):
        self.worker = worker

    def send(self, what):
        return Put(what)

    def run(self, calls):
        for number, (method, arguments) in enumerate(calls):
            yield number, getattr(self.worker, method)(*arguments)


def test_of_what_is_known_in_part_the_rest_is_run_with_the_same_numbers(folders, load, home):
    """A store has some pairs of a chunk and not others."""
    worker, model = Worker(str(folders("llama")), *home), load("llama")
    examples = encode_task(model, task(), None)
    report = worker.report()
    engine = ClusterEngine(Here(worker), model, report.info.device, Job(examples, 64, report.info.fingerprint))
    masks, numbers = pairs()

    def results(known=None):
        batches = engine.run(PairMasks.of(masks), numbers, known)
        return {pair: said.tolist() for batch in batches for pair, said in batch}

    whole, known = results(), np.arange(len(numbers)) % 3 == 0
    assert sorted(whole) == list(range(len(numbers)))
    assert results(known) == {pair: numbers for pair, numbers in whole.items() if not known[pair]}
    assert results(np.ones(len(numbers), dtype=bool)) == {}


def test_a_worker_writes_the_texts_of_the_experiment(folders, load, home):
    worker, model = Worker(str(folders("llama")), *home), load("llama")
    report = worker.report()
    job = Put(Job(encode_task(model, task(), None), report.batch_tokens, report.info.fingerprint))
    ends = StoppingCriteria(5, (), report.info.end_tokens)
    masks, numbers = pairs(2)
    request = Put(TextRequest(encode_prompts(model, task(), None, 5), ends))
    texts = dict(worker.run(job, PairMasks.of(masks), numbers, None, request))
    expected = Experiment(model, task()).generate(masks[::6], max_new_tokens=5)
    assert [ends.kept(texts[pair], model.tokenizer) for pair in range(12)] == expected.ravel().tolist()


def test_a_worker_loads_what_a_function_returns_and_refuses_what_load_model_refuses(load, home, tmp_path):
    assert Worker(lambda: load("gpt2"), *home).report().info.cfg.n_layers == N_LAYERS
    with pytest.raises(ValueError, match=r"has no config.json"):
        Worker(tmp_path, *home).report()


def test_a_worker_that_comes_back_with_other_weights_is_refused(folders, load, home):
    job = Put(Job(encode_task(load("llama"), task(), None), 512, weights="0" * 16))
    with pytest.raises(ValueError, match="must hold the same weights as the others"):
        Worker(str(folders("llama")), *home).run(job, PairMasks.of(pairs()[0]), pairs()[1], None, None)


# What is asked for, before Ray is


@pytest.mark.parametrize(
    ("asked", "resources", "room"),
    [
        ((4, None), {"CPU": 8.0}, (4, 0.0)),
        ((None, None), {"CPU": 8.0, "GPU": 2.0}, (2, 1.0)),
        ((3, None), {"CPU": 8.0, "GPU": 2.0}, (3, 0.5)),
        ((None, 0.25), {"CPU": 8.0, "GPU": 2.0}, (8, 0.25)),
        ((None, 2.0), {"CPU": 8.0, "GPU": 5.0}, (2, 2.0)),
    ],
)
def test_workers_and_their_gpus(asked, resources, room):
    assert workers_for(*asked, resources) == room


@pytest.mark.parametrize(
    ("asked", "resources", "message"),
    [
        ((None, None), {"CPU": 8.0}, r"workers must be given: there is no GPU to count them by, and 8 CPU cores"),
        (
            (9, None),
            {"CPU": 8.0},
            r"workers must be in 1\.\.8: the Ray cluster has 8 CPU cores, one for each worker; got 9",
        ),
        ((3, 1.0), {"CPU": 8.0, "GPU": 2.0}, r"workers must be in 1\.\.2: .* 2 GPUs, of which a worker takes 1; got 3"),
        ((1, 4.0), {"CPU": 8.0, "GPU": 2.0}, r"gpus_per_worker must be 2 or less: the Ray cluster has 2 GPUs; got 4"),
    ],
)
def test_more_than_there_is_is_refused(asked, resources, message):
    with pytest.raises(ValueError, match=message):
        workers_for(*asked, resources)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, r"workers must be an integer of 1 or more, got 0"),
        (
            {"workers": 2, "gpus_per_worker": 1.5},
            r"gpus_per_worker must be a share of one GPU or a whole number, got 1.5",
        ),
    ],
)
def test_wrong_arguments_of_a_cluster_are_refused_before_anything_starts(arguments, message):
    with pytest.raises(ValueError, match=message):
        Cluster("demo", **arguments)
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


def test_several_gpus_for_a_model_that_goes_onto_one_are_refused(load):
    for model in ("demo", load("llama")):
        with pytest.raises(ValueError, match=r"must be 1 or less .*; got 2\.0: give a function that loads it split"):
            Cluster(model, workers=1, gpus_per_worker=2.0)


def test_a_model_that_is_split_over_devices_is_not_folded_onto_one(folders, backend):
    model = load_model(folders("llama"), device="cpu", backend=backend)
    split(model)
    with (
        FakeDevices(),
        pytest.raises(ValueError, match="split over xla:0, xla:1: give a function that loads it split"),
    ):
        Cluster(model, workers=1)


def test_a_ray_that_does_not_start_is_an_error_in_a_line(monkeypatch):
    """On a machine that is too busy Ray raises a plain Exception of several lines."""

    def init(**_):
        raise Exception("The current node timed out during startup.\nA long story.")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    for module in (cluster, session):
        monkeypatch.setattr(module, "ray_module", lambda: ray)
    with pytest.raises(ConnectionError, match="Ray cannot be started on this machine: The current node timed out"):
        Cluster("demo", workers=2)


def test_without_ray_it_is_said_how_to_have_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'cs-heads\[ray\]'"):
        Cluster("demo", workers=2)
