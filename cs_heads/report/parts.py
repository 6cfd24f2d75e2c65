"""What every page is made of: pictures, tables, heads with their marks, and the template they go into."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from cs_heads.plot.style import STYLE, figure_of, head_look
from cs_heads.units import Unit

Part = dict[str, Any]
"""What the template is given of one part of the page."""

SIGNS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "*": "★", "X": "✖", "<": "◀", ">": "▶"}
"""The markers of pictures as letters."""

_ABSENT: Part = {
    **dict.fromkeys(("ranking", "proof", "meaning", "table", "curve", "comparison", "attention", "atlas")),
    **dict.fromkeys(("heads", "shared", "broke", "notes", "maps", "sections"), ()),
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


def picture_of(drawn: Any, alt: str, caption: str = "") -> Part:
    """A picture for an ``img``: its data, what it shows in words, a caption, and its width in CSS pixels."""
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
    }


def table_of(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], n_text: int = 1) -> Part:
    """A table for the page; all but the first ``n_text`` columns are numbers."""
    return {"caption": caption, "columns": columns, "rows": list(rows), "n_text": n_text}


def section_of(title: str, text: str = "", picture: Part | None = None, table: Part | None = None) -> Part:
    """A part of the page with a heading, and what is given of the rest."""
    return {"title": title, "text": text, "picture": picture, "table": table}


def interval_of(low: float | None, high: float | None) -> str:
    """An interval in words; a dash where there is none."""
    return "–" if low is None or np.isnan(low) else f"{low:+.3f} to {high:+.3f}"


def mark_of(head: Unit) -> Part:
    """A head with the mark that it has in the pictures."""
    look = head_look(head)
    return {"head": str(head), "color": look.color, "mark": SIGNS[look.marker]}


def facts_of(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known of a record, nested ones as lines: ``model.name``, ``model.grid``, ..."""
    import pandas as pd

    flat = pd.json_normalize(dict(record)).to_dict("records")[0]
    return [(str(key), str(value)) for key, value in flat.items() if value is not None]
