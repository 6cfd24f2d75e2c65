"""``cs-heads atlas``."""

import json
import shlex
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pandas as pd
import pytest

import cs_heads as cs
from cs_heads.cli import main
from cs_heads.engine import Engine
from tests.known_heads import own_answers
from tests.test_cli import PNG, ran, refused, write

SKILLS = ("demo/capitals", "demo/code", "demo/rhyme")
SMALL = ["--tasks", ",".join(SKILLS), "--budget", "3000", "--n-unseen", "40", "--n-random", "2", "--device", "cpu"]
ARGUMENTS = ["atlas", "--model", "demo", *SMALL, "--control-weight", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("atlas") / "new" / "folder"


@pytest.fixture(scope="module")
def printed(folder) -> str:
    """What a small atlas prints; its files lie in ``folder``."""
    out = StringIO()
    with redirect_stdout(out):
        assert main([*ARGUMENTS, "--out", str(folder)]) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def found(folder, printed) -> cs.Atlas:
    return cs.Atlas.load(folder / "atlas.json")


@pytest.fixture
def atlas(capsys):
    return lambda *arguments: (ran(["atlas", *arguments]), *capsys.readouterr())


def test_a_line_a_skill_tells_what_it_and_the_others_lose(printed, found):
    lines = printed.splitlines()
    assert lines[0] == "model demo, 3 skills: 3 specific"
    assert lines[2].split() == ["skill", "own", "others", "verdict", "heads"]
    frame = found.to_frame().set_index("skill")
    for line, name in zip(lines[3:6], SKILLS, strict=True):
        row = frame.loc[name]
        losses = (f"{row[column]:.2f}" for column in ("own loss", "others' mean loss"))
        assert line.split() == [name, *losses, "specific", *row["heads"].split()]
    assert lines[6].split() == ["mean", *(f"{mean:.2f}" for mean in found.means())]
    assert found.provenance["control_weight"] == 2.0
    assert found.means()[0] > 0.9
    assert found.means()[1] < 0.1


def test_what_several_skills_need_what_is_noted_and_the_cost_follow(printed, found):
    lines = printed.splitlines()[8:]
    assert lines[0] == f"universal heads: {', '.join(map(str, found.universal)) or 'none'}"
    shared = [f"  {head}: {', '.join(names)}" for head, names in found.shared.items()]
    assert lines[1 : 2 + len(shared)] == (["shared heads:", *shared] if shared else ["shared heads: none"])
    assert lines[2 + len(shared)] == "clusters: none, each skill is alone"
    assert "note: 3 skills tell little of what every skill needs: use four or more that are not kin" in lines
    assert sum("no intervals and no claims" in line for line in lines) == 1
    search = found.provenance["search"]["spent"]
    assert search <= 3000
    assert lines[-2] == f"cost: {search:,} example-evaluations to find, {found.spent - search:,} to prove"


def test_out_keeps_the_atlas_tables_pictures_and_report(printed, folder, found):
    files = ("atlas.json", "atlas.csv", "matrix.csv", "skills.csv", "atlas.png", "matrix.png", "tree.png")
    written = ("run.toml", *files, "report.html")
    assert {path.name for path in folder.iterdir()} == {*written}
    assert printed.endswith(f"written: {', '.join(str(folder / name) for name in written)}\n")
    assert all((folder / name).read_bytes().startswith(PNG) for name in files[4:])
    assert len(pd.read_csv(folder / "atlas.csv")) == 3 * 128
    matrix = pd.read_csv(folder / "matrix.csv", index_col="heads of")
    np.testing.assert_allclose(matrix.to_numpy(), found.matrix().to_numpy())
    assert tuple(pd.read_csv(folder / "skills.csv")["skill"]) == SKILLS == found.skills
    record = json.loads((folder / "atlas.json").read_text(encoding="utf-8"))
    assert record["command"] == shlex.join(["cs-heads", *ARGUMENTS, "--out", str(folder)])
    assert record["seconds"] > 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Which heads of demo serve which skill?" in page
    assert record["command"] in page


def test_report_makes_the_page_once_more(printed, folder, tmp_path):
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == (folder / "report.html").read_bytes()


@pytest.fixture(scope="module")
def tiny(known_folder, load_known, tmp_path_factory) -> tuple[str, ...]:
    """The arguments of an atlas of two tasks of the known model."""
    folder = tmp_path_factory.mktemp("tasks")
    files = [write(folder / f"{seed}.jsonl", own_answers(load_known(), 60, seed=seed)) for seed in (0, 8)]
    given = ("--model", known_folder, "--tasks", f"{files[0]},{files[1]}", "--n", 30, "--n-unseen", 20, "--k", 2)
    return tuple(map(str, (*given, "--n-random", 2, "--budget", 1000, "--device", "cpu", "--json")))


def test_an_interrupted_atlas_is_resumed_ends_with_the_same_and_costs_what_was_said(atlas, tiny, monkeypatch, tmp_path):
    """What is measured stays where it was, and once all of it is, the command measures nothing."""
    run, calls = Engine.run, []

    def counted(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return run(self, *arguments, **options)

    status, out, err = atlas(*tiny, "--dry-run", "--out", str(tmp_path / "out"))
    assert (status, err) == (0, "")
    assert not (tmp_path / "out").exists()
    said, whole = sum(json.loads(out)["evaluations"].values()), json.loads(atlas(*tiny)[1])
    assert whole["spent"] <= said <= 1.5 * whole["spent"]
    monkeypatch.setattr(Engine, "run", counted)
    more = (*tiny, "--store", str(tmp_path / "run.sqlite"))
    status, out, err = atlas(*more)
    assert (status, out) == (130, "")
    assert "results are kept in" in err
    assert f"the same command resumes: cs-heads atlas --model {tiny[1]}" in err
    before = cs.Store.open(tmp_path / "run.sqlite").contents().observations
    own = {"seconds": 0, "command": ""}
    assert json.loads(atlas(*more)[1]) | own == whole | own
    after = cs.Store.open(tmp_path / "run.sqlite").contents().observations
    assert 0 < before < after
    monkeypatch.setattr(Engine, "run", lambda *_, **__: pytest.fail("the model is run"))
    assert json.loads(atlas(*more)[1]) | own == whole | own
    assert cs.Store.open(tmp_path / "run.sqlite").contents().observations == after


# Mistakes: exit status 2 and one line, before a model is loaded where it needs none


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "demo/capitals"], "tasks must be two or more of different names, got demo/capitals"),
        (["--tasks", ","], "tasks must be two or more of different names, got none"),
        (["--tasks", "demo/rhyme,demo/code,demo/rhyme"], "got demo/rhyme, demo/code, demo/rhyme"),
        (["--tasks", "demo/code,demo/rhyme", "--n", "5"], "has 5 finding examples; 20 or more are needed"),
        (["--tasks", "demo/code,demo/rhyme", "--task-option", "steps=4"], "no --tasks has an option 'steps'"),
        (["--tasks", "demo/code,demo/rhyme", "--task-option", "ioi:n=4"], "no built-in --tasks is 'ioi'"),
        (["--n", "50"], "--n goes with --tasks"),
        (["--task-option", "steps=4"], "--task-option goes with --tasks"),
        (["--n-unseen", "19"], "n_unseen must be an integer of 20 or more, got 19"),
        (["--n-random", "0"], 'Invalid value "0" for --n-random. Must be >= 1.'),
        (["--control-weight", "-1"], 'Invalid value "-1.0" for --control-weight. Must be >= 0.'),
        (["--k", "0"], 'Invalid value "0" for --k. Must be >= 1.'),
        (["--forget", "demo/code"], "Unknown option: --forget"),
        ([], "model 'nobody/nothing' could not be loaded"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_argument_gets_one_line(atlas, arguments, said):
    refused(atlas("--model", "nobody/nothing", *arguments), said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--k", "65"], "k must be an integer in 1..64"), (["--budget", "400"], "budget must be 1,644 or more")],
)
def test_what_does_not_fit_the_model_is_refused_before_it_runs(atlas, arguments, said, monkeypatch):
    monkeypatch.setattr(Engine, "run", lambda *_, **__: pytest.fail("the model is run"))
    refused(atlas("--model", "demo", "--tasks", ",".join(SKILLS), "--device", "cpu", *arguments), said)


def test_an_atlas_has_a_folder_of_its_own(atlas, printed, folder, tmp_path, capsys):
    (tmp_path / "result.json").write_text("{}")
    said = "has result.json already: give an atlas a folder of its own"
    refused(atlas("--model", "nobody/nothing", "--out", str(tmp_path)), said)
    files = {path: path.read_bytes() for path in folder.iterdir()}
    find = ["find", "--model", "demo", "--task", "demo/code", "--no-control", "--out", str(folder)]
    refused((main(find), *capsys.readouterr()), "has atlas.json already: give an atlas a folder of its own")
    assert {path: path.read_bytes() for path in folder.iterdir()} == files
