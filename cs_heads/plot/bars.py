"""Bars with their intervals: what sets of heads take from tasks, how failures look, and held-out formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.contrasts import HeldOutContrasts
from cs_heads.analysis.drops import TaskDrops
from cs_heads.analysis.failures import FailureModes
from cs_heads.plot import guides, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INTACT: dict[str, Any] = {"color": "0.8", "edgecolor": style.RANDOM, "hatch": ""}


@dataclass(frozen=True)
class Bars:
    """One bar per group, all of one look.

    Attributes:
        label: In the legend.
        values: How long each bar is.
        intervals: Of each bar; none where they are empty.
        number: Gives the color and hatch of the first, second, ... set of bars.
        look: Options of matplotlib's ``bar``.
    """

    label: str | None
    values: Iterable[float]
    intervals: Iterable[Iterable[float]] = ()
    number: int = 0
    look: dict[str, Any] = field(default_factory=dict)


def draw_bars(ax: Axes, series: list[Bars], *, width: float = 0.84, horizontal: bool = False) -> list[Any]:
    """Draw groups of bars around the places 0, 1, ..., with their intervals, and return the bars of each series.

    Args:
        ax: the axes.
        series: one bar of each is in a group.
        width: of a group.
        horizontal: bars go to the right, else up.
    """
    drawn, each = [], width / len(series)
    for place, bars in enumerate(series):
        values, intervals = np.array(list(bars.values), dtype=float), np.array(list(bars.intervals), dtype=float)
        look: dict[str, Any] = {
            "color": style.COLORS[bars.number % len(style.COLORS)],
            "hatch": style.HATCHES[bars.number % len(style.HATCHES)],
            "edgecolor": "white",
            "linewidth": 0.5,
            "label": bars.label,
            **bars.look,
        }
        if len(intervals):
            reach = np.maximum([values - intervals[:, 0], intervals[:, 1] - values], 0)
            look["xerr" if horizontal else "yerr"] = np.nan_to_num(reach)
            look["error_kw"] = {"elinewidth": 0.8, "ecolor": "black", "capsize": 1.5}
        places = np.arange(len(values)) - width / 2 + (place + 0.5) * each
        drawn.append((ax.barh if horizontal else ax.bar)(places, values, each, **look))
    return drawn


@style.styled
def confirmation(proof: Confirmation, ax: Axes | None = None) -> Axes:
    """Draw what each task loses with the heads off, one bar per task with its 95 % interval, those of controls pale.

    The title is the verdict; a gray line on the first bar is what random heads take. A task that cannot show a drop
    says so in place of a bar.

    Args:
        proof: as ``confirm`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    drops = (proof.result, *proof.kin, *proof.controls)
    ax = style.new_axes(height=0.99 + 0.24 * len(drops)) if ax is None else ax
    losses = [drop.loss for drop in drops]
    # The task, and what says the same in other words, stand out from the controls.
    colors = [style.COLORS[0]] * (1 + len(proof.kin)) + [style.COLORS[0] + "66"] * len(proof.controls)
    bars = Bars(None, losses, [drop.loss_interval for drop in drops], look={"color": colors})
    draw_bars(ax, [bars], width=0.72, horizontal=True)
    for place in np.flatnonzero(np.isnan(losses)).tolist():
        # At the left edge, for intervals may reach far.
        ax.text(0.01, place, "baseline too low", va="center", color="0.35", transform=ax.get_yaxis_transform())
    at = proof.random.drop / proof.result.above_chance
    ax.plot([at, at], [-0.48, 0.48], label="random heads", **style.random_look() | {"linewidth": 2.2, "zorder": 4})
    ax.set_title(f"{proof.headline}{' (close)' if proof.close else ''}")
    ax.axvline(0, color="0.7", linewidth=0.6, zorder=0)
    guides.names_down(ax, [style.safe_text(drop.task, 24) + " (kin)" * (drop in proof.kin) for drop in drops])
    ax.set_xlabel("loss with the heads off\n(share of the score above chance)")
    ax.set_xlim(min(ax.get_xlim()[0], -0.02), max(1.02, ax.get_xlim()[1]))
    return guides.add_legend(ax)


@style.styled
def specificity(drops: TaskDrops, ax: Axes | None = None) -> Axes:
    """Draw the score of every task as bars: intact in gray, then one bar per set of heads, with the drop's interval.

    The heads' own task comes first and is marked; a line shows the score of guessing. Bars are hatched, so that sets
    are told apart without colors.

    Args:
        drops: as ``cs_heads.specificity`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    names, sets = list(drops.roles), list(drops.drops)
    if ax is None:
        ax = style.new_axes(style.width_for(0.6 + 0.1 * len(names) * (len(sets) + 2)), 3.05 + 0.14 * (len(sets) + 1))
    first = drops.drops[sets[0]]
    series = [Bars("intact", [first[name].baseline for name in names], look=_INTACT)]
    for number, name in enumerate(sets):
        row = [drops.drops[name][task] for task in names]
        # What a score can be.
        bounds = np.clip([(drop.baseline - drop.interval[1], drop.baseline - drop.interval[0]) for drop in row], 0, 1)
        series.append(Bars(_set_label(drops, name), [drop.score for drop in row], bounds, number))
    draw_bars(ax, series)
    guessed = [(place, first[task].chance) for place, task in enumerate(names) if first[task].chance > 0]
    if guessed:
        at, chances = np.array(guessed).T
        ax.hlines(chances, at - 0.46, at + 0.46, color="black", linewidth=0.8, linestyle=":", label="guessing")
    guides.turned_names(ax, map(style.safe_text, _with_own(drops)))
    ax.set(ylim=(0, 1.03), ylabel="score on unseen examples")
    return guides.add_legend(ax)


@style.styled
def radar(drops: TaskDrops, ax: Axes | None = None) -> Axes:
    """Draw the scores of ``specificity`` around a circle: one ring for the intact model, one per set of heads.

    Figure 1 of Bair et al. (arXiv 2603.03335) is drawn so; bars are read more exactly.

    Args:
        drops: of three tasks or more.
        ax: polar axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: for fewer than three tasks, or axes that are not polar.
    """
    names = list(drops.roles)
    if len(names) < 3:
        raise ValueError(f"drops must be of three tasks or more to be drawn around a circle, got {len(names)}")
    polar: Any = style.new_axes(height=2.5 + 0.14 * (len(drops.drops) + 1), projection="polar") if ax is None else ax
    if polar.name != "polar":
        raise ValueError(f"ax must be polar axes, got {polar.name}")
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    polar.set(theta_offset=np.pi / 2, theta_direction=-1)
    first = next(iter(drops.drops.values()))
    intact: dict[str, Any] = {"color": style.RANDOM, "linestyle": "-", "marker": "."}
    rings = [("intact", [first[name].baseline for name in names], intact)]
    for number, (name, row) in enumerate(drops.drops.items()):
        look = {**style.line_look(number), "linestyle": style.LINES[1 + number % 3]}
        rings.append((_set_label(drops, name), [row[task].score for task in names], look))
    for label, values, look in rings:
        ring = np.append(angles, angles[0]), [*values, values[0]]
        polar.plot(*ring, label=label, markersize=3, **look)
        polar.fill(*ring, color=look["color"], alpha=0.08)
    polar.set_xticks(angles, [_in_short_lines(name) for name in _with_own(drops)])
    for text, angle in zip(polar.get_xticklabels(), angles, strict=True):
        across, up = np.sin(angle), np.cos(angle)
        text.set_horizontalalignment("center" if abs(across) < 0.1 else "left" if across > 0 else "right")
        text.set_verticalalignment("center" if abs(up) < 0.9 else "bottom" if up > 0 else "top")
    polar.tick_params(axis="x", pad=1)
    polar.set_ylim(0, 1)
    polar.set_yticks([0.5, 1.0], ["0.5", "1"])
    # Between two names at the right, where these stand one below the other.
    polar.set_rlabel_position((len(names) // 4 + 0.5) * 360 / len(names))
    polar.grid(color="0.85", linewidth=0.5)
    polar.spines["polar"].set_visible(False)
    return guides.add_legend(polar)


def _in_short_lines(name: str) -> str:
    """A name in lines so short that they fit beside a circle; it is broken after a stroke too."""
    return fill(style.safe_text(name).replace("/", "/ "), 12, break_long_words=False).replace("/ ", "/")


def _with_own(drops: TaskDrops) -> list[str]:
    """The tasks, with a mark at those that heads were found on."""
    own = set(drops.own.values())
    return [f"{name} (own)" if name in own else name for name in drops.roles]


def _set_label(drops: TaskDrops, name: str) -> str:
    return style.safe_text(f"{name} heads off ({len(drops.heads[name])})")


@style.styled
def failures(modes: FailureModes, ax: Axes | None = None) -> Axes:
    """Draw how often each kind of failure is seen, one bar per set of heads, with its interval; intact in gray.

    Args:
        modes: as ``cs.failures`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    kinds = list(next(iter(modes.modes.values())))
    series = []
    for number, (name, seen) in enumerate(modes.modes.items()):
        shares, label = [seen[kind] for kind in kinds], style.safe_text(name)
        look = {} if number else _INTACT
        series.append(Bars(label, [one.share for one in shares], [one.interval for one in shares], number - 1, look))
    ax = style.new_axes(style.width_for(0.5 + 0.13 * len(kinds) * (len(series) + 1.5)), 2.4) if ax is None else ax
    draw_bars(ax, series)
    ax.set_xticks(range(len(kinds)), [kind.replace(" ", "\n") for kind in kinds])
    ax.set(ylim=(0, 1.03), ylabel="share of unseen examples")
    return guides.add_legend(ax)


@style.styled
def contrasts(found: HeldOutContrasts, ax: Axes | None = None) -> Axes:
    """Draw the score of every held-out task in both formats under contrastive gates, intact as a short line.

    There is one group of bars per held-out task and retained format; the bar of the format retained is plain, that of
    the other hatched.

    Args:
        found: as ``held_out_contrasts`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    groups = list(dict.fromkeys((s.held_out, s.retained) for s in found.scores))
    formats = list(dict.fromkeys(s.measured for s in found.scores))
    chosen = {((s.held_out, s.retained), s.measured): s for s in found.scores}
    rows = [[chosen[group, measured] for group in groups] for measured in formats]
    ax = style.new_axes(style.width_for(0.7 + 0.42 * len(groups)), 3.0) if ax is None else ax
    series = [
        Bars(None, [s.score for s in row], [s.interval for s in row], number, {"hatch": ""})
        for number, row in enumerate(rows)
    ]
    for bars, row in zip(draw_bars(ax, series, width=0.72), rows, strict=True):
        for bar, score in zip(bars, row, strict=True):
            bar.set_hatch("" if score.measured == score.retained else "////")
            ax.hlines(score.baseline, bar.get_x(), bar.get_x() + bar.get_width(), color="black", linewidth=1)
    # Bars that draw nothing: in the legend a format is plain.
    for number, measured in enumerate(formats):
        ax.bar([np.nan], [np.nan], color=style.COLORS[number], label=style.safe_text(f"measured: {measured}"))
    ax.bar([np.nan], [np.nan], color="0.6", edgecolor="white", hatch="////", label="the format forgotten")
    ax.plot([], [], color="black", linewidth=1, label="intact")
    names = [(style.safe_text(held), style.safe_text(retained)) for held, retained in groups]
    guides.turned_names(ax, [f"{held}\nretains {retained}" for held, retained in names])
    ax.set(ylim=(0, 1.03), ylabel="score of the held-out task")
    return guides.add_legend(ax)
