"""Pictures of a comparison of methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.compare import Comparison
from cs_heads.plot.matrix import draw_matrix, matrix_axes
from cs_heads.plot.style import (
    COLUMN,
    PAGE,
    RANDOM,
    key_below,
    line_look,
    new_axes,
    new_figure,
    round_ticks,
    styled,
)
from cs_heads.plot.style import written as plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def plot_drops(comparison: Comparison, ax: Axes | None = None, *, key: bool = True) -> Axes:
    """Draw drop@k on unseen examples against k, one line a method, random heads as a grey line and its range.

    Lines carry markers of their own, so that they can be told apart without colours and where they
    coincide; ``key`` False leaves out which is which. Returns the axes.
    """
    if ax is None:
        ax = new_axes(COLUMN, 2.1 + 0.16 * (len(comparison.methods) + 2))
    ks = np.arange(1, comparison.random_drops.shape[1] + 1)
    sets = comparison.random_drops
    ax.fill_between(ks, sets.min(axis=0), sets.max(axis=0), color="0.85", linewidth=0)
    ax.plot(ks, comparison.random_drop, color=RANDOM, linestyle="--", label=f"random heads ({len(sets)} sets)")
    for number, (name, one) in enumerate(comparison.methods.items()):
        # The first lines are drawn larger: where lines coincide, both are seen.
        look = {**line_look(number), "markersize": _size(comparison, number)}
        ax.plot(ks, one.drops, label=f"{plain(name)} ({one.ranking.spent:,})", **look)
    ax.set_xticks(ks)
    ax.set_xlabel("heads ablated, the most important first (k)")
    ax.set_ylabel(f"drop@k (baseline {comparison.baseline:.2f})")
    task = comparison.provenance.get("task", {}).get("name")
    ax.set_title("drop on unseen examples" if task is None else plain(f"{task}: drop on unseen examples", 50))
    if key:
        key_below(ax, title="method (example-evaluations)")
    return ax


@styled
def plot_agreement(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the share of their top k heads that each two methods have in common, as a table of squares."""
    names = list(comparison.methods)
    if ax is None:
        ax = matrix_axes(len(names), len(names), names)
    column = f"overlap@{comparison.k}"
    share = np.eye(len(names))
    for row in comparison.agreement().to_dict("records"):
        first, second = names.index(row["first"]), names.index(row["second"])
        share[first, second] = share[second, first] = row[column]
    draw_matrix(ax, share, names, names, label=f"share of top {comparison.k}")
    return ax


@styled
def plot_cost(comparison: Comparison, ax: Axes | None = None, *, key: bool = True) -> Axes:
    """Draw drop@k with its 95 % interval against the example-evaluations spent, each method with its line's marker.

    The first are drawn larger, so that all are seen where they coincide.
    """
    ax = new_axes(COLUMN, 2.0 + 0.16 * (len(comparison.methods) + 1)) if ax is None else ax
    for number, (name, one) in enumerate(comparison.methods.items()):
        look = {**line_look(number), "linestyle": "none", "markersize": 1.3 * _size(comparison, number)}
        drop = one.curve[comparison.k - 1]
        ax.vlines(one.ranking.spent, *drop.interval, color=look["color"], linewidth=0.8)
        ax.plot(one.ranking.spent, drop.drop, label=plain(name), **look)
    ax.axhline(comparison.random_drop[comparison.k - 1], color=RANDOM, linestyle="--", label="random heads")
    round_ticks(ax, [one.ranking.spent for one in comparison.methods.values()])
    ax.set_xlabel("example-evaluations to find")
    ax.set_ylabel(f"drop@{comparison.k}, unseen examples")
    if key:
        key_below(ax)
    return ax


@styled
def plot_comparison(comparison: Comparison, figure: Figure | None = None) -> Figure:
    """Draw the methods side by side, as wide as a page: drop curves, what they cost, and where they agree."""
    figure = new_figure(PAGE, 2.6 + 0.16 * (len(comparison.methods) // 3 + 1)) if figure is None else figure
    drops, cost, agreement = figure.subplots(1, 3, width_ratios=(1.2, 1, 1.2))
    plot_drops(comparison, drops, key=False)
    drops.set_title("drop on unseen examples")
    drops.set_xlabel("heads ablated (k)")
    plot_cost(comparison, cost, key=False)
    cost.set_title("what it costs")
    plot_agreement(comparison, agreement)
    agreement.set_title("heads in common")
    handles, labels = drops.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, title="method (example-evaluations)")
    return figure


def _size(comparison: Comparison, number: int) -> float:
    """Points of a method's marker."""
    return 8 - 4 * number / max(1, len(comparison.methods) - 1)
