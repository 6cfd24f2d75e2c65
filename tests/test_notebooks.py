"""Every notebook runs from top to bottom in a real Jupyter kernel, and is kept with what it showed."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [
    *("01_quickstart", "02_compare_methods", "03_circuits", "04_paper", "05_gating", "06_your_model", "07_atlas"),
    "08_paper_figure",
]

LIGHT = 600_000
"""Bytes of a notebook with its outputs, at most."""

QUICK = {
    "01_quickstart": [("task, seed=0)\nfound", "task, seed=0, budget=2000)\nfound")],
    "05_gating": [("n_seeds=3, steps=500", "n_seeds=2, steps=40"), ("steps=200", "steps=30")],
}
"""What takes long in a notebook, and what the test runs in its place, at another cost."""

spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
runner = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runner)
HEAVY, REAL, code_cells = runner.HEAVY, runner.REAL, runner.code_cells


def tagged(cell, tag):
    return tag in cell.metadata.get("tags", [])


def kinds(cell):
    """The kinds of data that a cell shows."""
    return {kind for output in cell.outputs for kind in output.get("data", {})}


def shows(notebook):
    """Assert that no cell failed, every cell that draws shows its picture, and there are tables."""
    cells = code_cells(notebook)
    assert all(cell.execution_count for cell in cells)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    drawing = [cell for cell in cells if re.search(r"\bplot(\.\w+)?\(.*;$", cell.source) or tagged(cell, HEAVY)]
    assert drawing or any(tagged(cell, REAL) for cell in cells)
    for cell in drawing:
        assert "image/png" in kinds(cell), cell.source
    assert any("text/html" in kinds(cell) for cell in cells if not tagged(cell, HEAVY))


def said(cell):
    """What a cell says in words: printed, or the plain form of its last value."""
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def costs(text):
    """The numbers of evaluations and results that a text names."""
    return [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:example-evaluations|results)", text)]


def verdicts(text):
    return re.findall(r"^Confirmation\(.*: ([\w ]+)\)$", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "path",
    [path if path.stem == NAMES[0] else pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_notebook_runs_and_shows_what_is_kept(path):
    kept, notebook = (nbformat.read(path, as_version=4) for _ in range(2))
    for written, quick in QUICK.get(path.stem, []):
        cells = [cell for cell in code_cells(notebook) if written in cell.source]
        assert cells, f"{written} is not in {path.name}"
        for cell in cells:
            cell.source = cell.source.replace(written, quick)
    runner.execute(notebook)
    shows(notebook)
    real = [cell for cell in code_cells(notebook) if tagged(cell, REAL)]
    # Where SmolLM2 is not, one line says how it is made.
    assert [said(cell).count("\n") for cell in real if said(cell)] == [1] * bool(real)
    assert all("benchmarks/real_models.py --out models --models smollm2" in said(cell) for cell in real[:1])
    for before, cell in zip(code_cells(kept), code_cells(notebook), strict=True):
        if tagged(cell, REAL):
            continue
        if tagged(cell, HEAVY):
            assert "text/html" in kinds(cell)
            continue
        assert kinds(before) == kinds(cell), cell.source
        # Another processor rounds otherwise, and a search then goes another way; another program costs something else.
        if path.stem not in QUICK:
            assert costs(said(cell)) == pytest.approx(costs(said(before)), rel=0.2), cell.source
        assert verdicts(said(cell)) == verdicts(said(before))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_light_with_its_outputs_its_question_and_its_answer(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < LIGHT
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    shows(notebook)
    first, *_ = texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    last = "\n".join(texts[-3:])
    assert "**Question.**" in first
    assert "**Answer.**" in last
    assert "**What this does not say.**" in last


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept_names_no_machine_and_no_run(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        assert "execution" not in cell.metadata
        for output in cell.outputs:
            assert output.get("name") != "stderr"
            assert runner.WIDGET not in output.get("data", {})
            said = output.get("text", "") + "".join(
                str(data) for kind, data in output.get("data", {}).items() if kind.startswith("text/")
            )
            assert not re.search(r"(?<![\w.])/(home|Users|root|tmp|usr|opt|work|var|mnt)/", said)
            assert not re.search(r"\d+/\d+ \[|it/s\]", said)


def test_links_between_notebooks_lead_somewhere():
    for path in NOTEBOOKS:
        for target in re.findall(r"\]\((\w+\.ipynb)\)", path.read_text(encoding="utf-8")):
            assert (FOLDER / target).is_file(), f"{path.name} links to {target}"


def test_nothing_after_the_first_cell_of_the_paper_names_a_task_or_head_of_the_demo_model():
    notebook = nbformat.read(FOLDER / "04_paper.ipynb", as_version=4)
    for cell in code_cells(notebook)[1:]:
        assert "demo/" not in cell.source
        assert not re.search(r"L\d+H\d+|n_key_value_heads=\d", cell.source), cell.source
