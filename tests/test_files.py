"""Files that others read: strict JSON, and CSV that no spreadsheet runs."""

import csv
import re

import numpy as np
import pandas as pd
import pytest

from cs_heads.files import parse_json, write_csv
from cs_heads.record import json_text
from cs_heads.reproduce.reproduction import Output

HOSTILE = ["=cmd|' /C calc'!A0", "+1+1", "-2+3+cmd", "@SUM(A1)", "\t=1+1", "\r=1+1", "\n=1+1"]
HARMLESS = ["capitals", "a=b", "-0.5", "+0.25", "1e-9", "", "'=1"]


def cells(path):
    """Every cell as a spreadsheet reads them: a line end outside of quotes begins a new row, whichever it is."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def is_run(cell):
    return cell[:1] in tuple("=+-@\t\r\n") and not re.fullmatch(r"[+-][\d.]+(e-?\d+)?", cell)


def test_a_table_of_a_reproduction_has_no_cell_that_a_spreadsheet_runs(tmp_path):
    frame = pd.DataFrame({"task": HOSTILE, "=head": HOSTILE, "drop": np.linspace(-1, 1, 7), "n": range(-3, 4)})
    Output("table", "what it shows", frame).write(tmp_path)
    heading, *rows = cells(tmp_path / "table.csv")
    assert heading == ["task", "'=head", "drop", "n"]
    assert [row[0] for row in rows] == [f"'{text}" for text in HOSTILE]
    assert not [cell for row in (heading, *rows) for cell in row if is_run(cell)]
    # Numbers stay numbers.
    assert [float(row[2]) for row in rows] == frame["drop"].tolist()
    assert [int(row[3]) for row in rows] == frame["n"].tolist()


def test_no_separator_inside_a_text_and_no_name_of_an_index_begins_a_formula(tmp_path):
    index = pd.MultiIndex.from_tuples([("=a", 1), ("b", 2), ("c", 3)], names=["=idx", None])
    frame = pd.DataFrame({"x": ["1;=cmd", '";=cmd', "a; - b;c"]}, index=index)
    heading, *rows = cells(write_csv(tmp_path / "a.csv", frame))
    assert heading == ["'=idx", "", "x"]
    assert rows == [["'=a", "1", "1;'=cmd"], ["b", "2", "\";'=cmd"], ["c", "3", "a; '- b;c"]]
    assert frame.index.names == ["=idx", None]
    assert frame.index[0] == ("=a", 1)


def test_text_that_is_harmless_stays_and_what_is_not_known_is_empty(tmp_path):
    frame = pd.DataFrame({"text": HARMLESS, "number": [np.nan, *range(6)]})
    rows = cells(write_csv(tmp_path / "a.csv", frame, index=False))[1:]
    assert [row[0] for row in rows] == HARMLESS
    assert [row[1] for row in rows] == ["", *(f"{n}.0" for n in range(6))]


def test_a_line_end_within_a_text_begins_no_new_row(tmp_path):
    """Of a carriage return in the middle Python 3.11 makes one, whose first cell is a formula."""
    rows = cells(write_csv(tmp_path / "a.csv", pd.DataFrame({"text": ["a\r=1+1", "b\n=2"]}), index=False))
    assert rows == [["text"], ["a\r=1+1"], ["b\n=2"]]


def test_what_is_written_is_strict_json_and_what_is_not_known_null():
    record = {"a": float("nan"), "b": np.array([np.inf, 1.5]), "c": (np.float64("-inf"), np.int64(3))}
    assert json_text(record) == '{"a": null, "b": [null, 1.5], "c": [null, 3]}'
    assert parse_json(json_text(record), "it") == {"a": None, "b": [None, 1.5], "c": [None, 3]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[NaN]", "NaN is no number of JSON"),
        ("[Infinity]", "Infinity is no number of JSON"),
        ("[-1e400]", "-1e400 is too large a number"),
        ('[{"a": 1, "a": 1}]', "key 'a' stands twice in one record, which would be read once"),
        ("[" * 102 + "]" * 102, "nested more than 100 levels deep"),
        ('{"a":' * 200_000, "nested more than 100 levels deep"),
        ("[1, ]", "Expecting value"),
    ],
)
def test_json_that_readers_would_read_differently_is_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=rf"^it: not JSON \({re.escape(message)}") as refused:
        parse_json(text, "it")
    assert "\n" not in str(refused.value)
