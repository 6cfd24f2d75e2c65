import numpy as np
import pytest

from cs_heads.analysis.compare import compare
from cs_heads.methods.find import find_heads
from cs_heads.methods.registry import METHODS, Method, method_named
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task
from tests.known_heads import own_answers


def by_lot(experiment, *, temper: float = 1.0, k: int = 5, budget: int | None = None, seed: int = 0) -> HeadRanking:
    """A method that measures one mask and then draws by lot."""
    experiment(np.eye(experiment.grid.size, dtype=bool)[:1].reshape(1, *experiment.grid.shape))
    importance = np.random.default_rng(seed).normal(size=experiment.grid.shape) * temper
    return HeadRanking("lot", importance, spent=experiment.n_examples, provenance={"told": k, "budget_left": budget})


@pytest.fixture
def with_lot(monkeypatch):
    """One line in the registry."""
    monkeypatch.setitem(METHODS, "lot", Method(by_lot))


def test_a_method_joins_by_one_line(with_lot, model):
    task = Task.from_records(own_answers(model, 60)).split(30)[0]
    found = find_heads(model, task, method="lot", k=3, budget=100, temper=2.0)
    assert found.spent == 60
    assert found.provenance["told"] == 3
    assert found.provenance["budget_left"] == 70
    assert found.provenance["baseline"] == 1.0
    compared = compare(model, task, methods=["lot"], max_heads=3, k=2, n_random=1, controls=None)
    assert set(compared.methods) == {"lot"}


def test_a_method_has_the_options_that_its_keywords_name_and_no_others():
    assert list(method_named("css").options) == ["n_masks", "density", "alpha"]
    assert method_named("greedy").options == method_named("one-shot").options == {}
    assert list(method_named("chg").options) == [
        "n_seeds",
        "steps",
        "batch_size",
        "strength",
        "max_norm",
        "start_inside",
    ]
    assert next(iter(method_named("contrastive").options)) == "forget"
    assert [name for name, method in METHODS.items() if method.takes_k] == ["annealed", "one-shot", "greedy"]
    assert [name for name, method in METHODS.items() if method.default_controls] == ["annealed", "group-testing"]
    assert METHODS["annealed"].takes_controls


def test_each_option_of_each_method_is_described():
    for name, method in METHODS.items():
        for option in method.options.values():
            assert option.help.endswith("."), (name, option.name)
            assert "``" not in option.help


def test_an_option_is_a_keyword_with_its_type_default_and_help():
    option = METHODS["css"].options["n_masks"]
    assert (option.types, option.default, option.required) == ((int, type(None)), None, False)
    assert option.help == "Masks to measure, 5 or more (by default 100, or as many as a budget covers)."
    assert METHODS["contrastive"].options["forget"].required
