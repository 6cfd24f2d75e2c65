"""Pictures of fitted gates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.gating import AblationCurve, GroupTest
from cs_heads.arguments import check_integer
from cs_heads.methods.gating.result import PHASES, HeadGates
from cs_heads.plot.style import COLUMN, PAGE, RANDOM, ROLES, SMALL, key_below, new_axes, new_figure, styled
from cs_heads.units import Head, HeadLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {name: colour for name, (colour, _, _) in ROLES.items()}
TITLES = {"free": "no penalty", "plus": "pushed open (G⁺)", "minus": "pushed shut (G⁻)"}


@styled
def plot_trajectories(
    gates: HeadGates, seed: int = 0, heads: Iterable[HeadLike] | None = None, axes: Sequence[Axes] | None = None
) -> Sequence[Axes]:
    """Draw the gates of one seed over the steps of each phase, coloured by the head's kind; returns three axes.

    ``heads`` are those drawn, each with its name at the end of its last path; None: all.
    """
    check_integer("seed", seed, 0, gates.trajectory.shape[1] - 1, "those that gates were fitted with")
    axes = new_figure(PAGE, 2.3).subplots(1, 3, sharey=True) if axes is None else axes
    kinds = gates.kind
    shown = None if heads is None else gates.ranking().grid.mask(heads)
    for phase, ax in enumerate(axes):
        ends: list[float] = []
        for index in np.ndindex(kinds.shape):
            if shown is not None and not shown[index]:
                continue
            kind = str(kinds[index])
            width = 0.5 if kind == "irrelevance" and shown is None else 1.3
            path = gates.trajectory[phase, seed, :, index[0], index[1]]
            colour, _, line = ROLES[kind]
            ax.plot(gates.at, path, color=colour, linestyle=line, linewidth=width, zorder=1 + (width > 1))
            if shown is not None:
                # Gates that end alike are named one beside the other.
                place = (float(path[-1]), 4 + 28 * sum(abs(at - path[-1]) < 0.08 for at in ends))
                ends.append(float(path[-1]))
                ax.annotate(
                    str(Head(*index)),
                    (float(gates.at[-1]), place[0]),
                    (place[1], 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=SMALL,
                )
        ax.set_title(TITLES[PHASES[phase]])
        ax.set_xlabel("step")
    axes[0].set_ylabel("gate")
    # One handle a kind: proxies that draw nothing.
    for name, colour in COLOURS.items():
        axes[1].plot([], [], color=colour, linestyle=ROLES[name][2], label=name)
    key_below(axes[1], ncols=3)
    return axes


@styled
def plot_ablation_curves(curves: Sequence[AblationCurve], ax: Axes | None = None) -> Axes:
    """Draw the target's log-probability against the number of heads off, one line a score."""
    if ax is None:
        ax = new_axes(COLUMN, 2.5)
    for curve in curves:
        ax.plot(
            range(len(curve.logprob)),
            curve.logprob,
            color=COLOURS[curve.by],
            linestyle=ROLES[curve.by][2],
            label=f"by {curve.by}",
        )
    ax.set_xlabel("heads ablated")
    ax.set_ylabel("log-probability of the target (nats per token)")
    key_below(ax)
    return ax


@styled
def plot_group(test: GroupTest, ax: Axes | None = None) -> Axes:
    """Draw the score of some heads beside that of all others, as ``score_of_heads`` held one against the other.

    Each head is a point, the line is the mean, and the t-test is the title (figure 4 of Nam et al.).
    """
    ax = new_axes(COLUMN, 2.6) if ax is None else ax
    rng = np.random.default_rng(0)
    colour = COLOURS[test.by]
    for place, values in enumerate((test.within, test.without)):
        across = place + rng.uniform(-0.15, 0.15, len(values))
        ax.scatter(across, values, s=12, alpha=0.6, color=(colour, RANDOM)[place], linewidths=0)
        ax.hlines(values.mean(), place - 0.25, place + 0.25, color="black")
    ax.set_xticks([0, 1], [f"{test.n_inside} heads", f"other {test.n_outside}"])
    ax.set_xlim(-0.5, 1.5)
    ax.set_ylabel(f"{test.by} ({'largest' if test.over == 'any' else 'mean'} over seeds)")
    ax.set_title(f"t = {test.t:.2f}, p = {test.p:.2g}")
    return ax
