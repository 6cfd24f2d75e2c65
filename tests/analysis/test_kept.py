"""Analyses that start from a model keep what they measure, and go on with it."""

import inspect
import json
from types import SimpleNamespace

import pytest

import cs_heads as cs
from cs_heads import Store, Task
from cs_heads.record import json_text
from tests.known_heads import IDLE, WORKING, choice_of_own_answers, own_answers, rows_run


@pytest.fixture(scope="module")
def tasks(model):
    """Two split tasks, a third without a side of its own, and one of choices, of different examples."""
    records = own_answers(model, 130)
    return SimpleNamespace(
        own=Task.from_records(records[:45], "own").split(25)[0],
        sibling=Task.from_records(records[45:90], "sibling").split(25)[0],
        control=Task.from_records(records[90:], "control"),
        choices=choice_of_own_answers(model, 50, "choices").split(25)[0],
    )


HEADS = list(WORKING)
RANKING = cs.HeadRanking("known", cs.Grid(3, 4).mask(WORKING).astype(float), spent=0)

ANALYSES = [
    (cs.atlas, lambda of: {"tasks": [of.own, of.sibling], "k": 1, "budget": 1000, "n_random": 1}),
    (cs.specificity, lambda of: {"tasks": of.own, "heads": HEADS, "controls": [of.control]}),
    (cs.specificity, lambda of: {"tasks": of.own, "heads": HEADS, "siblings": [of.sibling]}),
    (cs.specificity, lambda of: {"tasks": [of.own, of.sibling], "heads": {"own": HEADS, "sibling": list(IDLE)}}),
    (cs.sparsity_curve, lambda of: {"task": of.own, "heads": HEADS, "max_heads": 2, "n_random": 1}),
    (cs.faithfulness, lambda of: {"task": of.own, "found": RANKING, "n_random": 1}),
    (cs.format_heads, lambda of: {"letters": [of.own], "full": [of.sibling], "heads": HEADS}),
    (cs.interactions, lambda of: {"task": of.own, "heads": HEADS}),
    (cs.failures, lambda of: {"task": of.own, "heads": HEADS, "max_new_tokens": 3}),
    (cs.failures, lambda of: {"task": of.choices, "heads": HEADS}),
]


@pytest.mark.usefixtures("no_short_cuts")  # a model is tried for them by running it
@pytest.mark.parametrize(("analysis", "arguments"), ANALYSES, ids=[each.__name__ for each, _ in ANALYSES])
def test_an_analysis_done_again_runs_nothing_and_says_the_same(model, tasks, tmp_path, analysis, arguments):
    given, path = {**arguments(tasks), "n": 20}, tmp_path / "run.sqlite"
    plain = analysis(model, **given)
    first = analysis(model, **given, store=path)
    assert Store.open(path).contents().observations > 0
    with rows_run(model) as rows:
        again = analysis(model, **given, store=path)
    assert rows == []
    assert first.to_dict() == again.to_dict() == plain.to_dict()
    assert type(first).from_dict(json.loads(json_text(first))) == first


def test_every_analysis_of_a_model_under_masks_takes_a_store():
    """Also one that comes later: what takes settings runs masks, or only reads attention."""
    callables = {getattr(cs, name) for name in cs.__all__ if inspect.isfunction(getattr(cs, name))}
    under_masks = {each for each in callables if "settings" in inspect.signature(each).parameters}
    # Head cards and direct effects read what heads write, too; this model's norm is not read so.
    reads_attention = {cs.attention, cs.habits, cs.direct_effects, cs.explain}
    kept = {analysis for analysis, _ in ANALYSES}
    assert kept == under_masks - reads_attention - {cs.confirm, cs.compare, cs.held_out_contrasts}


@pytest.mark.usefixtures("no_short_cuts")
@pytest.mark.parametrize("method", ["gradient", "attribution", "mediation"])
def test_a_method_that_starts_from_the_model_keeps_the_intact_run(model, tasks, tmp_path, method):
    task, path = tasks.own, tmp_path / "run.sqlite"
    found = cs.find_heads(model, task, k=2, method=method, store=path)
    assert Store.open(path).contents().observations == 25
    with rows_run(model) as before:
        assert cs.find_heads(model, task, k=2, method=method).spent == found.spent
    with rows_run(model) as after:
        again = cs.find_heads(model, task, k=2, method=method, store=path)
    assert sum(after) < sum(before)
    assert (again.importance == found.importance).all()
    assert (again.spent, again.provenance, again.notes) == (found.spent, found.provenance, found.notes)
