"""What every other test relies on: a call with another type, or with axes that do not fit, fails in tests."""

import sys
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeException
from jaxtyping import Float

from cs_heads.experiment.cost import Cost
from cs_heads.methods.annealing.measurements import row_means
from tests.checks import checked


def test_a_field_of_another_type_is_refused():
    with pytest.raises(BeartypeException, match="forwards"):
        Cost(forwards="many")


@pytest.mark.parametrize("shape", [(3, 4), (4, 2), (3,)])
def test_an_axis_has_one_length_in_a_call(shape):
    assert len(row_means(np.ones((3, 2)), np.zeros((3, 2), dtype=int))) == 3
    with pytest.raises(BeartypeException, match="examples"):
        row_means(np.ones((3, 2)), np.zeros(shape, dtype=int))


def as_it_is(values: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    return values


def twice(values: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    return np.concatenate([values, values])


def as_text(n: int) -> int:
    return str(n)


@pytest.mark.parametrize(("function", "given"), [(twice, np.ones(3)), (as_text, 3)])
def test_what_is_returned_is_checked(function, given):
    assert len(checked(as_it_is, typechecker=beartype)(np.ones(3))) == 3
    with pytest.raises(BeartypeException, match="return"):
        checked(function, typechecker=beartype)(given)


def test_functions_are_checked():
    names = [name for name in sys.modules if name.startswith("cs_heads.")]
    functions = [
        each
        for name in names
        for each in vars(sys.modules[name]).values()
        if isinstance(each, FunctionType) and each.__module__ == name
    ]
    nothing = {"Any", "object", Any, object}
    told = [each for each in functions if not {*each.__annotations__.values()} <= nothing]
    assert len(told) > 50
    assert [each.__qualname__ for each in told if not hasattr(each, "__wrapped__")] == []
