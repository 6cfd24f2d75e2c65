"""The layers × heads map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cs_heads.heads import HeadGrid
from cs_heads.ranking import HeadRanking

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_heads(ranking: HeadRanking, k: int = 5, ax: Axes | None = None) -> Axes:
    """Draw the importance of every head, layers down and heads across, its top ``k`` framed and numbered.

    Red heads facilitate the task, blue ones interfere, white ones do not matter; the scale is
    symmetric about zero. Universal heads are marked U and do not set the scale. Fewer than ``k``
    heads are framed where fewer have an importance above zero. Returns the axes;
    ``ax.figure.savefig`` writes the picture.
    """
    from matplotlib.patches import Rectangle

    grid = ranking.grid
    if ax is None:
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=_size(grid), layout="constrained")[1]
    own = ranking.importance[~grid.mask(ranking.universal)]
    limit = float(np.abs(own).max(initial=0)) or 1.0
    image = ax.imshow(ranking.importance, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="equal")
    ax.figure.colorbar(image, ax=ax, label=f"importance ({ranking.unit})", shrink=0.8)
    for rank, head in enumerate(ranking.top(min(k, grid.size)), start=1):
        importance = ranking.importance[head.layer, head.head]
        if importance <= 0:
            continue
        ax.add_patch(Rectangle((head.head - 0.5, head.layer - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1.5))
        colour = "white" if importance > 0.6 * limit else "black"
        ax.text(head.head, head.layer, str(rank), ha="center", va="center", color=colour, fontsize=8)
    for head in ranking.universal:
        ax.text(head.head, head.layer, "U", ha="center", va="center", color="white", fontsize=8)
    ax.set_xticks(_ticks(grid.n_heads))
    ax.set_yticks(_ticks(grid.n_layers))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    task = ranking.provenance.get("task", {}).get("name")
    ax.set_title(ranking.method if task is None else f"{task} ({ranking.method})", fontsize=10)
    return ax


def save_head_map(ranking: HeadRanking, path: str | Path, k: int = 5) -> None:
    """Write the picture of ``plot_heads`` to a file, past pyplot: no window, no figure left open."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_size(ranking.grid), layout="constrained")
    plot_heads(ranking, k, figure.subplots())
    figure.savefig(path, dpi=150)


def _size(grid: HeadGrid) -> tuple[float, float]:
    return min(14.0, 2.5 + 0.3 * grid.n_heads), min(11.0, 1.6 + 0.3 * grid.n_layers)


def _ticks(n: int) -> range:
    return range(0, n, max(1, -(-n // 32)))
