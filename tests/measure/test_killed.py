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

KILLS = int(os.environ.get("CS_HEADS_KILLS", "4"))


@pytest.fixture(scope="module")
def records(load_known, tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks") / "own.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in own_answers(load_known(), 90)), encoding="utf-8")
    return path


@pytest.fixture
def study(known_folder, records, tmp_path):
    """Starts the study on a store; its output tells how far it is."""

    def start(store, out):
        command = [sys.executable, "-m", "tests.measure.study_to_kill", str(known_folder), str(records)]
        return subprocess.Popen(
            [*command, str(tmp_path / store), str(tmp_path / out)], stdout=subprocess.PIPE, text=True, bufsize=1
        )

    return start


def sizes(lines):
    return [int(line) for line in lines if line.strip().isdigit()]


def everything(path):
    """Every result, by what it is of, and whether the file is sound."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT scorings.identity, bits, examples.identity, score, logprob FROM results "
            "JOIN scorings ON scorings.id = scoring JOIN masks ON masks.id = mask JOIN examples ON examples.id = example"
        )
        return sorted(rows.fetchall()), connection.execute("PRAGMA integrity_check").fetchall()


@pytest.mark.slow
def test_a_study_killed_at_random_moments_ends_as_one_that_was_not(study, tmp_path):
    whole = study("whole.sqlite", "whole.json")
    said = sizes(whole.communicate(timeout=300)[0].splitlines())
    assert whole.returncode == 0
    rng = random.Random(0)
    measured, kills = [], 0
    while kills < KILLS:
        running = study("killed.sqlite", "killed.json")
        # Somewhere in the next few batches, wherever in the work on one.
        stop = rng.randrange(1, max(3, 2 * len(said) // KILLS))
        now = []
        for line in running.stdout:
            now += sizes([line])
            if len(now) >= stop:
                time.sleep(rng.uniform(0, 0.05))
                running.send_signal(signal.SIGKILL)
                break
        measured += now + sizes(running.communicate(timeout=300)[0].splitlines())
        if running.returncode == 0:
            break
        assert running.returncode == -signal.SIGKILL
        kills += 1
    last = study("killed.sqlite", "killed.json")
    measured += sizes(last.communicate(timeout=300)[0].splitlines())
    assert last.returncode == 0
    assert kills >= min(KILLS, 3)
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "whole.json").read_text()
    assert everything(tmp_path / "killed.sqlite") == everything(tmp_path / "whole.sqlite")
    assert everything(tmp_path / "killed.sqlite")[1] == [("ok",)]
    # Nothing is measured twice but the batch in flight.
    assert sum(said) <= sum(measured) <= sum(said) + kills * max(said)


@pytest.mark.slow
def test_two_processes_on_one_store_at_once_both_end_rightly(study, tmp_path):
    whole, *both = study("whole.sqlite", "whole.json"), study("both.sqlite", "a.json"), study("both.sqlite", "b.json")
    for running in (whole, *both):
        running.communicate(timeout=300)
        assert running.returncode == 0
    expected = (tmp_path / "whole.json").read_text()
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text() == expected
    keys = [[row[:4] for row in everything(tmp_path / name)[0]] for name in ("both.sqlite", "whole.sqlite")]
    assert keys[0] == keys[1]
    assert everything(tmp_path / "both.sqlite")[1] == [("ok",)]
