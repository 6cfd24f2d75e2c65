"""A run in a file, what was meant by a mistake, colors, and completion."""

import io
import json
import os
import sys
from pathlib import Path
from types import NoneType

import pytest

from cs_heads.cli import main
from cs_heads.cli.completion import methods_in_source
from cs_heads.cli.options import _add_options, methods_listed
from cs_heads.cli.parser import Parser
from cs_heads.cli.printing import colored, status_colored, verdict_colored
from cs_heads.methods.registry import METHODS
from tests.known_heads import own_answers
from tests.waiting import run_program

COMPARE = ["compare", "--model", "demo", "--task", "demo/code", "--methods"]


@pytest.fixture(scope="module")
def task(load_known, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tasks") / "own.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in own_answers(load_known(), 60)), encoding="utf-8")
    return str(path)


@pytest.fixture
def run(capsys):
    """Runs a command, and gives status, stdout and stderr."""

    def command(*arguments: object) -> tuple[int, str, str]:
        try:
            status = main([*map(str, arguments)])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return command


def test_the_version_is_said_and_a_bare_command_shows_the_help(run):
    assert run("--version")[:2] == (0, "cs-heads 0.1.0\n")
    status, out, err = run()
    assert (status, err) == (0, "")
    assert out.startswith("usage: cs-heads")
    assert "the usual way:" in out


def test_a_run_is_written_and_repeated_from_its_file(run, known_folder, task, tmp_path):
    first = tmp_path / "first"
    given = ("--model", known_folder, "--task", task, "--method=css", "--n-masks", 24, "--density", 0.17, "--k", 2)
    more = ("--no-control", "--no-curve", "--prepend-bos", "--n", 40, "--task-option", "accuracy=sequence")
    status, out, err = run("find", *given, *more, "--out", first)
    assert (status, err) == (0, "")
    assert str(first / "run.toml") in out
    # Without the line that says how it is used.
    said = (first / "run.toml").read_text(encoding="utf-8").splitlines()[1:]
    assert {"n-masks = 24", "density = 0.17", "no-control = true", "curve = false", "prepend-bos = true"} <= {*said}
    assert 'task-option = ["accuracy=sequence"]' in said
    assert not any(line.startswith(("seed", "device", "config", "json")) for line in said)
    again = tmp_path / "again"
    assert run("find", "--config", first / "run.toml", "--out", again)[0] == 0
    results = [json.loads((folder / "result.json").read_text(encoding="utf-8")) for folder in (first, again)]
    for result in results:
        result.pop("seconds")
    # The command names all that the file says.
    assert "--density=0.17" in results[1].pop("command")
    results[0].pop("command")
    assert results[0] == results[1]
    # What the second wrote is the same but for its folder.
    assert (again / "run.toml").read_text(encoding="utf-8").replace(str(again), str(first)).splitlines()[1:] == said


def test_flags_override_the_file(run, known_folder, task, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f"model = {json.dumps(str(known_folder))}\ntask = {json.dumps(task)}\n"
        'method = "css"\nn_masks = 24\ndensity = 0.17\nk = 2\ncontrol = ["gone.jsonl"]\n',
        encoding="utf-8",
    )
    # --no-control rules out the controls of the file, and --meth stands for --method.
    status, out, _ = run("find", "--config", path, "--no-control", "--seed", 3, "--json", "--n-mas", 10)
    assert status == 0
    found = json.loads(out)
    assert (found["method"], found["confirm"]["provenance"]["seed"]) == ("css", 3)
    assert found["spent"] <= 11 * 30
    assert "task file 'gone.jsonl' does not exist" in run("find", "--config", path)[2]
    assert "task file 'lost.csv' does not exist" in run("find", "--config", path, "--control", "lost.csv")[2]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("n_maks = 3", "cs-heads find has no option 'n_maks'; did you mean 'n-masks'?"),
        ("methods = 'css'", "cs-heads find has no option 'methods'; did you mean 'method'?"),
        ("k = [3]", "k must be one value, got [3]"),
        ("control = 'a.csv'", "control must be a list, got 'a.csv'"),
        ("no-control = 'yes'", "no-control must be true or false, got 'yes'"),
        ("k = true", "k must be a text or a number, got True"),
        ("seed = 'three'", "argument --seed: invalid int value: 'three'"),
        ("k 3", "no TOML: Expected '='"),
    ],
)
def test_a_wrong_file_gets_one_line_that_names_what_is_wrong(run, tmp_path, said, error):
    path = tmp_path / "run.toml"
    path.write_text(f"model = 'demo'\ntask = 'demo/capitals'\n{said}\n", encoding="utf-8")
    status, out, err = run("find", "--config", path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert error in err


def test_a_file_that_is_not_there_gets_one_line(run, tmp_path):
    status, _, err = run("compare", "--config", tmp_path / "gone.toml")
    assert (status, err.count("\n")) == (2, 1)
    assert "gone.toml" in err


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["fnd"], "find"),
        (["compere", "--model", "demo"], "compare"),
        (["find", "--modle", "demo"], "--model"),
        (["find", "--model", "demo", "--task", "demo/code", "--densty=0.1"], "--density"),
        (["reproduce", "--paper", "csh"], "cs"),
        (["find", "--model", "demo", "--task", "demo/capitls"], "demo/capitals"),
        (["find", "--model", "demo", "--task", "demo/code", "--method", "anealed"], "annealed"),
        (["find", "--model", "demo", "--task", "demo/code", "--ablation", "meen"], "mean"),
        ([*COMPARE, "css,gredy"], "greedy"),
        (
            ["compare", "--model", "demo", "--task", "demo/code", "--methods", "css", "--option", "css.n_mask=9"],
            "n_masks",
        ),
        (["doctor", "dmeo"], "demo"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_misspelled_is_answered_with_what_was_meant(run, arguments, meant):
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"did you mean '{meant}'?" in err


def test_methods_are_listed_where_none_is_named(run):
    for command in (["find", "--method"], ["compare", "--methods"]):
        status, out, err = run(*command)
        assert (status, out, err) == (0, f"{methods_listed()}\n", "")
    lines = methods_listed().splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(METHODS)
    # Of two that share a function each says what it is.
    assert len({line.split(maxsplit=1)[1] for line in lines}) == len(METHODS)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colors_are_for_terminals_alone_and_no_color_is_heeded(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colored("error:", "red", Terminal()) == "\x1b[31merror:\x1b[0m"
    assert colored("error:", "red", io.StringIO()) == "error:"
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert verdict_colored("specific", 10) == "\x1b[32mspecific\x1b[0m  "
    assert status_colored("fail  weights") == "\x1b[31mfail\x1b[0m  weights"
    assert status_colored("model demo") == "model demo"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert verdict_colored("specific") == "specific"


def test_the_shell_completes_commands_flags_and_names(tmp_path):
    pytest.importorskip("argcomplete")
    (tmp_path / "mine.jsonl").touch()
    (tmp_path / "weights").mkdir()

    def completed(line: str) -> set[str]:
        """What is offered, in a process that imports nothing that takes seconds."""
        asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "said"), "_ARGCOMPLETE_IFS": "\n"}
        asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
        path = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
        asked |= {"PYTHONPATH": path, "PYTHONPROFILEIMPORTTIME": "1"}
        done = run_program([sys.executable, "-m", "cs_heads.cli"], env=os.environ | asked, cwd=tmp_path)
        imported = {name.rpartition("|")[2].strip() for name in done.stderr.splitlines()}
        assert "cs_heads.cli" in imported
        assert not imported & {"torch", "transformers", "transformer_lens", "pandas", "sklearn", "scipy.stats"}
        return {*(tmp_path / "said").read_text(encoding="utf-8").split("\n")}

    assert {"find", "compare", "atlas"} <= completed("cs-heads ")
    assert completed("cs-heads find --den") == {"--density"}
    assert {"annealed", "attribution"} == completed("cs-heads find --method a")
    assert completed("cs-heads compare --methods css,gr") == {"css,greedy", "css,group-testing", "css,gradient"}
    assert completed("cs-heads find --task mi") == {"mine.jsonl"}
    assert {"demo", "weights/"} <= completed("cs-heads find --model ")
    assert completed("cs-heads reproduce --pre") == {"--prepend-bos"}


def test_what_the_shell_is_told_of_methods_is_what_they_have():
    """It is read from their source, without importing them."""
    said = methods_in_source()
    assert list(said) == list(METHODS)
    for name, method in METHODS.items():
        own = method.options
        assert list(said[name]) == list(own), name
        for option in said[name].values():
            assert _flagged(option) == _flagged(own[option.name]), name


def _flagged(option):
    """What a flag makes of an option, and what help says of it."""
    parser = Parser()
    _add_options(parser, [option])
    action = parser._actions[-1]
    optional = NoneType in option.types
    return option.required, optional, type(action), getattr(action.type, "__name__", ""), action.metavar, action.help
