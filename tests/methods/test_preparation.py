"""What mean and resample ablation run beforehand is part of every budget and cost, also in direct calls."""

from functools import partial

import pytest

from cs_heads.experiment.cost import BudgetTooSmallError
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.annealing import annealed
from cs_heads.methods.compressed_sensing import compressed_sensing, tune
from cs_heads.methods.greedy import greedy
from cs_heads.tasks import Task
from tests.known_heads import own_answers


@pytest.fixture
def tasks(load_known):
    model = load_known("bridge")
    records = own_answers(model, 60)
    return model, Task.from_records(records[:30], "one"), Task.from_records(records[30:], "other")


@pytest.mark.parametrize("ablation", ["mean", "resample"])
@pytest.mark.parametrize(
    ("method", "budget"),
    [
        (partial(annealed, k=2, n_bootstraps=0), 700),
        (partial(compressed_sensing, density=0.17), 400),
        (partial(greedy, k=2), 300),
    ],
)
def test_no_more_is_run_than_given(tasks, method, budget, ablation):
    model, task, other = tasks
    experiment = Experiment(model, task, ablation=ablation)
    given, control = {}, None
    if method.func is annealed:
        control = Experiment(model, other, ablation=ablation)
        given["controls"] = [control]
    found = method(experiment, budget=budget, **given)
    run = experiment.spent + (0 if control is None else control.spent)
    assert run <= found.spent <= budget
    assert found.backwards == 0


def test_the_cost_without_a_budget_holds_the_preparation(tasks):
    """Greedy search never asks for the same twice, and the paper's search counts what it prepares once."""
    model, task, _ = tasks
    spent = {}
    for ablation in ("zero", "mean"):
        experiment = Experiment(model, task, ablation=ablation)
        one_shot = greedy(experiment, one_shot=True)
        assert one_shot.spent == experiment.spent
        searched = tune(experiment, k=2, n_masks=(5, 6), densities=(0.17,))
        spent[ablation] = (searched.spent, [setting["spent"] for setting in searched.provenance["tuning"]])
    assert spent["mean"] == (spent["zero"][0] + 30, spent["zero"][1])


def test_a_budget_that_preparation_uses_up_is_refused_before_anything_is_run(tasks):
    model, task, _ = tasks
    for method, least in ((partial(compressed_sensing, density=0.17), 180), (partial(greedy, one_shot=True), 13)):
        experiment = Experiment(model, task, ablation="mean")
        with pytest.raises(BudgetTooSmallError) as refused:
            method(experiment, budget=least + 29)
        assert refused.value.least == least + 30
        assert experiment.spent == 0
