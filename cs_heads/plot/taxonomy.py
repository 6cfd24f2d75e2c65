"""Pictures of fitted gates taken together: kinds by task, distributions, toggled gates, held-out contrasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.gating import HeldOutContrasts, Taxonomy, ToggleCurve, score_distribution
from cs_heads.methods.gating.result import SCORES, HeadGates
from cs_heads.plot.style import COLOURS, COLUMN, ROLES, column_or_page, key_below, new_axes, styled, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def plot_taxonomy(found: Taxonomy, ax: Axes | None = None) -> Axes:
    """Draw the share of heads of each kind by fit: a bar from ``always`` to ``any``, a mark at the mean over seeds."""
    names = list(found.shares)
    ax = new_axes(column_or_page(0.6 + 0.3 * len(names)), 2.4) if ax is None else ax
    for number, score in enumerate(SCORES):
        colour, marker, _ = ROLES[score]
        places = np.arange(len(names)) + 0.22 * (number - 1)
        low, mean, high = (
            np.array([found.shares[n][kind, score] for n in names]) for kind in ("always", "mean", "any")
        )
        ax.bar(places, high - low, 0.16, bottom=low, color=colour, alpha=0.3, linewidth=0)
        ax.plot(places, mean, linestyle="", marker=marker, color=colour, label=score)
    ax.set_xticks(range(len(names)), [written(name) for name in names], rotation=35, ha="right", rotation_mode="anchor")
    ax.set_ylim(-0.02, 1.02)
    ax.set_ylabel("share of heads\n(always to any seed)")
    key_below(ax)
    return ax


@styled
def plot_score_ecdf(gates: HeadGates, ax: Axes | None = None) -> Axes:
    """Draw the empirical distribution of each score over all heads and seeds (figure 3a of Nam et al.)."""
    ax = new_axes(COLUMN, 2.4) if ax is None else ax
    reached = score_distribution(gates, bins=200, cumulative=True)
    for score in SCORES:
        ax.plot(reached.index, reached[score], color=ROLES[score][0], linestyle=ROLES[score][2], label=score)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("score")
    ax.set_ylabel("share of heads\nat most so high")
    key_below(ax)
    return ax


@styled
def plot_toggle_curves(curves: Sequence[ToggleCurve], ax: Axes | None = None) -> Axes:
    """Draw what shutting heads does against opening them, in the order of each score; bands are over seeds."""
    ax = new_axes(COLUMN, 2.6) if ax is None else ax
    ax.axhline(0, color="0.6", linewidth=0.8, linestyle=":")
    for curve in curves:
        colour, marker, line = ROLES[curve.by]
        low, high = curve.difference.min(axis=0), curve.difference.max(axis=0)
        ax.fill_between(curve.n_heads, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.plot(
            curve.n_heads,
            curve.difference.mean(axis=0),
            color=colour,
            marker=marker,
            linestyle=line,
            label=f"by {curve.by}",
        )
    ax.locator_params(axis="y", nbins=5)  # as many at any height: their width moves the label
    ax.set_xlabel("heads shut or open, the rest at G⁺")
    ax.set_ylabel("difference of log-probability\n(nats per token)")
    key_below(ax)
    return ax


@styled
def plot_contrasts(contrasts: HeldOutContrasts, ax: Axes | None = None) -> Axes:
    """Draw the score of every held-out task in both formats under contrastive gates, intact as a short line.

    One group of bars a held-out task and retained format; the bar of the format retained is plain, that of the other
    hatched.
    """
    groups = list(dict.fromkeys((s.held_out, s.retained) for s in contrasts.scores))
    formats = list(dict.fromkeys(s.measured for s in contrasts.scores))
    ax = new_axes(column_or_page(0.7 + 0.42 * len(groups)), 3.0) if ax is None else ax
    for number, measured in enumerate(formats):
        chosen = {(s.held_out, s.retained): s for s in contrasts.scores if s.measured == measured}
        row = [chosen[group] for group in groups]
        places = np.arange(len(groups)) + 0.36 * (number - 0.5)
        bounds = np.array([s.interval for s in row])
        middle = np.array([s.score for s in row])
        bars = ax.bar(
            places,
            middle,
            0.34,
            yerr=np.maximum([middle - bounds[:, 0], bounds[:, 1] - middle], 0),
            color=COLOURS[number],
            edgecolor="white",
            linewidth=0.5,
            error_kw={"elinewidth": 0.8, "capsize": 1.5},
        )
        for bar, score in zip(bars, row, strict=True):
            bar.set_hatch("" if score.measured == score.retained else "////")
        ax.hlines([s.baseline for s in row], places - 0.17, places + 0.17, color="black", linewidth=1)
        # Bars that draw nothing: in the key a format is plain.
        ax.bar([np.nan], [np.nan], color=COLOURS[number], label=written(f"measured: {measured}"))
    ax.bar([np.nan], [np.nan], color="0.6", edgecolor="white", hatch="////", label="the format forgotten")
    ax.plot([], [], color="black", linewidth=1, label="intact")
    ax.set_xticks(
        range(len(groups)),
        [f"{written(held)}\nretains {written(retained)}" for held, retained in groups],
        rotation=35,
        ha="right",
        rotation_mode="anchor",
    )
    ax.set_ylim(0, 1.03)
    ax.set_ylabel("score of the held-out task")
    key_below(ax)
    return ax
