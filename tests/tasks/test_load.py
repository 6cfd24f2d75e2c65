import csv
import json
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from cs_heads.tasks import Entry, Task, load_task, read_task_file
from cs_heads.tasks.load import FAMILIES
from tests.known_heads import write_records as write_jsonl
from tests.tasks.test_records import GOOD, MALFORMED

CHOICES = [
    {"prompt": f'He said "{i}", then', "choices": [" runs", f" number {i}, comma", " ünï"], "answer": i % 3}
    for i in range(8)
]
COMPLETIONS = [{"prompt": f"Line one\nline {i}:", "target": f" {i}"} for i in range(8)]
FORMS = pytest.mark.parametrize("records", [CHOICES, COMPLETIONS], ids=["choice", "completion"])


def write_csv(path: Path, records: list[dict], encoding: str = "utf-8") -> Path:
    with path.open("w", encoding=encoding, newline="") as lines:
        writer = csv.DictWriter(lines, records[0].keys())
        writer.writeheader()
        writer.writerows(
            {key: json.dumps(value) if key == "choices" else value for key, value in record.items()}
            for record in records
        )
    return path


# Every way in gives the same task


@FORMS
def test_a_jsonl_file_is_its_records_and_named_by_its_stem(tmp_path, records):
    task = read_task_file(write_jsonl(tmp_path / "mine.jsonl", records))
    assert task == Task.from_records(records, "mine")


@FORMS
def test_a_csv_file_is_its_records(tmp_path, records):
    assert read_task_file(write_csv(tmp_path / "mine.csv", records)) == Task.from_records(records, "mine")


@FORMS
def test_a_frame_is_its_rows(records):
    assert Task.from_records(pd.DataFrame(records), "mine") == Task.from_records(records, "mine")


@FORMS
def test_a_dataset_is_its_rows(records):
    datasets = pytest.importorskip("datasets", reason="datasets is an extra")
    assert Task.from_records(datasets.Dataset.from_list(records), "mine") == Task.from_records(records, "mine")


def test_a_dataset_of_many_splits_is_refused_until_one_is_picked():
    datasets = pytest.importorskip("datasets", reason="datasets is an extra")
    splits = datasets.DatasetDict({"test": datasets.Dataset.from_list(CHOICES)})
    with pytest.raises(ValueError, match="records must be a list of records, got DatasetDict"):
        Task.from_records(splits)


# Files as other programs write them


def test_blank_lines_and_a_byte_order_mark_are_no_records(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = [json.dumps(record) for record in COMPLETIONS]
    path.write_text("\n\n".join(lines) + "\n \n", encoding="utf-8-sig")
    assert read_task_file(path).examples == Task.from_records(COMPLETIONS).examples


# load_task splits


def test_loading_gives_the_finding_side_with_the_others_held_out(tmp_path):
    path = write_jsonl(tmp_path / "mine.jsonl", COMPLETIONS)
    task = load_task(path, n=3, seed=5)
    assert (task, task.held_out) == Task.from_records(COMPLETIONS, "mine").split(3, 5)


# What a newcomer gets wrong


@pytest.mark.parametrize("name", ["a list", "no prompt", "both forms"])
def test_a_malformed_jsonl_record_is_named_by_its_line(tmp_path, name):
    record, fault = MALFORMED[name]
    path = tmp_path / "mine.jsonl"
    # A blank line counts: the number is the one an editor shows.
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(record)}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^task 'mine', line 3: .*{fault}"):
        load_task(path)


@pytest.mark.parametrize(
    "line",
    ["{", "prompt,target", '{"prompt": "a"} {}', "{'prompt': 'a'}", "[" * 100_000, '{"prompt": ' + "1" * 5000 + "}"],
    ids=["open", "csv", "two", "quotes", "deep", "long number"],
)
def test_a_line_that_is_no_json_is_named(tmp_path, line):
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^task 'mine', line 2: not JSON"):
        load_task(path)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("x,not JSON,0", r'"choices" must be a JSON list like \["a", "b"\], got \'not JSON\''),
        ("x,,0", r'"choices" must be a JSON list'),
        ('x,"["" a"", "" b""]",2', r"index of a choice, 0\.\.1 .*, got 2"),
        ('x,"["" a"", "" b""]",-1', r"index of a choice, 0\.\.1 .*, got '-1'"),
        ('x,"["" a"", "" b""]"', r"2 fields, expected 3 \(prompt, choices, answer\)"),
        ('x, y,"["" a"", "" b""]",0', r"4 fields, expected 3 .* a text with a comma in it stands in double quotes"),
    ],
)
def test_a_malformed_csv_row_is_named_by_its_line(tmp_path, row, fault):
    path = tmp_path / "mine.csv"
    path.write_text(f'prompt,choices,answer\nok,"["" a"", "" b""]",1\n{row}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^task 'mine', line 3: .*{fault}"):
        load_task(path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('prompt,target\none, two\nup and,"down\nthe, cat\n', r"line 3: not CSV \(.*\): a double quote that opens"),
        ('prompt,target\nup and,"down\n"one", two\n', r"line 2: not CSV \(.*\): a double quote that opens"),
        ("prompt;target\none; two\n", 'line 2: "prompt" must be a text, got None; .*; this one has "prompt;target"'),
        ("prompt,prompt\none, two\n", "line 1: columns must have different names, got two or more of 'prompt'"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named(tmp_path, text, fault):
    """An open quote takes the rest of the file for one answer, and another separator makes one column."""
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^task 'mine', {fault}"):
        load_task(path)


def test_lines_that_contradict_each_other_are_named(tmp_path):
    """Of one question with two answers a model can have one right at most."""
    lines = [
        *({"prompt": "The capital of France is", "target": target} for target in (" Paris", " Rome", " Paris")),
        {"prompt": "The capital of Italy is", "target": " Rome"},
    ]
    told = r"'The capital of France is' is ' Paris' \(line 1\) and ' Rome' \(line 2\)$"
    with pytest.warns(UserWarning, match=f"^task 'mine': the same question has different answers.*: {told}"):
        assert len(read_task_file(write_jsonl(tmp_path / "mine.jsonl", lines))) == 4
    cut = [{"prompt": "Q0:", "target": " 0"}, {"prompt": "Q0: ", "target": "0"}, {"prompt": "Q0: ", "target": "30"}]
    with pytest.warns(UserWarning, match=r"'Q0:' is ' 0' \(record 0\) and '30' \(record 2\)$"):
        Task.from_records(cut, "cut")
    others = [
        {"prompt": "Q0:", "choices": [" 0", " 1"], "answer": 0},
        {"prompt": "Q0: ", "choices": ["0", "2"], "answer": 1},
    ]
    assert len(Task.from_records(others, "other choices")) == 2
    turned = [
        {"prompt": "a", "choices": [" b", " c"], "answer": 0},
        {"prompt": "a", "choices": [" c", " b"], "answer": 0},
    ]
    with pytest.warns(UserWarning, match=r"'a' is ' b' \(record 0\) and ' c' \(record 1\)"):
        Task.from_records(turned)
    # Other choices are another question, and so are other places of a sequence.
    Task.from_records([turned[0], {"prompt": "a", "choices": [" c", " d"], "answer": 0}])
    Task.from_records([{"prompt": [1, 2], "target": [3], "positions": [at]} for at in (0, 1)])


def test_a_file_of_two_forms_is_refused_with_both_lines(tmp_path):
    path = write_jsonl(tmp_path / "mine.jsonl", [GOOD, GOOD, {"prompt": "a", "target": " b"}])
    with pytest.raises(ValueError, match=r"mixes two forms: a choice record \(line 1\) and a completion .*\(line 3\)"):
        load_task(path)


@pytest.mark.parametrize("name", ["blimp_mine.jsonl", "lm-eval/mine.csv"])
def test_a_file_is_a_file_whatever_its_name_begins_with(tmp_path, monkeypatch, name):
    (tmp_path / "lm-eval").mkdir()
    monkeypatch.chdir(tmp_path)
    (write_csv if name.endswith(".csv") else write_jsonl)(Path(name), COMPLETIONS)
    assert load_task(name, n=3).name == Path(name).stem


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("language.csv", r"language\.csv' does not exist; did you mean 'languages\.csv'\?$"),
        ("nowhere/language.csv", r"\.csv' does not exist$"),
        ("language.txt", r"language\.txt' must end in \.jsonl or \.csv"),
        ("", "is unknown"),
        ("folder.jsonl", "is no file"),
    ],
)
def test_what_is_no_task_file_is_refused_with_what_was_meant(tmp_path, name, fault):
    write_csv(tmp_path / "languages.csv", COMPLETIONS)
    (tmp_path / "language.txt").write_text("", encoding="utf-8")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ValueError, match=fault):
        load_task(tmp_path / name)


@pytest.fixture
def family(monkeypatch):
    """A family of built-in tasks, ``counting``, of one task, ``counting/up``."""
    module = ModuleType("counting_tasks")

    def load(n: int | None, seed: int, first: int = 0) -> Task:
        return Task.from_records(COMPLETIONS[first:], "counting/up").split(n, seed)[0]

    module.TASKS = {"up": Entry("counts up", load)}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(FAMILIES, "counting", module.__name__)


def test_options_of_a_built_in_task_are_passed_on_and_unknown_ones_named(family):
    assert load_task("counting/up", n=2, first=1) == Task.from_records(COMPLETIONS[1:], "counting/up").split(2, 0)[0]
    with pytest.raises(ValueError, match="task 'counting/up' has no option last; it has first"):
        load_task("counting/up", last=1)
    with pytest.raises(ValueError, match="task 'demo/capitals' has no option first; it has generate"):
        load_task("demo/capitals", first=1)


def test_a_file_of_generation_records_is_scored_by_the_scorer_given(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "2 + 2 ="}\n{"prompt": "1 + 1 =", "reference": "2"}\n')
    task = load_task(path, n=1, scorer=lambda example, text: 0.5, max_new_tokens=3, stop=["."])
    assert (task.kind, task.max_new_tokens, task.stop) == ("generation", 3, (".",))
    assert task.score_texts([0], ["four"]).tolist() == [0.5]
    with pytest.raises(ValueError, match="no option tokens; it has scorer, accuracy, max_new_tokens, stop"):
        load_task(path, tokens=3)
    with pytest.raises(ValueError, match='example 0: needs a "reference" or "target", or a scorer'):
        load_task(path, max_new_tokens=3)


def test_a_near_miss_of_a_built_in_task_is_helped(family):
    with pytest.raises(
        ValueError, match=r"'countng/up' is unknown; did you mean 'counting/up'\? \(.*'cs-heads tasks' lists "
    ):
        load_task("countng/up")
    with pytest.raises(ValueError, match="task 'counting/down' is unknown"):
        load_task("counting/down")
