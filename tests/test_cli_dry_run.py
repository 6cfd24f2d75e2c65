"""``--dry-run``: what a command costs is said beforehand, and is no less than it takes."""

import json

import pytest

from cs_heads import progress
from cs_heads.analysis.least_set import most_evaluations as most_of_least
from cs_heads.analysis.random_comparison import most_evaluations
from cs_heads.cli import dry_run, main
from cs_heads.lens import abilities
from tests.known_heads import own_answers


@pytest.fixture(scope="module")
def files(load_known, tmp_path_factory):
    """A task and a control of the known model."""
    folder, made = tmp_path_factory.mktemp("tasks"), {}
    for name, seed in (("own", 0), ("others", 8)):
        made[name] = folder / f"{name}.jsonl"
        lines = (json.dumps(record) + "\n" for record in own_answers(load_known(), 60, seed=seed))
        made[name].write_text("".join(lines), encoding="utf-8")
    return made


@pytest.fixture
def run(known_folder, files, capsys):
    """Runs a command on the known model, and gives what it prints."""

    def command(name: str, *more: object) -> str:
        given = ("--model", known_folder, "--task", files["own"], "--device", "cpu", "--k", 2, *more)
        assert main([name, *map(str, given)]) == 0
        return capsys.readouterr().out

    return command


@pytest.mark.parametrize("method", [("css", "--n-masks", "12", "--density", "0.17"), ("gradient",)])
def test_find_costs_about_what_was_said(run, files, method):
    given = ("--method", *method, "--control", files["others"], "--json")
    said = json.loads(run("find", *given, "--dry-run"))
    found = json.loads(run("find", *given))
    assert found["spent"] <= said["evaluations"]["search"] <= 1.5 * found["spent"]
    proof = found["confirm"]
    controls = sum(2 * control["n_examples"] for control in proof["controls"])
    random = most_evaluations(len(proof["random_drops"]), proof["n_examples"])
    least = most_of_least(2, proof["n_examples"])
    assert proof["spent"] <= said["evaluations"]["proof"] == 2 * proof["n_examples"] + least + random + controls
    assert min(said["seconds"].values()) > 0
    assert said["memory_bytes"] > 1e8


def test_a_search_with_a_budget_is_said_to_take_it(run):
    """As it is never exceeded; on twelve heads masks are drawn again, which costs nothing."""
    said = json.loads(run("find", "--budget", 1200, "--no-control", "--json", "--dry-run"))
    assert said["evaluations"]["search"] == 1200


def test_compare_costs_about_what_was_said(run):
    given = ("--methods", "one-shot,gradient", "--max-heads", 3, "--no-control", "--json")
    said = json.loads(run("compare", *given, "--dry-run"))["evaluations"]
    found = json.loads(run("compare", *given))
    assert said["gradient"] == found["methods"]["gradient"]["spent"]
    spent = found["spent"] + found["methods"]["one-shot"]["spent"]
    assert spent <= said["masks"] <= 1.5 * spent


def test_a_dry_run_measures_little_prints_a_line_a_step_and_writes_nothing(run, files, tmp_path, monkeypatch):
    told = []
    tell = progress._Bar.tell
    monkeypatch.setattr(progress._Bar, "tell", lambda bar, done: (told.append(done), tell(bar, done))[1])
    monkeypatch.setattr(dry_run, "_SECONDS", 0.0)
    folder, store = tmp_path / "out", tmp_path / "run.sqlite"
    given = ("--control", files["others"], "--batch-tokens", 64)
    out = run("find", *given, "--out", folder, "--store", store, "--dry-run")
    lines = out.splitlines()
    assert [line[:9].strip() for line in lines] == ["step", "search", "proof", "curve", "at most", "memory: a"]
    numbers = [int(line[20:40].replace(",", "")) for line in lines[1:5]]
    assert sum(numbers[:3]) == numbers[3]
    assert 0 < max(told) < numbers[3] / 2
    assert not folder.exists()
    assert not store.exists()


def test_a_dry_run_tries_the_shortcuts_of_a_model_once_for_its_search_and_its_proof(run, monkeypatch):
    tried, exact = [], abilities._exact
    monkeypatch.setattr(abilities, "_exact", lambda model, wanted: (tried.append(model), exact(model, wanted))[1])
    run("find", "--no-control", "--dry-run")
    assert len(tried) == 1
    run("find", "--no-control", "--no-curve")
    assert len(tried) > 2


def test_what_a_command_refuses_its_dry_run_refuses(known_folder, files, capsys):
    given = ["--model", str(known_folder), "--task", str(files["own"]), "--no-control", "--device", "cpu"]
    assert main(["find", *given, "--budget", "40", "--dry-run"]) == 2
    assert "budget must be " in capsys.readouterr().err
