"""``--dry-run``: what a command costs is said beforehand, and is no less than it takes."""

import json
import re

import pytest

from cs_heads.cli import main
from cs_heads.engine import Engine
from cs_heads.experiment.timing import N_BASELINE, N_EXAMPLES, N_MASKS
from cs_heads.methods.find import prepared_search
from cs_heads.methods.registry import METHODS
from cs_heads.tasks import Task
from tests.known_heads import own_answers
from tests.test_cli import write


@pytest.fixture(scope="module")
def files(load_known, tmp_path_factory):
    """A task and a control of the known model."""
    folder, seeds = tmp_path_factory.mktemp("tasks"), {"own": 0, "others": 8}
    return {
        name: write(folder / f"{name}.jsonl", own_answers(load_known(), 60, seed=seed)) for name, seed in seeds.items()
    }


@pytest.fixture
def run(known_folder, files, capsys):
    """Runs a command on the known model, and gives what it prints."""

    def command(name: str, *more: object) -> str:
        given = ("--model", known_folder, "--task", files["own"], "--device", "cpu", "--k", 2, *more)
        assert main([name, *map(str, given)]) == 0
        return capsys.readouterr().out

    return command


def test_find_costs_about_what_was_said(run, files):
    given = ("--method", "css", "--n-masks", 12, "--density", 0.17, "--control", files["others"], "--json")
    said = json.loads(run("find", *given, "--dry-run"))
    found = json.loads(run("find", *given))
    assert found["spent"] <= said["evaluations"]["search"] <= 1.5 * found["spent"]
    assert found["confirm"]["spent"] <= said["evaluations"]["proof"] <= 3 * found["confirm"]["spent"]
    assert min(said["seconds"].values()) > 0
    assert said["memory_bytes"] > 1e8


def test_compare_costs_about_what_was_said(run):
    given = ("--methods", "one-shot,gradient", "--max-heads", 3, "--no-control", "--json")
    said = json.loads(run("compare", *given, "--dry-run"))["evaluations"]
    found = json.loads(run("compare", *given))
    assert said["gradient"] == found["methods"]["gradient"]["cost"]["spent"]
    assert found["methods"]["one-shot"]["cost"]["spent"] <= said["one-shot"]
    assert found["spent"] <= said["judging"] <= 2 * found["spent"]


def test_a_dry_run_times_a_few_masks_prints_a_line_a_step_and_writes_nothing(run, files, tmp_path, monkeypatch):
    asked, measure = [], Engine.run
    monkeypatch.setattr(Engine, "run", lambda engine, *given: (asked.append(len(given[1])), measure(engine, *given))[1])
    folder, store = tmp_path / "out", tmp_path / "run.sqlite"
    out = run("find", "--control", files["others"], "--out", folder, "--store", store, "--dry-run")
    lines = out.splitlines()
    assert lines[0] == "baseline 1.000 on 20 examples of own (chance 0.000)"
    steps = ["step", "search", "proof", "curve", "texts", "at most", "memory: a"]
    assert [line[:9].strip() for line in lines[2:]] == steps
    numbers = [int(line[20:40].replace(",", "")) for line in lines[3:8]]
    assert sum(numbers[:4]) == numbers[4]
    assert 0 < sum(asked) <= N_MASKS * N_EXAMPLES + N_BASELINE
    assert not folder.exists()
    assert not store.exists()


def test_a_dry_run_says_that_too_few_examples_are_right(known_folder, load_known, tmp_path, capsys):
    records = own_answers(load_known(), 60)
    for record in records[20:]:
        record["target"] = f" {record['prompt'].split()[0]}"
    wrong = write(tmp_path / "wrong.jsonl", records)
    given = ("--model", known_folder, "--task", wrong, "--device", "cpu", "--k", 2, "--no-control", "--dry-run")
    assert main(["find", *map(str, given)]) == 0
    note = capsys.readouterr().out.splitlines()[1]
    assert re.match(r"note: at this rate \d+ of 30 examples are right, and 20 are needed: use a model that can", note)


@pytest.mark.parametrize(
    "method", ["css", *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != "css")]
)
def test_no_method_takes_more_than_its_bound(load_known, method):
    own, other = (
        Task.from_records(own_answers(load_known(), 60, seed=seed), name).split(40)[0]
        for seed, name in ((0, "own"), (8, "other"))
    )
    options = {
        "chg": {"steps": 20, "batch_size": 8},
        "contrastive": {"steps": 20, "batch_size": 8, "forget": other},
    }.get(method, {})
    controls = [other] if METHODS[method].takes_controls and method != "chg" else None
    with prepared_search(
        load_known(), own, k=2, method=method, controls=controls, budget=None, seed=0, **options
    ) as search:
        assert 0 < search.run().spent <= search.most


def test_what_a_command_refuses_its_dry_run_refuses(known_folder, files, said):
    given = ["--model", known_folder, "--task", files["own"], "--no-control", "--device", "cpu"]
    assert "budget must be " in said("find", *given, "--budget", 40, "--dry-run")
