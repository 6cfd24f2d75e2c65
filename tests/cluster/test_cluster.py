"""Many workers: the same numbers, whatever happens to the workers. Starts Ray on this machine."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import cs_heads as cs
from cs_heads import Cluster, Experiment, Task, find_heads
from cs_heads.cluster import placed, pool
from cs_heads.cluster.session import join, leave
from cs_heads.lens import ModelState
from tests.conftest import BACKENDS
from tests.known_heads import own_answers
from tests.tiny import choice_task, completion_task, some_masks
from tests.waiting import HANG, ended, next_line, run_program, wait_until

# Few tokens a forward, so that there are many chunks.
TOKENS = 48


choices, completions = partial(choice_task, 8), partial(completion_task, 8)


def off(n=24):
    return some_masks(n, seed=1)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "make_task"),
    [((1, 2, 4), choices), ((1, 2), completions)],
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
    experiment = Experiment(folders("llama"), choices(), workers=1, batch_tokens=TOKENS)
    pids = workers_of(experiment.source)
    np.testing.assert_array_equal(experiment(off(4)), Experiment(load("llama"), choices())(off(4)))
    assert experiment.spent == 4 * 8
    del experiment
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "the end of an experiment's own workers")


@pytest.mark.slow
def test_find_and_confirm_give_the_answers_of_one_model(ray, known_folder, load_known, task):
    alone = find_heads(load_known(), task, method="one-shot", k=2)
    proof = cs.confirm(load_known(), task, alone.top(2), controls=None)
    with Cluster(known_folder, workers=2) as cluster:
        found = find_heads(cluster, task, method="one-shot", k=2)
        np.testing.assert_array_equal(found.importance, alone.importance)
        assert found.spent == alone.spent
        assert cs.confirm(cluster, task, found.top(2), controls=None).to_dict() == proof.to_dict()
    with pytest.warns(UserWarning, match="'gradient' uses the model itself: it runs here, not on workers"):
        find_heads(known_folder, task, method="gradient", k=2, workers=2)


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


@pytest.mark.slow
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
        with pytest.warns(UserWarning, match="was lost"):
            np.testing.assert_array_equal(experiment.logprob(off()), undisturbed)
        # Nothing is counted twice, nothing said where a program's output goes.
        assert experiment.spent == 24 * 8
        assert capfd.readouterr().out == ""


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
