"""A run in a file, what was meant by a mistake, and completion."""

import json

import pytest

from cs_heads.cli import app
from cs_heads.cli.flags import names_of_methods, names_of_tasks
from cs_heads.methods.registry import METHODS
from tests.test_cli import ran

COMPARE = ["compare", "--model", "demo", "--task", "demo/code", "--methods"]


@pytest.fixture
def run(capsys):
    """Runs a command, and gives status, stdout and stderr."""
    return lambda *arguments: (ran([*map(str, arguments)]), *capsys.readouterr())


def test_the_version_is_said_and_a_bare_command_shows_the_help(run):
    assert run("--version")[:2] == (0, "cs-heads 0.1.0\n")
    status, out, err = run()
    assert (status, err) == (0, "")
    assert out.startswith("Usage: cs-heads")
    assert "the usual way:" in out


def test_a_run_is_written_and_repeated_from_its_file(run, known_folder, task_files, tmp_path):
    first, task = tmp_path / "first", task_files["own"]
    given = ("--model", known_folder, "--task", task, "--method=css", "--n-masks", 12, "--density", 0.17, "--k", 2)
    more = ("--no-control", "--no-curve", "--prepend-bos", "--n", 30, "--task-option", "accuracy=sequence")
    status, out, err = run("find", *given, *more, "--out", first)
    assert (status, err) == (0, "")
    assert str(first / "run.toml") in out
    # Without the line that says how it is used.
    said = (first / "run.toml").read_text(encoding="utf-8").splitlines()[1:]
    assert {'n-masks = "12"', 'density = "0.17"', "no-control = true", "curve = false", "prepend-bos = true"} <= {*said}
    assert 'task-option = ["accuracy=sequence"]' in said
    assert not any(line.startswith(("seed", "device", "config", "json")) for line in said)
    again = tmp_path / "again"
    assert run("find", "--config", first / "run.toml", "--out", again)[0] == 0
    results = [json.loads((folder / "result.json").read_text(encoding="utf-8")) for folder in (first, again)]
    for result in results:
        result.pop("seconds")
    assert results[0].pop("command") != results[1].pop("command")
    assert results[0] == results[1]
    # What the second wrote is the same but for its folder.
    assert (again / "run.toml").read_text(encoding="utf-8").replace(str(again), str(first)).splitlines()[1:] == said


def test_a_file_that_is_not_there_is_named(run, tmp_path):
    assert f"--config '{tmp_path / 'gone.toml'}' does not exist" in run("find", "--config", tmp_path / "gone.toml")[2]


def test_flags_override_the_file(run, known_folder, task_files, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f"model = {json.dumps(str(known_folder))}\ntask = {json.dumps(str(task_files['own']))}\n"
        'method = "css"\nn_masks = 12\ndensity = 0.17\nk = 2\ncontrol = ["gone.jsonl"]\n',
        encoding="utf-8",
    )
    assert "task file 'gone.jsonl' does not exist" in run("find", "--config", path)[2]
    assert "task file 'lost.csv' does not exist" in run("find", "--config", path, "--control", "lost.csv")[2]
    assert "--control and --no-control do not go together" in run("find", "--config", path, "--no-control")[2]
    path.write_text(path.read_text(encoding="utf-8").replace('control = ["gone.jsonl"]', "no-control = true"), "utf-8")
    given = ("--seed", 3, "--json", "--n-masks", 10)
    status, out, _ = run("find", "--config", path, *given)
    assert status == 0
    found = json.loads(out)
    assert (found["method"], found["confirm"]["provenance"]["seed"]) == ("css", 3)
    assert found["spent"] <= 11 * 30


def test_flags_with_the_name_of_a_command_are_read_from_the_file_too(run, said, known_folder, task_files, tmp_path):
    path, task = tmp_path / "run.toml", task_files["own"]
    model = f"model = {json.dumps(str(known_folder))}\n"
    path.write_text(f'{model}task = {json.dumps(str(task))}\nmethods = ["css,csb"]\nno-control = true\n', "utf-8")
    told = (
        run("compare", "--model", known_folder, "--task", task, "--methods", "css,csb", "--no-control", "--dry-run"),
        run("compare", "--config", path, "--dry-run"),
    )
    assert told[0][0] == 0
    at_most = [out.split("at most")[1].split()[0] for _, out, _ in told]
    assert at_most[0] == at_most[1]
    path.write_text(f"{model}task = {json.dumps(str(task))}\nstore = {json.dumps(str(tmp_path))}\n", "utf-8")
    assert f"store '{tmp_path}'" in said("find", "--config", path, "--method", "css").replace('"', "'")
    path.write_text(f'{model}tasks = "{task}"\n', "utf-8")
    assert "two or more" in said("atlas", "--config", path, "--dry-run")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("[settings]\nk = 3", "[settings] must be a flag and its value, as k = 5, got a table"),
        ("n_maks = 3", "unknown option --n-maks; did you mean '--n-masks'?"),
        ("k = [3]", "k"),
        ("no-control = 'maybe'", "no-control"),
        ("seed = 'three'", "seed"),
        ("k 3", "no TOML: Expected '='"),
    ],
)
def test_a_wrong_file_gets_one_line_that_names_what_is_wrong(said, tmp_path, line, error):
    path = tmp_path / "run.toml"
    path.write_text(f"model = 'demo'\ntask = 'demo/capitals'\n{line}\n", encoding="utf-8")
    assert error in said("find", "--config", path)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["compere", "--model", "demo"], "compare"),
        (["find", "--model", "demo", "--task", "demo/code", "--densty=0.1"], "--density"),
        (["reproduce", "--paper", "csh"], "cs"),
        (["find", "--model", "demo", "--task", "demo/capitls"], "demo/capitals"),
        (["find", "--model", "demo", "--task", "demo/code", "--method", "anealed"], "annealed"),
        ([*COMPARE, "css,gredy"], "greedy"),
        ([*COMPARE, "css", "--option", "css.n_mask=9"], "n_masks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_misspelled_is_answered_with_what_was_meant(said, arguments, meant):
    assert f"did you mean '{meant}'?" in said(*arguments).replace('"', "'").replace("Did", "did")


def test_the_shell_completes_commands_flags_and_names(tmp_path, monkeypatch):
    script = app().generate_completion(shell="bash")
    assert all(word in script for word in ("find", "compare", "atlas"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").touch()
    assert {"mine.jsonl", "demo/capitals"} <= {*names_of_tasks()}
    assert names_of_methods() == list(METHODS)
