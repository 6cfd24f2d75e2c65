"""What every page is made of, each block as HTML: pictures, tables, lists, marks of heads, and the page around them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from cs_heads.plot.head_markers import head_looks
from cs_heads.plot.style import figure_of, settings
from cs_heads.units import Grid, Unit

# A head, or a skill, with its mark in the pictures.
Mark = dict[str, Any]

CONTROL = "a task that the heads should not serve"
KIN = "asks for the same in other words"

# Heads of a map that can be pointed at; the size of a page grows with them.
MAX_CELLS = 4096


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def macro(name: str, *given: Any) -> Markup:
    """The HTML of a macro of ``blocks.html.j2``.

    Args:
        name: of the macro.
        given: its arguments; texts among them are escaped.
    """
    html: Markup = getattr(_templates().get_template("blocks.html.j2").module, name)(*given)
    return html


def render(sections: Iterable[tuple[str, Markup | None]], **parts: Any) -> str:
    """The page.

    Args:
        sections: the heading of each, and what stands below it; without that it is left out.
        parts: ``question``, its heading; ``title``, in the browser; ``word``, for its units; ``about``, a line;
            ``kind``, ``verdict`` and ``answer``, of the box at the top.
    """
    shown = [(title, html) for title, html in sections if html]
    return _templates().get_template("report.html.j2").render(sections=shown, **parts)


def stacked(*blocks: str | None) -> Markup:
    """Blocks one below the other, of which those that are None are left out; plain texts are escaped."""
    return Markup("\n").join(each for each in blocks if each is not None)


def paragraphs(*texts: str, kind: str = "") -> Markup:
    """Texts, each a paragraph of its own.

    Args:
        texts: as they are; ``Markup`` is HTML already.
        kind: a class of the style sheet.
    """
    opened = Markup('<p class="{}">').format(kind) if kind else Markup("<p>")
    return stacked(*(Markup("{}{}</p>").format(opened, text) for text in texts))


def pictures(*shown: Markup, kind: str = "pictures") -> Markup:
    """Pictures side by side, where there is room."""
    return Markup('<div class="{}">{}</div>').format(kind, stacked(*shown))


def picture(drawn: Any, alt: str, caption: str = "", grid: Grid | None = None, told: Any = None) -> Markup:
    """A picture with its caption.

    Args:
        drawn: a figure or axes.
        alt: what it shows, in words.
        caption: what stands below it.
        grid: of the map that ``drawn`` are the axes of, whose squares a reader can point at.
        told: what is told of each square, by the name of its head.
    """
    import matplotlib as mpl

    figure, file = figure_of(drawn), BytesIO()
    with mpl.rc_context(settings()):
        figure.savefig(file, format="svg", metadata={"Date": None})
    # Letters of 8 points are 11 pixels: enlarged by a third, they match the text around them.
    width = round(figure.get_size_inches()[0] * 96 * 4 / 3)
    source = f"data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}"
    # The layout is settled once the picture is written.
    cells = None if grid is None or grid.size > MAX_CELLS else _cells(drawn, grid, told)
    return macro("figure", {"source": source, "alt": alt, "caption": caption, "width": width, "cells": cells})


def _cells(ax: Any, grid: Grid, told: Mapping[str, str]) -> dict[str, Any]:
    """The squares of a map with their texts, and where they lie in the picture, in percent from its top left."""
    box, (rows, columns) = ax.get_position(), grid.shape
    place = {"left": box.x0, "top": 1 - box.y1, "width": box.width, "height": box.height}
    texts = [told[str(grid.unit(place))] for place in range(grid.size)]
    return {side: round(100 * share, 3) for side, share in place.items()} | {
        "rows": rows,
        "columns": columns,
        "texts": texts,
    }


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    n_text: int = 1,
    terms: Mapping[str, str] = MappingProxyType({}),
) -> Markup:
    """A table.

    Args:
        caption: what it shows.
        columns: their headings.
        rows: the cells; a ``Mark`` is drawn.
        n_text: number of first columns that are texts; all others are numbers.
        terms: what words mean, said below the table for those that are among the headings.
    """
    said = {name: terms[name] for name in columns if name in terms}
    return macro("table", caption, columns, list(rows), n_text, said)


def note_list(notes: Mapping[str, Sequence[str]]) -> Markup | None:
    """Notes, each with what can be unfolded below it."""
    return macro("listed", notes) if notes else None


def cost(lines: Iterable[tuple[str, str]]) -> Markup:
    """What each step took."""
    return table("One example-evaluation: one mask on one example, a forward pass.", [], lines, 2)


def reproduction(command: str) -> Markup:
    """How to make a page again, by one shell line or several."""
    if not command:
        text = "The settings are listed under provenance; the same seed with the same versions gives the same heads."
        return paragraphs(text)
    many = "\n" in command
    text = f"The same command{'s' * many} with the same versions give{'s' * (not many)} the same heads:"
    return stacked(paragraphs(text), macro("code", command))


def provenance(parts: Mapping[str, Mapping[str, Any] | None]) -> Markup:
    """Where each part is from, folded; of nested records each as a line: ``model.name``, ``model.grid``, ..."""
    folded = []
    for name, record in parts.items():
        if record:
            flat = pd.json_normalize(dict(record)).to_dict("records")[0]
            folded.append(macro("facts", name, {key: value for key, value in flat.items() if value is not None}))
    return stacked(*folded)


def interval(low: float | None, high: float | None) -> str:
    """An interval in words; a dash where there is none."""
    return "–" if low is None or np.isnan(low) else f"{low:+.3f} to {high:+.3f}"


def mark(head: Unit) -> Mark:
    """A head with the mark that it has in the pictures of this page."""
    look = head_looks([head])[head]
    return {"head": str(head), "color": look.color, "outline": _outline(look.marker)}


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
