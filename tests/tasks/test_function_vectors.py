"""Word-to-word tasks: worked examples or an instruction, completions or choices, and pairs for mediation."""

import json

import pytest

from cs_heads import load_task
from cs_heads.tasks import function_vectors
from cs_heads.tasks.function_vectors import INSTRUCTIONS

NAMES = tuple(INSTRUCTIONS)


def both_sides(task):
    return [*task.examples, *task.held_out.examples]


def query(example):
    return example.prompt.rsplit("Q: ", 1)[1].removesuffix("\nA:")


def shots(example):
    return [tuple(shot.removeprefix("Q: ").split("\nA: ")) for shot in example.prompt.split("\n\n")[:-1]]


@pytest.mark.parametrize("name", NAMES)
def test_no_question_is_asked_twice_or_answered_in_a_worked_example(name):
    examples = both_sides(load_task(f"function_vectors/{name}", n=30))
    asked = [query(example) for example in examples]
    assert len(set(asked)) == len(asked) >= 80
    assert not set(asked) & {word for example in examples for word, _ in shots(example)}


@pytest.mark.parametrize("name", NAMES)
def test_all_examples_have_the_same_worked_examples(name):
    """Drawn with the seed; questions stay what they are."""
    own, task, other = (
        load_task(f"function_vectors/{name}", n=30, few_shot=4, **options)
        for options in ({}, {"shared": True}, {"shared": True, "seed": 1})
    )
    (worked,) = {tuple(shots(example)) for example in both_sides(task)}
    assert len(set(worked)) == 4
    assert {tuple(shots(example)) for example in both_sides(other)} != {worked}
    assert not {query(example) for example in both_sides(task)} & {word for word, _ in worked}
    assert task.identity != own.identity
    assert {(query(e), e.continuations) for e in both_sides(task)} == {
        (query(e), e.continuations) for e in both_sides(own)
    }


def test_an_instruction_says_what_to_do():
    task = load_task("function_vectors/country-capital", few_shot=0, n=20)
    example = next(e for e in both_sides(task) if "France" in e.prompt)
    assert (example.prompt, example.target) == (
        "Write the capital city of the country.\nWord: France\nAnswer:",
        " Paris",
    )
    assert task.chat == task.held_out.chat == "auto"
    assert load_task("function_vectors/country-capital", n=20).chat == "off"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ("antonym", "english-french") else ()) for name in NAMES],
)
def test_the_real_files_are_tasks(real, name):
    folder = real / "data" / "function_vectors"
    records = {(r["input"].strip(), r["output"].strip()) for r in json.loads((folder / f"{name}.json").read_text())}
    task = load_task(f"function_vectors/{name}", n=50, data_files=str(folder))
    assert len(both_sides(task)) == len(records) - 20
    assert {(query(e), e.target.strip()) for e in both_sides(task)} <= records
    assert {shot for e in both_sides(task) for shot in shots(e)} <= records


def test_pairs_show_the_form_and_hide_the_function():
    task = load_task("function_vectors/antonym", few_shot=4)
    pairs = function_vectors.pairs_of(task, 5)
    for pair in pairs:
        clean, corrupted = (
            dict(shot.split("\nA: ") for shot in text.split("\n\n")[:-1]) for text in (pair.clean, pair.corrupted)
        )
        assert clean.keys() == corrupted.keys()
        assert sorted(clean.values()) == sorted(corrupted.values())
        assert all(clean[word] != corrupted[word] for word in clean)
        assert pair.clean.startswith("Q: ")
        assert pair.clean.rsplit("\n\n", 1)[1] == pair.corrupted.rsplit("\n\n", 1)[1]
    assert pairs == function_vectors.pairs_of(task, 5)
