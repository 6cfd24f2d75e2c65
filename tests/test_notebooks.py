"""Every notebook runs from top to bottom in a real Jupyter kernel, and is kept with what it showed.

All together take about four minutes of one core.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = ["01_quickstart", "02_compare_methods", "03_circuits", "04_paper", "05_gating", "06_your_model"]

LIGHT = 400_000
"""Bytes of a notebook with its outputs, at most."""
HEAVY = "heavy-output"
"""The tag of a cell whose page is shown when it runs, and not kept."""


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell):
    """The kinds of data that a cell shows."""
    return {kind for output in cell.outputs for kind in output.get("data", {})}


def shows(notebook):
    """Assert that no cell failed, every cell that draws shows its picture, and there are tables."""
    cells = code_cells(notebook)
    assert all(cell.execution_count for cell in cells)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    drawing = [cell for cell in cells if re.search(r"plot_\w+\(.*;$", cell.source)]
    assert drawing
    for cell in drawing:
        assert "image/png" in kinds(cell), cell.source
    assert any("text/html" in kinds(cell) for cell in cells if HEAVY not in cell.metadata.get("tags", []))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_shows_its_results(path, tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # Jupyter chooses its own, as for a user
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    shows(notebook)
    for cell in code_cells(notebook):
        if HEAVY in cell.metadata.get("tags", []):
            assert "text/html" in kinds(cell)


def test_all_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_light_and_with_its_outputs(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < LIGHT
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    shows(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_kept_names_no_machine_and_no_run(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        assert "execution" not in cell.metadata
        for output in cell.outputs:
            assert output.get("name") != "stderr"
            said = output.get("text", "") + "".join(
                str(data) for kind, data in output.get("data", {}).items() if kind.startswith("text/")
            )
            assert not re.search(r"(?<![\w.])/(home|Users|root|tmp|usr|opt|work|var|mnt)/", said)
            assert not re.search(r"\d+/\d+ \[|it/s\]", said)


def test_links_between_notebooks_lead_somewhere():
    for path in NOTEBOOKS:
        for target in re.findall(r"\]\((\w+\.ipynb)\)", path.read_text(encoding="utf-8")):
            assert (FOLDER / target).is_file(), f"{path.name} links to {target}"
