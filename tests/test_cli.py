import json
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from html import escape
from importlib import import_module
from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import cs_heads as cs
from cs_heads import Grid, Head, designs
from cs_heads.analysis.attention import HeadAttention
from cs_heads.analysis.compare import METHODS
from cs_heads.analysis.losses import Loss, Specificity
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.cli import COMMANDS, app, main
from cs_heads.cli.printing import largest_losses, losses_line
from cs_heads.ranking import HeadRanking
from cs_heads.tasks.controls import NO_CONTROLS
from cs_heads.tasks.responses import RESPONSES
from tests.known_heads import WORKING, hopeless_records, own_answers, write_records
from tests.tiny import WORDS

# The intact run and the different ones among the 12 masks of the options below; a mask drawn twice runs once.
RUNS = 1 + len(np.unique(designs.stratified(Grid(3, 4), 12, 0.17, seed=0), axis=0))
PNG = b"\x89PNG\r\n"
DEFAULTS = {
    "find": {"method": "css", "density": "0.17", "n_masks": "12"},
    "compare": {"methods": "one-shot,greedy,gradient", "max_heads": "4", "n": "30"},
}


def write(path: Path, records: list) -> str:
    return str(write_records(path, records))


@pytest.fixture(scope="module")
def task(load_known, tmp_path_factory) -> str:
    """A file of examples that the known model gets right."""
    return write(tmp_path_factory.mktemp("tasks") / "own.jsonl", own_answers(load_known(), 60))


@pytest.fixture(scope="module")
def others(load_known, tmp_path_factory) -> str:
    """A control of the same kind: every answer of this model hangs on the same two heads."""
    return write(tmp_path_factory.mktemp("controls") / "others.jsonl", own_answers(load_known(), 60, seed=8))


@pytest.fixture(scope="module")
def arguments_of(known_folder, task) -> Callable:
    """The arguments of a command on the known model; without controls, which cost time, unless they are given."""

    def arguments(command: str, *more: str, **options: str | Path | None) -> list[str]:
        defaults = {"model": known_folder, "task": task, "k": "2", "device": "cpu", **DEFAULTS[command]}
        if options.get("method", "css") not in ("css", "csb"):
            defaults = {name: value for name, value in defaults.items() if name not in ("density", "n_masks")}
        controls = [] if options.pop("default_controls", False) or "--control" in more else ["--no-control"]
        given = {name: value for name, value in (defaults | options).items() if value is not None}
        flags = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        return [command, *flags, *more, *controls]

    return arguments


def ran(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def find(arguments_of, capsys):
    """Runs ``cs-heads find``, and gives status, stdout and stderr."""
    return lambda *more, **options: (ran(arguments_of("find", *more, **options)), *capsys.readouterr())


@pytest.fixture
def compare(arguments_of, capsys):
    """Runs ``cs-heads compare``, and gives status, stdout and stderr."""
    return lambda *more, **options: (ran(arguments_of("compare", *more, **options)), *capsys.readouterr())


@pytest.fixture(scope="module")
def printed(arguments_of, tmp_path_factory) -> Callable:
    """Runs a command with ``--out``, and gives what it printed and the folder."""

    def run(*arguments: str) -> tuple[str, Path]:
        folder, out = tmp_path_factory.mktemp("new") / "folder", StringIO()
        with redirect_stdout(out):
            assert main([*arguments_of(*arguments), "--out", str(folder)]) == 0
        return out.getvalue(), folder

    return run


@pytest.fixture(scope="module")
def study(printed) -> tuple[str, Path]:
    """What a search printed, and its folder."""
    return printed("find")


@pytest.fixture(scope="module")
def compared(printed, others) -> tuple[str, Path]:
    """What a comparison printed, and its folder."""
    return printed("compare", "--control", others)


@pytest.fixture
def copy(study, tmp_path) -> Path:
    """The folder of the search, to write to."""
    return Path(shutil.copytree(study[1], tmp_path / "study"))


# What is printed and written


def found_in(result) -> set[str]:
    """The heads proved and the passengers."""
    return {row["head"] for row in (*result["heads"], *result["passengers"])}


def test_the_table_shows_heads_verdict_and_cost(study, known_folder, task):
    lines = study[0].splitlines()
    assert lines[:3] == [f"model {known_folder}, task {task}, method css", "baseline 1.000", "BOS prepended"]
    # One of the two alone takes the whole score, and the other is not needed beside it.
    head, importance = lines[lines.index("head    importance") + 1].split()
    other = next(line for line in lines if "left out of the proof, as not needed beside it: " in line)
    assert {head, other.split("beside it: ")[1].split()[0]} == {str(head) for head in WORKING}
    assert float(importance) > 0.5
    assert "verdict: localized" in lines
    assert f"note: {NO_CONTROLS}" in lines
    told = re.fullmatch(rf"cost: {30 * RUNS:,} example-evaluations to find, (\d+) to confirm", lines[-3])
    assert 30 * 2 < int(told[1]) <= 30 * 22


def test_out_keeps_result_ranking_map_attention_and_report(study):
    out, folder = study
    written = {"result.json", "ranking.json", "heads.png", "curve.json", "attention.json", "texts.json"}
    written |= {"report.html", "run.toml"}
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
    assert [one.tokens[0] for one in attention.prompts] == ["<s>"] * 3
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(escape(text) in page for text in (*found["confirm"]["reasons"], found["command"]))
    ranking = HeadRanking.load(folder / "ranking.json")
    assert [str(head) for head in ranking] == found["confirm"]["heads"]
    assert set(ranking.top(2)) == set(WORKING)
    assert (folder / "heads.png").read_bytes().startswith(PNG)
    assert str(folder / "ranking.json") in out


def test_json_is_one_object_as_it_is_written_and_settings_reach_search_and_proof(
    find, known_folder, load_known, tmp_path
):
    (tmp_path / "curve.json").write_text("{}")
    task = write(tmp_path / "own.jsonl", own_answers(load_known(), 130))
    status, out, err = find(
        "--json",
        "--no-curve",
        "--no-prepend-bos",
        "--batch-tokens",
        "64",
        ablation="mean",
        n="80",
        seed="4",
        out=tmp_path,
        task=task,
    )
    assert (status, err, out.count("\n")) == (0, "", 1)
    result = json.loads(out)
    assert result == json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["model"], result["task"], result["method"]) == (str(known_folder), task, "css")
    assert result["seconds"].keys() == {"find", "confirm"}
    assert "half" not in result
    # Nothing of an earlier run stays.
    assert not (tmp_path / "curve.json").exists()
    proof = result["confirm"]["provenance"]
    assert (proof["ablation"], proof["seed"], proof["task"]["n_examples"]) == ("mean", 4, 50)
    assert result["prepend_bos"] is False is proof["prepend_bos"]
    # Attention is shown of the tokens that were measured.
    assert "<s>" not in {one.tokens[0] for one in HeadAttention.load(tmp_path / "attention.json").prompts}


def test_find_and_compare_share_a_folder_for_one_task_and_no_other(find, compare, copy, load_known, tmp_path):
    other = write(tmp_path / "other.jsonl", own_answers(load_known(), 60, seed=3))
    refused(compare(out=copy, methods="one-shot", task=other), "has a result.json already", "different tasks")
    assert compare(out=copy, methods="one-shot", n=None)[0] == 0
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert "Of the ranking" in page
    assert "Of the comparison" in page
    refused(find(out=copy, task=other), "has a comparison.json already", "different tasks")


def test_report_writes_the_page_of_a_folder(copy, tmp_path, capsys):
    made = (copy / "report.html").read_text(encoding="utf-8")
    assert main(["report", str(copy), "-o", str(tmp_path / "new" / "page.html")]) == 0
    assert f"written: {tmp_path / 'new' / 'page.html'}" in capsys.readouterr().out
    places = re.compile(r"cs-heads-attention-\d+-\d+")
    assert places.sub("", (tmp_path / "new" / "page.html").read_text(encoding="utf-8")) == places.sub("", made)
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "has no result.json or comparison.json" in capsys.readouterr().err


def test_annealed_says_how_sure_it_is(find, others, tmp_path):
    more = {"method": "annealed", "budget": "1000", "out": tmp_path}
    status, out, err = find("--no-curve", "--control", others, **more)
    assert (status, err) == (0, "")
    assert re.search(r"^head +importance$", out, re.MULTILINE)
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert all({"z", "frequency", "control_importance"} <= row.keys() for row in result["heads"])
    assert {effects["head"] for effects in result["shared"]} <= {str(head) for head in WORKING}
    assert result["spent"] <= 1000


def test_heads_off_throughout_are_not_found_and_a_model_that_shows_no_attention_is_reported(
    find, tmp_path, monkeypatch
):
    def blind(*_):
        raise ValueError("model does not run hook_pattern")

    monkeypatch.setattr(import_module("cs_heads.analysis.attention"), "attention_patterns", blind)
    idle = next(str(head) for head in Grid(3, 4) if head not in WORKING)
    status, out, err = find("--json", "--off", idle, out=tmp_path)
    result = json.loads(out)
    assert found_in(result) == {str(head) for head in WORKING}
    assert result["confirm"]["provenance"]["off"] == [idle]
    assert (status, err) == (0, "cs-heads: note: no attention patterns: model does not run hook_pattern\n")
    assert (tmp_path / "report.html").is_file()
    assert not (tmp_path / "attention.json").exists()
    # All of this model hangs on its heads: nothing is left to sense again.
    refused(find("--off", str(WORKING[0])), f"the model with {WORKING[0]} off answers ", "; take fewer heads off")
    refused(find("--off", idle, method="gradient"), "off must be left out")


def test_all_controls_are_shown_beside_the_verdict_and_count_in_it(find, others, load_known, tmp_path):
    more = write(tmp_path / "more.jsonl", own_answers(load_known(), 60, seed=9))
    coins = write(tmp_path / "coins.jsonl", hopeless_records(40))
    given = [part for control in (others, more, coins) for part in ("--control", control)]
    _, out, err = find("--no-curve", *given, out=tmp_path)
    assert err == ""
    # Random sets with the other of the two heads do as much harm.
    assert "verdict: not localized\n" in out
    assert "  control others: 1.000 to 0." in out
    assert "note: control coins does not count: the intact model" in out
    assert re.search(r"2 controls \S+ \(\S+ to \S+\) on average; controls that lose most: (others|more) ", out)
    proof = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["confirm"]
    assert (proof["verdict"], proof["specificity"]["shared_with"]) == ("not localized", ["others", "more"])
    assert [(control["task"], control["too_low"] is None) for control in proof["controls"]] == [
        ("others", True),
        ("more", True),
        ("coins", False),
    ]
    shares = [control["loss"] for control in proof["controls"][:2]]
    assert proof["specificity"]["mean"]["loss"] == pytest.approx(np.mean(shares))
    assert proof["specificity"]["own"]["loss"] == proof["result"]["loss"]


def test_without_a_word_on_controls_the_default_ones_are_measured_and_told_in_a_line(find, few_skills):
    """A model of twenty words does none of them."""
    status, out, err = find(default_controls=True)
    assert (status, err) == (0, "")
    assert "verdict: localized\n" in out
    assert "  control everyday" not in out
    assert sum("default controls" in line for line in out.splitlines()) == 1
    assert "note: 0 of 4 default controls count; the intact model does not do the others well enough: " in out


def test_of_many_controls_those_that_lose_most_are_told_in_a_line():
    losses = {f"skill {number}": Loss(number / 10, 0.0, 1.0) for number in range(6)}
    found = Specificity(Loss(0.9, 0.8, 1.0), losses)
    most = "controls that lose most: skill 5 0.50, skill 4 0.40, skill 3 0.30; 3 more lose at most 0.20"
    assert largest_losses(found) == most
    assert losses_line(found).startswith("the task loses 0.90 (+0.80 to +1.00), 6 controls 0.25 (")
    alone = Specificity(found.own, {"one": Loss(0.1, 0.0, 0.2)})
    assert losses_line(alone) == "the task loses 0.90 (+0.80 to +1.00), its control 0.10 (+0.00 to +0.20)"


def test_the_command_is_installed():
    (command,) = entry_points(group="console_scripts", name="cs-heads")
    assert command.load() is main


def test_shared_heads_are_told_and_random_heads_of_the_proof_leave_them_out(find, monkeypatch, tmp_path):
    effects = {"task": 0.32, "task_interval": [0.2, 0.4], "controls": 0.3, "controls_interval": [0.2, 0.4], "most": "b"}
    shared, search = {"head": "L1H1", **effects}, cs.find_heads

    def sharing(*arguments, **more):
        return replace(search(*arguments, **more), shared=(Head(1, 1),), shared_effects=(shared,))

    monkeypatch.setattr(cs, "find_heads", sharing)
    out = find("--no-curve", out=tmp_path)[1]
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["shared"] == [shared]
    assert result["confirm"]["provenance"]["apart"] == ["L1H1"]
    told = "  L1H1 (alone: task 0.32 (+0.20 to +0.40), controls 0.30 (+0.20 to +0.40); most: b)\n"
    assert f"left out, because the controls need them too (shared):\n{told}" in out


def test_no_attention_of_an_earlier_run_stays_beside_other_units(find, tmp_path):
    (tmp_path / "attention.json").write_text("of an earlier run")
    assert find("--no-curve", units="attn", k="1", method="one-shot", out=tmp_path)[::2] == (0, "")
    assert not (tmp_path / "attention.json").exists()


def test_what_cannot_be_repeated_is_refused_before_anything_is_searched(find, others, tmp_path):
    without = find("--repeats", "1", method="contrastive", forget=others, out=tmp_path / "new")
    refused(without, "--repeats goes without --forget, which the ranking does not keep")
    refused(find("--repeats", "-1"), "repeats")


def test_cards_do_not_go_into_the_folder_of_another_task(compared, known_folder, others, tmp_path, capsys):
    folder = shutil.copytree(compared[1], tmp_path / "compared")
    given = ["explain", "--model", str(known_folder), "--task", others, "--heads", "L0H1", "--no-control"]
    assert main([*given, "--out", str(folder)]) == 2
    assert "has a comparison.json already" in capsys.readouterr().err
    assert main([*given, "--unseen", "5"]) == 2
    assert "unseen must be an integer of 20 or more, got 5" in capsys.readouterr().err


def test_a_page_is_not_written_over_a_folder(copy, capsys):
    assert main(["report", str(copy), "-o", str(copy)]) == 2
    assert "path must be a file, got the folder" in capsys.readouterr().err


def test_find_goes_without_head_cards_where_the_model_does_not_allow_them(find, tmp_path):
    (tmp_path / "cards.json").write_text("of an earlier run")
    status, _, err = find("--no-curve", "--explain", out=tmp_path)
    assert status == 0
    assert err.startswith("cs-heads: note: no head cards of own: ")
    assert (tmp_path / "report.html").is_file()
    assert not (tmp_path / "cards.json").exists()


@pytest.mark.parametrize("command", ["", "find", "compare", "atlas", "report", "reproduce", "store", "tasks"])
def test_help_says_what_is_done_and_fits_a_screen(command, capsys):
    assert main([command, "--help"] if command else ["--help"]) == 0
    told = capsys.readouterr().out
    assert len(told.split("\n\n")[1]) > 40
    assert "[default: None]" not in told
    assert "``" not in told
    assert max(map(len, told.splitlines())) <= 118
    examples = re.findall(r"^  (cs-heads \S.*?)(?:  +.*)?$", told, flags=re.MULTILINE)
    assert len(examples) >= (3 if command in ("", "find", "compare", "atlas", "reproduce") else 0)
    for example in examples:
        app().parse_args(shlex.split(example)[1:], exit_on_error=False, print_error=False)
    assert command != "compare" or f"(default: {', '.join(METHODS)})" in " ".join(told.split())


@pytest.mark.parametrize("command", [each.__name__ for each in COMMANDS])
def test_help_has_a_line_for_each_required_flag_and_each_of_its_examples(command, capsys):
    def listed(all_flags: str = "") -> str:
        assert main([command, f"--help{all_flags}"]) == 0
        return capsys.readouterr().out

    told, lines = listed(), r"^  (-.*?): "
    flags = {*" ".join(re.findall(lines, told, flags=re.MULTILINE)).replace(",", "").split()}
    # The options of methods share a line.
    flags |= {*" ".join(re.findall(r"^  --\[.*", told, flags=re.MULTILINE)).split()}
    required = re.findall(r"^  (--[a-z-]+)[^\n]*(?:\n {8}[^\n]*)*\[required\]", listed("-all"), flags=re.MULTILINE)
    examples = " ".join(re.findall(rf"^  cs-heads {command} .*", told, flags=re.MULTILINE))
    assert {*required, *re.findall(r"--[a-z-]+", examples)} <= flags


@pytest.mark.parametrize("command", ["find", "compare", "atlas", "explain", "reproduce"])
def test_help_shows_the_usual_flags_and_help_all_every_flag(command, capsys):
    assert main([command, "--help"]) == 0
    usual = capsys.readouterr().out
    assert main([command, "--help-all"]) == 0
    every = capsys.readouterr().out
    assert f"cs-heads {command} --help-all shows the others" in usual
    assert "--model" in usual
    for flag in ("--device", "--backend", "--prepend-bos"):
        assert flag not in usual
        assert flag in every


# Methods side by side


def test_compare_leads_with_the_most_specific_and_prints_a_row_a_method(compared):
    lines = compared[0].splitlines()
    assert lines[2].startswith("Of 3 methods, the top 2 heads of ")
    assert "beyond what they take from its controls" in " ".join(lines[2:5])
    first = next(place for place, line in enumerate(lines) if line.startswith("method "))
    table = {line.split()[0]: line.split() for line in lines[first : first + 5]}
    assert list(table) == ["method", "one-shot", "greedy", "gradient", "random"]
    assert table["one-shot"][1:3] == [str(30 * 13), "0"]
    assert table["gradient"][1:3] == ["90", "30"]
    assert table["method"][4:8] == ["own", "loss", "controls", "drop@1"]
    assert all(float(loss) > 0.5 for loss in table["one-shot"][4:6])
    assert set(table["one-shot"][-2:]) == {str(head) for head in WORKING}
    assert "rank-biased overlap" in compared[0]


def test_compare_keeps_rankings_and_pictures(compared):
    folder = compared[1]
    rankings = {f"ranking-{name}.json" for name in ("one-shot", "greedy", "gradient")}
    files = {*rankings, "comparison.json", "drops.png", "agreement.png", "report.html", "run.toml"}
    assert {path.name for path in folder.iterdir()} == files
    assert set(HeadRanking.load(folder / "ranking-gradient.json").top(2)) == set(WORKING)
    result = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert result["methods"]["greedy"]["controls"]["others"] > 0.5
    assert len(result["random_drops"][0]) == 4


def test_one_method_alone_has_no_table_of_agreement_and_another_refuses_its_budget(compare):
    status, out, _ = compare(budget="60", methods="greedy,gradient")
    assert status == 0
    assert "greedy did not run: budget must be " in out
    assert "Empty DataFrame" not in out
    assert "the most from the task; no control can tell what else they do." in " ".join(out.split())
    assert "own loss" not in out


def test_compare_takes_options_of_each_method(compare, task):
    chosen = ("--option", "css.n_masks=12", "--option", "css.density=0.17")
    status, out, _ = compare("--json", *chosen, "--methods", "css", "one-shot", methods=None)
    assert status == 0
    assert json.loads(out)["methods"]["css"]["cost"]["spent"] <= 30 * 13
    for option, said in (
        ("css.steps=4", "method 'css' has no option steps; it has n_masks, density, alpha"),
        ("css.n_masks=x", "n_masks must be an integer or None, got 'x'"),
        ("chg.steps=20", "METHOD must be one of css, one-shot, got 'chg'"),
        ("n_masks=4", "--option must be METHOD.NAME=VALUE, got 'n_masks=4'"),
    ):
        refused(compare("--option", option, methods="css,one-shot"), said)
    refused(compare(methods="one-shot,contrastive"), "method 'contrastive' needs --forget")
    refused(compare(methods="one-shot", forget=task), "--forget goes with the method contrastive")


def test_heads_are_found_and_proved_by_what_the_model_writes(find, tmp_path):
    status, out, _ = find("--generate", "1", "--json", "--no-curve", out=tmp_path)
    found, ranking = json.loads(out), HeadRanking.load(tmp_path / "ranking.json")
    assert status == 0
    assert ranking.provenance["task"]["kind"] == "generation"
    assert ranking.provenance["task"]["scorer"] == "ExactMatch"
    assert found_in(found) == {str(head) for head in WORKING}
    assert (found["baseline"], found["confirm"]["verdict"]) == (1.0, "localized")
    assert next(iter(found.items())) == ("verdict", "localized")


# A newcomer's mistakes: exit status 2 and one line that names the value


def refused(outcome: tuple[int, str, str], *said: str) -> None:
    status, out, err = outcome
    assert (status, out) == (2, "")
    assert err.startswith("cs-heads")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    for words in said:
        assert words in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "nobody/nothing"}, ["model 'nobody/nothing' could not be loaded"]),
        ({"task": "capitls"}, ["task 'capitls' is unknown"]),
        ({"task": "gone.jsonl"}, ["task file 'gone.jsonl' does not exist"]),
        ({"k": "7"}, ["k must be an integer in 1..6", "12 heads", "got 7"]),
        ({"density": "0.05"}, ["density 0.05 ablates no head", "12 heads"]),
        ({"n_masks": "ten"}, ["n_masks must be an integer or None, got 'ten'"]),
        ({"method": "guess"}, ["method must be one of annealed, css, csb", "got 'guess'"]),
        ({"method": "css,csb"}, ["--method of find is one method, got 'css,csb'", "cs-heads compare takes several"]),
        ({"method": "greedy", "alpha": "0.1"}, ["--alpha goes with the method css, csb"]),
        ({"method": "contrastive"}, ["method 'contrastive' needs --forget"]),
        ({"device": "abacus"}, ["device 'abacus' cannot be used here"]),
        ({"budget": "65"}, ["budget must be 390 or more"]),
        ({"n": "60"}, ["both sides of the split: got n=60 with 60 examples", "leave n out to halve them"]),
        ({"n": "50"}, ["task 'own' has 10 confirming examples; 20 or more are needed on each side"]),
        ({"sparsity": "0.1"}, ["unknown option --sparsity"]),
    ],
    ids=lambda value: " ".join(map(str, value.items())) if isinstance(value, dict) else "",
)
def test_a_wrong_option_gets_one_line(find, options, said):
    refused(find(**options), *said)


def test_a_value_without_an_option_is_named(find, capsys):
    refused(find("stray", "another"), "no option takes 'stray', 'another'; cs-heads find --help lists them")
    assert main(["find", "demo", "demo/capitals"]) == 2
    assert "no option takes 'demo', 'demo/capitals'; " in capsys.readouterr().err


def test_a_control_that_is_the_task_is_refused_before_the_model_is_loaded(find, task, tmp_path):
    """The same file, and a file that has some of its lines."""
    lines = Path(task).read_text(encoding="utf-8").splitlines()
    elsewhere = [{"prompt": f"not asked {i}", "target": " runs"} for i in range(2)]
    some = write(tmp_path / "some.jsonl", [*map(json.loads, lines[:2]), *elsewhere])
    for control, shared in ((task, "60 of its 60"), (some, "2 of its 4")):
        said = (
            f"control '{Path(control).stem}' shares {shared} examples with task 'own': a control must be another task"
        )
        refused(find("--control", control, n="30", model="nobody/nothing"), said)


def test_a_control_is_read_with_the_settings_of_the_command_before_anything_runs(find, tmp_path):
    control = write(tmp_path / "ids.jsonl", [{"prompt": [3 + i % 9, 3 + i // 9], "target": [5]} for i in range(60)])
    status, out, err = find("--prepend-bos", "--control", control, store=tmp_path / "run.sqlite")
    assert (status, out) == (2, "")
    assert "prepend_bos must be left out for prompts of token ids" in err
    assert not (tmp_path / "run.sqlite").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": "a", "target": " b"}\n{"prompt": "a"}\n', ["line 2", '"target" must be a text']),
        (
            "".join(json.dumps({"prompt": "the cat " * n, "target": " runs"}) + "\n" for n in range(40, 80)),
            ["example", "do not fit into the model's context of 64"],
        ),
        (
            "".join(json.dumps(record) + "\n" for record in hopeless_records(200)),
            ["on 100 examples, no better than chance (0.500)"],
        ),
    ],
    ids=["malformed", "too long", "at chance"],
)
def test_a_task_file_that_cannot_be_measured_gets_one_line(find, tmp_path, text, said):
    (tmp_path / "mine.jsonl").write_text(text, encoding="utf-8")
    refused(find(task=tmp_path / "mine.jsonl"), "task 'mine'", *said)


def test_a_folder_that_holds_no_model_gets_one_line(find, tmp_path):
    refused(find(model=tmp_path), str(tmp_path), "has no config.json")


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

    def terminated(*_, **__):
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("cs_heads.load_task", interrupted)
    assert find() == (130, "", "cs-heads: interrupted\n")
    monkeypatch.setattr("cs_heads.load_task", terminated)
    assert find() == (143, "", "cs-heads: terminated\n")
