"""The map of roles that causal head gating gives to heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from cs_heads.methods.gating.result import HeadGates
from cs_heads.views.style import COLUMN, ROLES, key_below, new_axes, styled, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def plot_roles(gates: HeadGates, ax: Axes | None = None, *, marked: float = 0.5) -> Axes:
    """Draw each head's role, layers down and heads across: green facilitates, red interferes, white does neither.

    The colour is as strong as the score, mean over seeds (Nam et al., arXiv 2505.13737, figure 3b); a head of
    ``marked`` or more carries a sign too, a plus where it facilitates and a cross where it interferes, so that
    nobody needs to tell red from green. A head that does both, in different seeds, is mixed of both colours.
    """
    facilitation, interference = (gates.score(name).mean(axis=0) for name in ("facilitation", "interference"))
    n_layers, n_heads = facilitation.shape
    if ax is None:
        square = min(0.5, 5 / n_layers, (COLUMN - 0.7) / n_heads)
        ax = new_axes(COLUMN, max(1.0, square * n_layers) + 1.4)
    ax.imshow(_mixed(facilitation, interference), aspect="equal")
    for name, score in (("facilitation", facilitation), ("interference", interference)):
        colour, marker = ROLES[name]
        at = np.argwhere(score >= marked)
        size = min(5.0, 100 / n_heads)
        ax.plot(
            at[:, 1],
            at[:, 0],
            linestyle="none",
            marker=marker,
            markersize=size,
            color=colour,
            markeredgecolor="white",
            markeredgewidth=0.4,
            label=f"{name} of {marked:g} or more",
        )
    for set_ticks, n in ((ax.set_xticks, n_heads), (ax.set_yticks, n_layers)):
        set_ticks(range(0, n, max(1, -(-n // 12))))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    task = gates.provenance.get("task", {}).get("name")
    ax.set_title("causal head gating" if task is None else written(f"{task} (causal head gating)", 50))
    key_below(ax)
    return ax


def _mixed(
    facilitation: Float[np.ndarray, "layer head"], interference: Float[np.ndarray, "layer head"]
) -> Float[np.ndarray, "layer head rgb"]:
    """White, with the colour of each role multiplied in as strongly as its score."""
    from matplotlib.colors import to_rgb

    mixed = np.ones((*facilitation.shape, 3))
    for name, score in (("facilitation", facilitation), ("interference", interference)):
        mixed *= 1 - score[..., None] * (1 - np.array(to_rgb(ROLES[name][0])))
    return mixed
