"""Parts that several pictures have: legends, color bars, ticks, names, bars with intervals, bands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.plot.style import COLORS, HATCHES, RANDOM, SMALL, figure_of, safe_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.container import BarContainer
    from matplotlib.legend import Legend

Numbers = Float[np.ndarray, "_"]


def add_legend(ax: Axes, **options: Any) -> Axes:
    """Draw the legend where nothing hides it and it hides nothing.

    It goes under axes that have the figure to themselves, outside them. Among other axes it goes inside, where fewest
    lines are; that of a map goes close below, and a figure without a layout of its own gets room for it there.

    Args:
        ax: the axes; without labels they get no legend.
        options: those of matplotlib's ``legend``.

    Returns:
        The axes.
    """
    from matplotlib.transforms import ScaledTranslation

    figure: Any = figure_of(ax)
    alone = [each for each in figure.axes if each.get_label() != "<colorbar>"] == [ax]
    if "handles" not in options:
        options["handles"] = ax.get_legend_handles_labels()[0]
    labels = [handle.get_label() for handle in options["handles"]]
    if not labels:
        return ax
    arranged = figure.get_layout_engine() is not None
    inches = float(figure.get_size_inches()[0]) * (0.95 if alone else ax.get_position().width)
    columns = legend_columns(labels, inches)
    below: dict[str, Any] = {"labels": labels, "ncols": columns, "columnspacing": 1.0, **options}
    if alone and arranged:
        figure.legend(**below, loc="outside lower center")
    elif alone or ax.images:
        if not arranged:
            lines = -(-len(labels) // below["ncols"]) + (options.get("title") is not None)
            _raise_bottom(ax, 0.15 * (lines + 1))
        place = ax.transAxes + ScaledTranslation(0, -0.42, figure.dpi_scale_trans)
        ax.legend(**below, loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=place, borderaxespad=0)
    else:
        inside: dict[str, Any] = {
            "labels": labels,
            "loc": "best",
            "frameon": True,
            "framealpha": 0.8,
            "edgecolor": "none",
            **options,
        }
        legend = ax.legend(**inside)
        # Room above is of no use in polar axes, nor where the caller says where it goes.
        roomy = ax.name == "rectilinear" and ax.get_yscale() == "linear" and "loc" not in options
        if roomy and _hides_a_line(ax, legend):
            _raise_top(ax, ax.legend(**{**inside, "loc": "upper left"}))
    return ax


def _hides_a_line(ax: Axes, legend: Legend) -> bool:
    figure_of(ax).draw_without_rendering()
    box = legend.get_window_extent()
    # A line over the whole height is hidden wherever the top is.
    lines = [line for line in ax.lines if line.get_transform() != ax.get_xaxis_transform(which="grid")]
    return any(line.get_transform().transform_path(line.get_path()).intersects_bbox(box, False) for line in lines)


def _raise_top(ax: Axes, legend: Legend) -> None:
    """Make room for a legend above what is drawn."""
    figure_of(ax).draw_without_rendering()
    share = min(0.6, (ax.bbox.y1 - legend.get_window_extent().y0) / ax.bbox.height)
    low, high = ax.get_ylim()
    ax.set_ylim(low, low + (high - low) / (1 - share))


def frame_square(ax: Axes, row: int, column: int, **look: Any) -> None:
    """Frame a square of a map: black, with white around it, which is seen on light and dark colors, and in gray.

    Args:
        ax: axes of the map.
        row: row of the square.
        column: column of the square.
        look: line style and width.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    look = {"edgecolor": "black", "linewidth": 1.4, **look}
    around = withStroke(linewidth=look["linewidth"] + 1.6, foreground="white")
    ax.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, path_effects=[around], **look))


def _raise_bottom(ax: Axes, inches: float) -> None:
    """Make room for a legend below a map and its color bar, of the height that they have."""
    high = float(figure_of(ax).get_size_inches()[1])
    ax.set_anchor("N")
    bars = [image.colorbar.ax for image in ax.images if image.colorbar is not None]
    for each in (ax, *bars):
        place = each.get_position(original=True)
        room = min(inches / high, 0.6 * place.height)
        each.set_position((place.x0, place.y0 + room, place.width, place.height - room))


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


def log_ticks(ax: Axes, values: Iterable[float | int]) -> None:
    """Make the x axis logarithmic, with round numbers written out.

    Args:
        ax: the axes.
        values: all that are drawn, above zero.
    """
    seen = list(values)
    low, high = min(seen), max(seen)
    ticks = [step * 10**power for power in range(9) for step in (1, 2, 5)]
    near = [tick for tick in ticks if low / 2 <= tick <= high * 2] or [low]
    shown = near[:: -(-len(near) // 6)]
    ax.set_xscale("log")
    ax.set_xticks(shown, [f"{tick:,g}" if tick < 1000 else f"{tick / 1000:g}k" for tick in shown])
    ax.set_xticks([], minor=True)
    ax.set_xlim(low / 1.5, high * 1.5)


def share_ticks(ax: Axes, shares: Float[np.ndarray, " share"]) -> None:
    """Make the x axis one of shares from 0 to 1, logarithmic but for the step from 0 to the least of them.

    Args:
        ax: the axes.
        shares: all that are drawn, in order, from 0 to 1.
    """
    least = float(shares[1])
    first = int(np.floor(np.log10(least)))
    ticks = [step * 10.0**power for power in range(first, 0) for step in (1, 2, 5)]
    shown = [tick for tick in [*ticks, 1.0] if tick >= least * 0.999]
    # At most seven fit; 1 is one of them.
    shown = shown[:: -max(1, -(-len(shown) // 6))][::-1]
    ax.set_xscale("symlog", linthresh=least, linscale=0.4)
    ax.set_xticks([0, *shown], [f"{tick:g}" for tick in (0, *shown)])
    ax.set_xticks([], minor=True)
    # Room for the markers at both ends.
    ax.set_xlim(-0.2 * least, 1.2)


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


def interval_bars(
    ax: Axes,
    places: Numbers,
    values: Numbers,
    bounds: Float[np.ndarray, "bound bar"],
    width: float,
    *,
    number: int,
    horizontal: bool = False,
    **look: Any,
) -> BarContainer:
    """Draw bars with their intervals.

    Args:
        ax: the axes.
        places: where each bar stands.
        values: how long each bar is.
        bounds: lower and upper ends of the intervals; NaN: none.
        width: of a bar.
        number: gives the color and hatch of the first, second, ... set of bars.
        horizontal: bars go to the right, else up.
        look: options of matplotlib's ``bar``.
    """
    drawn: BarContainer = (ax.barh if horizontal else ax.bar)(
        places,
        values,
        width,
        **{
            "xerr" if horizontal else "yerr": np.nan_to_num(np.maximum([values - bounds[0], bounds[1] - values], 0)),
            "error_kw": {"elinewidth": 0.8, "ecolor": "black", "capsize": 1.5},
            "color": COLORS[number % len(COLORS)],
            "hatch": HATCHES[number % len(HATCHES)],
            "edgecolor": "white",
            "linewidth": 0.5,
            **look,
        },
    )
    return drawn


def band(ax: Axes, x: Any, middle: Numbers, low: Numbers, high: Numbers, *, depth: float = 0.15, **look: Any) -> None:
    """Draw a line in a pale band of its color.

    Args:
        ax: the axes.
        x: where the points are across.
        middle: the line.
        low: lower edge of the band; NaN: none.
        high: upper edge of the band; NaN: none.
        depth: of the band's color, from 0 to 1; where many bands lie over each other, little.
        look: options of matplotlib's ``plot``, with ``color``.
    """
    ax.fill_between(x, low, high, color=look["color"], alpha=depth, linewidth=0)
    ax.plot(x, middle, **look)


def random_band(ax: Axes, x: Any, sets: Float[np.ndarray, "set point"], what: str = "random heads ({} sets)") -> None:
    """Draw random heads as a gray line, the mean, in a band from the smallest to the largest.

    The line lies above others, with a white edge: where random heads take nothing it is seen on an axis too.

    Args:
        ax: the axes.
        x: where the points are across.
        sets: one row per set of random heads.
        what: the label, with the number of sets.
    """
    label = what.format(len(sets))
    band(ax, x, sets.mean(axis=0), sets.min(axis=0), sets.max(axis=0), **random_look(), label=label)


def random_look() -> dict[str, Any]:
    """The look of the line of random heads in every picture: dashed, and seen where it lies on another line."""
    from matplotlib.patheffects import withStroke

    edge = [withStroke(linewidth=3.5, foreground="white")]
    return {"color": RANDOM, "linestyle": "--", "linewidth": 1.5, "path_effects": edge, "zorder": 2.5}
