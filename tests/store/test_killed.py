"""A study killed at random moments, and begun again each time, ends as one that was never killed."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from tests.known_heads import own_answers, write_records
from tests.waiting import ended, next_line, pause

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("CS_HEADS_KILLS", "2"))
# What the study writes: one file for each dtype and ablation.
STORES = ("run.sqlite", "half.sqlite", "mean.sqlite")


@pytest.fixture(scope="module")
def records(load_known, tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("tasks") / "own.jsonl", own_answers(load_known(), 90))


@pytest.fixture(scope="module")
def start(known_folder, records):
    """Starts the study on the store of a folder; its output tells how far it is."""

    def started(folder, out="out.json"):
        command = [sys.executable, "-m", "tests.store.study_to_kill", str(known_folder), str(records)]
        return subprocess.Popen(
            [*command, str(folder / "run.sqlite"), str(folder / out)], stdout=subprocess.PIPE, text=True, bufsize=1
        )

    return started


def sizes(lines):
    return [int(line) for line in lines if line.strip().isdigit()]


def everything(path):
    """Every observation, by what it is of, and whether the file is sound."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT settings.identity, bits, examples.identity, said FROM observations "
            "JOIN settings ON settings.id = settings JOIN masks ON masks.id = mask "
            "JOIN examples ON examples.id = example"
        )
        return sorted(rows.fetchall()), connection.execute("PRAGMA integrity_check").fetchall()


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """The study, never killed: its folder, and the sizes of its batches."""
    folder = tmp_path_factory.mktemp("whole")
    running = start(folder)
    lines = ended(running, "a study")[0].splitlines()
    assert running.returncode == 0
    return folder, sizes(lines)


def test_a_study_killed_at_random_moments_ends_as_one_that_was_not(start, whole, tmp_path):
    """Every other one at any moment before its first new batch is done: while it loads, opens the store, measures.

    The others within or after one of the next batches, so that the study comes forward.
    """
    folder, said = whole
    rng = random.Random(0)
    reach = {"before": 8.0, "between": 0.2}
    kills = 0
    while kills < KILLS:
        study, measured, begun = tmp_path / str(kills), [], kills
        study.mkdir()
        code = None
        while code != 0:
            running, now = start(study), []
            if kills < KILLS:
                when = "before" if kills % 2 else "between"
                if when == "between":
                    now = [next_line(running, "a study") for _ in range(rng.randint(1, max(1, len(said) // KILLS)))]
                pause(running, rng.uniform(0, reach[when]))
                running.send_signal(signal.SIGKILL)
            measured += sizes(now) + sizes(ended(running, "a study")[0].splitlines())
            code = running.returncode
            assert code in (0, -signal.SIGKILL)
            if code:
                kills += 1
            elif kills < KILLS:
                # It ended before its kill: on this machine such pauses are too long. Another study takes the rest.
                reach[when] /= 2
        assert (study / "out.json").read_text() == (folder / "out.json").read_text()
        for name in STORES:
            assert everything(study / name) == everything(folder / name)
            assert everything(study / name)[1] == [("ok",)]
        # Nothing is measured twice but the batch in flight.
        assert sum(said) <= sum(measured) <= sum(said) + (kills - begun) * max(said)


def test_two_processes_on_one_store_at_once_both_end_rightly(start, whole, tmp_path):
    folder, _ = whole
    for running in [start(tmp_path, "a.json"), start(tmp_path, "b.json")]:
        ended(running, "one of two studies at once")
        assert running.returncode == 0
    expected = (folder / "out.json").read_text()
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text() == expected
    for name in STORES:
        both, alone = everything(tmp_path / name), everything(folder / name)
        assert [row[:5] for row in both[0]] == [row[:5] for row in alone[0]]
        assert both[1] == [("ok",)]
