"""Analyses that start from a model keep what they measure, and go on with it."""

import inspect

import numpy as np
import pytest

import cs_heads as cs
from cs_heads import Store, Task
from tests.known_heads import IDLE, WORKING, choice_of_own_answers, own_answers, rows_run


@pytest.fixture(scope="module")
def tasks(model):
    """Two split tasks and a third without a side of its own, of different examples."""
    records = own_answers(model, 130)
    return [
        Task.from_records(records[:45], "own").split(25)[0],
        Task.from_records(records[45:90], "sibling").split(25)[0],
        Task.from_records(records[90:], "control"),
    ]


@pytest.fixture(scope="module")
def choices(model):
    return choice_of_own_answers(model, 50, "choices").split(25)[0]


def specificity(model, tasks, choices, **more):
    return cs.specificity(model, tasks[0], list(WORKING), controls=tasks[2:], n=20, **more)


def siblings(model, tasks, choices, **more):
    return cs.specificity(model, tasks[0], list(WORKING), siblings=tasks[1:2], n=20, **more)


def several_tasks(model, tasks, choices, **more):
    return cs.specificity(model, tasks[:2], {"own": list(WORKING), "sibling": list(IDLE)}, n=20, **more)


def sparsity_curve(model, tasks, choices, **more):
    return cs.sparsity_curve(model, tasks[0], list(WORKING), max_heads=2, n=20, n_random=1, **more)


def faithfulness(model, tasks, choices, **more):
    importance = np.zeros((3, 4))
    importance[tuple(zip(*[(head.layer, head.index) for head in WORKING], strict=True))] = 1.0
    ranking = cs.HeadRanking("known", importance, spent=0)
    return cs.faithfulness(model, tasks[0], ranking, n=20, n_random=1, **more)


def format_heads(model, tasks, choices, **more):
    return cs.format_heads(model, tasks[:1], tasks[1:2], list(WORKING), n=20, **more)


def interactions(model, tasks, choices, **more):
    return cs.interactions(model, tasks[0], list(WORKING), n=20, **more)


def text_failures(model, tasks, choices, **more):
    return cs.failures(model, tasks[0], list(WORKING), n=20, max_new_tokens=3, **more)


def choice_failures(model, tasks, choices, **more):
    return cs.failures(model, choices, list(WORKING), n=20, **more)


def atlas(model, tasks, choices, **more):
    return cs.atlas(model, tasks[:2], k=1, n=20, n_random=1, **more)


ANALYSES = {
    atlas: cs.atlas,
    specificity: cs.specificity,
    siblings: cs.specificity,
    several_tasks: cs.specificity,
    sparsity_curve: cs.sparsity_curve,
    faithfulness: cs.faithfulness,
    format_heads: cs.format_heads,
    interactions: cs.interactions,
    text_failures: cs.failures,
    choice_failures: cs.failures,
}


@pytest.mark.usefixtures("no_short_cuts")  # a model is tried for them by running it
@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.__name__)
def test_an_analysis_done_again_runs_nothing_and_says_the_same(model, tasks, choices, tmp_path, analysis):
    plain = analysis(model, tasks, choices)
    path = tmp_path / "run.sqlite"
    first = analysis(model, tasks, choices, store=path)
    assert Store.open(path).contents().observations > 0
    with rows_run(model) as rows:
        again = analysis(model, tasks, choices, store=path)
    assert rows == []
    assert first.to_dict() == again.to_dict() == plain.to_dict()


def test_every_analysis_of_a_model_under_masks_takes_a_store():
    """Also one that comes later: what takes settings runs masks, or only reads attention."""
    callables = {getattr(cs, name) for name in cs.__all__ if inspect.isfunction(getattr(cs, name))}
    under_masks = {each for each in callables if "settings" in inspect.signature(each).parameters}
    # Head cards and direct effects read what heads write, too; this model's norm is not read so.
    reads_attention = {cs.attention, cs.habits, cs.direct_effects, cs.explain}
    assert {*ANALYSES.values()} == under_masks - reads_attention - {cs.confirm, cs.compare, cs.held_out_contrasts}


@pytest.mark.usefixtures("no_short_cuts")
@pytest.mark.parametrize("method", ["gradient", "attribution", "mediation"])
def test_a_method_that_starts_from_the_model_keeps_the_intact_run(model, tasks, tmp_path, method):
    task, path = tasks[0], tmp_path / "run.sqlite"
    found = cs.find_heads(model, task, k=2, method=method, store=path)
    assert Store.open(path).contents().observations == 25
    with rows_run(model) as before:
        assert cs.find_heads(model, task, k=2, method=method).spent == found.spent
    with rows_run(model) as after:
        again = cs.find_heads(model, task, k=2, method=method, store=path)
    assert sum(after) < sum(before)
    assert (again.importance == found.importance).all()
    assert (again.spent, again.provenance, again.notes) == (found.spent, found.provenance, found.notes)
