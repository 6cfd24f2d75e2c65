"""The layers × heads map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cs_heads.arguments import check_integer
from cs_heads.plot.marks import head_handle, mark_heads, points_a_square, write_on
from cs_heads.plot.style import (
    COLUMN,
    colour_bar,
    ink,
    key_below,
    new_axes,
    signed_map,
    styled,
    written,
)
from cs_heads.ranking import HeadRanking
from cs_heads.units import Head, HeadGrid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLEARLY = 0.2
"""Share of the scale from which a head that interferes carries a minus, also read in grey."""


@styled
def plot_heads(
    ranking: HeadRanking,
    k: int = 5,
    ax: Axes | None = None,
    *,
    key_value_heads: int | None = None,
    verdict: str | None = None,
) -> Axes:
    """Draw the importance of every head, layers down and heads across, its top ``k`` marked and numbered.

    Blue heads facilitate the task, orange ones interfere (those that do so clearly carry a minus), white ones do
    not matter; the scale is symmetric about zero. Each of the top heads has the marker that it has in every picture,
    and the key below names it, with its importance and interval; a tick says that the head is claimed, a hollow marker
    that it is not, where the method claims heads. Shared heads are marked S and do not set the scale. Fewer than
    ``k`` heads are marked where fewer have an importance above zero. Where query heads share keys and values
    (``key_value_heads``, by default what the ranking knows of its model) the groups stand between lines, numbered
    above. ``verdict``, as in ``proof.verdict``, joins the title. Returns the axes; ``save_picture(ax, "heads")``
    writes the picture.

    >>> from matplotlib.figure import Figure
    >>> ranking = HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.0]]), spent=800)
    >>> plot_heads(ranking, k=1, ax=Figure().subplots()).texts[0].get_text()
    '1'
    """
    if not isinstance(ranking, HeadRanking):
        raise ValueError(f"ranking must be a HeadRanking, as find_heads gives, got {ranking!r:.80}")
    grid = ranking.grid
    check_integer("k", k, 0)
    if key_value_heads is None:
        key_value_heads = ranking.provenance.get("model", {}).get("key_value_heads")
    _check_groups(grid, key_value_heads)
    ax = new_axes(*_size(grid, k)) if ax is None else ax
    limit = _limit(ranking)
    image = ax.imshow(ranking.importance, cmap=signed_map(), vmin=-limit, vmax=limit, aspect="equal")
    colour_bar(ax, image).set_label(f"importance ({ranking.unit})")
    ax.set_xticks(_ticks(grid.n_heads, 12))
    ax.set_yticks(_ticks(grid.n_layers, 16))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    _draw_groups(ax, grid, key_value_heads)
    opposed = np.argwhere(ranking.importance < -CLEARLY * limit)
    ax.scatter(
        opposed[:, 1],
        opposed[:, 0],
        marker="_",
        s=min(points_a_square(ax, grid) * 0.7, 5) ** 2,
        linewidths=0.7,
        color=[ink(image, ranking.importance[tuple(at)]) for at in opposed],
    )
    top = _shown(ranking, k)
    mark_heads(ax, grid, top, hollow=_not_claimed(ranking, top), apart=ranking.shared)
    for head in ranking.shared:
        write_on(ax, (head.head, head.layer), "S", _inwards(head, grid, points_a_square(ax, grid)))
    ax.set_title(_title(ranking, verdict))
    if top:
        _draw_key(ax, ranking, top)
    return ax


def describe_heads(ranking: HeadRanking, k: int = 5) -> str:
    """The caption of ``plot_heads``: what its colours and marks mean, as far as they are there.

    >>> describe_heads(HeadRanking("css", np.array([[0.0, 0.4], [0.1, 0.0]]), spent=800))
    'Importance of every head: blue facilitates the task, orange interferes. Marked and numbered: the first heads.'
    """
    opposed = bool((ranking.importance < -CLEARLY * _limit(ranking)).any())
    text = "Importance of every head: blue facilitates the task, orange interferes"
    text += " (a minus where clearly so)." if opposed else "."
    top = _shown(ranking, k)
    marks = [*(["Marked and numbered: the first heads"] if top else []), *_marks(ranking, top)]
    return f"{text} {'; '.join(marks)}." if marks else text


def _marks(ranking: HeadRanking, top: list[Head]) -> list[str]:
    """What the marks of heads mean, as far as they are there."""
    marks = ["✓ claimed"] if set(top) & set(ranking.claims) else []
    marks += ["hollow not claimed"] if _not_claimed(ranking, top) else []
    return marks + (["S shared"] if ranking.shared else [])


def _inwards(head: Head, grid: HeadGrid, square: float) -> tuple[float, float]:
    """Points by which a letter on a small square is moved, so that it does not reach over the border of the map."""
    over = max(0.0, 4.0 - square / 2)
    right = over * ((head.head == 0) - (head.head == grid.n_heads - 1))
    return right, over * ((head.layer == grid.n_layers - 1) - (head.layer == 0))


def _limit(ranking: HeadRanking) -> float:
    """Where the scale ends: the largest importance of a head that is not shared."""
    own = ranking.importance[~ranking.grid.mask(ranking.shared)]
    return float(np.abs(own).max(initial=0)) or 1.0


def _shown(ranking: HeadRanking, k: int) -> list[Head]:
    k = min(k, ranking.grid.size)
    top = [*ranking.top(k), *ranking.claimed_beyond(k)] if k else []
    return [head for head in top if ranking.importance[head.layer, head.head] > 0]


def _not_claimed(ranking: HeadRanking, top: list[Head]) -> set[Head]:
    return set() if ranking.z is None else {head for head in top if head not in ranking.claims}


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


def _draw_key(ax: Axes, ranking: HeadRanking, top: list[Head]) -> None:
    """Which head each number is, with its importance and interval."""
    hollow = _not_claimed(ranking, top)
    handles = []
    for rank, head in enumerate(top, start=1):
        at = (head.layer, head.head)
        label = f"{rank}  {head}{' ✓' if head in ranking.claims else ''}  {ranking.importance[at]:+.2f}"
        if ranking.interval is not None and not np.isnan(ranking.interval[at]).any():
            label += " ({:+.2f} to {:+.2f})".format(*ranking.interval[at])
        handles.append(head_handle(head, label, hollow=head in hollow))
    labels = [handle.get_label() for handle in handles]
    options = {"title": "; ".join(_marks(ranking, top)) or None, "ncols": 2 if ranking.interval is None else 1}
    key_below(ax, handles=handles, labels=labels, handletextpad=0.3, **options)


def _title(ranking: HeadRanking, verdict: str | None) -> str:
    task = ranking.provenance.get("task", {}).get("name")
    title = ranking.method if task is None else f"{task} ({ranking.method})"
    return written(title if verdict is None else f"{title}: {verdict}")


def _size(grid: HeadGrid, k: int) -> tuple[float, float]:
    """A column wide, a page for many heads; as high as square heads and the key need, a page at most."""
    width = COLUMN if grid.n_heads <= 64 else 2 * COLUMN
    square = min(0.5, 5 / grid.n_layers, (width - 1.25) / grid.n_heads)
    return width, min(9.0, max(1.1, square * grid.n_layers) + 1.34 + 0.14 * min(k, grid.size))


def _ticks(n: int, most: int) -> range:
    return range(0, n, max(1, -(-n // most)))
