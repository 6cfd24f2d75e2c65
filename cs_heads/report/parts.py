"""What every page is made of: pictures, tables, heads with their marks, and the template they go into."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from cs_heads.plot.looks import head_looks
from cs_heads.plot.style import STYLE, figure_of
from cs_heads.units import Grid, Unit

Part = dict[str, Any]
"""What the template is given of one part of the page."""

COST = "One example-evaluation: one mask on one example, a forward pass."

CONTROL = "a task that the heads should not serve"

MAX_CELLS = 4096
"""Heads of a map that can be pointed at; the size of a page grows with them."""

_ABSENT: Part = {
    **dict.fromkeys(("ranking", "proof", "meaning", "table", "curve", "comparison", "attention", "atlas")),
    **dict.fromkeys(("heads", "shared", "broke", "notes", "maps", "sections"), ()),
    "chip_terms": {},
    "command": "",
}


def render(question: str, title: str, word: str, **parts: Any) -> str:
    """The page; parts that are not given are left out.

    Args:
        question: its heading.
        title: what stands in the browser's title.
        word: what its units are called.
        parts: those of the template.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    return template.render(question=question, title=title, word=word, **{**_ABSENT, **parts})


def picture_of(drawn: Any, alt: str, caption: str = "", cells: Part | None = None) -> Part:
    """A picture for an ``img``: its data, what it shows in words, a caption, and its width in CSS pixels.

    Args:
        drawn: a figure or axes.
        alt: what it shows, in words.
        caption: what stands below it.
        cells: of ``cells_of``, what is told of each square of the map that ``drawn`` are the axes of.
    """
    import matplotlib as mpl

    figure, file = figure_of(drawn), BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return {
        "source": f"data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}",
        "alt": alt,
        "caption": caption,
        # Letters of 8 points are 11 pixels: enlarged by a third, they match the text around them.
        "width": round(figure.get_size_inches()[0] * 96 * 4 / 3),
        # The layout is settled once the picture is written.
        "cells": None if cells is None else {**cells, **_place_of(drawn)},
    }


def cells_of(grid: Grid, told: Mapping[str, str]) -> Part | None:
    """What a reader sees who points at a square of a map: a text for each head; None where these are too many.

    Args:
        grid: of the map.
        told: the text of each head, by its name.
    """
    if grid.size > MAX_CELLS:
        return None
    rows, columns = grid.shape
    return {"rows": rows, "columns": columns, "texts": [told[str(grid.unit(place))] for place in range(grid.size)]}


def _place_of(ax: Any) -> Part:
    """Where the axes lie in the picture, in percent from its top left."""
    box = ax.get_position()
    place = {"left": box.x0, "top": 1 - box.y1, "width": box.width, "height": box.height}
    return {side: round(100 * share, 3) for side, share in place.items()}


def table_of(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    n_text: int = 1,
    terms: Mapping[str, str] | None = None,
) -> Part:
    """A table for the page.

    Args:
        caption: what it shows.
        columns: their headings.
        rows: the cells.
        n_text: number of first columns that are texts; all others are numbers.
        terms: what words mean, said below the table for those that are among the headings.
    """
    said = {name: meaning for name, meaning in (terms or {}).items() if name in columns}
    return {"caption": caption, "columns": columns, "rows": list(rows), "n_text": n_text, "terms": said}


def section_of(title: str, text: str = "", picture: Part | None = None, table: Part | None = None) -> Part:
    """A part of the page with a heading, and what is given of the rest."""
    return {"title": title, "text": text, "picture": picture, "table": table}


def note_of(text: str, more: Sequence[str] = ()) -> Part:
    """A note, with what can be unfolded below it."""
    return {"text": text, "more": list(more)}


def interval_of(low: float | None, high: float | None) -> str:
    """An interval in words; a dash where there is none."""
    return "–" if low is None or np.isnan(low) else f"{low:+.3f} to {high:+.3f}"


def mark_of(head: Unit) -> Part:
    """A head with the mark that it has in the pictures of this page."""
    look = head_looks([head])[head]
    return {"head": str(head), "color": look.color, "marker": look.marker, "outline": _outline(look.marker)}


@cache
def _outline(marker: str) -> str:
    """A marker of matplotlib as the outline that SVG draws, one unit across."""
    from matplotlib.markers import MarkerStyle
    from matplotlib.path import Path as Outline

    style = MarkerStyle(marker)
    letters = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C"}
    steps = style.get_transform().transform_path(style.get_path()).iter_segments()
    return "".join(
        letters[code] + " ".join(f"{number:.3f}" for number in points) if code in letters else "Z"
        for points, code in steps
    )


def facts_of(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known of a record, nested ones as lines: ``model.name``, ``model.grid``, ..."""
    import pandas as pd

    flat = pd.json_normalize(dict(record)).to_dict("records")[0]
    return [(str(key), str(value)) for key, value in flat.items() if value is not None]
