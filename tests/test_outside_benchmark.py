"""The comparison with methods from outside: what each may take, and what it finds heads with."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import cs_heads as cs

FOLDER = Path(__file__).parents[1] / "benchmarks"

if not (FOLDER / "outside.py").is_file():
    pytest.skip("benchmarks/outside.py is not here: its tests need a checkout", allow_module_level=True)

sys.path.insert(0, str(FOLDER))
try:
    import outside
finally:
    sys.path.pop(0)


def record(method, seconds, **fields):
    return {"model": "m", "skill": "plural", "method": method, "seed": 0, "cpu_seconds": seconds, "losses": {}} | fields


def limits(tmp_path, *files, by="seconds_of"):
    paths = []
    for made in files:
        paths.append(tmp_path / f"{len(paths)}.jsonl")
        paths[-1].write_text("".join(json.dumps(each) + "\n" for each in made))
    methods = ["annealed+", "greedy", "chg-reference", "attribution"]
    asked = Namespace(model="folder/m", budget=5000, skills=["plural"], methods=methods, seconds_of=None, cost_of=None)
    setattr(asked, by, paths)
    return {method: (each.budget, each.examples) for (_, method), each in outside.limits_of(asked).items()}


PLAIN = [
    record("annealed+", 90.0, budget=5000, spent=4900),
    record("annealed+", 110.0, budget=5000, spent=4900),
    record("greedy", 50.0, budget=5000, spent=2000),
    record("chg-reference", 200.0, budget=5000, spent=4464),
    record("attribution", 10.0, budget=5000, spent=300),
    record("attribution", 1.0, budget=900, spent=300),
]


def test_each_method_gets_what_it_does_in_the_seconds_of_annealed_sensing(tmp_path):
    assert limits(tmp_path, PLAIN) == {
        "annealed+": (5000, None),
        "greedy": (4000, None),
        "chg-reference": (2500, None),
        "attribution": (None, 1000),
    }


def test_seconds_of_a_later_file_correct_what_did_not_follow(tmp_path):
    tried = [
        record("annealed+", 60.0, budget=5000, spent=4900, limit="seconds"),
        record("attribution", 30.0, examples=1000, found_on=298, spent=894, limit="seconds"),
    ]
    assert limits(tmp_path, PLAIN, tried) == limits(tmp_path, PLAIN) | {"attribution": (None, 596)}


def test_methods_that_cost_what_their_examples_cost_get_those_that_the_budget_pays(tmp_path):
    assert limits(tmp_path, PLAIN, by="cost_of") == {
        "annealed+": (5000, None),
        "greedy": (5000, None),
        "chg-reference": (5000, None),
        "attribution": (None, 1666),
    }
    with pytest.raises(ValueError, match=r"--cost-of has no attribution of plural with a budget of 5000"):
        limits(tmp_path, PLAIN[:4], by="cost_of")


def test_a_method_without_seconds_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no attribution or no annealed\+ of plural with a budget of 5000"):
        limits(tmp_path, PLAIN[:4])


def test_records_of_another_limit_are_not_taken_for_these():
    plain, seconds = outside.Limit("m", 5000), outside.Limit("m", 5000, limit="seconds")
    made = record("css", 1.0, budget=5000)
    assert (plain.holds(made), seconds.holds(made)) == (True, False)
    assert (plain.holds(made | {"limit": "seconds"}), seconds.holds(made | {"limit": "seconds"})) == (False, True)


@pytest.mark.parametrize(("skill", "most"), [("agreement", 1000), ("plural", 298)])
def test_heads_are_found_on_no_unseen_example_however_many_there_are(skill, most):
    task = cs.load_task(f"everyday/{skill}", seed=1)
    few, more = (outside.with_examples(task, n, seed=1).examples for n in (16, 1000))
    assert (few, more[:100], len(more)) == (task.examples[:16], task.examples, most)
    unseen = task.held_out.take(outside.N_UNSEEN).examples
    assert not {example.question for example in more} & {example.question for example in unseen}


def row(skill, method, difference, seed=0):
    """A row with as much of its own as it is ahead, and none of the others."""
    losses = {"own": difference, "others": 0.0, "difference": difference}
    return {"skill": skill, "method": method, "seed": seed, "example_evaluations": 100.0, "cpu_seconds": 2.0} | losses


def test_methods_are_compared_across_skills_by_the_seeds_that_all_skills_have():
    rows = [
        row("code", "css", 0.2),
        row("plural", "css", 0.6),
        # Of one skill alone.
        row("plural", "css", 0.9, seed=1),
        row("plural", "greedy", 0.9),
        row("code", "csb", -0.004),
        row("plural", "csb", 0.5),
    ]
    assert outside.across_table(rows).splitlines()[2:] == [
        "| `css` | .20 | .60 | .40 | .00 | .40 | .40 | 100 | 2 |",
        "| `csb` | .00 | .50 | .25 | .00 | .25 | .25 | 100 | 2 |",
    ]
