"""The layers × heads map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.heads import Head, HeadGrid
from cs_heads.ranking import HeadRanking
from cs_heads.views.style import (
    COLUMN,
    IMPORTANCE_MAP,
    SMALL,
    head_look,
    key_below,
    new_axes,
    offscreen,
    save_picture,
    styled,
    written,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

CLEARLY = 0.2
"""Share of the scale from which a head that interferes carries a minus: purple and orange print alike in grey."""
LETTERS = 9.0
"""Points a square needs, to have a number inside."""


@styled
def plot_heads(
    ranking: HeadRanking,
    k: int = 5,
    ax: Axes | None = None,
    *,
    key_value_heads: int | None = None,
    verdict: str | None = None,
) -> Axes:
    """Draw the importance of every head, layers down and heads across, its top ``k`` framed and numbered.

    Orange heads facilitate the task, purple ones interfere (those that do so clearly carry a minus), white ones do
    not matter; the scale is symmetric about zero. The key below names the top heads, with the importance and
    interval of each; a tick says that the head is claimed, a dashed frame that it is not, where the method claims
    heads. Universal heads are marked U and do not set the scale. Fewer than ``k`` heads are framed where fewer have
    an importance above zero. Where query heads share keys and values (``key_value_heads``, by default what
    the ranking knows of its model) the groups stand between lines, numbered above. ``verdict``, as in
    ``proof.verdict``, joins the title. Returns the axes; ``save_picture(ax, "heads")`` writes the picture.

    >>> from matplotlib.figure import Figure
    >>> ranking = HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.0]]), spent=800)
    >>> plot_heads(ranking, k=1, ax=Figure().subplots()).texts[0].get_text()
    '1'
    """
    grid = ranking.grid
    if key_value_heads is None:
        key_value_heads = ranking.provenance.get("model", {}).get("key_value_heads")
    _check_groups(grid, key_value_heads)
    ax = new_axes(*_size(grid, k)) if ax is None else ax
    own = ranking.importance[~grid.mask(ranking.universal)]
    limit = float(np.abs(own).max(initial=0)) or 1.0
    image = ax.imshow(ranking.importance, cmap=IMPORTANCE_MAP, vmin=-limit, vmax=limit, aspect="equal")
    bar = ax.figure.colorbar(image, ax=ax, label=f"importance ({ranking.unit})", shrink=0.8, pad=0.03, aspect=25)
    bar.outline.set_linewidth(0.4)
    ax.set_xticks(_ticks(grid.n_heads, 12))
    ax.set_yticks(_ticks(grid.n_layers, 16))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    _draw_groups(ax, grid, key_value_heads)
    square = _points_a_square(ax, grid)
    opposed = np.argwhere(ranking.importance < -CLEARLY * limit)
    ax.scatter(
        opposed[:, 1],
        opposed[:, 0],
        marker="_",
        s=min(square * 0.7, 5) ** 2,
        linewidths=0.7,
        color=[_ink(image, ranking.importance[tuple(at)]) for at in opposed],
    )
    top = [head for head in ranking.top(min(k, grid.size)) if ranking.importance[head.layer, head.head] > 0]
    for rank, head in enumerate(top, start=1):
        _mark(ax, ranking, head, str(rank), square=square, ink=_ink(image, ranking.importance[head.layer, head.head]))
    for head in ranking.universal:
        _write(ax, (head.head, head.layer), "U")
    ax.set_title(_title(ranking, verdict))
    if top:
        _draw_key(ax, ranking, top)
    return ax


def save_head_map(ranking: HeadRanking, path: str | Path, k: int = 5, verdict: str | None = None) -> list[Path]:
    """Write the picture of ``plot_heads``, past pyplot: no window, no figure left open. As ``save_picture``."""
    with offscreen():
        return save_picture(plot_heads(ranking, k, verdict=verdict), path)


def _check_groups(grid: HeadGrid, key_value_heads: int | None) -> None:
    if key_value_heads is not None and (key_value_heads < 1 or grid.n_heads % key_value_heads):
        raise ValueError(f"key_value_heads must divide the {grid.n_heads} heads of a layer, got {key_value_heads}")


def _draw_groups(ax: Axes, grid: HeadGrid, key_value_heads: int | None) -> None:
    """Lines between the heads that share keys and values, and the groups' numbers above."""
    if key_value_heads is None or key_value_heads in (1, grid.n_heads):
        return
    size = grid.n_heads // key_value_heads
    for group in range(1, key_value_heads):
        ax.axvline(group * size - 0.5, color="0.55", linewidth=0.4)
    above = ax.secondary_xaxis("top")
    every = _ticks(key_value_heads, 8)
    above.set_xticks([(group + 0.5) * size - 0.5 for group in every], [str(group) for group in every])
    above.tick_params(length=0, pad=1)
    above.set_xlabel("key/value head", labelpad=2)


def _mark(ax: Axes, ranking: HeadRanking, head: Head, number: str, *, square: float, ink: str) -> None:
    from matplotlib.patches import Rectangle

    place = (head.head, head.layer)
    if square < LETTERS:
        # Too small for a number inside: the head's own marker, and the number beside it.
        look = head_look(head)
        edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.5}
        ax.plot(*place, marker=look.marker, color=look.colour, markersize=6, **edge)
        # Away from the edges, where the numbers of layers and groups stand.
        last = head.head == ranking.grid.n_heads - 1
        _write(ax, place, number, offset=(-5.0 if last else 5.0, -5.0 if head.layer == 0 else 4.0))
        return
    line = "--" if ranking.z is not None and head not in ranking.claims else "-"
    corner = (head.head - 0.5, head.layer - 0.5)
    ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=1.2, linestyle=line, zorder=3))
    ax.text(*place, number, ha="center", va="center", color=ink, fontsize=SMALL)


def _ink(image: AxesImage, importance: float) -> str:
    """Letters on a square: white on dark colours."""
    red, green, blue, _ = image.to_rgba(np.array([importance]))[0]
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5 else "black"


def _write(ax: Axes, place: tuple[int, int], text: str, offset: tuple[float, float] | None = None) -> None:
    """Letters that are read on any colour: black with a white edge."""
    from matplotlib.patheffects import withStroke

    where: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL, "fontweight": "bold", "zorder": 5}
    edge = [withStroke(linewidth=1.8, foreground="white")]
    if offset is None:
        ax.text(*place, text, path_effects=edge, **where)
    else:
        ax.annotate(text, place, offset, textcoords="offset points", path_effects=edge, **where)


def _draw_key(ax: Axes, ranking: HeadRanking, top: list[Head]) -> None:
    """Which head each number is, with its importance and interval."""
    from matplotlib.lines import Line2D

    handles = []
    for rank, head in enumerate(top, start=1):
        look, at = head_look(head), (head.layer, head.head)
        label = f"{rank}  {look.label}{' ✓' if head in ranking.claims else ''}  {ranking.importance[at]:+.2f}"
        if ranking.interval is not None and not np.isnan(ranking.interval[at]).any():
            label += " ({:+.2f} to {:+.2f})".format(*ranking.interval[at])
        handles.append(Line2D([], [], color=look.colour, marker=look.marker, linestyle="none", label=label))
    labels = [handle.get_label() for handle in handles]
    key_below(ax, handles=handles, labels=labels, ncols=2 if ranking.interval is None else 1, handletextpad=0.3)


def _title(ranking: HeadRanking, verdict: str | None) -> str:
    task = ranking.provenance.get("task", {}).get("name")
    title = ranking.method if task is None else f"{task} ({ranking.method})"
    return written(title if verdict is None else f"{title}: {verdict}")


def _size(grid: HeadGrid, k: int) -> tuple[float, float]:
    """A column wide, a page for many heads; as high as square heads and the key need, a page at most."""
    width = COLUMN if grid.n_heads <= 64 else 2 * COLUMN
    square = min(0.5, 5 / grid.n_layers, (width - 1.25) / grid.n_heads)
    return width, min(9.0, max(1.1, square * grid.n_layers) + 1.2 + 0.14 * min(k, grid.size))


def _points_a_square(ax: Axes, grid: HeadGrid) -> float:
    """About how large a head is drawn: constrained layouts settle the axes only when the picture is written."""
    figure: Any = ax.get_figure(root=True)
    width, height = figure.get_size_inches()
    return 72 * min(0.6 * width / grid.n_heads, 0.7 * height / grid.n_layers)


def _ticks(n: int, most: int) -> range:
    return range(0, n, max(1, -(-n // most)))
