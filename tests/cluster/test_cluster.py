"""Many workers: the same numbers, whatever happens to the workers. Starts Ray on this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

import cs_heads as cs
from cs_heads import Cluster, Experiment, Task, find_heads
from cs_heads.cli import main
from cs_heads.cluster import placed, pool
from cs_heads.cluster.pool import WorkersLostError
from cs_heads.cluster.session import join, leave
from cs_heads.lens import ModelState
from tests.analysis.test_taxonomy import formats
from tests.conftest import BACKENDS
from tests.known_heads import WORKING, choice_of_own_answers, own_answers, rows_run
from tests.tiny import N_HEADS, N_LAYERS, choice_records, completion_records
from tests.waiting import HANG, ended, next_line, run_program, wait_until

SHAPE = (N_LAYERS, N_HEADS)
# Few tokens a forward, so that there are many chunks.
TOKENS = 48


def choices(n=8):
    return Task.from_records(choice_records(np.random.default_rng(0), n), name="choices")


def completions(n=8):
    return Task.from_records(completion_records(np.random.default_rng(0), n), name="completions")


def off(n=24):
    return np.random.default_rng(1).random((n, *SHAPE)) < 0.3


def lost(match="was lost"):
    """Losses are warned of; Ray's own threads may still be reporting when a test ends."""
    return pytest.warns(UserWarning, match=match)


def workers_of(cluster):
    return [report.pid for report in cluster._pool.reports]


@pytest.fixture(scope="module")
def ray():
    """One Ray for all tests here: its start takes seconds. On a busy machine workers may be long in beginning."""
    for left in (2, 1, 0):
        try:
            session = join(None, 4)
            break
        except ConnectionError:
            # Ray itself gives up after half a minute.
            if not left:
                raise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "_SILENCE", HANG)
        yield session
    leave(session)
    assert not sys.modules["ray"].is_initialized()


@pytest.fixture(scope="module")
def cluster_of(ray, folders):
    """Clusters of one, two and four workers on a tiny model given by its folder, started when first asked for."""
    made = {}

    def cluster(n):
        if n not in made:
            made[n] = Cluster(folders("llama"), workers=n)
        return made[n]

    yield cluster
    for one in made.values():
        one.close()


@pytest.fixture(scope="module")
def task(load_known):
    """What the model with known heads gets right, split."""
    return Task.from_records(own_answers(load_known(), 60)).split(n=40, seed=0)[0]


@pytest.mark.parametrize(
    ("numbers", "make_task"),
    [
        ((1, 2), choices),
        pytest.param((1, 2, 4), choices, marks=pytest.mark.slow),
        pytest.param((1, 2, 4), completions, marks=pytest.mark.slow),
    ],
)
def test_one_two_and_four_workers_give_the_same_numbers_bit_for_bit(cluster_of, load, numbers, make_task):
    here = Experiment(load("llama"), make_task(), batch_tokens=TOKENS)
    found = {}
    for n in numbers:
        experiment = Experiment(cluster_of(n), make_task(), batch_tokens=TOKENS)
        found[n] = experiment(off()), experiment.logprob(off()), experiment.respond(off(), response="margin")
        assert experiment.spent == 24 * 8
        np.testing.assert_array_equal(found[n][0], here(off()))
        np.testing.assert_allclose(found[n][1], here.logprob(off()), atol=1e-5)
        np.testing.assert_allclose(found[n][2], here.respond(off(), response="margin"), atol=1e-4)
    for n in numbers[1:]:
        np.testing.assert_array_equal(found[n][1], found[1][1])
        np.testing.assert_array_equal(found[n][2], found[1][2])


@pytest.mark.slow
def test_texts_are_those_written_here(cluster_of, load):
    here = Experiment(load("llama"), completions()).generate(off(6), max_new_tokens=6, stop=["runs"])
    for n in (1, 2):
        there = Experiment(cluster_of(n), completions())
        np.testing.assert_array_equal(there.generate(off(6), max_new_tokens=6, stop=["runs"]), here)
        assert there.spent == 6 * 8


def test_a_model_that_was_changed_since_it_was_sent_is_refused(load):
    """The workers have it as it was: what is measured of it would pass for the changed one's."""
    model = load("gpt2")
    cluster = SimpleNamespace(_end=SimpleNamespace(alive=True), _sent=ModelState.of(model), model_or_info=model)
    with cs.ablated(model, ["L0H1"]), pytest.raises(ValueError, match="when it was sent to the workers: hooks stand"):
        Cluster.engine(cluster, [])


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_ones_own_model_is_sent_to_the_workers(ray, load, backend):
    model = load("gpt2", backend)
    here = Experiment(model, choices())
    with Cluster(model, workers=2) as cluster:
        there = Experiment(cluster, choices())
        np.testing.assert_array_equal(there(off(4)), here(off(4)))
        np.testing.assert_allclose(there.logprob(off(4)), here.logprob(off(4)), atol=1e-5)
        assert there.model is model
        assert there.provenance() == here.provenance()
        changed = "must be what it was when it was sent to the workers: hooks stand on"
        with cs.ablated(model, ["L0H1"]), pytest.raises(ValueError, match=changed):
            Experiment(cluster, choices())


def test_the_short_form_ends_its_workers_with_the_experiment(ray, folders, load):
    experiment = Experiment(folders("llama"), choices(), workers=2, batch_tokens=TOKENS)
    pids = workers_of(experiment.source)
    np.testing.assert_array_equal(experiment(off(4)), Experiment(load("llama"), choices())(off(4)))
    del experiment
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the end of an experiment's own workers")


def test_an_analysis_ends_the_workers_it_started_also_where_it_is_refused(
    ray, known_folder, load_known, task, monkeypatch
):
    ended, close = [], Cluster.close
    monkeypatch.setattr(Cluster, "close", lambda cluster: (ended.append(workers_of(cluster)), close(cluster)))
    alone = cs.specificity(load_known(), task, ["L0H1"], n=20)
    assert cs.specificity(known_folder, task, ["L0H1"], n=20, workers=1).drops == alone.drops
    with pytest.raises(ValueError, match="L9H9"):
        cs.specificity(known_folder, task, ["L9H9"], n=20, workers=1)
    assert [len(pids) for pids in ended] == [1, 1]
    wait_until(
        lambda: not any(map(psutil.pid_exists, chain.from_iterable(ended))), "the end of an analysis's own workers"
    )


@pytest.mark.slow
def test_find_confirm_and_compare_give_the_answers_of_one_model(ray, known_folder, load_known, task):
    alone = find_heads(load_known(), task, method="one-shot", k=2)
    proof = cs.confirm(load_known(), task, alone.top(2), controls=None)
    with Cluster(known_folder, workers=2) as cluster:
        found = find_heads(cluster, task, method="one-shot", k=2)
        np.testing.assert_array_equal(found.importance, alone.importance)
        assert found.spent == alone.spent
        assert cs.confirm(cluster, task, found.top(2), controls=None).to_dict() == proof.to_dict()
        # A method that uses the model itself runs here.
        compared = cs.compare(cluster, task, methods=["one-shot", "gradient"], k=2, max_heads=2, controls=None)
        assert set(compared.methods) == {"one-shot", "gradient"}
    assert find_heads(known_folder, task, method="one-shot", k=2, workers=2).top(2) == alone.top(2)
    with pytest.warns(UserWarning, match="'gradient' uses the model itself: it runs here, not on workers"):
        find_heads(known_folder, task, method="gradient", k=2, workers=2)


@pytest.mark.slow
def test_analyses_of_several_tasks_run_on_the_workers(ray, known_folder, load_known, task):
    """Also of the second task; what starts from the model runs here."""
    model = load_known()
    other = Task.from_records(own_answers(model, 60, seed=1), "other").split(n=40, seed=0)[0]
    chosen = choice_of_own_answers(model, 60, "chosen").split(n=40, seed=0)[0]
    calls = [
        lambda given: cs.specificity(given, task, list(WORKING), controls=[other], n=20).to_dict(),
        lambda given: cs.failures(given, chosen, list(WORKING), n=20).to_dict(),
    ]
    alone = [call(model) for call in calls]
    with Cluster(known_folder, workers=1) as cluster:
        assert [call(cluster) for call in calls] == alone
        held_out = cs.held_out_contrasts(cluster, formats(model), held_out=["b"], n=20, steps=20, batch_size=4)
        assert set(held_out.gates) == {("b", "once"), ("b", "twice")}
    with Cluster(model, workers=1) as cluster, rows_run(model) as rows:
        assert [call(cluster) for call in calls] == alone
    assert rows == []


@pytest.mark.slow
def test_the_command_line_takes_workers(ray, known_folder, load_known, tmp_path, capsys):
    file = tmp_path / "task.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in own_answers(load_known(), 60)))
    command = ["find", "--model", str(known_folder), "--task", str(file), "--method", "one-shot", "--k", "2", "--json"]
    assert main(command) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main([*command, "--workers", "2", "--out", str(tmp_path / "study")]) == 0
    many = json.loads(capsys.readouterr().out)
    assert alone.pop("command") in many.pop("command")
    assert set(alone.pop("seconds")) == set(many.pop("seconds"))
    # A folder keeps the curve besides.
    assert many.pop("half") <= 2
    assert many.pop("curve_spent")
    assert many == alone
    # What is looked at, and not measured, is looked at here.
    assert (tmp_path / "study" / "attention.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_engine", "measure"),
    [("run", Experiment.logprob), ("generate", partial(Experiment.generate, max_new_tokens=4))],
    ids=["scores", "texts"],
)
def test_what_two_workers_left_in_a_store_one_goes_on_with_bit_for_bit(cluster_of, tmp_path, of_engine, measure):
    whole = measure(Experiment(cluster_of(1), choices(), batch_tokens=TOKENS), off())
    cut_short = Experiment(cluster_of(2), choices(), batch_tokens=TOKENS, store=tmp_path / "study.sqlite")
    run = getattr(cut_short._engine, of_engine)

    def interrupted(*arguments, **options):
        for number, batch in enumerate(run(*arguments, **options)):
            if number == 3:
                raise KeyboardInterrupt
            yield batch

    setattr(cut_short._engine, of_engine, interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(cut_short, off())
    going_on = Experiment(cluster_of(1), choices(), batch_tokens=TOKENS, store=tmp_path / "study.sqlite")
    np.testing.assert_array_equal(measure(going_on, off()), whole)
    assert 0 < going_on.ran < going_on.spent == 24 * 8
    assert cut_short.ran + going_on.ran == 24 * 8


# What may happen to workers


def test_a_killed_workers_chunk_is_done_again(ray, folders, capfd):
    with Cluster(folders("llama"), workers=2) as cluster:
        undisturbed = Experiment(cluster, choices(), batch_tokens=TOKENS).logprob(off())
        experiment = Experiment(cluster, choices(), batch_tokens=TOKENS)
        run, alive = experiment._engine.run, [workers_of(cluster)[0]]

        def run_and_kill(*arguments):
            for batch in run(*arguments):
                if alive:
                    os.kill(alive.pop(), signal.SIGKILL)
                yield batch

        experiment._engine.run = run_and_kill
        capfd.readouterr()
        with lost():
            np.testing.assert_array_equal(experiment.logprob(off()), undisturbed)
        # Nothing is counted twice, nothing said where a program's output goes.
        assert experiment.spent == 24 * 8
        assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_a_chunk_that_takes_its_workers_along_is_given_up(ray, load):
    model = load("gpt2")

    def die(residual, hook):
        if 12 <= residual.shape[1] < 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return residual

    model.hook_dict["blocks.0.hook_in"].add_hook(die)
    long = {"prompt": "the cat sees " * 4 + "the dog", "target": " runs ."}
    task = Task.from_records([long, *completion_records(np.random.default_rng(0), 4)])
    try:
        with Cluster(model, workers=2) as cluster, lost(), pytest.raises(WorkersLostError, match="the same chunk"):
            Experiment(cluster, task)(off(2))
    finally:
        model.reset_hooks()


@pytest.mark.slow
def test_what_a_worker_raises_is_raised_here(ray, load, tmp_path):
    with pytest.raises(ValueError, match=r"has no config.json"):
        Cluster(tmp_path, workers=2)
    model = load("gpt2")

    def fill(residual, hook):
        if residual.shape[1] not in (8, 9, 32):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return residual

    model.hook_dict["blocks.0.hook_in"].add_hook(fill)
    try:
        too_large = pytest.raises(MemoryError, match=r"example \d+ \(\d+ tokens\) does not fit into memory by itself")
        with Cluster(model, workers=2) as cluster, too_large:
            Experiment(cluster, completions())(off(2))
    finally:
        model.reset_hooks()


@pytest.mark.slow
def test_a_cluster_has_its_own_workers_and_ray_one_address(cluster_of, task):
    for call in (partial(Experiment, cluster_of(1), choices()), partial(find_heads, cluster_of(1), task)):
        with pytest.raises(ValueError, match="workers and address must be left out"):
            call(workers=2)
    with placed(cluster_of(1)) as place:
        assert place is cluster_of(1)
    with pytest.raises(ValueError, match=r"address must be .*, which Ray is connected to; got '10.0.0.1:6379'"):
        Cluster("demo", workers=1, address="10.0.0.1:6379")


SCRIPT = """
import numpy as np, cs_heads as cs
from tests.cluster.test_cluster import choices
experiment = cs.Experiment({model!r}, choices(), workers=2, batch_tokens=16)
print("running", flush=True)
while True:
    experiment(np.random.default_rng().random((50, 3, 4)) < 0.3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_program_leaves_no_processes(folders, with_signal):
    script = SCRIPT.format(model=str(folders("llama")))
    program = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with program:
        assert next_line(program, "a program with workers") == "running\n", program.stderr.read()
        started = psutil.Process(program.pid).children(recursive=True)
        assert len(started) > 3
        program.send_signal(with_signal)
        _, said = ended(program, "an interrupted program")
    assert with_signal == signal.SIGKILL or "KeyboardInterrupt" in said
    # After a SIGKILL Ray's own agents take a minute to see that they are alone.
    wait_until(lambda: not any(map(alive, started)), "the end of what an interrupted program had started")


@pytest.mark.slow
def test_a_given_cluster_goes_on_running(folders, load):
    """Ray started by somebody else, reached by its address, in a process of its own."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    more = ["--num-cpus", "2", "--include-dashboard", "false", "--disable-usage-stats"]
    head = subprocess.Popen(
        [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--port", "6399", *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )
    program = """
import numpy as np, cs_heads as cs
from tests.cluster.test_cluster import choices, off
for _ in range(2):
    with cs.Cluster({model!r}, workers=2, address="127.0.0.1:6399") as cluster:
        print(cs.Experiment(cluster, choices())(off(4)).tolist())
try:
    cs.Cluster({model!r}, workers=3, address="127.0.0.1:6399")
except ValueError as error:
    print(error)
"""
    try:
        wait_until(lambda: listens(6399), "Ray's port")
        command = [sys.executable, "-c", program.format(model=str(folders("llama")))]
        runs = []

        def answered():
            runs.append(run_program(command, env=environment))
            return "must be that of a running Ray cluster" not in runs[-1].stderr

        wait_until(answered, "the Ray cluster to answer")
        done = runs[-1]
        assert done.returncode == 0, done.stderr
        first, second, refused = done.stdout.strip().splitlines()
        assert first == second == str(Experiment(load("llama"), choices())(off(4)).tolist())
        assert refused.startswith("workers must be in 1..2: the Ray cluster has 2 CPU cores")
        assert head.poll() is None
    finally:
        for process in [*psutil.Process(head.pid).children(recursive=True), head]:
            process.terminate()
        ended(head, "Ray")


def listens(port):
    with closing(socket.socket()) as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
