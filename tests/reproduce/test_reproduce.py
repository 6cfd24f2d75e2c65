"""The protocols on a tiny model whose working heads are known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cs_heads.ranking import HeadRanking
from cs_heads.reproduce import PAPERS, PaperSettings, load_tasks, published, reproduce
from cs_heads.reproduce import tasks as sources
from cs_heads.reproduce.localization import _overlap
from cs_heads.reproduce.papers import QUICK
from cs_heads.reproduce.run import STEPS, steps_of
from cs_heads.tasks import load_task
from tests.known_heads import WORKING
from tests.reproduce.conftest import table

# What is written


def test_the_heads_that_work_are_found_and_ablated_on_unseen_examples(study):
    names = ["gsm8k", "arithmetic", "swearing"]  # no control: one would show that these heads serve everything
    one = study(names=names)
    assert reproduce(one, ["find", "drops"]) == {}
    heads = table(one, "heads")
    assert set(heads[heads["heads"] == "swear"]["head"][:2]) == set(map(str, WORKING))
    drops = table(one, "drops").set_index(["heads", "task"])
    own = drops.loc["math", "gsm8k"]
    scores = one.experiment("gsm8k")(one.grid.mask(one.top("math"))[None])
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
    assert set(drops["measured with"]) == {"gsm8k", "boolq"}
    curve = table(one, "sparsity").set_index(["task", "k"])
    assert curve.loc[("gsm8k", 3), "published score"] == published.CURVE["gsm8k"][3]
    # Of a suite of which one task is there, no published mean is like it.
    assert curve.loc["General", "published score"].isna().all()
    assert set(curve.loc["General", "measured with"]) == {"boolq"}
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
    asked = ["universal", "generalization", "overlap", "formats"]
    assert [*reproduce(one, asked)] == asked


def test_groups_of_heads_with_keys_and_values_are_compared_where_the_model_has_them(study):
    one = study(names=["gsm8k"])
    importance = np.zeros((3, 4))
    importance[0, 1] = importance[2, 3] = 1
    model = {"model": {"key_value_heads": 2}}
    one.__dict__["rankings"] = {name: HeadRanking("css", importance, 0, provenance=model) for name in ("math", "code")}
    assert _overlap(one)[0].frame["groups"].tolist() == [2]


@pytest.mark.slow
def test_every_step_of_the_first_protocol_runs(study):
    one = study()
    assert set(reproduce(one)) == {"formats"}
    made = ("search", "universal", "proof", "scale", "sparsity", "generalization-math", "overlap", "methods")
    assert all(len(table(one, name)) for name in made)
    # The same heads serve all these tasks, so they are universal, and come last.
    assert not set(map(str, WORKING)) & set(table(one, "heads").groupby("heads").head(2)["head"])
    assert set(map(str, WORKING)) <= set(table(one, "universal").query("universal")["head"])


# What pictures and tables call a task


def test_what_was_measured_is_named_where_it_is_not_the_papers_task(study, load_known):
    one = study(names=["gsm8k", "arithmetic", "boolq"])
    other = replace(one.tasks["boolq"], name="mine")
    one = replace(one, tasks=one.tasks | {"boolq": other, "arithmetic": replace(one.tasks["arithmetic"], name="mine")})
    assert [one.label(name) for name in one.tasks] == ["gsm8k", "mine (arithmetic)", "mine (boolq)"]
    one.out.mkdir()
    assert [column.name for column in one.suites()] == ["General"]
    frame = one.table(pd.DataFrame({"task": ["mine (boolq)", "gsm8k", "General"], "k": 0}))
    assert frame["task"].tolist() == ["boolq", "gsm8k", "General"]
    assert frame["measured with"].tolist() == ["mine", "gsm8k", "mine"]


def test_how_a_task_fails_is_seen_with_the_head_nearest_to_a_universal_one_too(study, monkeypatch):
    one = study(names=["gsm8k", "swearing", "boolq"])
    one.out.mkdir()
    assert one.universal is not None
    monkeypatch.setitem(vars(one), "universal", replace(one.universal, heads=()))
    reproduce(one, ["universal"])
    nearest = one.universal.candidates[one.universal.left[:, -1].argmin()]
    assert set(table(one, "failures")["found"]) == {"intact", "math", str(nearest)}


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


def test_a_task_that_the_hub_has_not_is_left_out_and_said_so(monkeypatch):
    asked = []
    monkeypatch.setattr(sources, "load_task", lambda name, *_, **__: asked.append(name) or load_task("demo/capitals"))
    tasks = load_tasks(PAPERS["chg"], "tiny")
    assert asked == list(tasks)
    assert list(sources.lacking(PAPERS["chg"], tasks, None)) == ["bigbench/subject_verb_agreement"]
    assert sources.lacking(PAPERS["chg"], tasks, list(tasks)) == {}
    assert sources.lacking(PAPERS["chg"], load_tasks(PAPERS["chg"], "demo"), None) == {}
    with pytest.raises(ValueError, match="no data with model 'tiny': give bigbench/subject_verb_agreement=FILE, or --"):
        load_tasks(PAPERS["chg"], "tiny", ["bigbench/subject_verb_agreement"])


def test_an_unknown_step_and_a_wrong_setting_are_refused():
    with pytest.raises(ValueError, match="steps must be of find, universal"):
        steps_of("cs", ["dance"])
    with pytest.raises(ValueError, match="max_heads must be an integer of 5 or more, got 3"):
        PaperSettings(max_heads=3)
    with pytest.raises(ValueError, match="got none"):
        steps_of("cs", [])
    assert QUICK.changed(n_unseen=None, k=3).k == 3
    assert QUICK.changed(k=11).max_heads == 11


def test_the_curve_of_a_small_model_ends_at_half_of_its_heads(study):
    assert study(max_heads=10).settings.max_heads == 6
    with pytest.raises(ValueError, match=r"k must be an integer in 1\.\.6"):
        study(k=7, max_heads=10)


def test_the_demo_model_has_a_task_for_heads_of_every_paper():
    for paper in PAPERS.values():
        tasks = load_tasks(paper, "demo")
        assert any(paper.task(name).heads for name in tasks)
        assert all(task.name.startswith("demo/") for task in tasks.values())
        assert len({step.name for step in STEPS[paper.name]}) == len(STEPS[paper.name])
