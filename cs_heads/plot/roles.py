"""The map of roles that causal head gating gives to heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from cs_heads.methods.gating.result import HeadGates
from cs_heads.plot.marks import head_handle, mark_heads, points_a_square
from cs_heads.plot.style import COLUMN, colour_bar, key_below, new_axes, signed_map, styled, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


SIGNS = 4.0
"""Points a square needs, to hold a sign."""


@styled
def plot_roles(gates: HeadGates, ax: Axes | None = None, *, marked: float = 0.5, k: int = 5) -> Axes:
    """Draw each head's role, layers down and heads across: blue facilitates, orange interferes, white does neither.

    The colour is the larger of the two scores, mean over seeds (Nam et al., arXiv 2505.13737, figure 3b, in red and
    green there), as in the map of ``plot_heads``. The first ``k`` heads of the gates' ranking carry their own markers,
    named below. Of the others, where squares are large enough, a head of ``marked`` or more carries a sign: a plus
    where it facilitates, a cross where it interferes, both where it does one in some seed and the other in another.
    """
    facilitation, interference = (gates.score(name).mean(axis=0) for name in ("facilitation", "interference"))
    ranking = gates.ranking()
    grid = ranking.grid
    if ax is None:
        square = min(0.5, 5 / grid.n_layers, (COLUMN - 1.25) / grid.n_heads)
        ax = new_axes(COLUMN, max(1.0, square * grid.n_layers) + 1.5 + 0.14 * min(k, grid.size))
    values = np.where(facilitation >= interference, facilitation, -interference)
    image = ax.imshow(values, aspect="equal", cmap=signed_map(), vmin=-1, vmax=1)
    bar = colour_bar(ax, image)
    bar.set_ticks([-1, -0.5, 0, 0.5, 1], labels=["1", "0.5", "0", "0.5", "1"])
    bar.set_label("interferes ← score → facilitates")
    for set_ticks, n in ((ax.set_xticks, grid.n_heads), (ax.set_yticks, grid.n_layers)):
        set_ticks(range(0, n, max(1, -(-n // 12))))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    task = gates.provenance.get("task", {}).get("name")
    ax.set_title("causal head gating" if task is None else written(f"{task} (causal head gating)", 50))
    top = [head for head in ranking.top(min(k, grid.size)) if values[head.layer, head.head] > 0] if k else []
    signs = _draw_signs(ax, gates, marked, grid.mask(top))
    mark_heads(ax, grid, top)
    names = [
        head_handle(head, f"{rank}  {head}  {values[head.layer, head.head]:.2f}")
        for rank, head in enumerate(top, start=1)
    ]
    handles = [*names, *signs]
    if handles:
        key_below(ax, handles=handles, labels=[handle.get_label() for handle in handles], ncols=2, handletextpad=0.3)
    return ax


def _draw_signs(ax: Axes, gates: HeadGates, marked: float, without: Bool[np.ndarray, "layer head"]) -> list[Line2D]:
    """Signs of clear roles on all heads but some; returns one line a sign that was drawn."""
    square = points_a_square(ax, gates.ranking().grid)
    if square < SIGNS:
        return []
    facilitates, interferes = (gates.any(name) >= marked for name in ("facilitation", "interference"))
    mixed = facilitates & interferes
    places = {
        f"facilitation of {marked:g} or more": ("+", (gates.score("facilitation").mean(axis=0) >= marked) & ~mixed),
        f"interference of {marked:g} or more": ("x", (gates.score("interference").mean(axis=0) >= marked) & ~mixed),
        "each in some seed": ((8, 2, 0), mixed),
    }
    drawn = []
    for label, (marker, where) in places.items():
        at = np.argwhere(where & ~without)
        if len(at):
            width = 0.9 if isinstance(marker, str) else 0.5
            look: dict[str, Any] = {"marker": marker, "markersize": min(5.0, 0.8 * square), "markeredgewidth": width}
            drawn += ax.plot(at[:, 1], at[:, 0], linestyle="none", color="black", label=label, **look)
    return drawn
