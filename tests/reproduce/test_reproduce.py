"""The protocols on a tiny model whose working heads are known."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from cs_heads.cli import main
from cs_heads.measure.engine import Engine
from cs_heads.reproduce import PAPERS, Settings, Study, estimate, load_tasks, published, reproduce
from cs_heads.reproduce.gating import instructed
from cs_heads.reproduce.papers import QUICK
from cs_heads.reproduce.run import STEPS, steps_of
from cs_heads.tasks.function_vectors import INSTRUCTIONS
from tests.known_heads import WORKING, hopeless_records, own_answers, word_records

TINY = Settings(
    n=40,
    n_masks=(24,),
    densities=(0.17,),
    k=2,
    most=3,
    n_unseen=20,
    n_universal=20,
    budget=1500,
    n_seeds=2,
    steps=20,
    batch_size=4,
    n_pairs=4,
)
CS_TASKS = ("gsm8k", "arithmetic", "swearing", "boolq")
WORDS = ("function_vectors/antonym", "function_vectors/present-past")


@pytest.fixture(scope="module")
def data(load_known, tmp_path_factory):
    """Files named as tasks of the papers, with what the tiny model itself says; one that it cannot do."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate((*CS_TASKS, "commonsense_qa", "openmathinstruct2")):
        write(folder / f"{name}.jsonl", own_answers(load_known(), 70, seed))
    write(folder / "mbpp.jsonl", hopeless_records(70))
    (folder / "function_vectors").mkdir()
    for name in WORDS:
        write(folder / f"{name}.jsonl", word_records(load_known(), 70, INSTRUCTIONS[name.rpartition("/")[2]]))
    return folder


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


@pytest.fixture
def study(load_known, data, tmp_path):
    def made(paper="cs", names=CS_TASKS, **changed):
        tasks = load_tasks(PAPERS[paper], "tiny", list(names), data=data, n=40)
        return Study(load_known(), PAPERS[paper], tasks, replace(TINY, **changed), tmp_path / "out", progress=False)

    return made


@pytest.fixture
def rows(monkeypatch):
    """How many (mask, example) pairs every engine is asked for; Ctrl-C beyond ``limit`` of its calls."""

    class Rows(list):
        limit = 10**9

    asked, run = Rows(), Engine.run

    def counted(self, masks, examples, *arguments, **options):
        asked.append(len(examples))
        if len(asked) > asked.limit:
            raise KeyboardInterrupt
        return run(self, masks, examples, *arguments, **options)

    monkeypatch.setattr(Engine, "run", counted)
    return asked


def table(study, name):
    return pd.read_csv(study.out / f"{name}.csv")


# What is written


def test_the_heads_that_work_are_found_and_ablated_on_unseen_examples(study):
    names = ["gsm8k", "arithmetic", "swearing"]  # no control: one would show that these heads serve everything
    one = study(names=names)
    assert reproduce(one, ["find", "drops"]) == {}
    heads = table(one, "heads")
    assert set(heads[heads["heads"] == "swear"]["head"][:2]) == set(map(str, WORKING))
    drops = table(one, "drops").set_index(["heads", "task"])
    own = drops.loc["math", "gsm8k"]
    task = one.tasks["gsm8k"].held_out.take(20)
    scores = one.experiment(task)(one.grid.mask(one.top("math"))[None])
    assert own["baseline"] == 1.0
    assert own["score"] == pytest.approx(scores.mean())
    assert own["drop"] > 0.3
    assert list(table(one, "figure-1")["task"]) == names
    assert (one.out / "figure-1.png").stat().st_size > 1000


def test_published_numbers_stand_beside_the_same_task_and_heads_and_are_blank_elsewhere(study):
    one = study(names=["gsm8k", "boolq"])
    reproduce(one, ["find", "drops", "sparsity"])
    drops = table(one, "drops").set_index(["heads", "task"])
    assert drops.loc[("math", "boolq"), "published score"] == published.OFF["math"]["boolq"]
    assert drops.loc[("math", "boolq"), "published baseline"] == published.INTACT["boolq"]
    curve = table(one, "sparsity").set_index(["task", "k"])
    assert curve.loc[("gsm8k", 3), "published score"] == published.CURVE["gsm8k"][3]
    markdown = (one.out / "sparsity.md").read_text(encoding="utf-8")
    assert "0.447" in markdown
    assert "nan" not in markdown


def test_a_task_that_the_model_cannot_do_is_left_out_and_said_so(study):
    one = study(names=["gsm8k", "mbpp", "boolq"])
    left_out = reproduce(one, ["find"])
    assert "better than chance" in left_out["code"] or "fewer than 20" in left_out["code"]
    assert set(table(one, "heads")["heads"]) == {"math"}
    assert f"- code: {left_out['code']}" in (one.out / "index.md").read_text(encoding="utf-8")


def test_what_needs_tasks_that_are_not_there_is_left_out(study):
    one = study(names=["gsm8k"])
    assert set(reproduce(one, ["universal", "generalisation", "overlap", "formats"])) == {
        "universal",
        "generalisation",
        "overlap",
        "formats",
    }


@pytest.mark.slow
def test_every_step_of_the_first_protocol_runs(study):
    one = study()
    assert set(reproduce(one)) == {"formats"}
    for name in ("search", "universal", "proof", "scale", "depth", "sparsity", "generalisation", "overlap", "methods"):
        assert len(table(one, name))
    # The same heads serve all these tasks, so they are universal, and come last.
    assert not set(map(str, WORKING)) & set(table(one, "heads").groupby("heads").head(2)["head"])
    assert set(map(str, WORKING)) <= set(table(one, "universal").query("universal")["head"])


@pytest.mark.slow
def test_every_step_of_gating_that_its_tasks_allow_runs(study):
    one = study("chg", ["commonsense_qa", "openmathinstruct2"])
    assert set(reproduce(one)) == {"mediating", "contrasts"}
    assert (one.out / "figure-2-common-sense.png").is_file()
    shares = table(one, "table-2").set_index(["fit", "heads"])
    known = published.GATED["math", "any"][0]
    assert shares.loc[("math", "any"), f"facilitation, published {published.GATED_MODELS[0]}"] == known
    for name in ("table-1-math", "figure-1b-math", "figure-2-math", "figure-3a-math", "seeds"):
        assert len(table(one, name))


def test_heads_that_mediate_and_contrasts_are_made_of_two_word_tasks(study, rows):
    one = study("chg", ["openmathinstruct2", *WORDS])
    said = estimate(one, steps_of("chg", ["mediating", "contrasts"]))
    left_out = reproduce(one, ["mediating", "contrasts"])
    figure = table(one, "figure-4").set_index("task")
    assert set(figure.index) == set(WORDS)
    assert (figure["pairs"] == TINY.n_pairs).all()
    for name in WORDS:
        drawn = (one.out / f"figure-4-{name.rpartition('/')[2]}.png").is_file()
        assert drawn == figure["t"].notna()[name]
        # Else it is said why there is no test.
        assert drawn != (f"figure-4 of {name}" in left_out)
    held_out = table(one, "figure-5")
    assert set(held_out["held_out"]) == {"antonym", "present-past"}
    assert set(held_out["measured"]) == {"shots", "instruction"}
    # The model prefers the answer in both formats, so only the gates break it.
    assert (held_out["baseline"] == 1.0).all()
    assert 0 < sum(rows) <= said.total


def test_contrasts_cut_short_go_on_from_the_fits_there_are(study, rows):
    one = study("chg", ["openmathinstruct2", *WORDS])
    reproduce(one, ["contrasts"])
    whole = sum(rows)
    (one.out / "figure-5.csv").unlink()
    rows.clear()
    reproduce(study("chg", ["openmathinstruct2", *WORDS]), ["contrasts"])
    assert sum(rows) < whole / 10


def test_the_instruction_asks_for_the_same_word_as_the_examples(study):
    one = study("chg", ["openmathinstruct2", *WORDS])
    task = one.tasks[WORDS[1]]
    changed = instructed(task, "present-past").examples[0]
    asked = task.examples[0].prompt.rpartition("Q: ")[2].removesuffix("\nA:")
    assert changed.prompt == f"{INSTRUCTIONS['present-past']}\nWord: {asked}\nAnswer:"
    assert changed.target == task.examples[0].target


# Going on


def test_a_protocol_that_is_cut_short_goes_on_and_measures_nothing_twice(study, rows, tmp_path):
    reproduce(study(names=["gsm8k"]), ["find", "proof"])
    whole, wanted = sum(rows), {p.name: p.read_bytes() for p in (tmp_path / "out").glob("*.csv")}
    (tmp_path / "out").rename(tmp_path / "whole")
    calls = len(rows)
    rows.clear()
    rows.limit = calls // 2
    with pytest.raises(KeyboardInterrupt):
        reproduce(study(names=["gsm8k"]), ["find", "proof"])
    lost = rows[-1]
    rows.limit = 10**9
    reproduce(study(names=["gsm8k"]), ["find", "proof"])
    assert sum(rows) - lost == whole
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").glob("*.csv")} == wanted


def test_what_is_done_is_not_made_again_and_what_changed_is(study, rows):
    said = []
    reproduce(study(names=["gsm8k"]), ["find"], say=said.append)
    rows.clear()
    reproduce(study(names=["gsm8k"]), ["find"], say=said.append)
    assert said[1:] == ["find: done before"]
    assert not rows
    (study(names=["gsm8k"]).out / "heads.csv").unlink()
    reproduce(study(names=["gsm8k"]), ["find"])
    assert not rows
    reproduce(study(names=["gsm8k"], n_masks=(30,)), ["find"], say=said.append)
    assert said[-1].startswith("find: search")
    assert sum(rows) < 31 * 40


# What it costs


@pytest.mark.parametrize("step", ["find", "drops", "proof", "sparsity", "generalisation", "methods"])
def test_a_step_costs_no_more_than_was_said(study, rows, step):
    one = study(names=["gsm8k", "arithmetic", "boolq"])
    said = estimate(one, steps_of("cs", [step]))
    assert said.total_seconds > 0
    assert set(said.to_frame()["step"]) == {step}
    if step != "find":
        reproduce(one, ["find"])
    rows.clear()
    reproduce(one, [step])
    assert 0 < sum(rows) <= said.total


def test_a_dry_run_says_the_cost_and_writes_nothing(known_folder, data, tmp_path, capsys):
    given = ["--paper", "cs", "--model", str(known_folder), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(["reproduce", *given, "--n", "40", "--tasks", "gsm8k,boolq", "--dry-run", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "find " in said
    assert "example-evaluations" in said
    assert "generalisation cannot be made: it needs a second task of one capability" in said
    assert not (tmp_path / "out").exists()


# What is refused


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["sums"], "task 'sums' is none of paper 'cs'"),
        (["boolq"], "tasks must hold one or more that heads are found on: gsm8k, mbpp"),
        (["gsm8k", "gsm8k"], "tasks must be different"),
        (["rhyming"], "task 'rhyming' has no data with folder"),
    ],
)
def test_wrong_tasks_are_refused_before_anything_is_loaded(data, names, words):
    with pytest.raises(ValueError, match=words):
        load_tasks(PAPERS["cs"], "tiny", names, data=data)


def test_a_folder_gives_the_tasks_that_are_in_it(data):
    tasks = load_tasks(PAPERS["cs"], "tiny", data=data, n=40)
    assert list(tasks) == ["gsm8k", "arithmetic", "mbpp", "boolq", "swearing"]
    assert [len(task) for task in tasks.values()] == [40] * 5


def test_an_unknown_step_and_a_wrong_setting_are_refused():
    with pytest.raises(ValueError, match="steps must be of find, universal"):
        steps_of("cs", ["dance"])
    with pytest.raises(ValueError, match="most must be 5 or more, got 3"):
        Settings(most=3)
    with pytest.raises(ValueError, match="got depth"):
        Settings().changed(depth=3)
    assert QUICK.changed(n_unseen=None, k=3).k == 3


def test_the_demo_model_has_a_task_for_heads_of_every_paper():
    for paper in PAPERS.values():
        tasks = load_tasks(paper, "demo")
        assert any(paper.task(name).heads for name in tasks)
        assert all(task.name.startswith("demo/") for task in tasks.values())
        assert len({step.name for step in STEPS[paper.name]}) == len(STEPS[paper.name])
