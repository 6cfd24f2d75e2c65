"""Pictures of heads that several tasks or methods have in common, and of heads that no task does without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.overlap import Overlap
from cs_heads.analysis.universal import UniversalHeads
from cs_heads.plot.marks import name_heads
from cs_heads.plot.matrix import draw_matrix, matrix_axes
from cs_heads.plot.style import styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_Q = 0.05


@styled
def plot_overlap(overlap: Overlap, ax: Axes | None = None, value: str = "heads") -> Axes:
    """Draw how many heads (or ``value="groups"``) each two rankings share, an asterisk where luck would not explain it.

    The asterisk is for a false discovery rate below .05. The diagonal has the number of heads of each ranking.
    """
    from matplotlib.ticker import MaxNLocator

    if value not in ("heads", "groups") or (value == "groups" and overlap.n_groups is None):
        raise ValueError(f"value must be 'heads', or 'groups' where heads share keys and values; got {value!r}")
    table = overlap.matrix(value)
    names = [str(name) for name in table.index]
    if ax is None:
        ax = matrix_axes(len(names), len(names), [*names, *names])
    values = table.to_numpy(dtype=float)
    most = max(1.0, float(np.nanmax(values)))
    image = draw_matrix(ax, values, names, names, label=f"{value} in common", limits=(0.0, most), form="{:.0f}")
    if image.colorbar is not None:
        image.colorbar.locator = MaxNLocator(integer=True, nbins=5)
        image.colorbar.update_ticks()
    q = overlap.matrix(f"q_{value}").to_numpy(dtype=float)
    for text in list(ax.texts):
        column, row = (round(at) for at in text.get_position())
        if q[row, column] < MAX_Q:
            text.set_text(f"{text.get_text()}*")
            ax.set_xlabel(f"* more than luck explains (q < {MAX_Q:g})")
    return ax


@styled
def plot_universal(universal: UniversalHeads, ax: Axes | None = None) -> Axes:
    """Draw what each candidate leaves of each task, as a share of the score above chance; universal heads carry a U."""
    rows = [f"{head} U" if head in universal.heads else str(head) for head in universal.candidates]
    if ax is None:
        ax = matrix_axes(len(rows), len(universal.tasks), [*universal.tasks])
    draw_matrix(ax, universal.left, rows, universal.tasks, label="share of the score left", colours="Blues_r")
    name_heads(ax, universal.candidates)
    ax.set_ylabel("head ablated")
    if universal.heads:
        ax.set_xlabel("U universal")
    return ax
