"""Heads in pictures: each with its own marker, its number or its name beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cs_heads.plot.style import SMALL, head_look
from cs_heads.units import Head, HeadGrid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Place = tuple[float | int, float | int]
Box = tuple[float, float, float, float]

_MARKER = 6.0  # points across
_LETTER = (5.2, 7.5)  # points across and down, of a bold digit
_NEAR, _FAR = 7.5, 14.0  # points from a marker to its number; farther ones are joined by a line


def mark_heads(
    ax: Axes, grid: HeadGrid, heads: Sequence[Head], *, hollow: Collection[Head] = (), apart: Iterable[Head] = ()
) -> None:
    """Mark heads on a map of layers and heads: the marker of each, and its number in the order given beside it.

    The markers of ``hollow`` heads are not filled. Numbers stand clear of markers, of each other and of the letters on
    the heads ``apart``, each closest to its own marker; where there is no room for that, a line joins the two.
    """
    square = points_a_square(ax, grid)
    across = min(_MARKER, max(4.5, square))
    for head in heads:
        ax.plot(head.head, head.layer, **_marker(head, head in hollow, across, halo=True), zorder=4, clip_on=False)
    centres = {head: (head.head * square, head.layer * square) for head in heads}
    taken: list[Box] = [(*centre, across, across) for centre in centres.values()]
    taken += [(head.head * square, head.layer * square, *_LETTER) for head in apart]
    border = (-square / 2, -square / 2, square * (grid.n_heads - 0.5), square * (grid.n_layers - 0.5))
    for number, head in enumerate(heads, start=1):
        x, y = centres[head]
        size = (_LETTER[0] * len(str(number)), _LETTER[1])
        others = [centre for other, centre in centres.items() if other != head]
        costs = [_cost((x + dx, y + dy, *size), (x, y), others, taken, border) for dx, dy in _OFFSETS]
        offset = _OFFSETS[int(np.argmin(costs))]
        # Points go up where layers go down.
        at = (x + offset[0], y + offset[1])
        taken.append((*at, *size))
        joined = any(np.hypot(*np.subtract(at, other)) < np.hypot(*offset) + 1 for other in others)
        far = np.hypot(*offset) > 1.5 * _NEAR
        write_on(ax, (head.head, head.layer), str(number), (offset[0], -offset[1]), joined=bool(joined or far))


def write_on(ax: Axes, place: Place, text: str, offset: Place = (0, 0), *, joined: bool = False) -> None:
    """Letters that are read on any colour: black with a white edge.

    They stand ``offset`` points to the right and up of the place, with a line to it where ``joined``.
    """
    from matplotlib.patheffects import withStroke

    where: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL, "fontweight": "bold", "zorder": 5}
    edge = [withStroke(linewidth=1.8, foreground="white")]
    line = {"arrowstyle": "-", "linewidth": 0.6, "color": "black", "shrinkA": 0, "shrinkB": 0, "zorder": 4.5}
    ax.annotate(
        text,
        place,
        offset,
        textcoords="offset points",
        path_effects=edge,
        arrowprops=line if joined else None,
        annotation_clip=False,
        **where,
    )


def head_handle(head: Head, label: str, *, hollow: bool = False) -> Line2D:
    """What a key shows of a head: its marker as on the map."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **_marker(head, hollow))


def name_heads(ax: Axes, heads: Sequence[Head | None], where: Literal["y", "x", "title"] = "y", width: int = 1) -> None:
    """Put the marker of each head beside its name: before its row, above its column, or before the title of its axes.

    Rows and columns are ``width`` across, the first at 0; None has no marker. Names of rows are moved aside for it.
    """
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    figure: Any = ax.get_figure(root=True)
    away = (_MARKER / 2 + 2.5) / 72
    shift = {"y": (-away, 0), "x": (0, away), "title": (away, 1.5 * away)}[where]
    beside = ax.transAxes + ScaledTranslation(*shift, figure.dpi_scale_trans)
    if where == "y":
        beside = blended_transform_factory(beside, ax.transData)
        ax.tick_params(axis="y", pad=_MARKER + 4.5, length=0)
    elif where == "x":
        beside = blended_transform_factory(ax.transData, beside)
    limits = ax.get_xlim(), ax.get_ylim()
    for number, head in enumerate(heads):
        if head is not None:
            middle = (number + 0.5) * width - 0.5
            at = {"y": (0, middle), "x": (middle, 1), "title": (0, 1)}[where]
            ax.plot(*at, transform=beside, clip_on=False, **_marker(head, False))
    ax.set_xlim(limits[0])
    ax.set_ylim(limits[1])


def points_a_square(ax: Axes, grid: HeadGrid) -> float:
    """About how large a head is drawn: constrained layouts settle the axes only when the picture is written."""
    figure: Any = ax.get_figure(root=True)
    width, height = figure.get_size_inches()
    return float(72 * min(0.6 * width / grid.n_heads, 0.7 * height / grid.n_layers))


def _marker(head: Head, hollow: bool, size: float = _MARKER, *, halo: bool = False) -> dict[str, Any]:
    look = head_look(head)
    drawn: dict[str, Any] = {
        "linestyle": "none",
        "marker": look.marker,
        "markersize": (size - hollow) * (1.4 if look.marker == "*" else 1),  # its rays take little room
        "color": look.colour,
        "markerfacecolor": "white" if hollow else look.colour,
        "markeredgecolor": look.colour if hollow else "white",
        "markeredgewidth": 1.2 if hollow else 0.5,
    }
    if hollow and halo:
        from matplotlib.patheffects import withStroke

        drawn["path_effects"] = [withStroke(linewidth=2.4, foreground="white")]
    return drawn


_OFFSETS = [
    (radius * float(np.cos(angle)), radius * float(np.sin(angle)))
    for radius, angle in product((_NEAR, _NEAR + 3, _FAR, 1.6 * _FAR), np.radians(np.arange(-45, 315, 22.5)))
]


def _cost(number: Box, centre: Place, others: list[Place], taken: list[Box], border: Box) -> float:
    """How badly a number stands: on top of others, outside the map, nearer to another head, far from its own."""
    x, y, width, height = number
    covered = sum(
        max(0.0, (width + wide) / 2 + 0.5 - abs(x - across)) * max(0.0, (height + high) / 2 + 0.5 - abs(y - down))
        for across, down, wide, high in taken
    )
    left, top, right, bottom = border
    outside = sum(max(0.0, over) for over in (left - x, top - y, x - right, y - bottom))
    own = float(np.hypot(x - centre[0], y - centre[1]))
    nearer = sum(max(0.0, own + 2.5 - float(np.hypot(x - across, y - down))) for across, down in others)
    return covered + 3 * outside + 8 * nearer + own / 2
