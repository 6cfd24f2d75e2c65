import inspect
from collections.abc import Callable

import numpy as np
import pytest

import cs_heads as cs
from cs_heads.arguments import MAX_SEED, check_integer
from cs_heads.tasks import pairs
from cs_heads.tasks.suites import Suite


@pytest.mark.parametrize("value", [5.0, "abc", 0, True, [1]])
def test_what_counts_is_an_integer(value):
    with pytest.raises(ValueError, match=r"^n must be an integer of 1 or more, got "):
        check_integer("n", value, 1)


def test_an_integer_of_numpy_counts_and_becomes_a_plain_one():
    assert type(check_integer("n", np.int32(8), 1, 8)) is int
    with pytest.raises(ValueError, match=r"^n must be an integer in 1\.\.7, those that are left; got 8$"):
        check_integer("n", 8, 1, 7, "those that are left")


# Seeds


def seeded() -> dict[str, Callable]:
    """Every public function that draws with a seed, without checks of types; families are loaded by ``load_task``."""
    modules = {
        "cs": cs,
        "designs": cs.designs,
        "simulate": cs.simulate,
        "methods": cs.methods,
        "tasks": cs.tasks,
        "pairs": pairs,
    }
    # Methods check their seed before their types.
    checked = {id(method.function) for method in cs.methods.METHODS.values()}
    public = [
        (f"{name}.{own}", getattr(module, own))
        for name, module in modules.items()
        for own in getattr(module, "__all__", vars(module))
        if not own.startswith(("_", "plot_"))
    ]
    named = [(name, call if id(call) in checked else inspect.unwrap(call)) for name, call in public]
    made = {name: call for name, call in named if inspect.isfunction(call) and "demo.skills" not in call.__module__}
    made |= {"Suite.load": inspect.unwrap(Suite.load), "Task.split": inspect.unwrap(cs.Task.split)}
    made |= {"PlantedExperiment": inspect.unwrap(cs.simulate.PlantedExperiment.__init__)}
    return {name: call for name, call in made.items() if "seed" in inspect.signature(call).parameters}


@pytest.mark.parametrize("seed", [2**70, MAX_SEED + 1, -1])
def test_a_seed_that_no_generator_takes_is_refused_before_anything_is_looked_at(seed):
    told = {}
    for name, call in seeded().items():
        needed = [each for each in inspect.signature(call).parameters.values() if each.default is each.empty]
        given = {each.name: None for each in needed if each.kind is not each.VAR_KEYWORD}
        with pytest.raises(ValueError) as refused:  # noqa: PT011 - its words are looked at below
            call(**given | {"seed": seed})
        told[name] = str(refused.value)
    assert len(told) > 40
    assert {name: line for name, line in told.items() if not line.startswith("seed must be an integer ")} == {}
