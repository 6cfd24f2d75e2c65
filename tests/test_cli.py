import atexit
import gc
import json
import os
import re
import shlex
import sys
from dataclasses import replace
from html import escape
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

import cs_heads as cs
from cs_heads import Head, HeadGrid, designs
from cs_heads.analysis.attention import HeadAttention
from cs_heads.analysis.compare import METHODS
from cs_heads.analysis.losses import Loss, Specificity
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.cli import app, main
from cs_heads.cli.printing import largest_losses, losses_line
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task, search_control
from cs_heads.tasks.controls import NO_CONTROLS
from cs_heads.tasks.responses import RESPONSES
from tests.known_heads import WORKING, hopeless_records, own_answers
from tests.tiny import WORDS
from tests.waiting import run_program

# The intact run and the different ones among the 24 masks of the options below; a mask drawn twice runs once.
RUNS = 1 + len(np.unique(designs.stratified(HeadGrid(3, 4), 24, 0.17, seed=0), axis=0))
PNG = b"\x89PNG\r\n"
CHOICE = {"prompt": "the cat", "choices": [" runs", " sees"], "answer": 1}
COMPLETION = {"prompt": "the cat", "target": " runs"}


def write(path: Path, records: list) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def task(load_known, tmp_path_factory) -> str:
    """A file of examples that the known model gets right."""
    return write(tmp_path_factory.mktemp("tasks") / "own.jsonl", own_answers(load_known(), 130))


@pytest.fixture
def find(known_folder, task, capsys):
    """Runs ``cs-heads find`` on the known model with options that fit it, and gives status, stdout and stderr."""

    def run(*more: str, **options: str | Path | bool | None) -> tuple[int, str, str]:
        more = (*more, *controls_of(more, options))
        given = {"model": known_folder, "task": task, "method": "css", "k": "2", "device": "cpu"}
        given |= {"density": "0.17", "n_masks": "24"} if options.get("method") != "annealed" else {}
        chosen = {name: value for name, value in (given | options).items() if value is not None}
        arguments = [part for name, value in chosen.items() for part in (flag(name), str(value))]
        try:
            status = main(["find", *arguments, *more])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return run


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def controls_of(more: tuple[str, ...], options: dict) -> list[str]:
    """No controls, which cost time, unless a test is about them; ``default_controls=True`` has the default ones."""
    own = options.pop("default_controls", False) or "--control" in more or "control" in options
    return [] if own else ["--no-control"]


# What is printed and written


def found_in(result) -> set[str]:
    """The heads proved and the passengers."""
    return {row["head"] for row in (*result["heads"], *result["passengers"])}


def test_the_table_shows_heads_verdict_and_cost(find, known_folder, task):
    status, out, err = find()
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"model {known_folder}, task {task}, method css"
    assert lines[1:3] == ["baseline 1.000", "BOS prepended, as the tokenizer does by itself"]
    # One of the two alone takes the whole score, and the other is told as a passenger.
    head, importance = lines[lines.index("head    importance") + 1].split()
    other = next(line for line in lines if "passengers, left out of the proof: " in line)
    assert {head, other.split("proof: ")[1].split()[0]} == {str(head) for head in WORKING}
    assert float(importance) > 0.5
    assert "verdict: localized" in lines
    assert sum("heads of this task cannot be distinguished" in line for line in lines) == 1
    assert f"note: {NO_CONTROLS}" in lines
    told = re.fullmatch(rf"cost: {65 * RUNS:,} example-evaluations to find, (\d+) to confirm", lines[-1])
    assert 65 * 2 < int(told[1]) <= 65 * 22


def test_json_is_one_object_and_nothing_else(find, known_folder, task):
    status, out, err = find("--json")
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    result = json.loads(out)
    assert {"model", "task", "method", "baseline", "prepend_bos", "heads", "spent", "confirm"} <= result.keys()
    assert result["prepend_bos"] is True is result["confirm"]["provenance"]["prepend_bos"]
    assert {"drop", "random_drop", "p", "verdict"} <= result["confirm"].keys()
    assert (result["model"], result["task"], result["method"]) == (str(known_folder), task, "css")
    assert result["baseline"] == 1.0
    assert result["spent"] == 65 * RUNS
    assert [row.keys() for row in (*result["heads"], *result["passengers"])] == [{"head", "importance"}] * 2
    assert found_in(result) == {str(head) for head in WORKING}
    assert result["confirm"]["verdict"] == "localized"
    assert result["confirm"]["drop"] > 0.8
    assert result["confirm"]["random_drop"] < 0.1
    assert result["confirm"]["p_examples"] < 0.01
    assert result["confirm"]["n_as_harmful"] == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "BOS prepended, as the tokenizer does by itself"),
        (["--prepend-bos"], "BOS prepended, as --prepend-bos says"),
        (["--no-prepend-bos"], "no BOS prepended, as --no-prepend-bos says"),
    ],
)
def test_what_is_prepended_is_told_with_who_said_so(find, flags, said):
    assert find(*flags)[1].splitlines()[2] == said


def test_attention_is_shown_of_the_tokens_that_were_measured(find, tmp_path):
    first = {}
    for name, more in (("plain", []), ("without", ["--no-prepend-bos"])):
        assert find(*more, out=tmp_path / name)[0] == 0
        first[name] = {one.tokens[0] for one in HeadAttention.load(tmp_path / name / "attention.json").prompts}
    assert first["plain"] == {"<s>"}
    assert "<s>" not in first["without"]


def test_out_keeps_result_ranking_map_attention_and_report(find, tmp_path):
    status, out, err = find(out=tmp_path / "new" / "folder")
    assert (status, err) == (0, "")
    folder = tmp_path / "new" / "folder"
    written = {"result.json", "ranking.json", "heads.png", "curve.json", "attention.json", "report.html", "run.toml"}
    assert {path.name for path in folder.iterdir()} == written
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert found["command"].startswith("cs-heads find --model ")
    assert found["half"] == 1
    curve = SparsityCurve.from_dict(json.loads((folder / "curve.json").read_text(encoding="utf-8")))
    assert [str(head) for head in curve.heads[:1]] == found["confirm"]["heads"]
    assert (len(curve.heads), curve.random_drops.shape) == (6, (3, 7))
    assert curve.drops["own"][1].drop == found["confirm"]["drop"]
    assert found["curve_spent"] == curve.spent
    attention = HeadAttention.load(folder / "attention.json")
    assert [str(head) for head in attention.heads] == found["confirm"]["heads"]
    assert len(attention.prompts) == 3
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(escape(reason) in page for reason in found["confirm"]["reasons"])
    assert escape(found["command"]) in page
    ranking = HeadRanking.load(folder / "ranking.json")
    assert [str(head) for head in ranking] == found["confirm"]["heads"]
    assert set(ranking.top(2)) == set(WORKING)
    assert (folder / "heads.png").read_bytes().startswith(PNG)
    assert str(folder / "ranking.json") in out


def test_a_curve_is_left_out_when_asked_and_no_earlier_one_stays(find, tmp_path):
    (tmp_path / "curve.json").write_text("{}")
    assert find("--no-curve", out=tmp_path)[0] == 0
    assert not (tmp_path / "curve.json").exists()
    assert "half" not in json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))


def test_find_and_compare_share_a_folder_for_one_task_and_no_other(find, compare, load_known, tmp_path):
    study, other = tmp_path / "study", write(tmp_path / "other.jsonl", own_answers(load_known(), 130, seed=3))
    assert find("--no-curve", out=study, n="40")[0] == 0
    refused(compare(out=study, methods="one-shot", task=other), "has a result.json already", "different tasks")
    assert compare(out=study, methods="one-shot")[0] == 0
    page = (study / "report.html").read_text(encoding="utf-8")
    assert "Of the ranking" in page
    assert "Of the comparison" in page
    refused(find(out=study, task=other), "has a comparison.json already", "different tasks")


def test_a_model_that_does_not_show_attention_is_reported_without(find, tmp_path, monkeypatch):
    def blind(*_):
        raise ValueError("model does not run hook_pattern")

    monkeypatch.setattr(import_module("cs_heads.analysis.attention"), "attention_patterns", blind)
    status, _, err = find(out=tmp_path)
    assert status == 0
    assert "note: no attention patterns: model does not run hook_pattern" in err
    assert (tmp_path / "report.html").is_file()
    assert not (tmp_path / "attention.json").exists()


def test_report_writes_the_page_of_a_folder(find, tmp_path, capsys):
    find(out=tmp_path / "study")
    made = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    (tmp_path / "study" / "report.html").unlink()
    assert main(["report", str(tmp_path / "study"), "-o", str(tmp_path / "page.html")]) == 0
    assert f"written: {tmp_path / 'page.html'}" in capsys.readouterr().out
    places = re.compile(r"cs-heads-attention-\d+-\d+")
    assert places.sub("", (tmp_path / "page.html").read_text(encoding="utf-8")) == places.sub("", made)
    assert main(["report", str(tmp_path / "study")]) == 0
    assert (tmp_path / "study" / "report.html").is_file()


def test_report_refuses_a_folder_without_results(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "has no result.json or comparison.json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_out_and_json_go_together(find, tmp_path):
    _, out, _ = find("--json", out=tmp_path)
    assert json.loads(out) == json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))


def test_csb_is_the_other_method(find):
    result = json.loads(find("--json", method="csb")[1])
    assert result["method"] == "csb"
    assert found_in(result) == {str(head) for head in WORKING}


def test_annealed_finds_the_same_heads_and_says_how_sure_it_is(find, load_known, tmp_path):
    control = write(tmp_path / "others.jsonl", own_answers(load_known(), 60, seed=8))
    status, out, err = find("--json", method="annealed", control=control, budget="1500")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert result["method"] == "annealed"
    assert all({"z", "frequency", "control_importance"} <= row.keys() for row in result["heads"])
    # Every answer of this model hangs on both heads, those of the control too.
    assert {effects["head"] for effects in result["shared"]} <= {str(head) for head in WORKING}
    assert result["spent"] <= 1500
    status, out, err = find(method="annealed")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("head ")) + 1
    assert lines[first].split()[0] in {str(head) for head in WORKING}
    assert "note: no controls: heads of this task cannot be distinguished from task-general (universal) heads" in out


def test_an_option_of_another_method_is_refused_by_name(find):
    refused(find("--n-masks", "24", method="annealed"), "--n-masks goes with the method css, csb")


def test_heads_may_be_set_to_their_mean(find):
    result = json.loads(find("--json", ablation="mean")[1])
    assert result["confirm"]["provenance"]["ablation"] == "mean"


def test_heads_that_are_off_throughout_are_not_found_again(find):
    idle = next(str(head) for head in HeadGrid(3, 4) if head not in WORKING)
    result = json.loads(find("--json", "--off", idle)[1])
    assert found_in(result) == {str(head) for head in WORKING}
    assert result["confirm"]["provenance"]["off"] == [idle]
    # All of this model hangs on its heads: nothing is left to sense again.
    refused(find("--off", str(WORKING[0])), f"the model with {WORKING[0]} off answers ", "; take fewer heads off")
    out = find("--off", idle)[1]
    assert re.search(rf"^baseline \S+, with {idle} off throughout$", out, re.MULTILINE)
    refused(find("--off", idle, method="gradient", n_masks=None, density=None), "off must be left out")


def test_a_continuous_response_is_fitted_when_asked_for(find):
    ranking = json.loads(find("--json", "--response", "probability", method="annealed")[1])
    assert found_in(ranking) == {str(head) for head in WORKING}
    assert re.search(r"^head +importance \(nats\)$", find("--response", "margin", method="annealed")[1], re.MULTILINE)
    refused(find("--response", "loudness", method="annealed"), "response must be one of 'score', 'probability'")


def test_n_is_the_number_of_examples_heads_are_found_with(find):
    result = json.loads(find("--json", n="80")[1])
    assert result["spent"] == 80 * RUNS
    assert result["confirm"]["provenance"]["task"]["n_examples"] == 50


def test_a_seed_gives_one_answer_and_another_seed_other_examples(find):
    first, second, other = (json.loads(find("--json", seed=seed)[1]) for seed in ("3", "3", "4"))
    assert all(result.pop("seconds").keys() == {"find", "confirm"} for result in (first, second))
    assert first == second
    assert first["confirm"]["provenance"]["task"] != other["confirm"]["provenance"]["task"]
    # Search and proof are given the same one.
    assert (first["confirm"]["provenance"]["seed"], other["confirm"]["provenance"]["seed"]) == (3, 4)


def test_all_controls_are_shown_beside_the_verdict_and_count_in_it(find, load_known, tmp_path):
    """Every answer of this model hangs on the same heads: they are nobody's own."""
    others, more = (
        write(tmp_path / f"{name}.jsonl", own_answers(load_known(), 60, seed=seed))
        for name, seed in (("others", 8), ("more", 9))
    )
    _, out, _ = find("--control", others, "--control", more)
    # Random sets with the other of the two heads do as much harm.
    assert "verdict: not localized\n" in out
    assert "  control others: 1.000 to 0." in out
    assert re.search(r"2 controls \S+ \(\S+ to \S+\) on average; controls that lose most: others", out)
    proof = json.loads(find("--json", "--control", others, "--control", more)[1])["confirm"]
    assert (proof["verdict"], proof["specificity"]["shared_with"]) == ("not localized", ["others", "more"])
    assert [control["task"] for control in proof["controls"]] == ["others", "more"]
    assert proof["specificity"]["shared_with"] == ["others", "more"]
    shares = [control["loss"] for control in proof["controls"]]
    assert proof["specificity"]["mean"]["loss"] == pytest.approx(np.mean(shares))
    assert proof["specificity"]["own"]["loss"] == proof["loss"]


def test_without_a_word_on_controls_the_default_ones_are_measured_and_told_in_a_line(find, tmp_path, few_skills):
    """A model of twenty words does none of them."""
    status, out, err = find("--no-curve", default_controls=True, out=tmp_path)
    assert (status, err) == (0, "")
    assert "verdict: localized\n" in out
    assert "  control everyday" not in out
    assert sum("default controls" in line for line in out.splitlines()) == 1
    assert "note: 0 of 4 default controls count; the intact model does not do the others well enough: " in out
    proof = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["confirm"]
    assert proof["default_controls"] is True
    assert [control["task"] for control in proof["controls"]] == few_skills[1:]


def test_of_many_controls_those_that_lose_most_are_told_in_a_line():
    losses = {f"skill {number}": Loss(number / 10, 0.0, 1.0) for number in range(6)}
    found = Specificity(Loss(0.9, 0.8, 1.0), losses)
    assert (
        largest_losses(found)
        == "controls that lose most: skill 5 0.50, skill 4 0.40, skill 3 0.30; 3 more lose at most 0.20"
    )
    assert losses_line(found).startswith("the task loses 0.90 (+0.80 to +1.00), 6 controls 0.25 (")
    alone = Specificity(found.own, {"one": Loss(0.1, 0.0, 0.2)})
    assert losses_line(alone) == "the task loses 0.90 (+0.80 to +1.00), its control 0.10 (+0.00 to +0.20)"


def test_controls_and_none_do_not_go_together(find, task):
    refused(find("--no-control", "--control", task), "--control and --no-control do not go together")


def test_the_command_is_installed_and_answers_from_a_shell(known_folder, task):
    (command,) = entry_points(group="console_scripts", name="cs-heads")
    assert command.load() is main
    arguments = ["find", "--model", str(known_folder), "--task", task, "--k", "2", "--json", "--no-control"]
    program = Path(sys.executable).with_name("cs-heads")
    run = run_program([program, *arguments, "--device", "cpu"], env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout)["confirm"]["verdict"] == "localized"


def test_only_a_process_of_its_own_leaves_its_garbage_at_the_end(monkeypatch, capsys):
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    main(["tasks"])
    assert registered == []
    monkeypatch.setattr(sys, "argv", ["cs-heads", "tasks"])
    main()
    assert registered == [gc.freeze]


def test_random_heads_of_the_proof_leave_out_the_shared_ones(find, monkeypatch):
    search = cs.find_heads
    monkeypatch.setattr(cs, "find_heads", lambda *a, **more: replace(search(*a, **more), shared=(Head(1, 1),)))
    _, out, _ = find("--json")
    assert json.loads(out)["confirm"]["provenance"]["apart"] == ["L1H1"]


def test_shared_heads_are_told_with_what_they_take_from_both_sides(find, monkeypatch):
    effects = {"task": 0.32, "task_interval": [0.2, 0.4], "controls": 0.3, "controls_interval": [0.2, 0.4], "most": "b"}
    search = cs.find_heads

    def sharing(*arguments, **more):
        found = search(*arguments, **more)
        return replace(found, shared=(Head(1, 1),), shared_effects=({"head": "L1H1", **effects},))

    monkeypatch.setattr(cs, "find_heads", sharing)
    assert json.loads(find("--json")[1])["shared"] == [{"head": "L1H1", **effects}]
    told = "  L1H1 (alone: task 0.32 (+0.20 to +0.40), controls 0.30 (+0.20 to +0.40); most: b)\n"
    assert f"left out, because the controls need them too (shared):\n{told}" in find()[1]


@pytest.mark.parametrize("command", ["", "find", "compare", "atlas", "report", "reproduce", "store", "tasks"])
def test_help_says_what_is_done_and_fits_a_screen(command, capsys):
    assert main([command, "--help"] if command else ["--help"]) == 0
    told = capsys.readouterr().out
    about = told.split("\n\n")[1]
    assert len(about) > 40
    assert "[default: None]" not in told
    assert "``" not in told
    assert max(map(len, told.splitlines())) <= 118
    examples = re.findall(r"^  (cs-heads \S.*?)(?:  +.*)?$", told, flags=re.MULTILINE)
    assert len(examples) >= (3 if command in ("", "find", "compare", "atlas", "reproduce") else 0)
    for example in examples:
        app().parse_args(shlex.split(example)[1:], exit_on_error=False, print_error=False)


# Methods side by side


@pytest.fixture
def compare(known_folder, task, capsys):
    """Runs ``cs-heads compare`` on the known model, and gives status, stdout and stderr."""

    def run(*more: str, **options: str | Path | bool) -> tuple[int, str, str]:
        more = (*more, *controls_of(more, options))
        given = {"model": known_folder, "task": task, "k": "2", "max_heads": "4", "n": "40", "device": "cpu"}
        given |= {"methods": "one-shot,greedy,gradient"}
        arguments = [part for name, value in (given | options).items() for part in (flag(name), str(value))]
        try:
            status = main(["compare", *arguments, *more])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return run


def test_compare_leads_with_the_most_specific_and_prints_a_row_a_method(compare, load_known, tmp_path):
    others = write(tmp_path / "others.jsonl", own_answers(load_known(), 40, seed=8))
    status, out, err = compare("--control", others)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[2].startswith("Of 3 methods, the top 2 heads of ")
    assert "beyond what they take from its controls" in " ".join(lines[2:5])
    first = next(place for place, line in enumerate(lines) if line.startswith("method "))
    table = {line.split()[0]: line.split() for line in lines[first : first + 5]}
    assert list(table) == ["method", "one-shot", "greedy", "gradient", "random"]
    assert table["one-shot"][1:3] == [str(40 * 13), "0"]
    assert table["gradient"][1:3] == ["120", "40"]
    assert table["method"][4:8] == ["own", "loss", "controls", "drop@1"]
    # Every answer of this model hangs on both heads, those of the control too.
    assert all(float(loss) > 0.5 for loss in table["one-shot"][4:6])
    assert set(table["one-shot"][-2:]) == {str(head) for head in WORKING}
    assert "rank-biased overlap" in out


def test_one_method_alone_has_no_table_of_agreement(compare):
    status, out, _ = compare(methods="one-shot")
    assert status == 0
    assert "Empty DataFrame" not in out
    assert "the most from the task; no control can tell what else they do." in " ".join(out.split())
    assert "own loss" not in out


def test_compare_gives_one_json_object(compare, load_known, tmp_path):
    others = write(tmp_path / "others.jsonl", own_answers(load_known(), 40, seed=8))
    status, out, err = compare("--json", "--control", others)
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert set(result["methods"]) == {"one-shot", "greedy", "gradient"}
    assert result["methods"]["greedy"]["controls"]["others"] > 0.5
    assert len(result["random_drops"][0]) == 4


def test_compare_keeps_rankings_and_pictures(compare, tmp_path):
    status, _, err = compare(out=tmp_path / "report", methods="one-shot,gradient")
    assert (status, err) == (0, "")
    written = {path.name for path in (tmp_path / "report").iterdir()}
    assert written == {
        *("comparison.json", "ranking-one-shot.json", "ranking-gradient.json", "drops.png", "agreement.png"),
        *("report.html", "run.toml"),
    }
    assert set(HeadRanking.load(tmp_path / "report" / "ranking-gradient.json").top(2)) == set(WORKING)


def test_compare_says_which_method_refused_its_budget(compare):
    status, out, _ = compare(budget="80")
    assert status == 0
    assert "greedy did not run: budget must be " in out


@pytest.mark.slow
def test_contrastive_gates_take_the_task_to_forget(compare, load_known, task, tmp_path):
    other = write(tmp_path / "other.jsonl", own_answers(load_known(), 130, seed=3))
    budget = {"budget": str(40 + 4 * 20 * 64 * 2)}
    status, out, err = compare("--json", methods="one-shot,contrastive", forget=other, **budget)
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert result["refused"] == {}
    assert set(result["methods"]) == {"one-shot", "contrastive"}


def test_the_task_to_forget_goes_with_contrastive_gates_alone(find, compare, task):
    refused(compare(methods="one-shot,contrastive"), "method 'contrastive' needs --forget")
    refused(find(method="contrastive", n_masks=None, density=None), "method 'contrastive' needs --forget")
    refused(compare(methods="one-shot", forget=task), "--forget goes with the method contrastive")


def test_each_method_has_the_options_that_it_declares(find):
    given = {"method": "chg", "n_masks": None, "density": None}
    ranking = json.loads(find("--json", "--n-seeds", "2", "--steps", "20", "--batch-size", "4", **given)[1])
    assert ranking["spent"] == 65 + 2 * 2 * 3 * 20 * 4
    assert find("--examples-per-mask", "none", "--json", method="annealed")[0] == 0
    refused(find("--steps", "ten", **given), "--steps", "'ten'")


def test_compare_takes_options_of_each_method(compare):
    chosen = ("--option", "css.n_masks=12", "--option", "css.density=0.17")
    status, out, _ = compare("--json", *chosen, methods="css,one-shot")
    assert status == 0
    assert json.loads(out)["methods"]["css"]["spent"] <= 40 * 13
    for option, said in (
        ("css.steps=4", "method 'css' has no option steps; it has n_masks, density, alpha"),
        ("css.n_masks=x", "--option css.n_masks=x: n_masks must be a number, got 'x'"),
        ("chg.steps=20", "METHOD must be one of css, one-shot, got 'chg'"),
        ("n_masks=4", "--option must be METHOD.NAME=VALUE, got 'n_masks=4'"),
    ):
        refused(compare("--option", option, methods="css,one-shot"), said)


def test_both_commands_take_every_setting(find, compare):
    settings = ("--batch-tokens", "64", "--no-progress", "--prepend-bos", "--json")
    assert json.loads(find(*settings)[1])["prepend_bos"] is True
    assert compare(*settings, "--ablation", "mean", methods="one-shot")[0] == 0


def test_any_method_can_be_asked_for(find):
    status, out, err = find("--json", method="one-shot", n_masks=None, density=None)
    assert (status, err) == (0, "")
    assert json.loads(out)["method"] == "one-shot"
    assert json.loads(out)["spent"] == 65 * 13


def test_find_keeps_to_a_budget(find):
    assert json.loads(find("--json", budget=str(65 * 10), n_masks=None)[1])["spent"] <= 65 * 10


def test_heads_are_found_and_proved_by_what_the_model_writes(find, tmp_path):
    status, out, _ = find("--generate", "1", "--json", out=tmp_path)
    found, ranking = json.loads(out), HeadRanking.load(tmp_path / "ranking.json")
    assert status == 0
    assert ranking.provenance["task"]["kind"] == "generation"
    assert ranking.provenance["task"]["scorer"] == "ExactMatch"
    assert found_in(found) == {str(head) for head in WORKING}
    assert (found["baseline"], found["confirm"]["verdict"]) == (1.0, "localized")


# A newcomer's mistakes: exit status 2 and one line that names the value


def refused(outcome: tuple[int, str, str], *said: str) -> None:
    status, out, err = outcome
    assert status == 2
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("cs-heads")
    for words in said:
        assert words in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "nobody/nothing"}, ["model 'nobody/nothing' could not be loaded"]),
        ({"model": "./nowhere"}, ["model './nowhere' could not be loaded"]),
        ({"task": "capitls"}, ["task 'capitls' is unknown"]),
        ({"task": "gone.jsonl"}, ["task file 'gone.jsonl' does not exist"]),
        ({"control": "gone.csv"}, ["task file 'gone.csv' does not exist"]),
        ({"k": "7"}, ["k must be an integer in 1..6", "12 heads", "got 7"]),
        ({"k": "0"}, ["k must be an integer of 1 or more, got 0", "got 0"]),
        ({"k": "two"}, ["--k", "two"]),
        ({"density": "0.05"}, ["density 0.05 ablates no head", "12 heads"]),
        ({"density": "2"}, ["density must lie between 0 and 1, got 2.0"]),
        ({"n_masks": "3"}, ["n_masks must be an integer of 5 or more", "got 3"]),
        ({"method": "guess"}, ["method must be one of annealed, css, csb", "got 'guess'"]),
        ({"device": "abacus"}, ["device 'abacus' cannot be used here"]),
        ({"dtype": "float7"}, ["dtype must be one of float32, bfloat16, float16, got 'float7'"]),
        ({"backend": "wheel"}, ["backend must be one of auto, bridge, hooked, got 'wheel'"]),
        ({"budget": "65"}, ["budget must be 1,625 or more"]),
        ({"method": "greedy"}, ["--density goes with the method css, csb"]),
        ({"n": "130"}, ["both sides of the split: got n=130 with 130 examples", "leave n out to halve them"]),
        ({"seed": "-1"}, ["seed must be an integer of 0 or more, got -1"]),
        ({"sparsity": "0.1"}, ["unknown option --sparsity"]),
    ],
    ids=lambda value: " ".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_a_wrong_option_gets_one_line(find, options, said):
    refused(find(**options), *said)


def test_a_control_that_is_the_task_is_refused_before_the_model_is_loaded(find, task, tmp_path):
    """The same file, a copy of it, and a file that has some of its lines."""
    lines = Path(task).read_text(encoding="utf-8").splitlines()
    copy = write(tmp_path / "copy.jsonl", list(map(json.loads, lines)))
    some = write(tmp_path / "some.jsonl", [*map(json.loads, lines[:2]), *own_answers_elsewhere()])
    for control, shared in ((task, "130 of its 130"), (copy, "130 of its 130"), (some, "2 of its 4")):
        said = (
            f"control '{Path(control).stem}' shares {shared} examples with task 'own': a control must be another task"
        )
        refused(find(control=control, n="100", model="nobody/nothing"), said)


def test_a_control_is_read_with_the_settings_of_the_command_before_anything_runs(find, tmp_path):
    control = write(tmp_path / "ids.jsonl", [{"prompt": [3 + i % 9, 3 + i // 9], "target": [5]} for i in range(60)])
    said = "prepend_bos must be left out for prompts of token ids"
    status, out, err = find("--prepend-bos", control=control, store=tmp_path / "run.sqlite")
    assert (status, out) == (2, "")
    assert said in err
    assert not (tmp_path / "run.sqlite").exists()


def own_answers_elsewhere() -> list[dict]:
    return [{"prompt": f"not asked {i}", "target": " runs"} for i in range(2)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([COMPLETION, {"prompt": "the cat"}], ["line 2", '"target" must be a text', "got None"]),
        ([COMPLETION, ["the", "cat"]], ["line 2", "a record must be an object", "got list"]),
        (
            [CHOICE, CHOICE, CHOICE | {"choices": [" runs"]}],
            ["line 3", '"choices" must be a list of two or more that differ'],
        ),
        ([CHOICE, CHOICE | {"answer": 2}], ["line 2", "must be the index of a choice, 0..1"]),
        ([COMPLETION, CHOICE], ["mixes two forms", "line 1", "line 2"]),
        ([], ["task 'mine' is empty"]),
        ([COMPLETION], ["both sides of the split", "1 examples"]),
    ],
    ids=["malformed", "no-object", "choices-of-one", "answer-out-of-range", "two-forms", "empty", "one-example"],
)
def test_a_wrong_task_file_gets_one_line(find, tmp_path, lines, said):
    refused(find(task=write(tmp_path / "mine.jsonl", lines)), "task 'mine'", *said)


def test_a_line_that_is_no_json_gets_one_line(find, tmp_path):
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(COMPLETION)}\n{{'prompt'\n", encoding="utf-8")
    refused(find(task=tmp_path / "mine.jsonl"), "task 'mine', line 2: not JSON")


def test_a_malformed_csv_row_gets_one_line(find, tmp_path):
    (tmp_path / "mine.csv").write_text("prompt,choices,answer\nthe cat,runs,0\n", encoding="utf-8")
    refused(find(task=tmp_path / "mine.csv"), "task 'mine', line 2", '"choices" must be a JSON list', "'runs'")


def test_a_baseline_at_chance_gets_one_line(find, tmp_path):
    coins = write(tmp_path / "coins.jsonl", hopeless_records(200))
    refused(find(task=coins), "task 'coins'", "on 100 examples, no better than chance (0.500)")


def test_a_task_with_too_few_examples_gets_one_line(find):
    refused(find(n="12"), "task 'own' has 12 finding examples; 20 or more are needed on each side: add examples")
    refused(find(n="120"), "task 'own' has 10 confirming examples; 20 or more are needed on each side")


def test_a_folder_that_holds_no_model_gets_one_line(find, tmp_path):
    refused(find(model=tmp_path), str(tmp_path), "has no config.json")


def test_an_example_longer_than_the_context_gets_one_line(find, tmp_path):
    long = write(tmp_path / "long.jsonl", [{"prompt": "the cat " * n, "target": " runs"} for n in range(40, 80)])
    refused(find(task=long), "task 'long', example", "do not fit into the model's context of 64")


def test_a_file_where_the_folder_should_be_gets_one_line(find, task):
    refused(find(out=task), task)


def test_a_control_file_serves_by_half_and_its_own_size(find, tmp_path, load_known):
    """However many examples heads are found with; one at chance says that it can show nothing."""
    others = write(tmp_path / "others.jsonl", own_answers(load_known(), 60, seed=8))
    coins = write(tmp_path / "coins.jsonl", hopeless_records(40))
    status, out, err = find("--control", others, "--control", coins, n="50")
    assert (status, err) == (0, "")
    assert "  control others: 1.000 to " in out
    assert "note: control coins does not count: the intact model" in out.split("control coins:")[1]
    controls = json.loads(find("--json", "--control", others, n="50")[1])["confirm"]["controls"]
    assert [(control["task"], control["baseline"], control["too_low"]) for control in controls] == [
        ("others", 1.0, None)
    ]


def test_the_examples_of_a_control_file_that_are_searched_with_do_not_confirm(find, tmp_path, load_known):
    records = own_answers(load_known(), 60, seed=8)
    control = Task.from_records(records, "others")
    others, out = write(tmp_path / "others.jsonl", records), tmp_path / "out"
    assert find("--json", method="annealed", control=others, budget="1500", seed="3", out=out)[0] == 0
    searched = HeadRanking.load(out / "ranking.json").provenance["control_tasks"][0]
    assert searched["identity"] == search_control(control, 3).identity
    assert searched["n_examples"] == 30


def test_the_help_of_compare_names_its_methods(capsys):
    main(["compare", "--help"])
    assert f"(default: {', '.join(METHODS)})" in " ".join(capsys.readouterr().out.split())


def test_choices_can_be_scored_per_character(find, tmp_path, monkeypatch):
    """The option reaches the scoring of both sides."""
    prompts = [f"the {word} {other}" for word in WORDS for other in WORDS[:3]]
    records = [{"prompt": prompt, "choices": [" cat", " dog"], "answer": 0} for prompt in prompts]
    scored = []

    def none_right(task, said):
        scored.append(task.length_normalized)
        return np.zeros(said.examples.shape)

    monkeypatch.setitem(RESPONSES, "score", none_right)
    find("--length-normalized", task=write(tmp_path / "words.jsonl", records), n="30")
    assert set(scored) == {True}


@pytest.mark.parametrize("arguments", [["find"], ["seek"], ["find", "--model", "m"]])
def test_a_command_without_its_parts_gets_one_line(arguments, capsys):
    refused((main(arguments), *capsys.readouterr()))


def test_an_interruption_ends_quietly(find, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("cs_heads.load_task", interrupted)
    assert find() == (130, "", "cs-heads: interrupted\n")
