"""Pictures of the same study on several models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.scale import ScaleStudy
from cs_heads.plot.style import COLOURS, COLUMN, key_below, line_look, new_axes, styled, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def plot_scale(scale: ScaleStudy, ax: Axes | None = None) -> Axes:
    """Draw the localization index of each model with its interval, in the order of the study; hollow = not localized.

    The index is the share of the score above chance that is lost, less that of random heads.
    Models without a proof are left out; none with one raises ``ValueError``.
    """
    proven = [model for model in scale.models if model.localization is not None and model.interval is not None]
    if not proven:
        raise ValueError("scale must hold a model with a proof on unseen examples")
    ax = new_axes(COLUMN, 0.9 + 0.28 * len(proven)) if ax is None else ax
    for place, model in enumerate(proven):
        assert model.localization is not None and model.interval is not None  # noqa: PT018
        low, high = model.interval
        ax.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.4)
        filled = COLOURS[0] if model.localized else "white"
        ax.plot(model.localization, place, marker="o", markersize=6, markerfacecolor=filled, color=COLOURS[0])
    ax.axvline(0, color="0.6", linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(proven)), [written(f"{m.name} ({m.n_ablated} of {m.ranking.grid.size})") for m in proven])
    ax.set_ylim(len(proven) - 0.5, -0.5)
    ax.set_xlim(min(-0.05, *(m.interval[0] for m in proven if m.interval)), 1.05)
    hollow = any(not model.localized for model in proven)
    ax.set_xlabel("localization index\n(hollow: not localized)" if hollow else "localization index")
    return ax


@styled
def plot_depth_profiles(scale: ScaleStudy, ax: Axes | None = None, bins: int = 8) -> Axes:
    """Draw the share of importance against depth, one line a model, in ``bins`` parts of equal depth."""
    ax = new_axes(COLUMN, 2.4) if ax is None else ax
    middles = (np.arange(bins) + 0.5) / bins
    for number, model in enumerate(scale.models):
        ax.plot(middles, model.shares(bins), label=written(model.name), **line_look(number))
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("depth (0 first layer, 1 last)")
    ax.set_ylabel("share of importance")
    key_below(ax)
    return ax
