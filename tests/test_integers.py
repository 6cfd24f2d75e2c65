import inspect

import numpy as np
import pytest

from cs_heads import confirm
from cs_heads.integers import check_integer
from cs_heads.measure.baseline import check_k


@pytest.mark.parametrize("value", [5.0, "abc", 0, True, [1]])
def test_what_counts_is_an_integer(value):
    with pytest.raises(ValueError, match=r"^n must be an integer of 1 or more, got "):
        check_integer("n", value, 1)


def test_an_integer_of_numpy_counts_and_becomes_a_plain_one():
    assert type(check_integer("n", np.int32(8), 1, 8)) is int
    with pytest.raises(ValueError, match=r"^n must be an integer in 1\.\.7, those that are left; got 8$"):
        check_integer("n", 8, 1, 7, "those that are left")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inspect.unwrap(check_k)(5.0, 12), r"k must be an integer in 1\.\.6, half of the 12 .*; got 5\.0"),
        (lambda: inspect.unwrap(confirm)(None, None, [], n=50.0), r"n must be an integer of 20 or more, got 50\.0"),
    ],
)
def test_a_fraction_is_refused_before_anything_is_looked_at(call, message):
    with pytest.raises(ValueError, match=message):
        call()
