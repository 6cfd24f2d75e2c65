"""``--store`` on the command line, and ``cs-heads store``."""

import json
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest

from cs_heads.cli import main
from cs_heads.engine import Engine
from cs_heads.store.store import FORMAT
from tests.known_heads import own_answers
from tests.test_cli import write
from tests.waiting import run_program


@pytest.fixture(scope="module")
def task(load_known, tmp_path_factory):
    return write(tmp_path_factory.mktemp("tasks") / "own.jsonl", own_answers(load_known(), 60))


@pytest.fixture
def find(known_folder, task, tmp_path):
    """The arguments of a search with a store."""
    arguments = ["find", "--model", known_folder, "--task", task, "--method", "css", "--density", "0.17", "--k", "2"]
    arguments += ["--n-masks", "12", "--no-control", "--device", "cpu", "--store", tmp_path / "my run.sqlite", "--json"]
    return [str(argument) for argument in arguments]


@pytest.fixture
def stop_at(monkeypatch):
    """Ctrl-C at some call of the engine; at none for 0."""
    run = Engine.run

    def stops(number):
        calls = []

        def counted(self, *arguments, **options):
            calls.append(1)
            if len(calls) == number:
                raise KeyboardInterrupt
            return run(self, *arguments, **options)

        monkeypatch.setattr(Engine, "run", counted)
        return calls

    return stops


def without_command(printed):
    """The result but for the command, which names the store, and the time it took."""
    result = json.loads(printed)
    assert set(result.pop("seconds")) == {"find", "confirm"}
    assert result.pop("command").startswith("cs-heads find ")
    return result


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(find, stop_at, capsys):
    """The command it prints is one that goes on, and ends with what the whole command would have said."""
    assert main([*find[:-3], "--json"]) == 0
    whole = without_command(capsys.readouterr().out)
    stop_at(2)
    assert main(find) == 130
    out, err = capsys.readouterr()
    assert out == ""
    said, _, command = err.strip().partition(": cs-heads find ")
    assert said == f"cs-heads: interrupted; 30 results are kept in {find[-2]}, and the same command resumes"
    # Its log is folded into the file: nothing lies beside it that belongs to it.
    assert [file.name for file in Path(find[-2]).parent.iterdir()] == ["my run.sqlite"]
    calls = stop_at(0)
    assert main(["find", *shlex.split(command)]) == 0
    assert without_command(capsys.readouterr().out) == whole
    assert calls
    calls.clear()
    assert main(find) == 0
    assert without_command(capsys.readouterr().out) == whole
    assert not calls


STOPPED = """
import os, signal, sys
from cs_heads.cli import main
from cs_heads.engine import Engine

run = Engine.run

def stops(self, *arguments, **options):
    for number, batch in enumerate(run(self, *arguments, **options)):
        yield batch
        if number == 1:
            os.kill(os.getpid(), int(sys.argv[1]))

Engine.run = stops
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status", "said"), [(2, 130, "interrupted"), (15, 143, "terminated")])
def test_a_command_that_is_stopped_leaves_its_store_closed(find, tmp_path, number, status, said):
    """Its log is folded into the file: nothing lies beside it that belongs to it."""
    more = ["--batch-tokens", "64"]
    done = run_program([sys.executable, "-c", STOPPED, number, *find, *more])
    assert (done.returncode, done.stdout) == (status, "")
    assert f"cs-heads: {said}; " in done.stderr
    assert " results are kept in " in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["my run.sqlite"]


def test_store_says_what_is_in_a_file_and_what_is_kept_beside_results(find, capsys, tmp_path):
    """Gradients are no results of masks, and are resumed all the same."""
    store = find[-2]
    assert main([*find[:5], "--method", "gradient", "--no-control", "--store", store, "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(["store", store]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"store {store}, format {FORMAT}"
    assert lines[1].endswith("TransformerBridge, float32, 3 × 4 heads")
    assert lines[2].endswith("ablation zero")
    counts = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in lines[5:7]}
    assert counts["own"] == counts["all"] > 0
    assert lines[8] == "kept, to be resumed: 1 of gradient"
    assert main(["store", store, "--json", "--parquet", str(tmp_path / "run.parquet")]) == 0
    contents = json.loads(capsys.readouterr().out)
    assert (contents["tasks"], contents["kept"]) == ({"own": counts["all"]}, {"gradient": 1})
    assert contents["study"]["ablation"] == "zero"
    assert len(pd.read_parquet(tmp_path / "run.parquet")) == counts["all"]


def test_what_cannot_be_a_store_is_refused_in_one_line(find, said, tmp_path, task):
    nothing = tmp_path / "nothing.sqlite"
    assert said("store", nothing) == f"cs-heads: error: store '{nothing}' does not exist\n"
    for command in (["store", task], [*find[:-3], "--store", task, "--json"]):
        assert "is no store of cs-heads" in said(*command)
