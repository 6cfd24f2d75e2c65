"""What stands around a picture: legends, color bars, ticks, names of places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.plot.style import SMALL, edged, figure_of, safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar


def add_legend(ax: Axes, **options: Any) -> Axes:
    """Draw the legend: under axes that have the figure to themselves, close below a map, else inside.

    Args:
        ax: the axes; without labels they get no legend. Where they have the figure to themselves and it has no layout
            engine, it gets one, which makes the room.
        options: those of matplotlib's ``legend``.

    Returns:
        The axes.
    """
    from matplotlib.transforms import ScaledTranslation

    figure: Any = figure_of(ax)
    alone = [each for each in figure.axes if each.get_label() != "<colorbar>"] == [ax]
    options.setdefault("handles", ax.get_legend_handles_labels()[0])
    labels = [handle.get_label() for handle in options["handles"]]
    if not labels:
        return ax
    inches = float(figure.get_size_inches()[0]) * (0.95 if alone else ax.get_position().width)
    below = {"labels": labels, "ncols": legend_columns(labels, inches), "columnspacing": 1.0, **options}
    if alone:
        if figure.get_layout_engine() is None:
            figure.set_layout_engine("constrained")
        figure.legend(**below, loc="outside lower center")
    elif ax.images:
        place = ax.transAxes + ScaledTranslation(0, -0.42, figure.dpi_scale_trans)
        ax.legend(**below, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=place, borderaxespad=0)
    else:
        ax.legend(**{"labels": labels, "frameon": True, "framealpha": 0.8, "edgecolor": "none", **options})
    return ax


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """How many columns of a legend fit.

    Args:
        labels: at least one.
        inches: the width there is.
    """
    # A letter is about .55 of its height wide; a handle takes five, with the gap before it.
    fit = int(72 * inches // ((max(map(len, labels)) + 5) * SMALL * 0.55))
    return max(1, min(len(labels), fit))


def color_bar(ax: Axes, image: ScalarMappable, label: str, shrink: float = 0.8) -> Colorbar:
    """Draw the bar beside a map that says what its colors mean.

    Args:
        ax: the axes of the map.
        image: the map, or the scale of its colors.
        label: what its numbers are.
        shrink: length of the bar as a share of the axes' height.
    """
    bar: Colorbar = ax.figure.colorbar(image, ax=ax, shrink=shrink, pad=0.03, aspect=25, label=label)
    bar.outline.set_linewidth(0.4)
    return bar


def frame_square(ax: Axes, row: int, column: int, **look: Any) -> None:
    """Frame a square of a map: black, with white around it, which is seen on light and dark colors, and in gray.

    Args:
        ax: axes of the map.
        row: row of the square.
        column: column of the square.
        look: line style and width.
    """
    from matplotlib.patches import Rectangle

    look = {"edgecolor": "black", "linewidth": 1.4, **look}
    around = edged(look["linewidth"] + 1.6)
    ax.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, path_effects=around, **look))


def log_ticks(ax: Axes, values: Iterable[float | int]) -> None:
    """Make the x axis logarithmic, with round numbers written out.

    Args:
        ax: the axes.
        values: all that are drawn, above zero.
    """
    seen = list(values)
    low, high = min(seen), max(seen)
    near = [tick for tick in _round_numbers(0, 9) if low / 2 <= tick <= high * 2] or [float(low)]
    ax.set_xscale("log")
    shown = near[:: -(-len(near) // 6)]
    _write_ticks(ax, {tick: f"{tick:,g}" if tick < 1000 else f"{tick / 1000:g}k" for tick in shown})
    ax.set_xlim(low / 1.5, high * 1.5)


def share_ticks(ax: Axes, shares: Float[np.ndarray, " share"]) -> None:
    """Make the x axis one of shares from 0 to 1, logarithmic but for the step from 0 to the least of them.

    Args:
        ax: the axes.
        shares: all that are drawn, in order, from 0 to 1.
    """
    least = float(shares[1])
    ticks = [tick for tick in [*_round_numbers(int(np.floor(np.log10(least))), 0), 1.0] if tick >= least * 0.999]
    ax.set_xscale("symlog", linthresh=least, linscale=0.4)
    # At most seven fit; 1 is one of them.
    _write_ticks(ax, {tick: f"{tick:g}" for tick in (0.0, *ticks[:: -max(1, -(-len(ticks) // 6))][::-1])})
    # Room for the markers at both ends.
    ax.set_xlim(-0.2 * least, 1.2)


def _round_numbers(low: int, high: int) -> list[float]:
    """1, 2 and 5 times each power of ten."""
    return [step * 10.0**power for power in range(low, high) for step in (1, 2, 5)]


def _write_ticks(ax: Axes, ticks: dict[float, str]) -> None:
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set_xticks([], minor=True)


def some_of(n: int, most: int) -> range:
    """At most so many of the places 0, 1, ... of an axis, evenly spaced."""
    return range(0, n, max(1, -(-n // most)))


def importance_label(unit: str, letters: int = 48) -> str:
    """What the axis of importances is called; scores are from 0 to 1, and not in points.

    Args:
        unit: that of a ranking.
        letters: of a line at most.

    >>> importance_label("score lost"), importance_label("nats")
    ('importance (score lost)', 'importance (nats)')
    >>> importance_label("share of the score, less that of the controls", letters=26).splitlines()
    ['importance (share of the', 'score, less that of the', 'controls)']
    """
    return fill(safe_text(f"importance ({unit})", 100), letters)


def turned_names(ax: Axes, names: Iterable[str]) -> None:
    """Write names under the places 0, 1, ... of the x axis, turned so that long ones fit.

    Args:
        ax: the axes.
        names: as they are to be written.
    """
    labels = list(names)
    ax.set_xticks(range(len(labels)), labels, rotation=40, ha="right", rotation_mode="anchor")


def names_down(ax: Axes, names: Iterable[str]) -> None:
    """Write names beside the places 0, 1, ... of the y axis, the first at the top.

    Args:
        ax: the axes.
        names: as they are to be written.
    """
    labels = list(names)
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
