"""The form that results of analyses share: written as JSON, read back, shown as a table."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from jaxtyping import Float

from cs_heads import analysis
from cs_heads.analysis.atlas_result import Atlas
from cs_heads.analysis.result import Result
from cs_heads.record import Record
from cs_heads.units import Head


@dataclass(frozen=True)
class Part(Record):
    name: str
    share: float
    share_interval: tuple[float, float]


@dataclass(frozen=True, eq=False, repr=False)
class Whole(Result):
    heads: tuple[Head, ...]
    parts: dict[str, tuple[Part, ...]]
    numbers: Float[np.ndarray, "a b"] | None

    def to_frame(self):
        return pd.DataFrame([part.to_dict() for parts in self.parts.values() for part in parts])


def made():
    part = Part("one", float("nan"), (0.25, float("nan")))
    return Whole((Head(0, 1), Head(2, 3)), {"some": (part,)}, np.eye(2), notes=("a < b",), provenance={"seed": 3})


def test_a_result_is_written_by_the_names_of_its_fields_and_what_is_not_known_is_none():
    record = json.loads(json.dumps(made().to_dict(), allow_nan=False))
    assert list(record) == ["spent", "provenance", "notes", "heads", "parts", "numbers"]
    assert record["heads"] == ["L0H1", "L2H3"]
    assert record["parts"] == {"some": [{"name": "one", "share": None, "share_low": 0.25, "share_high": None}]}


def test_what_was_written_is_read_back():
    again = Whole.from_dict(json.loads(json.dumps(made().to_dict())))
    assert again.to_dict() == made().to_dict()
    assert again.heads == made().heads
    assert np.isnan([again.parts["some"][0].share, again.parts["some"][0].share_interval[1]]).all()
    assert (again.numbers == np.eye(2)).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": ["L0H1", 5]}, r"heads\[1\]: text 5 is no head"),
        ({"parts": {"some": [{"name": "one", "share": None}]}}, r"parts\['some'\]\[0\]: share_low is missing"),
        ({"parts": {"some": [5]}}, r"parts\['some'\]\[0\] must be an object, got 5"),
        ({"numbers": [[1.0, 2.0], [3.0]]}, r"numbers\[0\] must be a number in .*, got \[1.0, 2.0\]"),
        ({"provenance": [1]}, r"provenance must be an object, got \[1\]"),
        ({"note": ["one"]}, "'note' is no field of it; did you mean 'notes'"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_place(changed, message):
    with pytest.raises(ValueError, match=message):
        Whole.from_dict(made().to_dict() | changed)


def test_a_notebook_shows_the_table_without_row_numbers_and_the_notes_below():
    shown = made()._repr_html_()
    assert "<th>0</th>" not in shown
    assert "0.250" in shown
    assert shown.endswith("<p>a &lt; b</p>")


def test_a_shell_shows_the_first_and_last_rows_however_many_there_are():
    part = made().parts["some"][0]
    many = replace(made(), parts={"some": (part,) * 1000}, numbers=np.zeros((100, 100)))
    shown = repr(many)
    assert shown.startswith("Whole(1000 rows)\n")
    assert ".." in shown
    assert len(shown) < 1000


def test_every_result_has_the_short_representation():
    """One that dataclass makes would show every number of every array; three say more in few words of their own."""
    named = [getattr(analysis, name) for name in analysis.__all__]
    kinds = [each for each in (*named, Atlas) if isinstance(each, type) and issubclass(each, Result)]
    assert len(kinds) > 12
    assert {kind.__name__ for kind in kinds if "__repr__" in vars(kind)} == {"Atlas", "Confirmation", "HeadCards"}
