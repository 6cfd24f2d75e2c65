"""Fitted gates: their paths, the kinds of heads they tell, and what bears these out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cs_heads.analysis.gating import GroupTest, ToggleCurve, score_distribution
from cs_heads.arguments import check_integer
from cs_heads.methods.gating.result import PHASES, SCORES, HeadGates
from cs_heads.plot import guides, style
from cs_heads.plot.curves import draw_sets
from cs_heads.units import HeadLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CHANNELS = ("facilitation", "interference")
TITLES = {"free": "no penalty", "plus": "pushed open (G⁺)", "minus": "pushed shut (G⁻)"}


def _line(kind: str) -> dict[str, Any]:
    """Color and line style of a kind of head."""
    color, _, line = style.ROLES[kind]
    return {"color": color, "linestyle": line}


@style.styled
def trajectories(gates: HeadGates, seed: int = 0, heads: Iterable[HeadLike] | None = None) -> Sequence[Axes]:
    """Draw the gates of one seed over the steps of each phase, colored by the kind of head.

    Args:
        gates: as ``fit_gates`` and ``causal_head_gating`` fit them.
        seed: which of the fits, from 0.
        heads: those drawn, each with its name at the end of its last path; None: all.

    Returns:
        The three axes.

    Raises:
        ValueError: for a seed that the gates were not fitted with.
    """
    check_integer("seed", seed, 0, gates.trajectory.shape[1] - 1, "those that gates were fitted with")
    axes: Sequence[Axes] = style.new_figure(style.PAGE, 2.3).subplots(1, 3, sharey=True)
    kinds = gates.kind
    grid = gates.ranking().grid
    shown = np.ones(kinds.shape, bool) if heads is None else grid.mask(heads)
    for phase, ax in enumerate(axes):
        ends: list[float] = []
        for layer, head in np.argwhere(shown):
            kind = str(kinds[layer, head])
            thin = kind == "irrelevance" and heads is None
            path = gates.trajectory[phase, seed, :, layer, head]
            ax.plot(gates.at, path, linewidth=0.5 if thin else 1.3, zorder=1 if thin else 2, **_line(kind))
            if heads is not None:
                # Gates that end alike are named one beside the other.
                end, right = float(path[-1]), 4 + 28 * sum(abs(at - path[-1]) < 0.08 for at in ends)
                ends.append(end)
                name, at = str(grid.unit(int(layer * grid.n_units + head))), (float(gates.at[-1]), end)
                ax.annotate(name, at, (right, 0), textcoords="offset points", va="center", fontsize=style.SMALL)
        ax.set(title=TITLES[PHASES[phase]], xlabel="step")
    axes[0].set_ylabel("gate")
    # One handle per kind: proxies that draw nothing.
    for kind in style.ROLES:
        axes[1].plot([], [], label=kind, **_line(kind))
    style.figure_of(axes).legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return axes


@style.styled
def taxonomy(found: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the share of heads of each kind by fit: a bar from ``always`` to ``any``, a mark at the mean over seeds.

    Args:
        found: as ``cs_heads.taxonomy`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    names = list(dict.fromkeys(found["fit"]))
    ax = style.new_axes(style.width_for(0.6 + 0.3 * len(names)), 2.4) if ax is None else ax
    for number, score in enumerate(SCORES):
        color, marker, _ = style.ROLES[score]
        places = np.arange(len(names)) + 0.22 * (number - 1)
        low, mean, high = (found.loc[found["heads"] == kind, score].to_numpy() for kind in ("always", "mean", "any"))
        ax.bar(places, high - low, 0.16, bottom=low, color=color, alpha=0.3, linewidth=0)
        ax.plot(places, mean, linestyle="", marker=marker, color=color, label=score)
    guides.turned_names(ax, map(style.safe_text, names))
    ax.set(ylim=(-0.02, 1.02), ylabel="share of heads\n(always to any seed)")
    return guides.add_legend(ax)


@style.styled
def score_ecdf(gates: HeadGates, ax: Axes | None = None) -> Axes:
    """Draw the empirical distribution of each score over all heads and seeds (figure 3a of Nam et al.).

    Args:
        gates: as ``causal_head_gating`` fits them.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.4) if ax is None else ax
    reached = score_distribution(gates, bins=200)
    for score in SCORES:
        ax.plot(reached.index, reached[score], label=score, **_line(score))
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="score", ylabel="cumulative share of heads")
    return guides.add_legend(ax)


@style.styled
def gate_plane(gates: HeadGates, ax: Axes | None = None) -> Axes:
    """Draw each head by its two gates, mean over seeds: pushed shut across, pushed open up (figure 1c of Nam et al.).

    Args:
        gates: as ``fit_gates`` fits them.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.6) if ax is None else ax
    plus, minus, kinds = gates.plus.mean(axis=0), gates.minus.mean(axis=0), gates.kind
    for kind, (color, marker, _) in style.ROLES.items():
        chosen = kinds == kind
        ax.scatter(minus[chosen], plus[chosen], s=14, alpha=0.7, color=color, marker=marker, linewidths=0, label=kind)
    ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="gate pushed shut (G⁻)", ylabel="gate pushed open (G⁺)")
    return guides.add_legend(ax)


@style.styled
def toggle_curves(curves: Sequence[ToggleCurve], ax: Axes | None = None) -> Axes:
    """Draw what shutting heads does against opening them, in the order of each score; bands are over seeds.

    Args:
        curves: as ``cs_heads.toggle_curves`` gives them.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.6) if ax is None else ax
    ax.axhline(0, color="0.6", linewidth=0.8, linestyle=":")
    for curve in curves:
        look = {**_line(curve.by), "marker": style.ROLES[curve.by][1], "label": f"by {curve.by}"}
        draw_sets(ax, curve.n_heads, curve.difference, **look)
    ax.locator_params(axis="y", nbins=5)  # as many at any height: their width moves the label
    ax.set(xlabel="heads shut or open, the rest at G⁺", ylabel="difference of log-probability\n(nats per token)")
    return guides.add_legend(ax)


@style.styled
def group(test: GroupTest, ax: Axes | None = None) -> Axes:
    """Draw the score of some heads beside that of all others (figure 4 of Nam et al.).

    Each head is a point, the line is the mean, and the t-test is the title.

    Args:
        test: as ``score_of_heads`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.6) if ax is None else ax
    rng = np.random.default_rng(0)
    for place, (values, color) in enumerate(((test.scores, style.ROLES[test.by][0]), (test.others, style.RANDOM))):
        across = place + rng.uniform(-0.15, 0.15, len(values))
        ax.scatter(across, values, s=12, alpha=0.6, color=color, linewidths=0)
        ax.hlines(values.mean(), place - 0.25, place + 0.25, color="black")
    ax.set_xticks([0, 1], [f"{len(test.scores)} heads", f"other {len(test.others)}"])
    over = "largest" if test.over == "any" else "mean"
    ax.set(xlim=(-0.5, 1.5), ylabel=f"{test.by} ({over} over seeds)", title=f"t = {test.t:.2f}, p = {test.p:.2g}")
    return ax


@style.styled
def gate_maps(gates: HeadGates) -> Sequence[Axes]:
    """Draw both scores of every head in two channels, layers down and heads across (figure 3b of Nam et al.).

    Blue is facilitation and orange interference, dark is both, white neither: left in every seed, right in any.

    Args:
        gates: as ``fit_gates`` fits them.

    Returns:
        The two axes.
    """
    from matplotlib.colors import to_rgb

    n_layers, n_heads = gates.free.shape[1:]
    word = gates.ranking().grid.word
    height = min(9.0, 0.8 + max(1.2, 2.6 * n_layers / n_heads))
    axes: Sequence[Axes] = style.new_figure(style.PAGE, height).subplots(1, 2, sharey=True)
    for ax, title, scores in zip(axes, ("in every seed", "in any seed"), (gates.always, gates.any), strict=True):
        # Each channel takes its complement from white.
        taken = [scores(name)[..., None] * (1 - np.array(to_rgb(style.ROLES[name][0]))) for name in _CHANNELS]
        ax.imshow(np.clip(1 - sum(taken), 0, 1), interpolation="none")
        ax.set(title=title, xlabel=word, xticks=guides.some_of(n_heads, 12), yticks=guides.some_of(n_layers, 16))
    axes[0].set_ylabel("layer")
    for name in _CHANNELS:
        axes[0].plot([], [], "s", color=style.ROLES[name][0], label=name)
    style.figure_of(axes).legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return axes


@style.styled
def mediating(frame: pd.DataFrame, sigmas: float, ax: Axes | None = None) -> Axes:
    """Draw the facilitation of each head against its indirect effect (figure 4a of Nam et al.).

    Args:
        frame: one row a head: ``sigmas``, its effect in standard deviations over heads, and ``facilitation_any``.
        sigmas: from which on a head mediates; a line.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    ax = style.new_axes(height=2.6) if ax is None else ax
    mediates = frame["sigmas"] >= sigmas
    for rows, color, label in (
        (~mediates, style.RANDOM, "other heads"),
        (mediates, style.ROLES["facilitation"][0], f"{sigmas:g} standard deviations or more"),
    ):
        at = frame.loc[rows]
        ax.scatter(at["sigmas"], at["facilitation_any"], s=12, alpha=0.6, color=color, linewidths=0, label=label)
    ax.axvline(sigmas, color="0.6", linewidth=0.8, linestyle=":")
    ax.set(xlabel="indirect effect (standard deviations)", ylabel="facilitation (largest over seeds)")
    return guides.add_legend(ax)
