"""The picture of scores against the number of heads off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.plot.style import COLUMN, RANDOM, key_below, line_look, new_axes, styled, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def plot_sparsity(curve: SparsityCurve, ax: Axes | None = None) -> Axes:
    """Draw the score of every task against the number of heads off, with the 95 % interval of its drop as a band.

    The own task comes first; each line has a marker and a dash of its own. Random heads on the own task, where they
    were measured, are a grey line with their range. Returns the axes.
    """
    ax = new_axes(COLUMN, 2.6) if ax is None else ax
    for number, (name, drops) in enumerate(curve.drops.items()):
        look = line_look(number)
        ks = np.arange(len(drops))
        low, high = (np.array([drop.baseline - drop.interval[side] for drop in drops]) for side in (1, 0))
        ax.fill_between(ks, low, high, color=look["color"], alpha=0.15, linewidth=0)
        role = "" if curve.roles[name] == "own" else f" ({curve.roles[name]})"
        ax.plot(ks, [drop.score for drop in drops], label=written(name + role), **look)
    if curve.random_drops is not None:
        sets = curve.drops[curve.own][0].baseline - curve.random_drops
        ks = np.arange(sets.shape[1])
        ax.fill_between(ks, sets.min(axis=0), sets.max(axis=0), color="0.85", linewidth=0)
        ax.plot(ks, sets.mean(axis=0), color=RANDOM, linestyle="--", label=f"random heads ({len(sets)} sets)")
    ax.set_xticks(range(len(curve.heads) + 1))
    ax.set_ylim(-0.02, 1.05)
    ax.set_xlabel(written(f"heads of {curve.own} ablated"))
    ax.set_ylabel("score on unseen examples")
    key_below(ax)
    return ax
