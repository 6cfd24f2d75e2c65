"""Options of another type than a task takes: one clear line, whatever the family."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from cs_heads import load_task
from cs_heads.arguments import fits
from cs_heads.tasks import builtin_tasks, suites
from tests.tasks.test_load import COMPLETIONS, write_jsonl


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (3, int),
        (np.int64(3), int | None),
        (None, int | None),
        (True, bool),
        (2, float),
        (["a"], Sequence[str]),
        (("a", Path("b")), Sequence[str | Path]),
        ({"test": 3}, str | Mapping[str, object]),
    ],
)
def test_a_value_of_the_type_fits(value, hint):
    assert fits(value, hint)


@pytest.mark.parametrize(
    ("task", "option", "value", "allowed"),
    [
        ("gsm8k", "max_new_tokens", "x", "an integer or None"),
        ("lm-eval/gsm8k", "data_files", 3, "a path or a list of paths or these by name or None"),
        ("humaneval", "allow_code", "False", "true or false or None"),
        ("function_vectors/antonym", "data_files", ["a.json"], "a path or None"),
        ("symbolic/aba", "shared", "yes", "true or false"),
        ("symbolic/aba", "words", "abcdefghij", "a list of texts or None"),
        ("induction", "words", list(range(40)), "a list of texts or None"),
        ("induction", "length", 5.0, "an integer"),
        ("ioi", "order", 3, "a text"),
    ],
)
def test_an_option_of_another_type_is_named_with_what_is_allowed(task, option, value, allowed):
    said = f"task {task!r}: {option} must be {allowed}, got {value!r:.80}"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        load_task(task, **{option: value})


def test_every_option_of_every_task_refuses_what_no_task_takes():
    class Nonsense:
        pass

    anything = {"sandbox"}
    for name, entry in builtin_tasks().items():
        for option in set(entry.options) - anything:
            with pytest.raises(ValueError, match=f"{option} must be "):
                entry.check(name, {option: Nonsense()})


@pytest.mark.parametrize("option", [{"max_new_tokens": "x"}, {"max_new_tokens": 4, "stop": "x"}, {"stop": 3}])
def test_a_task_file_has_options_of_its_types_too(tmp_path, option):
    path = write_jsonl(tmp_path / "mine.jsonl", COMPLETIONS)
    with pytest.raises(ValueError, match=f"^task .*: {list(option)[-1]} must be "):
        load_task(path, **option)


def test_a_suites_files_are_named_by_its_tasks():
    loading = suites.Suite.load
    with pytest.raises(ValueError, match="data_files must be a mapping, task to its files, got 'folder'"):
        getattr(loading, "__wrapped__", loading)(suites.general, data_files="folder")


# Files that hold no rows, or not the right ones


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("everyday/plural", {"shots": 11}, r"shots must be an integer in 0\.\.10, got 11"),
        ("everyday/agreement", {"shots": 2}, "task 'everyday/agreement' has no option shots; it has none"),
        ("everyday/plural", {"n": 358}, "n must leave examples to confirm with: got n=358, and task .* has 358"),
        ("everyday/succession", {"n": 5000}, "n=5000 is more than task 'everyday/succession' has: about"),
        ("everyday/spelling", {}, "task 'everyday/spelling' is unknown; did you mean 'everyday/"),
        ("function_vectors/antonym", {"few_shot": 0, "shared": True}, "shared must be False where no worked examples"),
        ("function_vectors/antonym", {"few_shot": -1}, "few_shot must be an integer of 0 or more, got -1"),
        ("rhyming", {"few_shot": 13}, r"few_shot must be an integer in 0\.\.12, got 13"),
        ("rhyming", {"n": 113}, "n must leave examples on both sides: got n=113 with 113 in task 'rhyming'"),
        ("ioi", {"order": "AABB"}, "order must be one of both, BABA, ABBA, got 'AABB'"),
    ],
)
def test_an_option_out_of_range_is_named(name, options, fault):
    with pytest.raises(ValueError, match=fault):
        load_task(name, **options)


@pytest.mark.parametrize(
    ("task", "file", "content", "fault"),
    [
        ("rhyming", "a.json", "{", "a.json': not JSON"),
        ("rhyming", "a.json", '"cat"', "must hold a JSON list of objects, got str"),
        ("rhyming", "a.txt", "\n", "task 'rhyming' is empty"),
        ("function_vectors/antonym", "a.json", "[]", "is empty"),
        (
            "function_vectors/antonym",
            "a.json",
            '[{"input": "a", "output": " "}]',
            'record 0: "output" must not be empty',
        ),
        ("function_vectors/antonym", "a.json", '[{"input": "a", "output": "b"}]', "few_shot=10 needs 22 pairs or more"),
        ("swearing", "a.csv", "word\nflark\n", '"text" must be a text, got None'),
        ("swearing", "a.txt", "\n\n", "must hold one word or more, got none"),
    ],
)
def test_a_malformed_list_is_named(tmp_path, task, file, content, fault):
    (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=fault):
        load_task(task, data_files=tmp_path / file)
