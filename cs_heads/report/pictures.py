"""Pictures and tables as parts of a page: pictures are drawn, written to SVG, and carried in the file itself."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.plot.style import COLUMN, RANDOM, STYLE, head_look, new_axes, styled, written
from cs_heads.ranking import HeadRanking

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Picture:
    """A picture for an ``img``: its data, what it shows in words, a caption, and its width in CSS pixels."""

    source: str
    alt: str
    caption: str
    width: int


def picture_of(drawn: Any, alt: str, caption: str = "") -> Picture:
    """Axes or a figure as a picture."""
    import matplotlib as mpl

    figure = drawn if hasattr(drawn, "savefig") else drawn.get_figure(root=True)
    file = BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    # Letters of 8 points are 11 pixels: enlarged by a third, they match the text around them.
    width = round(figure.get_size_inches()[0] * 96 * 4 / 3)
    return Picture(f"data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}", alt, caption, width)


@styled
def plot_importance(ranking: HeadRanking, k: int) -> Axes:
    """The importance of the top heads with their intervals, each with its own marker, down the axis."""
    top = ranking.top(min(k, ranking.grid.size))
    ax = new_axes(COLUMN, 0.7 + 0.2 * len(top))
    for row, head in enumerate(top):
        look, at = head_look(head), (head.layer, head.head)
        if ranking.interval is not None and not np.isnan(ranking.interval[at]).any():
            ax.hlines(row, *ranking.interval[at], color=look.colour, linewidth=1.4)
        ax.plot(ranking.importance[at], row, marker=look.marker, color=look.colour, markersize=6)
    ax.axvline(0, color=RANDOM, linewidth=0.6)
    ax.set_yticks(range(len(top)), [str(head) for head in top])
    ax.set_ylim(len(top) - 0.5, -0.5)
    ax.set_xlabel(f"importance ({written(ranking.unit)})")
    return ax


def drops_frame(proof: dict[str, Any]) -> pd.DataFrame:
    """The tasks of a proof, the one it is about first, as ``plot_confirmation`` takes them."""
    import pandas as pd

    return pd.DataFrame(
        {
            "task": row["task"],
            "baseline": row["baseline"],
            "score": row["score"],
            "drop": row["drop"],
            "low": row["low"],
            "high": row["high"],
            "relative_low": row.get("relative_low"),
            "relative_high": row.get("relative_high"),
            "too_low": row.get("too_low"),
        }
        for row in (proof, *proof.get("controls", []))
    )


def losses_of(proof: dict[str, Any]) -> list[dict[str, Any]]:
    """The losses that a verdict rests on: the task, its controls, what these come to; none where it has none."""
    found = proof.get("specificity")
    if not found:
        return []
    rows = [{"name": proof["task"], "note": "", **found["own"]}]
    rows += [{"name": name, "note": "control", **loss} for name, loss in found["controls"].items()]
    if len(found["controls"]) > 1:
        worst = dict(found["worst"])
        rows.append({"name": "mean of the controls", "note": "", **found["mean"]})
        rows.append({"name": "largest of the controls", "note": worst.pop("control"), **worst})
    return [*rows, {"name": "own minus mean of the controls", "note": "", **found["difference"]}]
