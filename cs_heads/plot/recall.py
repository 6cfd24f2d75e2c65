"""How well methods find what was planted, against what they spend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cs_heads.plot.style import COLUMN, PAGE, key_below, line_look, new_axes, new_figure, round_ticks, styled, written

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@styled
def plot_recall(worlds: pd.DataFrame, ax: Axes | None = None, *, key: bool = True) -> Axes:
    """Draw recall of planted heads against evaluations, one line a method, with the standard error over worlds.

    ``worlds`` has a row a world searched: ``method``, ``size`` (what the method was asked to spend), ``spent``
    (evaluations; those of one method and size are averaged) and ``recall`` in [0, 1], as measured by
    ``planted_world`` and the overlap of ``ranking.top(k)`` with the heads planted. The first method is drawn on top;
    ``key`` False leaves out which is which.

    >>> import pandas as pd
    >>> from matplotlib.figure import Figure
    >>> worlds = pd.DataFrame({"method": "css", "size": [100, 100], "spent": [101, 99], "recall": [0.6, 0.8]})
    >>> plot_recall(worlds, Figure().subplots()).lines[0].get_ydata()
    array([0.7])
    """
    missing = [name for name in ("method", "size", "spent", "recall") if name not in worlds]
    if missing or not len(worlds):
        raise ValueError(f"worlds must have a row a world and columns method, size, spent, recall; misses {missing}")
    methods = list(dict.fromkeys(worlds["method"]))
    ax = new_axes(COLUMN, 2.2 + 0.16 * len(methods)) if ax is None else ax
    for number, method in enumerate(methods):
        of_size = worlds[worlds["method"] == method].groupby("size")
        recall, n = of_size["recall"].mean(), of_size["recall"].count()
        error = (of_size["recall"].std() / np.sqrt(n)).fillna(0)
        look = {**line_look(number), "label": written(method), "zorder": 3 + len(methods) - number}
        ax.errorbar(of_size["spent"].mean().to_numpy(), recall.to_numpy(), error.to_numpy(), capsize=2, **look)
    round_ticks(ax, worlds["spent"])
    ax.set_ylim(0, 1.05)
    ax.set_xlabel("evaluations")
    ax.set_ylabel("recall of planted heads")
    ax.grid(alpha=0.3, linewidth=0.5)
    if key:
        key_below(ax)
    return ax


@styled
def plot_recalls(worlds: pd.DataFrame, by: str = "n_heads", axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
    """Draw ``plot_recall`` once for each value of the column ``by``, side by side and as wide as a page."""
    if by not in worlds:
        raise ValueError(f"by must be a column of worlds ({', '.join(worlds.columns)}), got {by!r}")
    values = sorted(worlds[by].unique())
    if axes is None:
        width = max(COLUMN, min(PAGE, COLUMN * len(values)))
        axes = new_figure(width, 2.6).subplots(1, len(values), sharey=True, squeeze=False)[0]
    for number, (value, ax) in enumerate(zip(values, axes, strict=True)):
        plot_recall(worlds[worlds[by] == value], ax, key=False)
        ax.set_title(f"{value:,} {by.removeprefix('n_').replace('_', ' ')}" if by.startswith("n_") else str(value))
        if number:
            ax.set_ylabel("")
    handles, labels = axes[-1].get_legend_handles_labels()
    axes[0].figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)))
    return axes
