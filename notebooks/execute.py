"""Run every notebook from top to bottom and keep what it shows, in place; says the seconds of each.

    python notebooks/execute.py [NAME ...]

Files that a notebook writes go to a folder of their own that is removed. What names the run alone (times, progress
bars, messages of libraries, pages too heavy to keep) is taken out.

Sections on SmolLM2 run where the repository has ``models/smollm2``, which ``benchmarks/real_models.py`` makes.
Elsewhere their cells keep what they showed.
"""

from __future__ import annotations

import os
import sys
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import nbformat
from nbclient import NotebookClient
from nbformat.notebooknode import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parent
MODELS = FOLDER.absolute().parent / "models"
REAL_MODEL = MODELS / "smollm2"
HEAVY = "heavy-output"
"""The tag of a cell whose page is shown when it runs, and not kept: a picture stands for it."""
REAL = "real-model"
"""The tag of a cell that needs SmolLM2, and says so where it is not."""

WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(notebook: NotebookNode, models: Path | None = None) -> None:
    """Run all cells in a fresh kernel, without progress bars.

    Args:
        notebook: Changed in place.
        models: The folder that it finds as ``../models`` (None: there is none).

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    # Jupyter chooses its own backend, as for a user.
    env = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    with TemporaryDirectory() as folder:
        here = Path(folder, "notebooks")
        here.mkdir()
        if models is not None:
            Path(folder, "models").symlink_to(models, target_is_directory=True)
        client = NotebookClient(
            notebook,
            # Limits that a busy machine does not reach.
            timeout=3600,
            startup_timeout=900,
            iopub_timeout=900,
            kernel_name="python3",
            resources={"metadata": {"path": str(here)}},
        )
        client.execute(env={**env, "TQDM_DISABLE": "1"})
    # Bars of other libraries that are widgets do not heed TQDM_DISABLE.
    notebook.metadata.pop("widgets", None)
    for cell in code_cells(notebook):
        cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def strip(notebook: NotebookNode) -> None:
    """Take out what names this run alone."""
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        if HEAVY in cell.metadata.get("tags", []):
            for output in cell.outputs:
                if "data" in output:
                    output.data = {kind: data for kind, data in output.data.items() if kind != "text/html"}
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = lighter(output.data["image/png"])


def lighter(png: str) -> str:
    """The picture in 256 colors, which those of plots hardly exceed."""
    picture = Image.open(BytesIO(b64decode(png))).convert("RGB").quantize(256)
    written = BytesIO()
    picture.save(written, "PNG", optimize=True)
    return b64encode(written.getvalue()).decode()


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all."""
    chosen = [path for path in sorted(FOLDER.glob("*.ipynb")) if not names or path.stem in names]
    for path in chosen:
        notebook, start = nbformat.read(path, as_version=4), perf_counter()
        before = [(cell.outputs, cell.execution_count) for cell in code_cells(notebook)]
        execute(notebook, MODELS if REAL_MODEL.is_dir() else None)
        seconds = perf_counter() - start
        strip(notebook)
        if not REAL_MODEL.is_dir():
            for cell, kept in zip(code_cells(notebook), before, strict=True):
                if REAL in cell.metadata.get("tags", []):
                    cell.outputs, cell.execution_count = kept
        nbformat.write(notebook, path)
        print(f"{path.stem:24}{seconds:6.0f} s  {path.stat().st_size / 1000:6.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
