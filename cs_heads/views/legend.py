"""A legend above the axes, in as many columns as fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cs_heads.views.style import SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTER = 0.55  # width of a letter as a share of its height, on average
_HANDLE = 5.0  # letters that a handle takes, with the gap before it


def legend_above(ax: Axes) -> None:
    """Draw the legend of everything labelled over the axes; long labels get fewer columns, so that none is cut off."""
    handles, labels = ax.get_legend_handles_labels()
    figure = ax.get_figure(root=True)
    # Where the axes lie before the layout is settled: about as wide as they end up.
    room = 0.95 * 72 * ax.get_position().width * (figure.get_size_inches()[0] if figure else 0)
    widest = (max(map(len, labels)) + _HANDLE) * SMALL * _LETTER
    ax.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=max(1, min(len(labels), int(room // widest))),
        borderaxespad=0.2,
        columnspacing=1.0,
    )
