"""The planted bugs of ``benchmarks/mutants.py`` still fit the code."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]

sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import mutants as driver
    from mutant_list import AREAS, MUTANTS, Mutant
finally:
    sys.path.pop(0)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_compiles_and_names_tests_that_are_there(mutant):
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    changed = mutant.applied(text)
    assert changed != text
    compile(changed, mutant.path, "exec")
    assert mutant.tests
    for test in mutant.tests:
        assert (ROOT / test).exists(), test


def test_there_are_many_mutants_of_every_area_and_no_name_comes_twice():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 30
    assert {mutant.area for mutant in MUTANTS} == set(AREAS)
    places = [(mutant.path, mutant.old, mutant.new) for mutant in MUTANTS]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("text", ["", "one one"])
def test_code_that_has_moved_on_is_named_with_its_mutant(text):
    mutant = Mutant("one is two", "lens", "some.py", "one", "two", ("tests",))
    with pytest.raises(
        ValueError, match=r"mutant 'one is two': its text must stand once in some.py, it stands \d times"
    ):
        mutant.applied(text)


def test_a_bug_is_taken_out_again_also_after_an_exception(tmp_path):
    mutant, file = Mutant("one is two", "lens", "some.py", "one", "two", ("tests",)), tmp_path / "some.py"
    file.write_text("one\n")
    seen = []

    def fail():
        with driver.planted(mutant, tmp_path):
            seen.append(file.read_text())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert seen == ["two\n"]
    assert file.read_text() == "one\n"


@pytest.mark.parametrize(
    ("statuses", "more", "fate", "stage"),
    [
        ([1], {}, "caught", "near"),
        ([2], {}, "broken", "near"),
        ([0], {"near": True}, "survived", "near"),
        ([0, 1], {}, "caught", "rest"),
        # No test of the kind is there.
        ([5, 0, 0], {}, "survived", "rest"),
        ([0, 0, 0, 1], {"all": True}, "caught", "all"),
        ([0] * 5, {"all": True}, "survived", "all"),
    ],
)
def test_stages_go_on_until_a_test_fails(statuses, more, fate, stage, tmp_path, monkeypatch):
    mutant = Mutant("one is two", "lens", "some.py", "one", "two", ("tests/test_some.py",))
    (tmp_path / "some.py").write_text("one\n")
    left = list(statuses)
    said = "FAILED tests/test_some.py::test_one - assert 2 == 1\n"
    monkeypatch.setattr(driver, "pytest", lambda run, copy, limit: (left.pop(0), said))
    monkeypatch.setattr(driver, "python_of", lambda environment: tmp_path)
    outcome = driver.judge(mutant, tmp_path, SimpleNamespace(**{"near": False, "all": False, "limit": 1} | more))
    assert (outcome.fate, outcome.stage) == (fate, stage)
    assert outcome.test == ("" if fate == "survived" else "tests/test_some.py::test_one")
    assert not left


def test_the_table_has_a_row_a_mutant_and_the_count_what_was_asked():
    mutant = MUTANTS[0]
    outcomes = [
        driver.Outcome(mutant, "caught", "near", "tests/test_some.py::test_one", 1.0),
        driver.Outcome(mutant, "survived", "rest", "", 1.0),
    ]
    assert len(driver.table(outcomes).splitlines()) == 4
    said = driver.summary(outcomes, SimpleNamespace(near=False, all=False))
    assert said == f"caught by make test: 1 of 2\nsurvived: {mutant.name}"
