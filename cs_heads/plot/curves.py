"""Curves: scores by the number of heads off or kept, what methods cost and recall, and models side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.analysis.compare import Comparison
from cs_heads.analysis.faithfulness import Faithfulness
from cs_heads.analysis.scale_study import ScaleStudy
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.plot import guides, style
from cs_heads.plot.heatmap import agreement

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_band(
    ax: Axes, x: Any, line: style.Numbers, low: style.Numbers, high: style.Numbers, *, depth: float = 0.15, **look: Any
) -> None:
    """Draw a line in a pale band of its color.

    Args:
        ax: the axes.
        x: where the points are across.
        line: the heights of the points.
        low: lower edge of the band; NaN: none.
        high: upper edge of the band; NaN: none.
        depth: of the band's color, from 0 to 1; where many bands lie over each other, little.
        look: options of matplotlib's ``plot``, with ``color``.
    """
    ax.fill_between(x, low, high, color=look["color"], alpha=depth, linewidth=0)
    ax.plot(x, line, **look)


def draw_sets(ax: Axes, x: Any, sets: Float[np.ndarray, "set point"], **look: Any) -> None:
    """Draw the mean of sets, or seeds, in a band from the smallest to the largest.

    Args:
        ax: the axes.
        x: where the points are across.
        sets: one row per set.
        look: options of matplotlib's ``plot``; by default that of random heads.
    """
    look = look or {**style.random_look(), "label": f"random heads ({len(sets)} sets)"}
    draw_band(ax, x, sets.mean(axis=0), sets.min(axis=0), sets.max(axis=0), **look)


@style.styled
def drops(compared: Comparison, ax: Axes | None = None) -> Axes:
    """Draw drop@k on unseen examples against k, one line per method in the band of its 95 % interval.

    Random heads are a gray line with their range. Lines have markers of their own, so that they can be told apart
    without colors and where they coincide.

    Args:
        compared: as ``compare`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.1 + 0.16 * (len(compared.methods) + 2)) if ax is None else ax
    ks = np.arange(1, compared.random_drops.shape[1] + 1)
    draw_sets(ax, ks, compared.random_drops)
    for number, (name, one) in enumerate(compared.methods.items()):
        label = f"{style.safe_text(name)} ({one.ranking.spent:,})"
        low, high = np.array([drop.interval for drop in one.curve]).T
        depth = 0.3 / (1 + len(compared.methods))
        draw_band(ax, ks, one.drops, low, high, depth=depth, label=label, **_method_look(compared, number))
    task = compared.provenance.get("task", {}).get("name")
    title = "drop on unseen examples" if task is None else style.safe_text(f"{task}: drop on unseen examples", 50)
    ax.set(xticks=ks, xlabel="heads ablated, the most important first (k)", title=title)
    ax.set_ylabel(f"score lost, drop@k\n(of {compared.baseline:.2f} intact)")
    return guides.add_legend(ax, title="method (example-evaluations)")


@style.styled
def cost(compared: Comparison, ax: Axes | None = None) -> Axes:
    """Draw drop@k with its 95 % interval against the example-evaluations spent, each method with its line's marker.

    Args:
        compared: as ``compare`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.0 + 0.16 * (len(compared.methods) + 1)) if ax is None else ax
    for number, (name, one) in enumerate(compared.methods.items()):
        look = _method_look(compared, number)
        look |= {"linestyle": "none", "markersize": 1.3 * look["markersize"]}
        drop = one.curve[compared.k - 1]
        ax.vlines(one.ranking.spent, *drop.interval, color=look["color"], linewidth=0.8)
        ax.plot(one.ranking.spent, drop.drop, label=style.safe_text(name), **look)
    ax.axhline(compared.random_drop[compared.k - 1], label="random heads", **style.random_look())
    guides.log_ticks(ax, [one.ranking.spent for one in compared.methods.values()])
    ax.set(xlabel="example-evaluations to find", ylabel=f"score lost, drop@{compared.k}")
    return guides.add_legend(ax)


@style.styled
def comparison(compared: Comparison, figure: Figure | None = None) -> Figure:
    """Draw the methods side by side, as wide as a page: drop curves, cost, and shared heads.

    Args:
        compared: as ``compare`` gives it.
        figure: an empty figure to draw on; None: a new one.

    Returns:
        The figure.
    """
    figure = style.new_figure(style.PAGE, 2.6 + 0.16 * (len(compared.methods) // 3 + 1)) if figure is None else figure
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.2, 1, 1.2))
    drops(compared, left).set(title="drop on unseen examples", xlabel="heads ablated (k)")
    cost(compared, middle).set_title("cost")
    agreement(compared, right).set_title("heads in common")
    handles, labels = left.get_legend_handles_labels()
    for ax in (left, middle):
        ax.get_legend().remove()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, title="method (example-evaluations)")
    return figure


def _method_look(compared: Comparison, number: int) -> dict[str, Any]:
    """The look of a method's line; the first are drawn larger, so that all are seen where they coincide."""
    return {**style.line_look(number), "markersize": 8 - 4 * number / max(1, len(compared.methods) - 1)}


@style.styled
def sparsity(curve: SparsityCurve, ax: Axes | None = None) -> Axes:
    """Draw the score of every task against the number of heads off, with the 95 % interval of its drop as a band.

    The own task comes first. Random heads on the own task, where they were measured, are a gray line with their range.

    Args:
        curve: as ``sparsity_curve`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.6) if ax is None else ax
    for number, (name, lost) in enumerate(curve.drops.items()):
        low, high = (np.array([drop.baseline - drop.interval[side] for drop in lost]) for side in (1, 0))
        role = "" if curve.roles[name] == "own" else f" ({curve.roles[name]})"
        scores = np.array([drop.score for drop in lost])
        draw_band(
            ax, np.arange(len(lost)), scores, low, high, label=style.safe_text(name + role), **style.line_look(number)
        )
    if curve.random_drops is not None:
        sets = curve.drops[curve.own][0].baseline - curve.random_drops
        draw_sets(ax, np.arange(sets.shape[1]), sets)
        # Neither the white edge of their line nor that of the axes cuts a marker.
        for number, lost in enumerate(curve.drops.values()):
            markers: dict[str, Any] = {**style.line_look(number), "linestyle": "none", "clip_on": False}
            ax.plot([drop.score for drop in lost], **markers, zorder=2.6)
    ax.set(xticks=range(len(curve.heads) + 1), ylim=(-0.02, 1.05))
    ax.set(xlabel=style.safe_text(f"heads of {curve.own} ablated"), ylabel="score on unseen examples")
    return guides.add_legend(ax)


@style.styled
def faithfulness(measured: Faithfulness, ax: Axes | None = None) -> Axes:
    """Draw faithfulness against the share of units kept, one line per ranking with its 95 % interval as a band.

    The share is on a logarithmic axis, with 0 at its left end. A line at 1 is the intact model; random orders are a
    gray line with their range. The legend has the area under each line (CPR) and that between it and 1 (CMD).

    Args:
        measured: as ``faithfulness`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    n_lines = len(measured.curves) + (measured.random is not None)
    ax = style.new_axes(height=2.3 + 0.16 * n_lines) if ax is None else ax
    shares = measured.shares
    ax.axhline(1, color="black", linewidth=0.6, linestyle=":")
    if measured.random is not None:
        label = f"random orders of {measured.unit}s ({len(measured.random)})"
        draw_sets(ax, shares, measured.random, **style.random_look(), label=label)
    for number, (name, one) in enumerate(measured.curves.items()):
        look: dict[str, Any] = {
            **style.line_look(number),
            "label": style.safe_text(f"{name} (CPR {one.cpr:.2f}, CMD {one.cmd:.2f})", 60),
            "markersize": 3.5 + 2.5 * (1 - (number + 1) / len(measured.curves)),
        }
        draw_band(ax, shares, one.faithfulness, *one.bounds.T, **look)
    guides.share_ticks(ax, shares)
    ax.set(xlabel=f"share of {measured.unit}s kept, all others ablated", ylabel=f"faithfulness ({measured.response})")
    return guides.add_legend(ax)


@style.styled
def recall(worlds: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw recall of planted heads against evaluations, one line per method, with the standard error over worlds.

    Args:
        worlds: one row per world searched: ``method``, ``size`` (the evaluations that the method was given), ``spent``
            (evaluations; those of one method and size are averaged) and ``recall`` in [0, 1], as measured by
            ``planted_world`` and the overlap of ``ranking.top(k)`` with the heads planted. The first method is drawn
            on top.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without a row or without one of these columns.

    >>> import pandas as pd
    >>> from matplotlib.figure import Figure
    >>> worlds = pd.DataFrame({"method": "css", "size": [100, 100], "spent": [101, 99], "recall": [0.6, 0.8]})
    >>> recall(worlds, Figure().subplots()).lines[0].get_ydata()
    array([0.7])
    """
    missing = [name for name in ("method", "size", "spent", "recall") if name not in worlds]
    if missing or not len(worlds):
        raise ValueError(
            f"worlds must have one row per world and columns method, size, spent, recall; missing: {missing}"
        )
    ax = style.new_axes(height=2.2 + 0.16 * worlds["method"].nunique()) if ax is None else ax
    _draw_recall(ax, worlds)
    return guides.add_legend(ax)


def _draw_recall(ax: Axes, worlds: pd.DataFrame) -> None:
    methods = list(dict.fromkeys(worlds["method"]))
    for number, method in enumerate(methods):
        of_size = worlds[worlds["method"] == method].groupby("size")
        means = of_size[["spent", "recall"]].mean()
        error = of_size["recall"].sem().fillna(0)
        look = {**style.line_look(number), "label": style.safe_text(method), "zorder": 3 + len(methods) - number}
        ax.errorbar(means["spent"].to_numpy(), means["recall"].to_numpy(), error.to_numpy(), capsize=2, **look)
    guides.log_ticks(ax, worlds["spent"])
    ax.set(ylim=(0, 1.05), xlabel="evaluations", ylabel="recall of planted heads")
    ax.grid(alpha=0.3, linewidth=0.5)


@style.styled
def recalls(worlds: pd.DataFrame, by: str = "n_heads") -> Sequence[Axes]:
    """Draw ``recall`` once for each value of a column, side by side and as wide as a page.

    Args:
        worlds: as for ``recall``, with one more column.
        by: that column.

    Returns:
        The axes.

    Raises:
        ValueError: for a column that ``worlds`` does not have.
    """
    if by not in worlds:
        raise ValueError(f"by must be a column of worlds ({', '.join(worlds.columns)}), got {by!r}")
    values = sorted(worlds[by].unique())
    figure = style.new_figure(style.width_for(style.COLUMN * len(values)), 2.6)
    axes: Sequence[Axes] = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
    for value, ax in zip(values, axes, strict=True):
        _draw_recall(ax, worlds[worlds[by] == value])
        ax.set_title(f"{value:,} {by.removeprefix('n_').replace('_', ' ')}" if by.startswith("n_") else str(value))
        ax.label_outer()
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)))
    return axes


@style.styled
def scale_study(study: ScaleStudy, ax: Axes | None = None) -> Axes:
    """Draw the localization index of each model with its interval, in the order of the study; hollow: not localized.

    The index is the share of the score above chance that is lost, less that of random heads. Models without a proof
    are left out.

    Args:
        study: as ``scale_study`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: where no model has a proof.
    """
    proven = [model for model in study.models if not np.isnan(model.interval).any()]
    if not proven:
        raise ValueError("study must hold a model with a proof on unseen examples")
    ax = style.new_axes(height=0.9 + 0.28 * len(proven)) if ax is None else ax
    for place, model in enumerate(proven):
        ax.plot(model.interval, [place, place], color=style.COLORS[0], linewidth=1.4)
        filled = style.COLORS[0] if model.localized else "white"
        ax.plot(model.localization, place, marker="o", markersize=6, markerfacecolor=filled, color=style.COLORS[0])
    ax.axvline(0, color="0.6", linewidth=0.8, linestyle=":")
    studies = [(model.name, model.study) for model in proven]
    names = [f"{name} ({len(each.proof.heads)} of {each.ranking.grid.size})" for name, each in studies if each.proof]
    guides.names_down(ax, map(style.safe_text, names))
    ax.set(xlim=(min(-0.05, *(model.interval[0] for model in proven)), 1.05))
    hollow = not all(model.localized for model in proven)
    ax.set_xlabel("localization index\n(hollow: not localized)" if hollow else "localization index")
    return ax


@style.styled
def depth_profiles(study: ScaleStudy, ax: Axes | None = None, bins: int = 8) -> Axes:
    """Draw the share of importance against depth, one line per model.

    Args:
        study: as ``scale_study`` gives it.
        ax: axes to draw on; None: those of a new figure.
        bins: parts of equal depth.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.4) if ax is None else ax
    for number, model in enumerate(study.models):
        ax.plot(
            (np.arange(bins) + 0.5) / bins,
            model.shares(bins),
            label=style.safe_text(model.name),
            **style.line_look(number),
        )
    ax.set(xlim=(0, 1), xlabel="depth (0 first layer, 1 last)", ylabel="share of importance")
    ax.set_ylim(bottom=0)
    return guides.add_legend(ax)
