"""The store: what was measured is not measured again, and a call that was cut short goes on bit for bit."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from cs_heads import Experiment, Store, StoreError, Task, designs, find_heads, load_model
from cs_heads.engine import Engine
from cs_heads.engine import forwards as forwards_module
from cs_heads.engine import generation as generation_module
from cs_heads.experiment import setup as budget_module
from cs_heads.store import store as store_module
from cs_heads.store.kept_work import KeptWork, filled
from cs_heads.store.stored_observations import StoredObservations
from tests.known_heads import rows_run
from tests.tiny import N_HEADS, N_LAYERS, choice_task, completion_records, completion_task, some_masks
from tests.waiting import ended, wait_until

SHAPE = (N_LAYERS, N_HEADS)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


@contextmanager
def interrupted_at(monkeypatch, n_batches):
    """Ctrl-C when so many batches are measured and committed."""
    run = Engine.run

    def stops(self, *arguments, **options):
        measured = (batch for batch in run(self, *arguments, **options) if batch)
        for number, batch in enumerate(measured):
            if number == n_batches:
                raise KeyboardInterrupt
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", stops)
        with pytest.raises(KeyboardInterrupt) as stopped:
            yield stopped


@contextmanager
def forwards_of(monkeypatch):
    """Tokens and gates of every forward that scores and texts take."""
    ran = []

    def logged(run):
        def runs(model, tokens, *arguments, gates=None, **options):
            ran.append((tokens.tolist(), None if gates is None else gates.tolist()))
            return run(model, tokens, *arguments, gates=gates, **options)

        return runs

    with monkeypatch.context() as patch:
        for module, name in ((forwards_module, "token_logprobs"), (generation_module, "logits_at")):
            patch.setattr(module, name, logged(getattr(module, name)))
        yield ran


def is_sound(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# Going on


def test_a_store_is_gone_on_with_in_forwards_of_the_size_it_was_begun_with(load, path, monkeypatch):
    """Free memory is another the next day, and another size of forward rounds otherwise."""
    monkeypatch.setattr(budget_module, "token_budget", lambda model: 300)
    begun = Experiment(load("llama"), completion_task(), store=path)
    begun(some_masks(2))
    monkeypatch.setattr(budget_module, "token_budget", lambda model: 77)
    again = Experiment(load("llama"), choice_task(), store=path)
    given = Experiment(load("llama"), choice_task(), store=path, batch_tokens=50)
    sizes = [experiment._engine.forwards.budget.tokens for experiment in (begun, again, given)]
    assert sizes == [300, 300, 50]


def test_the_same_call_again_runs_nothing_and_gives_the_same_numbers(load, path):
    first = Experiment(load("llama"), completion_task(), store=path)
    scores, logprobs = first(some_masks(4)), first.logprob(some_masks(4))
    again = Experiment(load("llama"), completion_task(), store=path)
    with rows_run(load("llama")) as rows:
        np.testing.assert_array_equal(again(some_masks(4)), scores)
        np.testing.assert_array_equal(again.logprob(some_masks(4)), logprobs)
        np.testing.assert_array_equal(again.respond(some_masks(4)), first.respond(some_masks(4)))
    assert rows == []
    assert (first.spent, first.ran) == (36, 36)
    assert (again.spent, again.ran) == (36, 0)
    pd.testing.assert_frame_equal(again.to_frame(), first.to_frame())


def test_nothing_is_read_or_written_while_hooks_of_others_stand_on_the_model(load, path):
    """Under them a mask is another ablation."""
    model = load("llama")
    off = some_masks(3)
    experiment = Experiment(model, completion_task(), store=path)
    known = experiment.logprob(off)
    message = r"store must be None while hooks stand on the model \(blocks\.1\..*\)"
    model.hook_dict["blocks.1.hook_mlp_out"].add_hook(lambda value, hook: 0 * value)
    try:
        for measures in (experiment, experiment.logprob, partial(experiment.generate, max_new_tokens=3)):
            with pytest.raises(ValueError, match="must be what it was when the experiment was made: hooks stand on"):
                measures(off)
        with pytest.raises(ValueError, match=message):
            Experiment(model, completion_task(), store=path)
        assert not (Experiment(model, completion_task()).logprob(off) == known).any()
    finally:
        model.reset_hooks()
    assert (experiment.logprob(off) == known).all()


def test_more_masks_and_more_examples_measure_only_what_is_new(load, path):
    small = Experiment(load("llama"), completion_task(12).take(5), store=path)
    small(some_masks(4))
    wide = Experiment(load("llama"), completion_task(12), store=path)
    logprobs = wide.logprob(some_masks(6))
    assert wide.ran == 6 * 12 - 4 * 5
    assert wide.spent == 6 * 12
    np.testing.assert_array_equal(logprobs[:4, :5], small.logprob(some_masks(4)))
    np.testing.assert_allclose(
        logprobs, Experiment(load("llama"), completion_task(12)).logprob(some_masks(6)), atol=1e-5
    )


@pytest.mark.parametrize(
    ("make_task", "how"),
    [
        (choice_task, {}),
        (completion_task, {"ablation": "mean"}),
        (completion_task, {"units": "kv", "positions": "prompt"}),
        (completion_task, {"units": "neurons", "positions": "last", "ablation": "position_mean"}),
        pytest.param(choice_task, {"ablation": "resample"}, marks=pytest.mark.slow),
        pytest.param(completion_task, {"units": "mlp", "ablation": "optimal"}, marks=pytest.mark.slow),
    ],
    ids=lambda way: way.__name__ if callable(way) else "-".join(way.values()),
)
def test_a_call_that_was_cut_short_goes_on_bit_for_bit(load, backend, path, monkeypatch, make_task, how):
    """The batches that are left are those of a call that was never cut short, and no pair is measured twice."""
    options = {**how, "batch_tokens": 60}
    whole = Experiment(load("llama", backend), make_task(), **options)
    off = np.random.default_rng(0).random((5, *whole.grid.shape)) < 0.3
    expected = whole.logprob(off)
    ran = 0
    for _ in range(2):
        cut = Experiment(load("llama", backend), make_task(), **options, store=path)
        with interrupted_at(monkeypatch, 1):
            cut(off)
        assert 0 < cut.ran - cut.preparation < 45
        ran += cut.ran - cut.preparation
    last = Experiment(load("llama", backend), make_task(), **options, store=path)
    np.testing.assert_array_equal(last.logprob(off), expected)
    np.testing.assert_array_equal(last(off), whole(off))
    np.testing.assert_array_equal(last.respond(off), whole.respond(off))
    assert ran + last.ran - last.preparation == 45
    assert last.spent == whole.spent
    assert last.store.query("SELECT * FROM calls") == []


def test_what_another_call_measures_meanwhile_leaves_the_batches_of_one_that_was_cut_short(load, path, monkeypatch):
    """It is not measured again; all that is left runs in the forwards it was planned in."""
    off, options = some_masks(5), {"batch_tokens": 60}
    with forwards_of(monkeypatch) as once:
        Experiment(load("llama"), completion_task(), **options)(off)
    cut = Experiment(load("llama"), completion_task(), store=path, **options)
    with interrupted_at(monkeypatch, 2):
        cut(off)
    other = Experiment(load("llama"), completion_task(), store=path, **options)
    other(off[1:2])
    going_on = Experiment(load("llama"), completion_task(), store=path, **options)
    with forwards_of(monkeypatch) as again:
        going_on(off)
    assert again
    assert all(forward in once for forward in again)
    assert min(cut.ran, other.ran, going_on.ran) > 0
    assert cut.ran + other.ran + going_on.ran == 45
    assert going_on.store.query("SELECT * FROM calls") == []


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("css", {"density": 0.17, "n_masks": 20}),
        pytest.param("annealed", {}, marks=pytest.mark.slow),
        pytest.param("greedy", {}, marks=pytest.mark.slow),
    ],
)
def test_a_search_that_was_cut_short_ends_as_one_that_was_not(load_known, known_task, path, monkeypatch, method, more):
    options = {"k": 2, "method": method, "batch_tokens": 500, "budget": 2000, **more}
    whole = find_heads(load_known(), known_task, **options, controls=None)
    with interrupted_at(monkeypatch, 1):
        find_heads(load_known(), known_task, store=path, **options, controls=None)
    found = find_heads(load_known(), known_task, store=path, **options, controls=None)
    np.testing.assert_array_equal(found.importance, whole.importance)
    assert (found.spent, found.provenance, found.notes) == (whole.spent, whole.provenance, whole.notes)


@pytest.fixture(scope="module")
def known_task(load_known):
    from tests.known_heads import own_answers

    return Task.from_records(own_answers(load_known(), 60), name="own").split(n=30)[0]


def test_a_mask_measured_for_one_method_is_free_for_another(load_known, known_task, path):
    """Greedy search begins with the masks of one-shot; the second round alone is new."""
    first = find_heads(load_known(), known_task, method="one-shot", store=path)
    assert first.spent == Store.open(path).contents().observations == 13 * 30
    found = find_heads(load_known(), known_task, method="greedy", k=2, store=path)
    assert found.spent == (13 + 11) * 30
    assert Store.open(path).contents().observations == (13 + 11) * 30


# Texts


def writing_task(n=4):
    return Task.from_records(completion_records(np.random.default_rng(1), n), name="writing", max_new_tokens=3)


def test_texts_are_kept(load, path):
    first = Experiment(load("llama"), writing_task(), store=path)
    scores, texts, logprobs = first(some_masks(3)), first.generate(some_masks(3)), first.logprob(some_masks(3))
    again = Experiment(load("llama"), writing_task(), store=path)
    with rows_run(load("llama")) as rows:
        np.testing.assert_array_equal(again(some_masks(3)), scores)
        np.testing.assert_array_equal(again.generate(some_masks(3)), texts)
        np.testing.assert_array_equal(again.logprob(some_masks(3)), logprobs)
    assert rows == []
    assert first.spent == first.ran == again.spent == 24
    assert again.ran == 0


@contextmanager
def cut_after_texts(monkeypatch):
    """Ctrl-C when the first batch of texts is written and committed, if it is not the last."""
    generate = Engine.generate

    def stops(self, *arguments, **options):
        done = 0
        for batch in generate(self, *arguments, **options):
            if done and batch:
                raise KeyboardInterrupt
            yield batch
            done += len(batch)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "generate", stops)
        yield


def test_texts_that_were_cut_short_go_on_in_the_batches_of_those_that_were_not(folders, backend, path, monkeypatch):
    """In half precision another batch may write other tokens: no forward is one that the whole call has not run."""
    monkeypatch.setitem(generation_module._ROWS, "cpu", 8)
    model = load_model(folders("llama"), device="cpu", backend=backend, dtype="bfloat16")
    # Some texts end with their first token, and are kept before those that share their forward.
    task = replace(writing_task(n=6), stop=("e",))
    # One of the masks is the intact model's.
    off, options = np.concatenate([some_masks(3), np.zeros((1, *SHAPE), dtype=bool)]), {"batch_tokens": 24}
    whole = Experiment(model, task, **options)
    with forwards_of(monkeypatch) as once:
        scores, texts = whole(off), whole.generate(off)
    ran, cuts = 0, 0
    with forwards_of(monkeypatch) as again, cut_after_texts(monkeypatch):
        while cuts < 20:
            going_on = Experiment(model, task, store=path, **options)
            try:
                found = going_on(off)
                break
            except KeyboardInterrupt:
                cuts += 1
                assert going_on.ran > 0
                ran += going_on.ran
    assert 2 <= cuts < 20
    assert all(forward in once for forward in again)
    np.testing.assert_array_equal(found, scores)
    np.testing.assert_array_equal(going_on.generate(off), texts)
    assert ran + going_on.ran == whole.ran
    assert going_on.spent == whole.spent == 24
    assert going_on.store.query("SELECT * FROM calls") == []


def test_other_settings_of_generation_are_other_texts(load, path):
    experiment = Experiment(load("llama"), writing_task(), store=path)
    experiment.generate(some_masks(2), max_new_tokens=3)
    again = Experiment(load("llama"), writing_task(), store=path)
    again.generate(some_masks(2), max_new_tokens=3)
    assert again.ran == 0
    again.generate(some_masks(2), max_new_tokens=2)
    assert again.ran == 8
    again.generate(some_masks(2), max_new_tokens=3, stop=["the"])
    assert again.ran == 16


def test_texts_that_end_elsewhere_are_other_texts(load, path, monkeypatch):
    """Another end token, as another ``generation_config.json`` has, is another key of texts and of their scores."""
    model = load("llama")
    first = Experiment(model, writing_task(), store=path)
    first(some_masks(3)), first.logprob(some_masks(3))
    token = model.tokenizer(" cat", add_special_tokens=False)["input_ids"][0]
    monkeypatch.setattr(model.original_model.generation_config, "eos_token_id", [2, token])
    again = Experiment(model, writing_task(), store=path)
    again.logprob(some_masks(3))
    assert again.ran == 0
    again(some_masks(3))
    assert again.ran == 12


# Looking into it


def test_the_file_tells_what_is_in_it(load, path):
    Experiment(load("llama"), completion_task(), store=path)(some_masks(4))
    Experiment(load("llama"), choice_task(5), store=path)(some_masks(2))
    contents = Store.open(path).contents()
    assert contents.tasks == {"choice": 10, "completion": 36}
    assert (contents.observations, contents.masks, contents.format) == (46, 4, store_module.FORMAT)
    assert contents.study["ablation"] == "zero"
    assert contents.study["grid"] == list(SHAPE)
    assert contents.bytes >= path.stat().st_size > 0
    assert pd.Timestamp(contents.written).tzinfo is not None
    assert json.loads(json.dumps(contents.to_dict()))["observations"] == 46


def test_examples_that_tasks_share_are_booked_for_each(load, path):
    """They are measured once, and are results of both; a result in all counts once."""
    Experiment(load("llama"), replace(completion_task(9).take(3), name="first"), store=path)(some_masks(4))
    second = Experiment(load("llama"), replace(completion_task(9), name="second"), store=path)
    second(some_masks(4))
    assert second.ran == 24
    contents = Store.open(path).contents()
    assert (contents.tasks, contents.observations) == ({"first": 12, "second": 36}, 36)
    frame = Store.open(path).to_frame()
    assert frame.task.value_counts().to_dict() == {"second": 36, "first": 12}
    shared = frame[frame.example.isin(frame.example[frame.task == "first"])]
    assert len(shared) == 24


def test_frame_and_parquet_hold_every_result(load, path, tmp_path):
    experiment = Experiment(load("llama"), completion_task(), store=path)
    off = designs.explicit(experiment.grid, [["L0H1", "L2H3"], []])
    experiment(off, np.array([[1, 2], [0, 3]]))
    Experiment(load("llama"), writing_task(), store=path).generate(off[:1])
    frame = Store.open(path).to_frame()
    assert len(frame) == 8
    mine = frame[frame.task == "completion"].astype({"ablated": str})
    mine = mine.assign(summed=mine.logprobs.map(sum)).sort_values(["ablated", "summed"])
    lengths = np.array([len(tokens.continuations[0]) for tokens in experiment.encoded])
    ours = experiment.to_frame()
    ours = ours.assign(summed=ours.logprob * lengths[ours.example]).sort_values(["ablated", "summed"])
    assert mine.ablated.tolist() == ours.ablated.tolist()
    assert mine.n_ablated.tolist() == ours.n_ablated.tolist()
    np.testing.assert_allclose(mine.summed, ours.summed)
    assert [float(greedy == [1]) for greedy in mine.greedy] == ours.score.tolist()
    assert set(mine.prompt) == {experiment.task.examples[i].prompt for i in range(4)}
    texts = frame[frame.task == "writing"]
    assert texts.text.map(type).eq(str).all()
    assert texts.logprobs.isna().all()
    Store.open(path).to_parquet(tmp_path / "run.parquet")
    with pytest.raises(ValueError, match="path must be a file, got the folder"):
        Store.open(path).to_parquet(tmp_path)
    written = pd.read_parquet(tmp_path / "run.parquet")
    assert [list(each) for each in written.logprobs[:4]] == frame.logprobs.tolist()[:4]
    assert written.ablated.astype(str).tolist() == frame.ablated.astype(str).tolist()


def test_an_empty_store_is_an_empty_frame(load, path):
    Experiment(load("llama"), completion_task(), store=path)
    assert len(Store.open(path).to_frame()) == 0
    assert Store.open(path).contents().written is None


# What goes wrong


def test_a_full_disk_is_said_and_loses_nothing(load, path):
    """Results that found no room are kept in memory, and written once there is some."""
    experiment = Experiment(load("llama"), completion_task(), store=path, batch_tokens=60)
    experiment(some_masks(1))
    ((pages,),) = experiment.store.query("PRAGMA page_count")
    experiment.store.query(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(
        StoreError, match=r"run\.sqlite' cannot be used: database or disk is full; what it holds is kept"
    ):
        experiment(some_masks(400, seed=1))
    stored = Store.open(path).contents().observations
    assert 9 <= stored < experiment.ran < 9 * 401
    experiment.store.query("PRAGMA max_page_count = 1000000")
    # Asking for what is known writes what was not.
    experiment(some_masks(1))
    assert Store.open(path).contents().observations == experiment.ran
    assert is_sound(path)
    expected = Experiment(load("llama"), completion_task(), batch_tokens=60).logprob(some_masks(400, seed=1)[:3])
    np.testing.assert_allclose(experiment.logprob(some_masks(400, seed=1)[:3]), expected, atol=1e-5)


@pytest.mark.parametrize(
    "content", [b"not a database, but a text of some length " * 30, b"SQLite format 3\0" + b"\xff" * 2000]
)
def test_a_file_of_another_kind_is_refused_and_left_alone(load, path, content):
    path.write_bytes(content)
    for opened in (lambda: Experiment(load("llama"), completion_task(), store=path), lambda: Store.open(path)):
        with pytest.raises(ValueError, match=r"run\.sqlite' is no store of cs-heads"):
            opened()
    assert path.read_bytes() == content


def test_a_file_without_anything_in_it_is_said_to_be_empty(load, path):
    path.touch()
    with pytest.raises(ValueError, match=r"run\.sqlite' is empty: nothing was ever kept in it$"):
        Store.open(path)
    assert path.read_bytes() == b""
    # To write it is as good as none.
    Experiment(load("llama"), completion_task(), store=path)(some_masks(1))
    assert Store.open(path).contents().observations == 9


def test_a_place_where_no_file_can_be_is_refused(load, tmp_path):
    for wrong in (tmp_path, tmp_path / "nowhere" / "run.sqlite"):
        with pytest.raises(ValueError, match="must be a file in a folder that exists"):
            Experiment(load("llama"), completion_task(), store=wrong)
    with pytest.raises(ValueError, match=r"store must be the path of a file .*, got ':memory:'"):
        Experiment(load("llama"), completion_task(), store=":memory:")
    with pytest.raises(ValueError, match="does not exist"):
        Store.open(tmp_path / "run.sqlite")


def test_a_file_in_a_read_only_folder_is_read_and_that_of_a_killed_study_is_to_be_copied(path, tmp_path, monkeypatch):
    """Its process leaves a log whose index nobody may make there; elsewhere they are all of it."""
    writing = Store.of(path, {"grid": [2, 3], "units": "heads"})
    with writing.transaction() as connection:
        writing.stamp(connection)
    killed = tmp_path / "killed.sqlite"
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{killed}{end}")
    writing.close()
    with monkeypatch.context() as patch:
        patch.setattr(store_module.os, "access", lambda *_: False)
        assert Store.open(path).contents().written is not None
        said = r"killed\.sqlite' cannot be read: .*: copy it, with the file 'killed.sqlite-wal' beside it"
        with pytest.raises(StoreError, match=said):
            Store.open(killed)
    assert Store.open(killed).contents().written is not None


def test_a_call_that_ended_before_it_could_say_so_is_never_taken_up(load, path, monkeypatch):
    """Killed between the last batch and the end: all is measured, and others go on beside it."""
    off = some_masks(3)
    with monkeypatch.context() as patch:
        patch.setattr(StoredObservations, "end", lambda self, call: None)
        whole = Experiment(load("llama"), completion_task(), store=path)
        expected = whole(off)
    ended = whole.store.query("SELECT id FROM calls")
    assert len(ended) == 1
    cut = Experiment(load("llama"), completion_task(), store=path, batch_tokens=60)
    with interrupted_at(monkeypatch, 1):
        cut(some_masks(5, seed=1))
    going_on = Experiment(load("llama"), completion_task(), store=path, batch_tokens=60)
    going_on(some_masks(5, seed=1))
    assert cut.ran + going_on.ran == 45
    assert going_on.store.query("SELECT id FROM calls") == ended
    np.testing.assert_array_equal(going_on(off), expected)
    assert going_on.ran == 45 - cut.ran


# Formats


def test_a_store_of_another_format_is_refused(load, path):
    Experiment(load("llama"), completion_task(), store=path)(some_masks(2))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    for opened in (lambda: Experiment(load("llama"), completion_task(), store=path), lambda: Store.open(path)):
        with pytest.raises(ValueError, match=r"has format 2, and this version of cs-heads reads format \d: give this"):
            opened()


# Several at once

WRITER = """
import sys
import numpy as np
from cs_heads.store.stored_observations import StoredObservations, begin_together, packed
from cs_heads.store.store import Store

path, mine = sys.argv[1], int(sys.argv[2])
store = Store.of(path, {"grid": [4, 4], "units": "heads"})
stored = StoredObservations(store, {}, "task", [str(i) for i in range(20)], [""] * 20)
for number in range(60):
    mask = np.packbits([int(bit) for bit in f"{number:016b}"]).tobytes()
    [call] = begin_together([(stored, [mask] * 20, np.arange(20), np.ones(20, dtype=bool))])
    stored.add([(mask, i, (packed(np.array([[-float(mine), 1.0]])), None)) for i in range(20)], call)
    stored.flush()
    stored.end(call)
"""


def test_a_store_that_another_is_making_is_waited_for(path, monkeypatch):
    """SQLite does not wait by itself where a new file is to have a log while another writes to it."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waited = []

    def wait(seconds):
        waited.append(seconds)
        other.execute("ROLLBACK")

    monkeypatch.setattr(store_module, "sleep", wait)
    assert Store.of(path, {"grid": [2, 2], "units": "heads"}).grid.shape == (2, 2)
    assert len(waited) == 1
    other.close()


def test_a_lock_that_is_never_given_back_is_not_waited_for_without_end(path, monkeypatch):
    monkeypatch.setattr(store_module, "_PATIENCE", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="cannot be used: database is locked; what it holds is kept"):
            Store.of(path, {"grid": [2, 2], "units": "heads"})


def test_processes_that_write_at_once_lose_nothing_though_one_is_killed(path):
    """Each pair is there once, whole, from whichever process was first."""
    started = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(i)]) for i in range(3)]
    wait_until(lambda: path.exists() and path.stat().st_size > 4096, "a store that is written to")
    started[0].kill()
    for process in started:
        ended(process, "a process that writes to the store")
    assert [process.returncode for process in started[1:]] == [0, 0]
    frame = Store.open(path).to_frame()
    assert len(frame) == 60 * 20
    assert not frame.duplicated(["example", "ablated"]).any()
    assert {one for [one] in frame.logprobs} <= {0.0, -1.0, -2.0}
    assert is_sound(path)


def test_what_another_process_has_measured_meanwhile_is_not_measured_again(load, path):
    mine, other = (Experiment(load("llama"), completion_task(), store=path) for _ in range(2))
    mine(some_masks(2))
    other(some_masks(4))
    assert other.ran == 2 * 9
    mine(some_masks(4))
    assert mine.ran == 2 * 9


@pytest.mark.parametrize(
    "said",
    [
        np.array([[5.0, 1.0], [-1.0, 0.0], [-2.0, 0.0]]),
        np.array([[-1.0, np.nan], [-1.0, 0.0], [-2.0, 0.0]]),
        np.array([[-1.0, 1.0]]),
        "right",
    ],
    ids=range(4),
)
def test_what_is_no_observation_is_refused_by_file_and_example(load, path, said):
    """Whoever wrote it there: a mean over it would be a number like any other."""
    model, task = load("llama"), choice_task()
    nothing_off = np.zeros((1, *SHAPE), dtype=bool)
    with Experiment(model, task, store=path) as experiment:
        right = experiment(nothing_off)
    with closing(sqlite3.connect(path)) as connection:
        kept = connection.execute("SELECT said FROM observations WHERE example = 3").fetchone()
        written = said.tobytes() if isinstance(said, np.ndarray) else said
        connection.execute("UPDATE observations SET said = ? WHERE example = 3", (written,))
        connection.commit()
    refused = r"store '.*run\.sqlite' is broken: what it says of example 2 of task 'choice' is .*; what else it holds"
    with Experiment(model, task, store=path) as experiment, pytest.raises(ValueError, match=refused):
        experiment(nothing_off)
    # Nothing measured is lost.
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE observations SET said = ? WHERE example = 3", kept)
        connection.commit()
    with Experiment(model, task, store=path) as experiment:
        assert np.array_equal(experiment(nothing_off), right)
        assert experiment.ran == 0


def test_ctrl_c_in_a_notebook_leaves_the_store_alone_in_its_folder(load, path, monkeypatch):
    """The shell keeps the traceback, and with it all that the call had: the store is closed all the same."""
    settings = {"store": path, "batch_tokens": 64}
    with interrupted_at(monkeypatch, 2) as stopped, Experiment(load("llama"), choice_task(), **settings) as experiment:
        experiment(some_masks(20))
    assert stopped.traceback
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        assert connection.execute("SELECT count(*) FROM observations").fetchone()[0] > 0


def test_a_closed_store_says_so(load, path):
    with Experiment(load("llama"), choice_task(), store=path) as experiment:
        pass
    with pytest.raises(ValueError, match=r"store '.*run\.sqlite' is closed: open it, or make its experiment, again"):
        experiment.baseline()


def test_a_store_that_was_read_has_nothing_beside_it(load, path):
    with Experiment(load("llama"), choice_task(), store=path) as experiment:
        experiment(some_masks(2))
    before = path.read_bytes()
    store = Store.open(path)
    assert len(store.to_frame()) == 18
    with pytest.raises(StoreError, match="readonly"), store.transaction() as connection:
        connection.execute("DELETE FROM observations")
    store.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_work_that_another_process_has_kept_meanwhile_stays(load, path):
    store = Experiment(load("llama"), completion_task(4), store=path).store
    works = [KeptWork(store, "gradients", {"rows": 4}) for _ in range(2)]
    mine, theirs = np.full((4, 2), np.nan), np.full((4, 2), np.nan)
    with filled(works[0], 0, mine, lambda _: None):
        with filled(works[1], 0, theirs, lambda _: None):
            theirs[2:] = 2.0
        mine[:1] = 1.0
    kept = works[0].load(0)["rows"]
    np.testing.assert_array_equal(kept[:, 0], [1.0, np.nan, 2.0, 2.0])
