"""A study killed at random moments, and begun again each time, ends as one that was never killed."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from tests.known_heads import own_answers

# More of them by hand: make test-kills.
KILLS = int(os.environ.get("CS_HEADS_KILLS", "4"))
# What the study writes: one file for each dtype and ablation.
STORES = ("run.sqlite", "half.sqlite", "mean.sqlite")


@pytest.fixture(scope="module")
def records(load_known, tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "own.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in own_answers(load_known(), 90)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def start(known_folder, records):
    """Starts the study on the store of a folder; its output tells how far it is."""

    def started(folder, out="out.json"):
        command = [sys.executable, "-m", "tests.measure.study_to_kill", str(known_folder), str(records)]
        return subprocess.Popen(
            [*command, str(folder / "run.sqlite"), str(folder / out)], stdout=subprocess.PIPE, text=True, bufsize=1
        )

    return started


def sizes(lines):
    return [int(line) for line in lines if line.strip().isdigit()]


def everything(path):
    """Every result, by what it is of, and whether the file is sound."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT scorings.identity, bits, examples.identity, score, tokens, logprob FROM results "
            "JOIN scorings ON scorings.id = scoring JOIN masks ON masks.id = mask "
            "JOIN examples ON examples.id = example"
        )
        return sorted(rows.fetchall()), connection.execute("PRAGMA integrity_check").fetchall()


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """The study, never killed: its folder, the sizes of its batches, seconds to the first and to the end."""
    folder = tmp_path_factory.mktemp("whole")
    began = time.monotonic()
    running = start(folder)
    lines = [running.stdout.readline()]
    first = time.monotonic() - began
    lines += running.communicate(timeout=300)[0].splitlines()
    assert running.returncode == 0
    return folder, sizes(lines), first, time.monotonic() - began


@pytest.mark.slow
def test_a_study_killed_at_random_moments_ends_as_one_that_was_not(start, whole, tmp_path):
    folder, said, first, end = whole
    rng = random.Random(0)
    measured, kills = [], 0
    for number in range(KILLS):
        running = start(tmp_path)
        now = []
        # Every other one at any moment before its first new batch is done: while it loads, opens the store, measures.
        # The others within or after one of the next batches, so that the study comes forward.
        if number % 2:
            time.sleep(rng.uniform(0, 0.8 * first))
        else:
            now = [running.stdout.readline() for _ in range(rng.randint(1, max(1, len(said) // KILLS)))]
            time.sleep(rng.uniform(0, (end - first) / len(said)))
        running.send_signal(signal.SIGKILL)
        measured += sizes(now) + sizes(running.communicate(timeout=300)[0].splitlines())
        kills += running.returncode == -signal.SIGKILL
    # A study may end before its kill; most must not, and of many hardly any.
    assert kills >= (0.9 if KILLS > 10 else 0.5) * KILLS
    last = start(tmp_path)
    measured += sizes(last.communicate(timeout=300)[0].splitlines())
    assert last.returncode == 0
    assert (tmp_path / "out.json").read_text() == (folder / "out.json").read_text()
    for name in STORES:
        assert everything(tmp_path / name) == everything(folder / name)
        assert everything(tmp_path / name)[1] == [("ok",)]
    # Nothing is measured twice but the batch in flight.
    assert sum(said) <= sum(measured) <= sum(said) + kills * max(said)


@pytest.mark.slow
def test_two_processes_on_one_store_at_once_both_end_rightly(start, whole, tmp_path):
    folder, *_ = whole
    for running in [start(tmp_path, "a.json"), start(tmp_path, "b.json")]:
        running.communicate(timeout=300)
        assert running.returncode == 0
    expected = (folder / "out.json").read_text()
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text() == expected
    for name in STORES:
        both, alone = everything(tmp_path / name), everything(folder / name)
        assert [row[:5] for row in both[0]] == [row[:5] for row in alone[0]]
        assert both[1] == [("ok",)]
