"""The papers' benchmarks by their own names: protocol, suites, and the sets that lm-eval does not have."""

import json
import os
import sys

import numpy as np
import pytest

from cs_heads.tasks import Example, builtin_tasks, entry_of, load_task, suites
from cs_heads.tasks.openmath import BoxedAnswer, boxed
from tests.known_heads import write_records as write
from tests.scores import response_of
from tests.waiting import run_program


@pytest.fixture
def school(tmp_path):
    """A file of ARC's form where the shortest choice is always wrong."""
    rows = [
        {
            "question": f"Question {i}?",
            "choices": {"text": ["x", f"the long answer {i}", "another"], "label": ["A", "B", "C"]},
            "answerKey": "B",
        }
        for i in range(30)
    ]
    return write(tmp_path / "school.jsonl", rows)


# By name


def test_the_protocol_is_the_papers_unless_a_user_says_otherwise(school, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is an extra")
    # The right choice is the least likely by its sum and the most likely by character.
    logprobs = np.array([-2.0, -3.0, -9.0])
    for options, score in (({}, 1), ({"metric": "acc"}, 0)):
        task = load_task("arc_challenge", n=10, data_files=school, **options)
        assert response_of(task, 0, logprobs, [False] * 3) == score
    sums = write(tmp_path / "sums.jsonl", [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(30)])
    for options, score in (({}, 1), ({"filter": "strict-match"}, 0)):
        task = load_task("gsm8k", n=10, data_files=sums, few_shot=0, **options)
        gold = task.examples[0].target.split()[-1]
        assert task.score_texts([0], [f"It must be {gold}"]).tolist() == [score]


def test_length_normalisation_is_not_dropped_silently(school):
    pytest.importorskip("lm_eval", reason="lm-eval is an extra")
    with pytest.raises(ValueError, match=r"length_normalized applies .* without a scorer; task 'arc_challenge'"):
        load_task("arc_challenge", n=10, data_files=school, length_normalized=True)


@pytest.mark.parametrize("name", ["gsm8k/", "/gsm8k", "", "/", "lm-eval/", "bigbench/"])
def test_half_a_name_is_no_task(name):
    assert entry_of(name) is None


@pytest.mark.parametrize("name", ["mbpp", "humaneval_instruct", "lm-eval/humaneval"])
def test_programs_are_not_even_fetched_without_leave_to_run_them(name):
    with pytest.raises(ValueError, match="say allow_code=True"):
        load_task(name)


def test_a_hub_that_does_not_answer_is_told_in_one_line(tmp_path):
    """In an interpreter of its own, which may ask: on a port that nobody listens to, and without waiting between."""
    pytest.importorskip("lm_eval", reason="lm-eval is an extra")
    script = (
        "import sys, time; time.sleep = lambda seconds: None\n"
        "from cs_heads.tasks import load_task\n"
        "try:\n    load_task('gsm8k')\n"
        "except ValueError as error:\n    sys.exit(str(error))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = run_program([sys.executable, "-c", script], env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("data set '")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the hub: gives what a test lays in it, by data set and split, and remembers what it was asked."""
    datasets = pytest.importorskip("datasets", reason="datasets is an extra")
    laid: dict[str, dict[str, list]] = {}
    asked = []

    def load_dataset(path, name=None, split=None, **_):
        asked.append((path, name, split))
        splits = {key: datasets.Dataset.from_list(rows) for key, rows in laid[path].items()}
        return datasets.DatasetDict(splits) if split is None else splits[split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return laid, asked


def test_benchmarks_are_read_from_the_hub_with_their_own_worked_examples(hub):
    pytest.importorskip("lm_eval", reason="lm-eval is an extra")
    laid, asked = hub
    laid["openai/gsm8k"] = {
        "train": [{"question": f"Shown {i}?", "answer": f"#### {i}"} for i in range(20)],
        "test": [{"question": f"Asked {i}?", "answer": f"#### {i}"} for i in range(30)],
    }
    task = load_task("gsm8k", n=10)
    assert asked == [("openai/gsm8k", "main", None)]
    for example in (*task.examples, *task.held_out.examples):
        assert (example.prompt.count("Shown"), example.prompt.count("Asked")) == (5, 1)


def test_problems_and_grammar_are_read_from_the_hub(hub, problems):
    laid, asked = hub
    rows = [json.loads(line) for line in problems.read_text(encoding="utf-8").splitlines()]
    laid["nvidia/OpenMathInstruct-2"] = {"train_1M": rows}
    assert load_task("openmathinstruct2", n=30, n_records=100) == load_task(
        "openmathinstruct2", n=30, data_files=write(problems, rows[:100])
    )
    asked_there = [(f"Q: I see {i}.\nA:", f"I saw {i}.") for i in range(30)]
    rows = [{"inputs": text, "targets": [said], "multiple_choice_targets": []} for text, said in asked_there]
    laid["hails/bigbench"] = {"default": rows}
    task = load_task("bigbench/tense", n=10)
    assert asked[-1] == ("hails/bigbench", "tense_zero_shot", "default")
    assert "Question: I see " in task.examples[0].prompt
    assert "Q:" not in task.examples[0].prompt


# Suites


@pytest.mark.parametrize("suite", [suites.general, suites.math, suites.code, suites.language, suites.wmdp])
def test_every_task_of_a_suite_is_built_in(suite):
    assert all(entry_of(name) is not None for name in suite)


@pytest.fixture
def loaded():
    """Kind and size of the tasks of a suite, by name."""
    pytest.importorskip("lm_eval", reason="lm-eval is an extra")

    def tasks(suite, n=10, **options):
        found = {task.name: task for task in suite.load(n, **options)}
        assert all((task.role, 0 < len(task) <= n) == ("finding", True) for task in found.values())
        return {name: (task.kind, len(task) + len(task.held_out)) for name, task in found.items()}

    return tasks


def test_the_general_suite_loads_from_files_of_the_authors_forms(loaded, tmp_path):
    hellaswag = "".join(f"Diving: They {i} dive. the men\n{i % 4}\na.\nb.\nc.\nd.\n" for i in range(30))
    (tmp_path / "hellaswag_val.txt").write_text(hellaswag, encoding="utf-8")
    boolq = [{"question": f"is it {i}", "passage": "It is.", "answer": i % 2 == 0} for i in range(30)]
    choices = [{"text": text, "label": label} for text, label in zip(("so", "no", "if"), "ABC", strict=True)]
    arc = [{"question": {"stem": f"Why {i}?", "choices": choices}, "answerKey": "ABC"[i % 3]} for i in range(30)]
    mmlu = tmp_path / "mmlu"
    mmlu.mkdir()
    for subject in ("anatomy", "virology"):
        lines = "".join(f"What {subject} {i}?,a,b,c,d,{'ABCD'[i % 4]}\n" for i in range(15))
        (mmlu / f"{subject}_test.csv").write_text(lines, encoding="utf-8")
    files = {
        "hellaswag": tmp_path / "hellaswag_val.txt",
        "boolq": write(tmp_path / "boolq.jsonl", boolq),
        "arc_challenge": write(tmp_path / "arc.jsonl", arc),
        "mmlu": mmlu,
    }
    with pytest.warns(UserWarning, match="'mmlu': data_files have files for 2 of its 57 tasks, of which it is made"):
        found = loaded(suites.general, data_files=files)
    assert found == dict.fromkeys(suites.general, ("choice", 30))


def test_the_suite_of_hazards_loads_from_files(loaded, tmp_path):
    rows = [{"question": f"Is it {i}?", "choices": ["a", "b", "c", "d"], "answer": i % 4} for i in range(40)]
    files = dict.fromkeys(suites.wmdp, write(tmp_path / "rows.jsonl", rows))
    assert loaded(suites.wmdp, data_files=files) == dict.fromkeys(suites.wmdp, ("choice", 40))
    tasks = suites.wmdp.load(10, data_files=files, chat="auto", too_long="truncate")
    assert {(task.chat, task.too_long, task.held_out.too_long) for task in tasks} == {("auto", "truncate", "truncate")}


def test_a_suite_refuses_names_and_options_that_no_task_of_it_has():
    with pytest.raises(ValueError, match="no built-in task 'gsm8k' is in the suite; it has wmdp_bio, wmdp_chem"):
        suites.wmdp.load(data_files={"gsm8k": "x"})
    with pytest.raises(ValueError, match=r"no task of the suite .* has an option 'allow_code'"):
        suites.wmdp.load(allow_code=True)


# BIG-bench grammar


@pytest.fixture
def tense(tmp_path):
    """Sixty sentences, the first of which are the shortest."""
    examples = [{"input": f"I {'very ' * (i // 12)}see {i}. (Past)", "target": f"I saw {i}."} for i in range(60)]
    (tmp_path / "task.json").write_text(json.dumps({"name": "tense", "examples": examples}), encoding="utf-8")
    return tmp_path / "task.json"


def test_tense_is_asked_with_a_worked_example_that_is_asked_by_none(tense):
    task = load_task("bigbench/tense", n=20, seed=0, data_files=tense)
    assert (task.kind, len(task), len(task.held_out)) == ("completion", 20, 30)
    shown = set()
    for example in (*task.examples, *task.held_out.examples):
        first, second = example.prompt.split("\nQuestion: ")
        assert first.startswith("Question: I see")
        assert second.endswith("\nAnswer:")
        shown.add(first)
        asked = second.split("see ")[1].split(".")[0]
        assert example.target == f" I saw {asked}."
    assert 2 <= len(shown) <= 10


def test_all_examples_have_the_same_worked_examples(tense, problems):
    for name, data_files in (("bigbench/tense", tense), ("openmathinstruct2", problems)):
        given = {"n": 20, "data_files": data_files, "few_shot": 3}
        own, task, other = (
            load_task(name, **given, **more) for more in ({}, {"shared": True}, {"shared": True, "few_shot_seed": 1})
        )
        sides = (*task.examples, *task.held_out.examples)
        (before,) = {example.prompt.rsplit("Question: ", 1)[0] for example in sides}
        assert before.count("Question: ") == 3
        assert before != other.examples[0].prompt.rsplit("Question: ", 1)[0]
        questions = [example.prompt.rsplit("Question: ", 1)[1] for example in sides]
        assert not any(f"Question: {question}" in before for question in questions)
        assert questions == [e.prompt.rsplit("Question: ", 1)[1] for e in (*own.examples, *own.held_out.examples)]
        assert task.identity != own.identity
        message = "shared must be False where no worked examples are shown; got shared=True and few_shot=0"
        with pytest.raises(ValueError, match=f"^{message}$"):
            load_task(name, **{**given, "few_shot": 0}, shared=True)


def test_a_row_that_comes_again_is_asked_once_whatever_the_letters_of_its_choices(tmp_path):
    examples = [{"input": f"The {i} cats", "target_scores": {f"sleep {i}": 1, f"sleeps {i}": 0}} for i in range(60)]
    file = tmp_path / "task.json"
    file.write_text(json.dumps({"examples": examples * 2}), encoding="utf-8")
    task = load_task("bigbench/subject_verb_agreement", n=20, data_files=file)
    assert len(task) + len(task.held_out) == 50
    prompts = [example.prompt.split("Question: ") for example in (*task.examples, *task.held_out.examples)]
    shown, asked = ({prompt[place].split("\n")[0] for prompt in prompts} for place in (1, 2))
    assert len(asked) == 50
    assert not asked & shown


BENCHMARK = ("tense", "hyperbaton", "linguistic_mappings/plurals", "linguistic_mappings/past_tense", "sva_english")


@pytest.fixture
def checkout(tmp_path):
    """Sets of BIG-bench side by side, each file called task.json, its questions naming where it lies."""
    root = tmp_path / "benchmark_tasks"
    for part in BENCHMARK:
        folder = root / part.replace("sva", "subject_verb_agreement")
        folder.mkdir(parents=True)
        rows = [{"input": f"{part} {i}", "target": f"{i}s"} for i in range(20)]
        (folder / "task.json").write_text(json.dumps({"examples": rows}), encoding="utf-8")
    return root


def asked_of(task):
    """The folders that the questions of a task are from, and how many there are, worked examples aside."""
    asked = [e.prompt.rsplit("Question: ", 1)[1].split(" ")[0] for e in (*task.examples, *task.held_out.examples)]
    return set(asked), len(asked)


@pytest.mark.parametrize(
    ("name", "folder", "parts"),
    [
        ("tense", ".", {"tense"}),
        ("tense", "tense", {"tense"}),
        ("linguistic_mappings", ".", BENCHMARK[2:4]),
        ("linguistic_mappings", "linguistic_mappings", BENCHMARK[2:4]),
        ("linguistic_mappings", "linguistic_mappings/plurals/task.json", {"linguistic_mappings/plurals"}),
        ("subject_verb_agreement", ".", {"sva_english"}),
    ],
)
def test_of_sets_that_lie_side_by_side_the_one_that_is_named_is_read(checkout, name, folder, parts):
    task = load_task(f"bigbench/{name}", n=5, data_files=checkout / folder)
    assert asked_of(task) == ({*parts}, 20 * len(parts) - 10)
    assert all(part.split("/")[0].split("_")[0] in e.prompt for e in task.examples for part in parts)


@pytest.mark.parametrize("folder", ["hyperbaton", "linguistic_mappings"])
def test_another_set_is_not_taken_for_the_one_that_is_named(checkout, folder):
    with pytest.raises(ValueError, match=r"has no file .* in a folder named tense; it has .*task\.json: point data_"):
        load_task("bigbench/tense", data_files=checkout / folder)


def test_a_set_that_is_not_on_the_hub_says_where_its_files_are():
    with pytest.raises(ValueError, match=r"not on the hub: get the folder .*/subject_verb_agreement of .*data_files="):
        load_task("bigbench/subject_verb_agreement")
    listed = builtin_tasks()
    assert "not on the hub" in listed["bigbench/subject_verb_agreement"].needs
    assert "or the hub" in listed["bigbench/tense"].needs


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"inputs": "a", "targets": []}] * 20, {}, "record 0: must have a text and its answer"),
        ([{"input": "a", "target": 3}], {}, "record 0: must have a text and its answer"),
        ([{"input": "a", "target_scores": [1, 0]}], {}, r"must be an object, choice to score, got \[1, 0\]"),
        ([{"input": "a", "target_scores": {"a": "b"}}], {}, 'record 0: "target_scores" must be an object'),
        ([{"input": f"{i}", "target": "b"} for i in range(5)], {}, "got few_shot=1 and 5 questions"),
        ([{"input": f"{i}", "target": "b"} for i in range(20)], {"few_shot": 11}, "few_shot must be 0 to 10"),
    ],
)
def test_malformed_grammar_is_refused(tmp_path, rows, options, message):
    with pytest.raises(ValueError, match=message):
        load_task("bigbench/tense", data_files=write(tmp_path / "task.jsonl", rows), **options)


# CommonsenseQA


def test_common_sense_is_asked_by_shuffled_letters_after_a_worked_example(tmp_path):
    """Whatever the file's order, the right choice comes at every place."""
    rows = [
        {"question": f"Why {'so ' * (i // 12)}{i}?", "choices": [f"yes {i}", f"no {i}", f"if {i}"], "answer": 0}
        for i in range(60)
    ]
    task = load_task("commonsense_qa", n=20, data_files=write(tmp_path / "commonsense_qa.jsonl", rows))
    assert (task.kind, len(task), len(task.held_out)) == ("choice", 20, 30)
    sides = (*task.examples, *task.held_out.examples)
    assert {example.target for example in sides} == {" A", " B", " C"}
    for example in sides:
        shown, asked = example.prompt.split("\nQuestion: ")
        assert shown.startswith("Question: Why ")
        assert shown.splitlines()[-1].removeprefix("Answer: ") in "ABC"
        right = asked.split(f"{example.target[1]}. ")[1].splitlines()[0]
        assert right.startswith("yes ")
        assert right.removeprefix("yes ") in asked.splitlines()[0]


# OpenMathInstruct-2


@pytest.fixture
def problems(tmp_path):
    rows = [
        {
            "problem": f"What is {i} times {i}, and {'again ' * (i // 10)}why?",
            "generated_solution": f"We have ${i} \\cdot {i} = \\boxed{{{i * i}}}$.",
            "expected_answer": f"{i * i}",
        }
        for i in range(120)
    ]
    return write(tmp_path / "problems.jsonl", rows)


def test_the_target_of_a_problem_is_its_solution_and_its_score_the_boxed_answer(problems):
    task = load_task("openmathinstruct2", n=30, data_files=problems)
    assert (task.kind, len(task), len(task.held_out)) == ("generation", 30, 40)
    for i, example in enumerate(task.examples):
        assert example.prompt.count("\\boxed{...}") == 1
        assert example.prompt.count("Question: ") == 2
        assert task.score_texts([i], [example.target]).tolist() == [1]
        assert task.score_texts([i], [example.target.replace("\\boxed", "")]).tolist() == [0]
        assert task.score_texts([i], [f"\\boxed{{{example.reference}1}}"]).tolist() == [0]


def test_the_shortest_problems_are_kept_where_so_many_are_asked_for(problems):
    def lengths(**options):
        task = load_task("openmathinstruct2", n=20, data_files=problems, few_shot=0, **options)
        return sorted(len(e.asked) + len(e.target.strip()) for e in (*task.examples, *task.held_out.examples))

    assert lengths(shortest=90) == lengths()[:90]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("so \\boxed{3}", "3"),
        ("\\boxed{1} no, \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{4} and \\boxed{not closed", "4"),
        ("it is 3", None),
        ("\\boxed{never closed", None),
    ],
)
def test_the_last_closed_box_counts(text, held):
    assert boxed(text) == held


@pytest.mark.parametrize(
    ("said", "answer", "score"),
    [
        ("1/2", "1/2", 1),
        ("\\dfrac{1}{2}", "\\frac{1}{2}", 1),
        ("1,000", "1000", 1),
        ("3.0", "3", 1),
        ("\\frac{1}{2}", "1/2", 1),
        ("-\\frac12", "-0.5", 1),
        ("\\frac{-2}{4}", "-\\frac1{2}", 1),
        ("+\\frac{3}{1}", "3", 1),
        ("x = 5", "5", 1),
        ("5", "x=5", 1),
        ("y=5", "x=5", 0),
        ("x=a", "a", 0),
        ("2\\frac12", "21/2", 0),
        ("\\frac{1}{0}", "0", 0),
        ("1/3", "0.333", 0),
        ("1e999999999", "5", 0),
        ("\\$5", "5", 1),
        ("(1, 2)", "(1,2)", 1),
        ("\\text{Monday}", "Monday", 1),
        ("(1,2)", "(1,3)", 0),
        ("5", "50", 0),
        ("", "0", 0),
    ],
)
def test_an_answer_may_be_written_in_any_usual_way(said, answer, score):
    assert BoxedAnswer().score_texts([Example("?", reference=answer)], [f"\\boxed{{{said}}}"]) == [score]


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: [{**row, "expected_answer": int(row["expected_answer"])} for row in rows],
        lambda rows: [*rows, *({**row, "generated_solution": "no", "expected_answer": "no"} for row in rows)],
    ],
    ids=["answers that are numbers", "problems that come again"],
)
def test_an_answer_that_is_a_number_is_its_text_and_the_first_solution_of_a_problem_counts(problems, tmp_path, change):
    rows = [json.loads(line) for line in problems.read_text(encoding="utf-8").splitlines()]
    changed = write(tmp_path / "changed.jsonl", change(rows))
    assert load_task("openmathinstruct2", data_files=changed) == load_task("openmathinstruct2", data_files=problems)


def test_a_row_without_a_solution_is_named(tmp_path):
    rows = [{"problem": "?", "expected_answer": "1"}]
    with pytest.raises(ValueError, match='openmathinstruct2, record 0: "generated_solution" must be a text, got None'):
        load_task("openmathinstruct2", data_files=write(tmp_path / "rows.jsonl", rows))
