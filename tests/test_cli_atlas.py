"""``cs-heads atlas``."""

import json
import shlex
from contextlib import redirect_stdout
from html import escape
from io import StringIO

import numpy as np
import pandas as pd
import pytest

import cs_heads as cs
from cs_heads.cli import main
from cs_heads.engine import Engine
from tests.known_heads import own_answers
from tests.test_cli import PNG, ran, refused, write


@pytest.fixture(scope="module")
def tiny(known_folder, load_known, tmp_path_factory) -> tuple[str, ...]:
    """The arguments of an atlas of two tasks of the known model."""
    folder = tmp_path_factory.mktemp("tasks")
    files = [write(folder / f"{seed}.jsonl", own_answers(load_known(), 50, seed=seed)) for seed in (0, 8)]
    given = ("--model", known_folder, "--tasks", f"{files[0]},{files[1]}", "--n", 25, "--n-unseen", 20, "--k", 2)
    return tuple(map(str, (*given, "--n-random", 2, "--budget", 1000, "--device", "cpu", "--control-weight", 2)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("atlas") / "new" / "folder"


@pytest.fixture(scope="module")
def printed(tiny, folder) -> str:
    """What a small atlas prints; its files lie in ``folder``."""
    out = StringIO()
    with redirect_stdout(out):
        assert main(["atlas", *tiny, "--out", str(folder)]) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def found(folder, printed) -> cs.Atlas:
    return cs.Atlas.load(folder / "atlas.json")


@pytest.fixture
def atlas(capsys):
    return lambda *arguments: (ran(["atlas", *arguments]), *capsys.readouterr())


def test_a_line_a_skill_tells_what_it_and_the_others_lose_and_notes_and_cost_follow(printed, found, tiny):
    lines = printed.splitlines()
    assert lines[0].startswith(f"model {tiny[1]}, 2 skills: ")
    assert lines[2].split() == ["skill", "own", "others", "verdict", "heads"]
    for line, row in zip(lines[3:5], found.to_frame().to_dict("records"), strict=True):
        losses = (f"{row[column]:.2f}" for column in ("own loss", "others' mean loss"))
        assert line.split() == [row["skill"], *losses, *row["verdict"].split(), *row["heads"].split()]
    assert lines[5].split() == ["mean", *(f"{mean:.2f}" for mean in found.means())]
    assert found.provenance["control_weight"] == 2.0
    assert lines[7] == f"universal heads: {', '.join(map(str, found.universal)) or 'none'}"
    shared = [f"  {head}: {', '.join(names)}" for head, names in found.shared.items()]
    assert lines[8 : 9 + len(shared)] == (["shared heads:", *shared] if shared else ["shared heads: none"])
    assert lines[9 + len(shared)].startswith("clusters: ")
    assert "note: 2 skills tell little of what every skill needs: use four or more that are not kin" in lines
    search = found.provenance["search"]["spent"]
    assert search <= 1000
    assert lines[-2] == f"cost: {search:,} example-evaluations to find, {found.spent - search:,} to prove"


def test_out_keeps_the_atlas_tables_pictures_and_report(printed, folder, found, tiny, tmp_path):
    files = ("atlas.json", "atlas.csv", "matrix.csv", "skills.csv", "atlas.png", "matrix.png", "tree.png")
    written = ("run.toml", *files, "report.html")
    assert {path.name for path in folder.iterdir()} == {*written}
    assert printed.endswith(f"written: {', '.join(str(folder / name) for name in written)}\n")
    assert all((folder / name).read_bytes().startswith(PNG) for name in files[4:])
    assert len(pd.read_csv(folder / "atlas.csv")) == 2 * 12
    matrix = pd.read_csv(folder / "matrix.csv", index_col="heads of")
    np.testing.assert_allclose(matrix.to_numpy(), found.matrix().to_numpy())
    assert tuple(pd.read_csv(folder / "skills.csv")["skill"].astype(str)) == found.skills
    assert found.command == shlex.join(["cs-heads", "atlas", *tiny, "--out", str(folder)])
    assert found.seconds > 0
    page = (folder / "report.html").read_bytes()
    assert found.command in page.decode()
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == page


def test_explain_puts_the_cards_of_each_skill_into_the_page(atlas, tmp_path):
    given = ("--model", "demo", "--tasks", "demo/capitals,demo/copying", "--n", "60", "--n-unseen", "20", "--k", "1")
    given += ("--n-random", "2", "--budget", "1700", "--explain")
    status, _, err = atlas(*given, "--out", str(tmp_path / "out"))
    assert (status, err) == (0, "")
    found = cs.Atlas.load(tmp_path / "out" / "atlas.json")
    assert tuple(found.cards) == found.skills == ("demo/capitals", "demo/copying")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for name, cards in found.cards.items():
        assert tuple(card.head for card in cards.cards) == found.proofs[name].heads
        assert all(np.isfinite(card["looks at the first token"].controls) for card in cards.cards), "on the other skill"
        # Of one head below its skill, and where a reader points at it.
        assert all(page.count(escape(card.words.split(" (")[0])) >= 2 for card in cards.cards)
    assert "cards " in atlas(*given, "--dry-run")[1]


def test_an_interrupted_atlas_is_resumed_ends_with_the_same_and_costs_what_was_said(
    atlas, tiny, printed, folder, monkeypatch, tmp_path
):
    """What is measured stays where it was, and once all of it is, the command measures nothing."""
    run, calls = Engine.run, []

    def counted(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return run(self, *arguments, **options)

    def made(*arguments):
        return json.loads(atlas(*arguments)[1]) | {"seconds": 0, "command": ""}

    status, out, err = atlas(*tiny, "--json", "--dry-run", "--out", str(tmp_path / "out"))
    assert (status, err) == (0, "")
    assert not (tmp_path / "out").exists()
    said = sum(json.loads(out)["evaluations"].values())
    whole = json.loads((folder / "atlas.json").read_text(encoding="utf-8")) | {"seconds": 0, "command": ""}
    assert whole["spent"] <= said <= 1.5 * whole["spent"]
    monkeypatch.setattr(Engine, "run", counted)
    more = (*tiny, "--json", "--store", str(tmp_path / "run.sqlite"))
    status, out, err = atlas(*more)
    assert (status, out) == (130, "")
    assert f"the same command resumes: cs-heads atlas --model {tiny[1]}" in err
    before = cs.Store.open(tmp_path / "run.sqlite").contents().observations
    assert made(*more) == whole
    after = cs.Store.open(tmp_path / "run.sqlite").contents().observations
    assert 0 < before < after
    monkeypatch.setattr(Engine, "run", lambda *_, **__: pytest.fail("the model is run"))
    assert made(*more) == whole
    assert cs.Store.open(tmp_path / "run.sqlite").contents().observations == after


# Mistakes: exit status 2 and one line, before a model is loaded where it needs none


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "demo/capitals"], "tasks must be two or more of different names, got demo/capitals"),
        (["--tasks", "demo/rhyme,demo/code,demo/rhyme"], "got demo/rhyme, demo/code, demo/rhyme"),
        (["--tasks", "demo/code,demo/rhyme", "--n", "5"], "has 5 finding examples; 20 or more are needed"),
        (["--tasks", "demo/code,demo/rhyme", "--task-option", "steps=4"], "no --tasks has an option 'steps'"),
        (["--tasks", "demo/code,demo/rhyme", "--task-option", "ioi:n=4"], "no built-in --tasks is 'ioi'"),
        (["--task-option", "steps=4"], "--task-option goes with --tasks"),
        (["--n-unseen", "19"], "n_unseen must be an integer of 20 or more, got 19"),
        (["--n-random", "0"], 'Invalid value "0" for --n-random. Must be >= 1.'),
        (["--control-weight", "-1"], 'Invalid value "-1.0" for --control-weight. Must be >= 0.'),
        (["--forget", "demo/code"], "Unknown option: --forget"),
        ([], "model 'nobody/nothing' could not be loaded"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_argument_gets_one_line(atlas, arguments, said):
    refused(atlas("--model", "nobody/nothing", *arguments), said)


@pytest.mark.parametrize(
    ("flag", "value", "said"), [("--k", "7", "k must be an integer in 1..6"), ("--budget", "100", "budget must be ")]
)
def test_what_does_not_fit_the_model_is_refused_before_it_runs(atlas, tiny, flag, value, said, monkeypatch):
    monkeypatch.setattr(Engine, "run", lambda *_, **__: pytest.fail("the model is run"))
    place = tiny.index(flag) + 1
    refused(atlas(*tiny[:place], value, *tiny[place + 1 :]), said)


def test_an_atlas_has_a_folder_of_its_own(atlas, printed, folder, tmp_path, known_folder, tiny, capsys):
    (tmp_path / "result.json").write_text("{}")
    said = "has result.json already: give an atlas a folder of its own"
    refused(atlas("--model", "nobody/nothing", "--out", str(tmp_path)), said)
    files = {path: path.read_bytes() for path in folder.iterdir()}
    find = ["find", "--model", str(known_folder), "--task", tiny[3].split(",")[0], "--no-control", "--out", str(folder)]
    refused((main(find), *capsys.readouterr()), "has atlas.json already: give an atlas a folder of its own")
    assert {path: path.read_bytes() for path in folder.iterdir()} == files
