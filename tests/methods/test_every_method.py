"""What every method of the registry promises, whichever joins it."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_heads import Experiment
from cs_heads.experiment.cost import BudgetTooSmallError
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.find import find_heads
from cs_heads.methods.registry import METHODS
from cs_heads.ranking import HeadRanking
from cs_heads.store.kept_work import KeptWork
from cs_heads.tasks import Task
from cs_heads.units import Grid, Head
from tests.known_heads import own_answers
from tests.methods.planted import OPTIONS, Planted, options_of

ON_EXPERIMENTS = [name for name, method in METHODS.items() if method.uses == "masks"]


class Prepared(Planted):
    """A planted experiment that runs so many example-evaluations before its first mask."""

    def __init__(self, drops, n_examples=60, preparation=0):
        super().__init__(Grid(4, 6), drops, n_examples=n_examples)
        self.preparation = preparation

    @property
    def run(self):
        """All that was run: a method may not ask for a mask, and then nothing is prepared."""
        return self.spent + (self.preparation if self.spent else 0)


@pytest.fixture(scope="module")
def tasks(model):
    records = own_answers(model, 100)
    return Task.from_records(records[:50], "one").split(25)[0], Task.from_records(records[50:], "other").split(25)[0]


def found_or_least(search):
    """What a search finds, or, where it refuses its budget, the least that it asks for."""
    try:
        return search()
    except BudgetTooSmallError as refused:
        return refused.least


# The budget is a promise


@pytest.mark.parametrize("name", ON_EXPERIMENTS)
@settings(max_examples=5)
@given(
    budget=st.one_of(st.integers(0, 700), st.integers(700, 4000)),
    seed=st.integers(0, 1000),
    n_examples=st.integers(25, 120),
    preparation=st.sampled_from([0, 1, 60]),
    with_control=st.booleans(),
)
def test_no_method_asks_an_experiment_for_more_than_its_budget(
    name, budget, seed, n_examples, preparation, with_control
):
    """What it runs is what it says, what is prepared and a control included; too small a budget is refused before."""
    method = METHODS[name]
    experiment = Prepared({Head(1, 1): 0.4, Head(3, 5): 0.3}, n_examples, preparation)
    control = Prepared({Head(1, 1): 0.8}, n_examples, preparation)
    given = {**OPTIONS.get(name, {}), **({"k": 2} if method.takes_k else {})}
    given |= {"controls": [control]} if with_control and method.takes_controls else {}
    found = found_or_least(lambda: method.run(experiment, budget=budget, seed=seed, **given))
    if isinstance(found, HeadRanking):
        assert experiment.run + control.run == found.spent <= budget
    else:
        assert found > budget
        assert experiment.spent == control.spent == 0


# A store


@pytest.mark.parametrize(
    "name", ["chg", "gradient", "attribution", "mediation", pytest.param("contrastive", marks=pytest.mark.slow)]
)
def test_a_search_that_was_cut_short_goes_on_bit_for_bit(model, tasks, tmp_path, monkeypatch, name, few_steps):
    """Cut short twice: the result is that of a search that was not, and nothing is made twice."""
    monkeypatch.setattr("cs_heads.store.kept_work._EVERY", 0.0)
    given = {"method": name, "k": 2, "controls": None, "batch_tokens": 60, **options_of(name, tasks[0])}
    given |= {"n_pairs": 3} if name == "mediation" else {"steps": few_steps} if "steps" in given else {}
    search, saved, cut = partial(find_heads, model, tasks[0], **given), [], []
    save = KeptWork.save

    def counted(self, phase, state):
        save(self, phase, state)
        saved.append(phase)
        if len(saved) in cut:
            raise KeyboardInterrupt

    monkeypatch.setattr(KeptWork, "save", counted)
    whole, unstored = search(seed=3, store=tmp_path / "whole.sqlite"), search(seed=3)
    n, store = len(saved), tmp_path / "run.sqlite"
    cut += [n + 2, n + 4]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(seed=3, store=store)
    found = search(seed=3, store=store)
    assert len(saved) <= 2 * n + 1  # the last of a phase may be kept once more
    assert found.to_dict() == whole.to_dict() == unstored.to_dict()
    before = len(saved)
    assert search(seed=3, store=store).to_dict() == whole.to_dict()
    assert len(saved) == before
    # Of all examples gradients are the same for any seed.
    search(seed=4, store=store, budget=50 if name in ("gradient", "attribution") else None)
    assert len(saved) > before


@pytest.mark.parametrize("name", ["annealed", "css", "greedy", "chg", "gradient", "mediation"])
def test_methods_rank_the_units_asked_for_or_refuses_them(model, tasks, name):
    task, other = tasks
    options = options_of(name, task) | ({"density": 0.34} if name == "css" else {})
    controls = [other] if name in ("annealed", "gradient") else None
    asked = partial(find_heads, model, task, k=1, method=name, units="kv", budget=1200, controls=controls, **options)
    if name == "mediation":
        with pytest.raises(ValueError, match="units must be 'heads' here, got 'kv'"):
            asked()
        return
    found = asked()
    assert found.grid == Experiment(model, task, units="kv").grid
    assert all(unit.startswith("L") and "KV" in unit for unit in found.to_frame()["head"])


# What an experiment of one's own answers


class Answering(ExperimentLike):
    """An experiment that answers with whatever ``answer`` makes of the wanted shape."""

    def __init__(self, answer):
        self.answer, self.grid, self.n_examples, self.calls = answer, Grid(4, 8), 30, 0

    def __call__(self, masks, examples=None):
        self.calls += 1
        return self.answer((len(masks), self.n_examples if examples is None else examples.shape[1]))


@pytest.mark.parametrize("name", ["annealed", "css", "greedy"])
def test_an_answer_that_is_no_score_is_refused_at_once(name):
    for answer, said in (
        (lambda shape: np.full(shape, np.nan), r"scores in 0\.\.1, got nan"),
        (lambda shape: np.full(shape, 85.0), r"scores in 0\.\.1, got 85\.0"),
        (lambda shape: np.ones(shape[0]), r"scores \[row, k\] = \(.*\), got shape"),
    ):
        experiment = Answering(answer)
        with pytest.raises(ValueError, match=said):
            METHODS[name].run(experiment, **OPTIONS.get(name, {}))
        assert experiment.calls == 1
