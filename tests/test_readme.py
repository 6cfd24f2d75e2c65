"""The README keeps its word: its commands are commands, its names exist, its links lead somewhere."""

import ast
import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cs_heads as cs
from cs_heads.cli import _parser
from cs_heads.demo import planted_heads

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md"]
TEXT = PAGES[0].read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
COMMANDS = re.findall(r"^    (cs-heads .*)$", TEXT, flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_and_pictures_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    assert links
    for link in links:
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_command_is_understood():
    assert len(COMMANDS) >= 5
    for command in COMMANDS:
        options = _parser().parse_args(shlex.split(command)[1:])
        assert callable(options.run)


def test_commands_of_one_section_write_to_folders_of_their_own():
    folders = re.findall(r"cs-heads (find|compare) .*--out (\S+)", TEXT)
    assert {kind for kind, _ in folders} == {"find", "compare"}
    assert not {name for kind, name in folders if kind == "find"} & {n for kind, n in folders if kind == "compare"}


def test_every_name_of_the_library_exists():
    for name in sorted(set(re.findall(r"\bcs\.([A-Za-z_.]+)", TEXT))):
        found = cs
        for part in name.rstrip(".").split("."):
            found = getattr(found, part)


def test_the_table_of_the_atlas_has_the_figures_of_its_files():
    folder = ROOT / "benchmarks" / "real" / "smollm2"
    with (folder / "skills.csv").open() as file:
        kept = list(csv.DictReader(file))
    matrix = pd.read_csv(folder / "matrix.csv", index_col=0).clip(0, 1).to_numpy()
    own = np.eye(len(matrix), dtype=bool)
    means = np.nanmean(matrix[own]), np.nanmean(matrix[~own])
    part = TEXT[TEXT.index("<!-- atlas -->") : TEXT.index("<!-- /atlas -->")]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")
    ]
    assert len(rows) == 1 + len(kept) >= 11
    for (skill, heads, own, others, _, verdict), known in zip(rows[1:], kept, strict=True):
        assert (f"everyday/{skill}", heads, verdict) == (known["skill"], known["heads"], known["verdict"])
        assert own == "" or float(own) == pytest.approx(float(known["own loss"]), abs=0.006)
        assert float(others) == pytest.approx(float(known["others' mean loss"]), abs=0.006)
    assert f"{means[0]:.2f} for a skill's" in part
    assert f"{means[1]:.2f} for those of the others" in part
    # What an atlas of ten skills or more must reach.
    assert means[0] >= 0.75
    assert means[1] <= 0.12


def test_every_block_of_python_is_python():
    assert len(BLOCKS) >= 3
    for block in BLOCKS:
        ast.parse(block)


def test_the_ten_lines_find_and_prove_the_heads_of_the_demo_model(capsys):
    first = BLOCKS[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10
    names: dict = {}
    exec(first, names)
    assert set(names["found"].top(5)) == set(planted_heads("capitals"))
    assert capsys.readouterr().out.startswith("specific: on 100 unseen examples")
