"""The README is two screens in plain English, and its figures are those that were measured."""

import csv
import re
import sys

import numpy as np
import pandas as pd
import pytest

import cs_heads as cs
from cs_heads.demo import planted_heads
from tests.docs.pages import README, ROOT, prose, table, text_of, words

sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import outside
finally:
    sys.path.pop(0)

TEXT = text_of(README)


NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


def test_it_is_two_screens():
    assert len(TEXT.splitlines()) <= 120
    assert len(TEXT.split()) <= 900


def test_it_begins_with_the_two_commands():
    first, second = re.findall(r"^    (make \w+)", TEXT, flags=re.MULTILINE)[:2]
    assert (first, second) == ("make demo", "make test")
    assert len(prose(TEXT.split("\n## ", maxsplit=1)[0])) == 2, "what it does is said in two sentences"


def test_no_sentence_is_long():
    for sentence in prose(TEXT):
        assert words(sentence) <= 35, sentence


def test_the_tables_of_methods_have_the_figures_of_their_files():
    folder = ROOT / "benchmarks" / "real" / "smollm2"
    rows, seconds, examples, skills = (
        outside.rows_of(folder / f"{name}.csv")
        for name in ("outside", "outside_seconds", "outside_examples", "outside_skills")
    )
    page = text_of(ROOT / "docs" / "benchmarks" / "real-models.md")
    for measured in (rows, seconds):
        assert {row["skill"] for row in measured} == {"agreement", "plural"}
        assert {"eap-ig", "proxyspex", "chg-reference", "annealed+", "css", "greedy"} <= {
            row["method"] for row in measured
        }
        assert outside.table(measured) in page
    assert outside.table(examples) in page
    assert len({row["skill"] for row in rows + skills}) == 8
    assert outside.across_table(rows + skills) in page
    assert outside.short_table(rows + skills) in TEXT


# What an atlas of ten skills or more must reach.
@pytest.mark.parametrize(
    ("model", "mark", "most"),
    [("smollm2", "atlas", 0.12), ("gemma3", "gemma3", 0.12)],
)
def test_the_tables_of_atlases_have_the_figures_of_their_files(model, mark, most):
    text = text_of(ROOT / "docs" / "benchmarks" / "atlas.md")
    folder = ROOT / "benchmarks" / "real" / model
    with (folder / "skills.csv").open() as file:
        kept = list(csv.DictReader(file))
    matrix = pd.read_csv(folder / "matrix.csv", index_col=0).clip(0, 1).to_numpy()
    own = np.eye(len(matrix), dtype=bool)
    means = np.nanmean(matrix[own]), np.nanmean(matrix[~own])
    part = text[text.index(f"<!-- {mark} -->") : text.index(f"<!-- /{mark} -->")]
    rows = table(part, "| skill | heads")
    assert len(rows) == 1 + len(kept) >= 11
    for (skill, heads, own, others, _, verdict), known in zip(rows[1:], kept, strict=True):
        assert (f"everyday/{skill}", heads) == (known["skill"], known["heads"])
        assert verdict == known["verdict"]
        assert ("↓" in own) == (float(known["own loss"] or 0) > 1)
        assert own == "" or float(own.rstrip("↓")) == pytest.approx(float(known["own loss"]), abs=0.006)
        assert float(others) == pytest.approx(float(known["others' mean loss"]), abs=0.006)
    assert f"{means[0]:.2f} for a skill's" in part
    assert f"{means[1]:.2f} for those of the others" in part
    assert means[0] >= 0.7
    assert means[1] <= most


def test_its_sentences_on_methods_have_the_figures_of_their_files():
    folder = ROOT / "benchmarks" / "real" / "smollm2"
    rows = [row for name in ("outside", "outside_skills") for row in outside.rows_of(folder / f"{name}.csv")]
    frame = pd.DataFrame([row for mine in outside.complete(rows).values() for row in mine])
    mean = frame.groupby(["skill", "method"])[["own", "others", "difference"]].mean()
    difference = mean["difference"].unstack().drop(columns=outside.SCALE).round(2)
    ours = difference.pop(outside.SCREENED)
    assert f"On {NUMBERS[(difference.max(axis=1) >= ours).sum()]} of the {NUMBERS[len(ours)]} skills another" in TEXT
    assert f"no other has a larger difference than {outside.share(difference.mean().max())}" in TEXT
    for skill, told in (
        ("agreement", "For agreement it takes {}, others lose {}"),
        ("plural", "it takes {}, and {} of"),
    ):
        assert told.format(*map(outside.share, mean.loc[(skill, "attribution"), ["own", "others"]])) in TEXT


LINES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)[0]


def test_the_ten_lines_go_on_from_heads_and_their_proof(started, monkeypatch, capsys):
    assert len([line for line in LINES.splitlines() if line.strip()]) <= 10
    monkeypatch.setattr(cs, "find_heads", lambda *_: started["found"])
    monkeypatch.setattr(cs, "confirm", lambda *_: started["proof"])
    exec(LINES, {})
    assert capsys.readouterr().out.startswith("specific: L2H6, ")


@pytest.mark.slow
def test_the_ten_lines_find_and_prove_the_heads_of_the_demo_model(capsys):
    names: dict = {}
    exec(LINES, names)
    assert set(names["found"].top(5)) == set(planted_heads("capitals"))
    assert capsys.readouterr().out.startswith("specific: L2H6, ")
