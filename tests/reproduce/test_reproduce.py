"""The protocols on a tiny model whose working heads are known."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cs_heads.cli import main
from cs_heads.cli.reproduce import default_dtype
from cs_heads.ranking import HeadRanking
from cs_heads.reproduce import PAPERS, PaperSettings, load_tasks, published, reproduce
from cs_heads.reproduce import tasks as sources
from cs_heads.reproduce.costs import METHODS
from cs_heads.reproduce.localization import _overlap, _published
from cs_heads.reproduce.papers import QUICK
from cs_heads.reproduce.run import STEPS, steps_of
from cs_heads.sandbox import Sandbox, SandboxError
from cs_heads.tasks import load_task
from tests.known_heads import WORKING
from tests.reproduce.conftest import table

ANTONYM = PAPERS["chg"].task("function_vectors/antonym")
ANTONYM = replace(ANTONYM, heads="antonyms")

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
    heads = table(one, "heads").groupby("heads")["left out"].first()
    assert heads.isna().to_dict() == {"code": False, "math": True}
    assert heads["code"] == left_out["code"]
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
    pairs, within = (output.frame for output in _overlap(one))
    assert pairs["groups"].tolist() == [2]
    # Two heads of two layers lie in two of the six groups, and two random ones seldom in one.
    assert within[["n", "groups"]].to_numpy().tolist() == [[2, 2]] * 2
    assert within["expected"].to_numpy() == pytest.approx(2 - 1 / 11, abs=0.02)


@pytest.mark.slow
def test_every_step_of_the_first_protocol_runs(study):
    one = study()
    assert set(reproduce(one)) == {"formats", "published"}
    made = (
        "search",
        "universal",
        "proof",
        "scale",
        "sparsity",
        "generalization-math",
        "overlap",
        "methods",
        "everywhere",
        "groups",
    )
    assert all(len(table(one, name)) for name in made)
    # The same heads serve all these tasks, so they are universal, and come last.
    assert not set(map(str, WORKING)) & set(table(one, "heads").groupby("heads").head(2)["head"])
    assert set(map(str, WORKING)) <= set(table(one, "universal").query("universal")["head"])


def test_whole_sets_are_measured_where_all_that_is_unseen_is(study):
    one = study(names=["gsm8k", "boolq"], n_unseen=None)
    reproduce(one, ["find", "drops"])
    drops = table(one, "drops").set_index(["heads", "task"])
    masks = np.stack([one.grid.mask([]), one.grid.mask(one.top("math"))])
    sides = [one.experiment("gsm8k", finding=finding)(masks) for finding in (True, False)]
    whole = np.concatenate(sides, axis=1).mean(axis=1)
    assert drops.loc[("math", "gsm8k"), ["whole baseline", "whole score"]].tolist() == pytest.approx(whole.tolist())
    assert drops.loc[("math", "General"), "whole score"] == drops.loc[("math", "boolq"), "whole score"]


def test_six_prompts_find_heads_and_prove_none(study):
    one = study(names=["gsm8k"])
    few = replace(one.tasks["gsm8k"].take(6), held_out=one.tasks["gsm8k"].held_out.take(6))
    one = replace(one, tasks={"gsm8k": few})
    assert reproduce(one, ["find", "proof"]) == {"proof of math": "fewer than 20 unseen examples"}
    assert len(table(one, "heads"))


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the hub, by name, with its options; every task is there but mmlu."""
    known, seen = load_task("demo/capitals"), {}

    def load(name, *_, **options):
        seen[name] = options
        if name == "mmlu":
            raise ValueError("no network")
        return known

    monkeypatch.setattr(sources, "load_task", load)
    return seen


def test_a_quick_run_has_two_word_tasks_and_short_texts(study, asked):
    tasks, left_out = load_tasks(PAPERS["chg"], "tiny", quick=True)
    assert [name for name in tasks if name.startswith("function_vectors/")] == [
        "function_vectors/antonym",
        "function_vectors/country-capital",
    ]
    assert "a quick run has two word tasks" in left_out.values()
    one = study(names=["gsm8k"])
    written = {"gsm8k": one.tasks["gsm8k"].generated(12)}
    short = replace(one, tasks=written, settings=replace(one.settings, max_new_tokens=5)).tasks["gsm8k"]
    assert short.max_new_tokens == short.held_out.max_new_tokens == 5


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
        (["boolq"], "tasks must hold one or more that heads are found on: gsm8k, arithmetic, mbpp"),
        (["gsm8k", "gsm8k"], "tasks must be different"),
        (["mmlu"], "task 'mmlu' has no data with folder"),
    ],
)
def test_wrong_tasks_are_refused_before_anything_is_loaded(data, names, words):
    with pytest.raises(ValueError, match=words):
        load_tasks(PAPERS["cs"], "tiny", names, data=data)


def test_a_folder_gives_the_tasks_that_are_in_it(data):
    tasks, left_out = load_tasks(PAPERS["cs"], "tiny", data=data, n=40)
    # The words of rhymes come with the library.
    assert list(tasks) == ["gsm8k", "arithmetic", "mbpp", "boolq", "swearing", "rhyming"]
    assert [len(task) for task in tasks.values()] == [40] * 6
    lacking = "it has no mmlu.jsonl, mmlu.csv, mmlu.json or folder mmlu"
    assert left_out["mmlu"] == f"there is no data for it with folder {str(data)!r}: {lacking}"


def test_what_stands_in_for_a_task_is_read_from_the_folder_too(tmp_path):
    words = [{"input": f"word{i}", "output": f"words{i}"} for i in range(90)]
    (tmp_path / "function_vectors").mkdir()
    (tmp_path / "function_vectors/singular-plural.json").write_text(json.dumps(words))
    names = ["bigbench/tense=function_vectors/singular-plural"]
    tasks, _ = load_tasks(PAPERS["chg"], "tiny", names, data=tmp_path, n=40)
    assert "word" in str(tasks["bigbench/tense"].examples[0])


def test_a_task_that_the_hub_has_not_is_left_out_and_said_so(asked):
    tasks, left_out = load_tasks(PAPERS["chg"], "tiny")
    assert list(asked) == list(tasks)
    assert list(left_out) == ["bigbench/subject_verb_agreement"]
    assert load_tasks(PAPERS["chg"], "tiny", list(tasks))[1] == {}
    assert "bigbench/subject_verb_agreement" in load_tasks(PAPERS["chg"], "demo")[0]
    with pytest.raises(ValueError, match="no data with model 'tiny': give bigbench/subject_verb_agreement=FILE, or --"):
        load_tasks(PAPERS["chg"], "tiny", ["bigbench/subject_verb_agreement"])


def test_programs_that_may_not_run_and_tasks_that_cannot_be_loaded_are_left_out_and_said_once(asked, monkeypatch):
    tasks, left_out = load_tasks(PAPERS["cs"], "tiny", paper_prompts=True)
    assert {"mbpp", "humaneval_instruct", "mmlu"}.isdisjoint(tasks)
    assert "gsm8k" in tasks
    programs = "programs that the model writes run only with --allow-code"
    assert left_out == {"mbpp, humaneval_instruct": programs, "mmlu": "no network"}
    assert asked["swearing"] == {"prompts": "paper", "max_new_tokens": 512}
    assert asked["rhyming"] == {"max_new_tokens": 64}
    # One that was named must be there.
    with pytest.raises(ValueError, match="no network"):
        load_tasks(PAPERS["cs"], "tiny", ["gsm8k", "mmlu"])

    def check(self):
        raise SandboxError("install bubblewrap")

    monkeypatch.setattr(Sandbox, "check", check)
    tasks, left_out = load_tasks(PAPERS["cs"], "tiny", ["gsm8k", "mbpp"], allow_code=True)
    assert list(tasks) == ["gsm8k"]
    assert left_out == {"mbpp": "install bubblewrap"}


def test_gates_are_fitted_to_nine_tenths_of_a_set_and_a_number_is_no_end_where_a_set_is_smaller(tmp_path):
    path = tmp_path / "antonym.json"
    path.write_text(json.dumps([{"input": f"a{i}", "output": f"b{i}"} for i in range(320)]), encoding="utf-8")
    folder = tmp_path / "function_vectors" / "antonym"
    folder.mkdir(parents=True)
    path.rename(folder / "antonym.json")

    def sizes(n):
        given = {"data": tmp_path, "n": n}
        tasks, _ = load_tasks(replace(PAPERS["chg"], tasks=(ANTONYM,)), "tiny", **given)
        task = tasks[ANTONYM.name]
        return len(task), len(task.held_out)

    assert sizes(None) == (270, 30)  # of 300: twenty words are for worked examples
    assert sizes(50) == (50, 250)
    assert sizes(1000) == (280, 20)


@pytest.mark.parametrize(
    ("paper", "names", "sizes", "file"),
    [
        (
            "cs",
            "gsm8k,boolq",
            "--n-masks 24 --densities .17 --k 2 --n-unseen 20 --steps find,drops",
            "drops",
        ),
        ("chg", "openmathinstruct2", "--n-seeds 1 --fit-steps 20 --steps shares", "table-2"),
    ],
)
def test_quick_runs_on_both_classes_of_model(known_folder, data, tmp_path, backend, paper, names, sizes, file):
    """The command as a user says it, its flags making it small."""
    given = ["--paper", paper, "--model", str(known_folder), "--data", str(data), "--tasks", names, "--quick"]
    where = ["--out", str(tmp_path / "out"), "--device", "cpu", "--backend", backend]
    assert main(["reproduce", *given, *sizes.split(), "--n", "40", *where]) == 0
    assert len(pd.read_csv(tmp_path / "out" / f"{file}.csv"))
    assert "Left out" not in (tmp_path / "out" / "index.md").read_text(encoding="utf-8")


def test_published_numbers_are_of_the_model_at_hand():
    of, known = published.knowledge_of("meta-llama/Llama-3.2-1B-Instruct")
    assert (of, known["L0H22"]["wmdp_bio"]) == ("Llama-3.2-1B", 0.26)
    assert published.knowledge_of("tiny")[0] == "Llama-3.1-8B"
    assert published.heads_of("meta-llama/Llama-3.1-8B-Instruct") == {"math": ["L16H21", "L15H13"]}
    assert published.heads_of("tiny") == {}


def test_heads_found_are_held_beside_published_ones_and_what_chance_gives(study, monkeypatch):
    one = study(names=["gsm8k"])
    importance = np.zeros((3, 4))
    importance[0, 1] = importance[2, 3] = 1
    one.__dict__["rankings"] = {"math": HeadRanking("css", importance, 0)}
    monkeypatch.setitem(published.HEADS, one.name, {"math": ["L2H3", "L1H0", "L1H1"]})
    [row] = _published(one)[0].frame.to_dict("records")
    assert (row["found"], row["published"], row["in common"], row["which"]) == (2, 3, 1, "L2H3")
    # Chance puts heads elsewhere in their layers: of four in the last, one is found and one is published.
    assert row["expected by chance"] == pytest.approx(1 / 4)
    assert row["p"] == pytest.approx(1 / 4)


def test_four_methods_are_compared_on_each_capability(study):
    one = study(names=["gsm8k", "arithmetic", "boolq"])
    assert reproduce(one, ["methods"]) == {}
    found = table(one, "methods")
    # Arithmetic is the capability of the math heads again.
    assert found[["heads", "method"]].to_numpy().tolist() == [["math", method] for method in METHODS]
    assert METHODS == ("css", "csb", "one-shot", "greedy")
    assert found["Gen"].notna().all()
    assert (found["Task"] < found["intact"]).any()
    greedy = found.set_index("method").loc["greedy"]
    assert greedy["#Evals"] == round(greedy["example-evaluations"] / 40)


def test_an_unknown_step_and_a_wrong_setting_are_refused():
    with pytest.raises(ValueError, match="steps must be of find, universal"):
        steps_of("cs", ["dance"])
    with pytest.raises(ValueError, match="max_heads must be an integer of 5 or more, got 3"):
        PaperSettings(max_heads=3)
    with pytest.raises(ValueError, match="got none"):
        steps_of("cs", [])
    assert QUICK.changed(n_unseen=None, k=3).k == 3
    assert QUICK.changed(k=11).max_heads == 11


def test_a_gpu_runs_in_the_papers_dtype():
    assert default_dtype("cuda:1") == "bfloat16"
    assert default_dtype("cpu") is None


def test_the_curve_of_a_small_model_ends_at_half_of_its_heads(study):
    assert study(max_heads=10).settings.max_heads == 6
    with pytest.raises(ValueError, match=r"k must be an integer in 1\.\.6"):
        study(k=7, max_heads=10)


def test_the_demo_model_has_a_task_for_heads_of_every_paper():
    for paper in PAPERS.values():
        tasks, _ = load_tasks(paper, "demo")
        assert any(paper.task(name).heads for name in tasks)
        assert all(task.name.startswith("demo/") for task in tasks.values())
        assert len({step.name for step in STEPS[paper.name]}) == len(STEPS[paper.name])


def test_what_one_step_cannot_do_ends_no_other(study, monkeypatch):
    def fail(_):
        raise ValueError("items must be more")

    steps = [replace(step, run=fail) if step.name == "proof" else step for step in STEPS["cs"]]
    monkeypatch.setitem(STEPS, "cs", steps)
    repro = study(names=["gsm8k"])
    assert reproduce(repro, ["proof", "sparsity"]) == {"proof": "items must be more"}
    assert (repro.out / "sparsity.csv").is_file()


def test_where_no_head_was_tried_for_being_universal_the_page_says_why(study):
    left_out = reproduce(study(names=["gsm8k", "arithmetic", "boolq"]), ["universal", "everywhere"])
    assert set(left_out) == {"universal", "everywhere"}
    assert all("two capabilities whose heads were found" in reason for reason in left_out.values())
