import gzip
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from cs_heads import Experiment, load_task
from cs_heads.sandbox import Sandbox, SandboxError
from cs_heads.tasks import Example, Task
from cs_heads.tasks.programs import FORMS, MBPP_TEST, PassesTests
from tests.waiting import run_program

ASKED = "def add(a, b):\n    '''Add.'''\n"
HUMANEVAL = [
    {
        "task_id": f"Own/{i}",
        "prompt": ASKED.replace("Add", f"Add {i}"),
        "entry_point": "add",
        "canonical_solution": "    return a + b\n",
        "test": f"def check(candidate):\n    assert candidate({i}, 2) == {i + 2}\n",
    }
    for i in range(6)
]
MBPP = [
    {
        "text": f"Write a function to add {i}.",
        "code": f"def add(a):\r\n    return a + {i}",
        "task_id": i,
        "test_setup_code": "import math" if i == 12 else "",
        "test_list": [f"assert add({j}) == {i + j}" for j in range(3)],
        "challenge_test_list": [],
    }
    for i in (2, 3, 4, *range(9, 21), 600)
]


@pytest.fixture
def write(tmp_path):
    """Writes records as JSONL, or as JSON, and gives the path."""

    def written(records: list, name: str = "own.jsonl") -> Path:
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / name).write_text(lines if name.endswith("l") else json.dumps(records), encoding="utf-8")
        return tmp_path / name

    return written


def graded(form: str, records: list, texts: list[str], sandbox: Sandbox) -> list[float]:
    """Scores of one text for each record."""
    examples = [Example("", reference=json.dumps(record)) for record in records]
    return PassesTests(form, allow_code=True, sandbox=sandbox).score_texts(examples, texts)


def real_records(real: Path, name: str) -> list:
    return [json.loads(line) for line in (real / "data" / name).read_text(encoding="utf-8").splitlines()]


# Loading


def test_the_prompts_are_those_of_lm_eval(write, sandbox):
    """Its templates, rendered by jinja2 as lm-eval does; parts of MBPP's prompt are joined by two line breaks."""
    spec = find_spec("lm_eval")
    if spec is None:
        pytest.skip("lm-eval is not installed")
    from jinja2 import Template

    folder = Path(spec.origin).parent / "tasks"
    render = {}
    for name, file in (("humaneval_instruct", "humaneval/humaneval_instruct"), ("mbpp", "mbpp/mbpp")):
        fields = dict(re.findall(r'^(doc_to_\w+|gen_prefix): (".*")$', (folder / f"{file}.yaml").read_text(), re.M))
        render[name] = {k: Template(json.loads(v), keep_trailing_newline=True).render for k, v in fields.items()}
    humaneval, mbpp = render["humaneval_instruct"], render["mbpp"]

    asked = load_task("humaneval_instruct", n=4, data_files=write(HUMANEVAL), allow_code=True)
    expected = {humaneval["doc_to_text"](**record) + humaneval["gen_prefix"](**record) for record in HUMANEVAL}
    assert {example.prompt for example in (*asked.examples, *asked.held_out.examples)} == expected

    task = load_task("mbpp", n=5, data_files=write(MBPP), allow_code=True)
    shots = "".join(mbpp["doc_to_text"](**r) + mbpp["doc_to_target"](**r, is_fewshot=1) + "\n\n" for r in MBPP[:3])
    expected = {shots + mbpp["doc_to_text"](**record) for record in MBPP if record["task_id"] in MBPP_TEST}
    assert {example.prompt for example in (*task.examples, *task.held_out.examples)} == expected


def test_programs_come_from_the_files_of_their_authors_packed_or_in_a_folder(write, tmp_path, sandbox):
    packed = tmp_path / "he" / "HumanEval.jsonl.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(write(HUMANEVAL).read_bytes()))
    plain, *others = (
        load_task("humaneval_instruct", n=3, data_files=files, allow_code=True)
        for files in (write(HUMANEVAL), packed, packed.parent, {"test": [packed]})
    )
    assert all(other == plain for other in others)
    splits = {"prompt": write(MBPP[:3], "first.jsonl"), "test": write(MBPP[3:], "rest.jsonl")}
    both = write(MBPP, "mbpp.jsonl")
    plain, *others = (
        load_task("mbpp", n=3, data_files=files, allow_code=True) for files in (both, splits, tmp_path, [both])
    )
    assert all(other == plain for other in others)
    alone = {"test": splits["test"]}
    assert len(load_task("mbpp", n=3, data_files=alone, few_shot=0, allow_code=True)) == 3
    with pytest.raises(ValueError, match="data_files for task 'mbpp' must name the splits test, prompt; got test"):
        load_task("mbpp", data_files=alone, allow_code=True)


def test_mbpp_takes_its_test_split_and_shots_from_the_tasks_before_it(write, sandbox):
    task = load_task("mbpp", n=5, data_files=write(MBPP), allow_code=True)
    assert (task.max_new_tokens, task.stop, len(task) + len(task.held_out)) == (256, ("[DONE]",), 10)
    assert all(example.prompt.count("[BEGIN]") == 4 for example in task.examples)
    alone = load_task("mbpp", n=5, data_files=write(MBPP), allow_code=True, few_shot=0)
    assert all(example.prompt.count("[BEGIN]") == 1 for example in alone.examples)
    assert {e.prompt[-40:] for e in alone.examples} == {e.prompt[-40:] for e in task.examples}


# What is refused


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        ("PassesTests('mbpp')", "mbpp runs the programs that the model writes: say allow_code=True (--allow-code)"),
        ("PassesTests('mbpp', allow_code='False')", "allow_code must be true or false, got 'False'"),
        ("Sandbox(unsafe='False')", "unsafe must be true or false, got 'False'"),
    ],
)
def test_nothing_runs_unless_it_is_asked_for_and_a_text_does_not_ask(made, fault):
    """In an interpreter of its own: here a type check refuses it before the class does."""
    script = f"from cs_heads.tasks.programs import PassesTests, Sandbox\n{made}"
    done = run_program([sys.executable, "-c", script])
    assert done.stderr.splitlines()[-1] == f"ValueError: {fault}"


def test_without_a_sandbox_the_task_is_refused_before_any_model_runs(write, monkeypatch):
    from cs_heads.sandbox import run

    monkeypatch.setattr(run, "missing", lambda: "install bubblewrap")
    run._works.cache_clear()
    with pytest.raises(SandboxError, match="install bubblewrap"):
        load_task("humaneval", data_files=write(HUMANEVAL), allow_code=True)
    with pytest.warns(RuntimeWarning, match="WITHOUT A SANDBOX"):
        task = load_task("humaneval", n=2, data_files=write(HUMANEVAL), unsafe_code=True)
    run._works.cache_clear()
    assert len(task) == 2


@pytest.mark.parametrize(
    ("name", "records", "options", "message"),
    [
        ("humaneval", None, {}, "'openai/openai_humaneval' could not be downloaded from the hub"),
        ("humaneval", [], {}, r"own\.jsonl' is empty"),
        ("humaneval", [*HUMANEVAL, {"task_id": "x"}], {}, 'record 6: "prompt" must be a text, got None'),
        ("humaneval", [3], {}, r"own\.jsonl', line 1: must be an object with the columns of a row, got 3"),
        ("mbpp", [{**MBPP[0], "test_list": []}], {}, '"test_list" must not be empty'),
        ("mbpp", [{**MBPP[0], "text": 1}], {}, '"prompt" must be a text, got 1'),
        ("mbpp", MBPP[3:], {}, "hold no task 2, which stands before each prompt"),
        ("mbpp", MBPP[:3], {}, "hold none of the tasks 11 to 510"),
        ("mbpp", MBPP, {"few_shot": 4}, "few_shot must be an integer in 0..3, got 4"),
        ("humaneval", HUMANEVAL, {"allow_code": False, "unsafe_code": True}, "allow_code=False forbids it; leave one"),
        ("humaneval", HUMANEVAL, {"sandbox": "no"}, "sandbox must be a Sandbox or None, got 'no'"),
    ],
)
def test_malformed_data_and_options_are_refused_in_one_line(write, sandbox, name, records, options, message):
    files = {} if records is None else {"data_files": write(records)}
    with pytest.raises(ValueError, match=message) as error:
        load_task(name, **{"allow_code": True, **files, **options})
    assert "\n" not in str(error.value)


# Scores


def test_a_humaneval_text_scores_by_the_tests_of_its_record(sandbox):
    texts = ["    return a + b\n", "    return a - b\n", "    return a +", "", "    return b + a\n```\nand so on"]
    assert graded("humaneval", HUMANEVAL[:5], texts, sandbox) == [1, 0, 0, 0, 0]
    assert graded("humaneval_instruct", HUMANEVAL[:5], texts, sandbox) == [1, 0, 0, 0, 1]


def test_an_mbpp_text_scores_up_to_its_last_word(sandbox):
    record = next(record for record in MBPP if record["task_id"] == 12)
    texts = ["def add(a): return a + math.floor(12.5)\n[DONE]\nnot Python", "def add(a): return 12\n[DONE]", "[DONE]"]
    assert graded("mbpp", [record] * 3, texts, sandbox) == [1, 0, 0]


def test_a_program_said_twice_runs_once(monkeypatch, sandbox):
    seen = []
    run_all = Sandbox.run_all
    monkeypatch.setattr(Sandbox, "run_all", lambda self, p: seen.append(len(p)) or run_all(self, p))
    texts = ["    return a + b\n", "    return 0\n"] * 3
    assert graded("humaneval", [HUMANEVAL[1]] * 6, texts, sandbox) == [1, 0] * 3
    assert seen == [2]


def test_programs_are_scored_through_an_experiment(load_known, sandbox):
    """Whatever a model writes behind a comment sign is a comment, and no model says more than four tokens."""
    asked = {"prompt": "def one():\n    return 1 #", "entry_point": "one"}
    tests = [f"def check(f):\n    assert f() == {right}" for right in (1, 2)]
    examples = tuple(Example("the cat", reference=json.dumps({**asked, "test": test})) for test in tests)
    task = Task("own", "generation", examples, scorer=PassesTests("humaneval", True), max_new_tokens=4)
    experiment = Experiment(load_known(), task)
    masks = np.zeros((2, experiment.grid.n_layers, experiment.grid.n_units), dtype=bool)
    masks[1, 0] = True
    assert experiment(masks).tolist() == [[1, 0], [1, 0]]


# The real sets


def broken(record: dict) -> list[str]:
    """Two ways to get a function wrong: it returns nothing, or the right value in a list."""
    name = record["entry_point"]
    wrapped = f"\n_right = {name}\n\n\ndef {name}(*arguments):\n    return [_right(*arguments)]\n"
    return ["    return None\n", record["canonical_solution"] + wrapped]


def test_real_solutions_pass_and_broken_ones_fail(real, sandbox):
    records = real_records(real, "humaneval/HumanEval.jsonl")[::20]
    assert graded("humaneval", records, [r["canonical_solution"] for r in records], sandbox) == [1] * len(records)
    assert graded("humaneval", records, [broken(r)[0] for r in records], sandbox) == [0] * len(records)
    tasks = real_records(real, "mbpp/mbpp.jsonl")[::100]
    assert graded("mbpp", tasks, [r["code"] + "\n[DONE]" for r in tasks], sandbox) == [1] * len(tasks)


@pytest.mark.slow
def test_all_humaneval_solutions_pass_and_all_broken_ones_fail(real, sandbox):
    records = real_records(real, "humaneval/HumanEval.jsonl")
    assert len(records) == 164
    for form in ("humaneval", "humaneval_instruct"):
        assert sum(graded(form, records, [r["canonical_solution"] for r in records], sandbox)) == 164
    for way in (0, 1):
        assert sum(graded("humaneval", records, [broken(r)[way] for r in records], sandbox)) == 0


@pytest.mark.slow
def test_mbpp_solutions_that_pass_outside_pass_inside(real, sandbox):
    # One of them runs for seconds: whether a machine is fast enough is not the question here.
    sandbox = replace(sandbox, seconds=60, wall_seconds=120)
    records = real_records(real, "mbpp/mbpp.jsonl")
    programs = [FORMS["mbpp"].program(record, record["code"]) for record in records]
    inside = [outcome.passed for outcome in sandbox.run_all(programs)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        outside = [o.passed for o in pool.map(lambda program: sandbox._converse(*program, safe=False), programs)]
    assert sum(inside) >= 970
    assert [r["task_id"] for r, i, o in zip(records, inside, outside, strict=True) if o and not i] == []


def test_the_real_files_load_with_the_paper_protocol(real, sandbox):
    files = {"humaneval_instruct": "humaneval/HumanEval.jsonl", "mbpp": "mbpp/mbpp.jsonl"}
    tasks = {form: load_task(form, data_files=real / "data" / file, allow_code=True) for form, file in files.items()}
    assert [task.name for task in tasks.values()] == list(files)
    sizes = {form: (len(task), len(task.held_out)) for form, task in tasks.items()}
    assert sizes == {"humaneval_instruct": (82, 82), "mbpp": (100, 400)}
    sanitized = load_task("mbpp", data_files=real / "data/mbpp/sanitized-mbpp.json", allow_code=True)
    assert len(sanitized) + len(sanitized.held_out) == 257
    assert replace(tasks["mbpp"], held_out=None).scorer == sanitized.scorer
