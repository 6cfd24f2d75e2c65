"""The markers of heads: each has one color and shape in every picture, with its number or its name beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cs_heads.plot import style
from cs_heads.units import Grid, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# Okabe and Ito, "Color Universal Design" (2008), for any kind of color vision; yellow is too light on white.
# Colors of heads; no line or bar of a method, task or model has one of these. Roles share two of them.
HEAD_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# The shapes that a head has by itself.
_OWN = style.MARKERS[:10]
_SIZE = 6.0  # points across
_LETTER = (5.2, 7.5)  # points across and down, of a bold digit
_NEAR, _FAR = 7.5, 14.0  # points from a marker to its number; farther ones are joined by a line
_DISTANCES = np.repeat((_NEAR, _NEAR + 3, _FAR, 1.6 * _FAR), 16)
_ANGLES = np.tile(np.radians(np.arange(-45, 315, 22.5)), 4)
_OFFSETS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=-1) * _DISTANCES[:, None]


@dataclass(frozen=True)
class HeadLook:
    """The color and marker of one head.

    >>> from cs_heads.units import Head
    >>> head_look(Head(2, 6))
    HeadLook(color='#D55E00', marker='<')
    """

    color: str
    marker: str


def head_look(head: Unit) -> HeadLook:
    """What a head looks like by itself: a function of its layer and number alone.

    There are seventy looks, and neighboring heads differ. Heads of one picture come from ``head_looks``.
    """
    color, marker = 2 * head.layer + 3 * head.index, head.layer + head.index
    return HeadLook(HEAD_COLORS[color % len(HEAD_COLORS)], _OWN[marker % len(_OWN)])


_LOOKS: ContextVar[Mapping[Unit, HeadLook]] = ContextVar("looks", default=MappingProxyType({}))


@contextmanager
def same_looks(*pictures: Iterable[Unit]) -> Iterator[None]:
    """Inside the ``with`` block heads have one look in all pictures, and those of one picture have different markers.

    Args:
        pictures: the heads of each picture.
    """
    token = _LOOKS.set(head_looks(*pictures))
    try:
        yield
    finally:
        _LOOKS.reset(token)


def head_looks(*pictures: Iterable[Unit]) -> dict[Unit, HeadLook]:
    """The look of every head; of two in one picture that want the same marker, the later has the next that is free.

    It depends on the heads before it alone: the first heads of one ranking look the same however many are drawn.
    Where all twelve shapes are taken, a head has its own.

    Args:
        pictures: the heads of each picture, in order.

    >>> from cs_heads.units import Head
    >>> [look.marker for look in head_looks([Head(2, 6), Head(3, 5)]).values()]
    ['<', '>']
    """
    shown = [list(heads) for heads in pictures]
    looks: dict[Unit, HeadLook] = {}
    for head in dict.fromkeys(head for heads in shown for head in heads):
        own = _LOOKS.get().get(head, head_look(head))
        first = _OWN.find(own.marker) + 1
        wanted = (own.marker, *_OWN[first:], *_OWN[:first], *style.MARKERS[len(_OWN) :])
        taken = {looks[other].marker for heads in shown if head in heads for other in heads if other in looks}
        looks[head] = HeadLook(own.color, next((marker for marker in wanted if marker not in taken), own.marker))
    return looks


def mark_heads(
    ax: Axes, grid: Grid, heads: Mapping[Unit, int], *, hollow: Collection[Unit] = (), avoid: Iterable[Unit] = ()
) -> None:
    """Mark heads on a map of layers and heads: the marker of each, with its number beside it.

    Numbers stand clear of markers, of each other and of the letters on the heads to ``avoid``, each closest to its own
    marker; where there is no room for that, a line joins the two.

    Args:
        ax: the axes of the map.
        grid: of the map.
        heads: their numbers.
        hollow: heads whose markers are not filled.
        avoid: heads that carry a letter.
    """
    square = _points_per_unit(ax, grid)
    across = min(_SIZE, max(4.5, square.min()))
    for head, look in head_looks(heads).items():
        ax.plot(head.index, head.layer, **_marker(look, head in hollow, across, halo=True), zorder=4, clip_on=False)
    # All in points from the first head, right and down: the middle and the size of what is there already.
    centers = np.array([(head.index, head.layer) for head in heads]).reshape(-1, 2) * square
    taken = [(*center, across, across) for center in centers]
    taken += [(*(np.array([head.index, head.layer]) * square), *_LETTER) for head in avoid]
    last = np.array([grid.n_units - 0.5, grid.n_layers - 0.5]) * square
    for place, ((head, number), center) in enumerate(zip(heads.items(), centers, strict=True)):
        places, size = center + _OFFSETS, np.array([_LETTER[0] * len(str(number)), _LETTER[1]])
        boxes, others = np.array(taken), np.delete(centers, place, axis=0)
        over = (size + boxes[:, 2:]) / 2 + 0.5 - np.abs(places[:, None] - boxes[:, :2])
        covered = np.maximum(over, 0).prod(axis=-1).sum(axis=1)
        outside = (np.maximum(-square / 2 - places, 0) + np.maximum(places - last, 0)).sum(axis=1)
        to_others = np.linalg.norm(places[:, None] - others, axis=-1)
        nearer = np.maximum(_DISTANCES[:, None] + 2.5 - to_others, 0).sum(axis=1)
        best = int(np.argmin(covered + 3 * outside + 8 * nearer + _DISTANCES / 2))
        taken.append((*places[best], *size))
        joined = _DISTANCES[best] > 1.5 * _NEAR or (to_others[best] < _DISTANCES[best] + 1).any()
        # Points go up where layers go down.
        right, down = _OFFSETS[best]
        write_on(ax, (head.index, head.layer), str(number), (right, -down), joined=bool(joined))


def write_on(
    ax: Axes, place: tuple[int, int], text: str, offset: tuple[float, float] = (0, 0), *, joined: bool = False
) -> None:
    """Write letters that are legible on any color: black with a white edge.

    Args:
        ax: the axes.
        place: in the units of the axes.
        text: the letters.
        offset: points to the right and up of the place.
        joined: with a line from the letters to the place.
    """
    line = {"arrowstyle": "-", "linewidth": 0.6, "color": "black", "shrinkA": 0, "shrinkB": 0, "zorder": 4.5}
    ax.annotate(
        text,
        place,
        offset,
        textcoords="offset points",
        path_effects=style.edged(1.8),
        arrowprops=line if joined else None,
        annotation_clip=False,
        ha="center",
        va="center",
        fontsize=style.SMALL,
        fontweight="bold",
        zorder=5,
    )


def head_handle(look: HeadLook, label: str, *, hollow: bool = False) -> Line2D:
    """What a legend shows of a head: its marker as on the map.

    Args:
        look: of the head.
        label: the text beside the marker.
        hollow: not filled.
    """
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **_marker(look, hollow))


def name_heads(ax: Axes, heads: Sequence[Unit | None], where: Literal["y", "x", "title"] = "y", width: int = 1) -> None:
    """Put the marker of each head beside its name: before its row, above its column, or before the title of its axes.

    Args:
        ax: the axes; names of rows are moved aside.
        heads: in order, the first at 0; None has no marker.
        where: what names stand at.
        width: of a row or column, in the units of the axes.
    """
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    figure: Any = ax.get_figure(root=True)
    away = (_SIZE / 2 + 2.5) / 72
    shift = {"y": (-away, 0), "x": (0, away), "title": (away, 1.5 * away)}[where]
    beside = ax.transAxes + ScaledTranslation(*shift, figure.dpi_scale_trans)
    if where == "y":
        beside = blended_transform_factory(beside, ax.transData)
        ax.tick_params(axis="y", pad=_SIZE + 4.5, length=0)
    elif where == "x":
        beside = blended_transform_factory(ax.transData, beside)
    looks = head_looks(head for head in heads if head is not None)
    limits = {"xlim": ax.get_xlim(), "ylim": ax.get_ylim()}
    for number, head in enumerate(heads):
        if head is not None:
            middle = (number + 0.5) * width - 0.5
            at = {"y": (0, middle), "x": (middle, 1), "title": (0, 1)}[where]
            ax.plot(*at, transform=beside, clip_on=False, **_marker(looks[head], False))
    ax.set(**limits)


def points_per_square(ax: Axes, grid: Grid) -> float:
    """About how large a head is drawn; constrained layouts settle the axes only when the picture is written.

    Args:
        ax: the axes of the map.
        grid: of the map.
    """
    return float(_points_per_unit(ax, grid).min())


def _points_per_unit(ax: Axes, grid: Grid) -> np.ndarray:
    """About how wide and how high a unit is drawn."""
    figure: Any = ax.get_figure(root=True)
    share = np.ones(2)
    place = ax.get_subplotspec()
    if place is not None:  # a map among others, whatever its own color bar took
        place = place.get_topmost_subplotspec()
        share = np.array([len(place.colspan), len(place.rowspan)]) / place.get_gridspec().get_geometry()[::-1]
    points = 72 * np.array([0.6, 0.7]) * share * figure.get_size_inches() / (grid.n_units, grid.n_layers)
    return points if ax.get_aspect() == "auto" else np.full(2, points.min())


def _marker(look: HeadLook, hollow: bool, size: float = _SIZE, *, halo: bool = False) -> dict[str, Any]:
    return {
        "linestyle": "none",
        "marker": look.marker,
        "markersize": (size - hollow) * (1.4 if look.marker == "*" else 1),  # rays take little room
        "color": look.color,
        "markerfacecolor": "white" if hollow else look.color,
        "markeredgecolor": look.color if hollow else "white",
        "markeredgewidth": 1.2 if hollow else 0.5,
        "path_effects": style.edged(2.4) if halo and hollow else None,
    }
