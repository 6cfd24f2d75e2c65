"""Whatever is given wrong gets one line and exit status 2, at once; Ctrl-C gets one line and 130."""

import json
import os
import sys
from pathlib import Path

import pytest

import cs_heads as cs
from tests.plot.studies import made_ranking
from tests.waiting import run_program

ROOT = Path(__file__).parents[1]


@pytest.fixture
def no_model(monkeypatch):
    """No model is loaded: that fails."""
    monkeypatch.setattr(cs, "load_model", lambda *_, **__: pytest.fail("a model is loaded"))


def program(code: str, **more: str) -> list:
    return run_program([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **more})


# Files


RECORD = json.dumps({"prompt": "the cat 0", "target": " runs"})


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("t.csv", f"prompt,choices,answer\nthe cat,{'[' * 5000}{']' * 5000},0\n", "task 't', line 2: "),
        (
            "t.csv",
            "prompt,target,target\nthe cat, runs, sees\n",
            "line 1: columns must have different names, got two or more of 'target'",
        ),
        (
            "t.csv",
            "prompt, target\nthe cat, runs\n",
            "has a field ' target', which is not read; did you mean 'target'?",
        ),
        ("t.jsonl", '{"prompt": "a", " target": "b"}', "line 1: has a field ' target', which is not read"),
        (
            "t.jsonl",
            f'{RECORD}\n\n{RECORD[:-1]}, "target": " sees"}}\n',
            "line 3: not JSON (key 'target' stands twice in one record",
        ),
        (
            "t.jsonl",
            f'{RECORD}\n{{"prompt": "a", "target": " \\ud800"}}',
            "line 2: a text must be Unicode, without lone surrogates; got ' \\ud800'",
        ),
    ],
    ids=["too deep", "column twice", "space in CSV", "space in JSON", "key twice", "surrogate"],
)
def test_a_file_that_cannot_be_read_as_it_is_meant_is_refused_by_its_line(said, tmp_path, name, text, line):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert line in said("find", "--model", "demo", "--task", tmp_path / name)


BROKEN = ["{", "null", "[" * 100_000, '{"heads": 5}', '{"confirm": {"heads": 3}}']


@pytest.mark.parametrize("name", ["result.json", "curve.json", "attention.json", "ranking.json"])
def test_a_study_with_a_broken_file(said, tmp_path, name):
    made_ranking().save(tmp_path / "ranking.json")
    (tmp_path / "result.json").write_text('{"heads": []}', encoding="utf-8")
    for content in BROKEN:
        (tmp_path / name).write_text(content, encoding="utf-8")
        said("report", tmp_path)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--seed", str(2**70)), f'Invalid value "{2**70}" for --seed. Must be <= 2147483647.'),
        (("--workers", "999"), "workers must be an integer in 1.."),
        (("--address", "127.0.0.1:1"), "address must be that of a running Ray cluster, got '127.0.0.1:1': "),
        (("--task-option", f"choices={'[' * 100_000}"), "no option"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_a_number_or_an_address_out_of_reach(said, arguments, line):
    if arguments[0] in ("--workers", "--address"):
        pytest.importorskip("ray")
    assert line in said("find", "--model", "demo", "--task", "demo/capitals", *arguments)


@pytest.mark.parametrize("flags", [("--tasks", "t.jsonl"), ("--tasks=t.jsonl",), ("--method", "css", "--tasks", "ioi")])
@pytest.mark.parametrize("command", ["find", "compare", "explain"])
def test_a_slip_in_a_flag_that_is_needed_is_named(said, command, flags):
    assert "Did you mean --task instead of --tasks?" in said(command, "--model", "demo", *flags)


def test_a_flag_of_another_name_is_no_slip(said):
    assert "mean" not in said("find", "--task", "ioi", "--method", "css")


@pytest.mark.parametrize("model", ["./no-such-folder", "no/such/model.gguf"])
def test_a_path_of_no_model_is_no_name_that_a_hub_is_asked_for(said, model):
    assert f'Invalid value "{model}" for --model. nothing is there: ' in said("find", "--model", model, "--task", "ioi")
    assert "nothing is there: " in said("doctor", model)


COMMANDS = {
    "find": ("--task", "demo/capitals"),
    "compare": ("--task", "demo/capitals"),
    "reproduce": ("--paper", "cs"),
    "reproduce, dry": ("--paper", "cs", "--dry-run"),
}


HUGE = str(10**20)


@pytest.mark.parametrize(
    ("command", "arguments", "line"),
    [
        ("find", ("--k", HUGE), "for --k. Must be <= 1000000."),
        ("find", ("--budget", HUGE), "for --budget. Must be <= 1000000000000."),
        ("find", ("--method", "css", "--n-masks", HUGE), f"n_masks must be an integer in 1..1000000000000, got {HUGE}"),
        ("find", ("--generate", HUGE), "for --generate. Must be <= 100000."),
        (
            "find",
            ("--off", f"L{10**19}H0"),
            f"off must be a list of heads: layer must be an integer in 0..1000000, got {10**19}",
        ),
        ("reproduce", ("--n-unseen", HUGE), "for --n-unseen. Must be <= 100000."),
        ("find", ("--n", "5"), "has 5 finding examples; 20 or more are needed on each side"),
        ("compare", ("--n", "5"), "has 5 finding examples; 20 or more are needed on each side"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, tuple) else "",
)
def test_a_number_out_of_reach_is_refused_before_a_model_is_loaded(said, tmp_path, no_model, command, arguments, line):
    assert line in said(command, "--model", "demo", *COMMANDS[command], *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_search_that_is_refused_leaves_no_folder(said, tmp_path):
    arguments = ("--model", "demo", *COMMANDS["find"], "--budget", "10", "--out", tmp_path / "out")
    assert "budget must be " in said("find", *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_out_that_cannot_be_a_folder_is_refused_before_a_model_is_loaded(
    said, tmp_path, no_model, monkeypatch, command
):
    (tmp_path / "a file").write_text("", encoding="utf-8")
    given = (command.partition(",")[0], "--model", "demo", *COMMANDS[command], "--out")
    for out in ("a file", "a file/out"):
        begin = f"--out must be a folder that is there or can be made, got '{tmp_path / out}': "
        assert begin + f"'{tmp_path / 'a file'}' is a file\n" in said(*given, tmp_path / out)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert f"got '{tmp_path}': '{tmp_path}' may not be written to" in said(*given, tmp_path)


MISTAKES = {
    "cs.load_task('demo/capitals', n=10**8)": "n must be an integer in 1..100000, got 100000000",
    "cs.Task.from_records(None)": "records must be a list of records, got None",
    "cs.Task.from_records(twice)": "columns of records must have different names, got two or more of 'target'",
    "cs.find_heads(None, task, controls=5)": "controls must be a list of tasks, 'auto' or None, got 5",
    "judged.score_texts([0], ['a'])": "scorer 'nothing' must give 1 numbers in 0..1, got None",
    "cs.compare(None, task, methods=[['css']])": "method must be one of annealed, css,",
    "cs.compare(None, task, options={'css': 5})": "options['css'] must be a mapping, values by the name of an option",
    "cs.find_heads(None, task, off=[None])": "off must be a list of heads: a head must be Head(2, 5), 'L2H5' or (2, 5)",
    "cs.find_heads(model, task, prepend_bos='yes')": "prepend_bos must be True, False or None, got 'yes'",
    "cs.confirm(None, task, [None])": "heads must be a list of heads: a head must be Head(2, 5), 'L2H5' or (2, 5), got",
    "cs.confirm(None, task, ['L0H1'])": "task must be an Experiment, or a subclass of ExperimentLike, got Task",
    "cs.confirm(None, world.task, ['L0H1'], repeats=2)": "repeats must be 0 for an experiment, which has no search",
    "cs.confirm(None, world.task, ['L0H1'], units='kv')": "units must not be given where model is None: an experiment",
    "cs.specificity(None, task, ['L0H1'], suites=[task])": "suites must be a mapping, a list of tasks by the name of",
    "cs.specificity(model, task, None)": "heads must be a ranking or a list of heads, got NoneType",
    "cs.faithfulness(None, task, ranked, response='logit')": "response must be one of 'score', 'probability'",
    "cs.faithfulness(model, task, ranked)": "found['css'] must be ranked on the grid of the model, 8 × 16 heads, got ",
    "cs.attention(model, None, ['L0H1'])": "prompts must be a list of one text or more, got None",
    "cs.format_heads(None, [task], None, ['L0H1'])": "full must be a list of tasks, got None",
    "cs.held_out_contrasts(None, None)": "formats must be a mapping, tasks by name, by the name of each format",
    "cs.universal_heads(None, [], world.task)": "experiments must be a mapping, an experiment by the name of each task",
    "cs.head_overlap(None)": "found must be a mapping, rankings or lists of heads by name, got None",
    "cs.scale_study(5)": "studies must be a mapping, a Study, a ranking or a folder by the name of each model, got 5",
    "cs.Grid(10**20, 4)": f"n_layers must be an integer in 1..1000000, got {10**20}",
    "cs.find_heads(model, task, method='one-shot', budget=10**20)": "budget must be 1,000,000,000,000 example-eval",
    "grid.resolve(None)": "a head must be Head(2, 5), 'L2H5' or (2, 5), got None",
    "cs.HeadRanking.load(None)": "path must be a path, got None",
    "cs.write_report(None, 'r.html')": "findings must be a ranking, an atlas, or the path of a folder, got None",
    "cs.write_report('.', 'r.html', proof=1)": "proof, curve, attention and cards go beside a ranking, got findings",
    "cs.plot.save(None, None)": "path must be a path, got None",
    "cs.plot.atlas(None)": "found must be an Atlas, as cs.atlas gives, got None",
    "cs.plot.heads(None)": "ranking must be a HeadRanking, as find_heads gives, got None",
}


def test_a_wrong_argument_raises_a_value_error_that_names_it():
    """In a process where no types are checked at run time, as those of users are."""
    code = (
        "import cs_heads as cs, pandas as pd, json\n"
        "task = cs.load_task('demo/capitals', n=40)\ngrid = cs.Grid(3, 4)\n"
        "world, model = cs.simulate.planted_world(grid=cs.Grid(8, 8)), cs.load_model('demo', device='cpu')\n"
        "import numpy as np\nranked = cs.HeadRanking('css', np.eye(1), spent=0)\n"
        "twice = pd.DataFrame([['a', 'b', 'c']], columns=['prompt', 'target', 'target'])\n"
        "def nothing(example, text): return None\n"
        "judged = cs.Task.from_records([{'prompt': 'a'}] * 2, scorer=nothing, max_new_tokens=2)\n"
        f"for mistake in {list(MISTAKES)!r}:\n"
        "    try: eval(mistake)\n"
        "    except Exception as error: print(json.dumps([type(error).__name__, str(error)]))\n"
        "    else: print(json.dumps(['nothing', 'raised']))\n"
    )
    run = program(code)
    assert run.returncode == 0, run.stderr
    raised = dict(zip(MISTAKES, map(json.loads, run.stdout.splitlines()), strict=True))
    wrong = {
        mistake: got for mistake, got in raised.items() if got[0] != "ValueError" or MISTAKES[mistake] not in got[1]
    }
    assert wrong == {}


# Endings


def test_a_reader_that_has_enough_ends_the_command_quietly():
    # No reader from the start: what is printed meets a closed pipe.
    run = program(
        "import os, sys\nread, write = os.pipe()\nos.close(read)\nos.dup2(write, 1)\n"
        "from cs_heads.cli import main\nsys.exit(main(['tasks']))"
    )
    assert (run.returncode, run.stderr) == (141, "")


@pytest.mark.parametrize(
    ("module", "raised"),
    [
        pytest.param("torch", "KeyboardInterrupt", marks=pytest.mark.slow),
        ("numpy", "KeyboardInterrupt"),
        ("numpy", "SystemError('C')"),
    ],
)
def test_ctrl_c_while_a_library_is_imported(module, raised, tmp_path):
    """However the library puts it, and though it can no more be imported for the last words."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background has it ignored
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            try: os.kill(os.getpid(), signal.SIGINT)\n"
        f"            except KeyboardInterrupt: raise {raised}\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from cs_heads.cli import main\n"
        f"store = {str(tmp_path / 'none.sqlite')!r}\n"
        "sys.exit(main(['find', '--model', 'demo', '--task', 'demo/capitals', '--store', store]))"
    )
    run = program(code)
    assert (run.returncode, run.stderr) == (130, "cs-heads: interrupted\n")


@pytest.mark.parametrize("address", ["auto", "ray://127.0.0.1"])
def test_what_an_address_stands_for_is_tried_before_ray_waits_for_it(address, monkeypatch):
    """Ray itself goes on for ten minutes where the last cluster of this machine is gone."""
    from cs_heads.cluster.session import _check_answers

    monkeypatch.setattr("ray._private.services.get_ray_address_from_environment", lambda *_: "127.0.0.1:1")
    with pytest.raises(ValueError, match=rf"^address must be that of a running Ray cluster, got '{address}': "):
        _check_answers(address)
