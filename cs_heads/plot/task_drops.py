"""Pictures of what sets of heads take from tasks: bars, radar, and the matrix of found on and measured on."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.analysis.drops import TaskDrops
from cs_heads.analysis.losses import TaskDrop
from cs_heads.plot.matrix import draw_matrix, matrix_axes
from cs_heads.plot.style import COLOURS, COLUMN, HATCHES, RANDOM, column_or_page, key_below, new_axes, styled, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def plot_specificity(drops: TaskDrops, ax: Axes | None = None) -> Axes:
    """Draw the score of every task as bars: intact in grey, then one bar a set of heads, with the interval of its drop.

    The heads' own task comes first and is marked; a line shows what guessing scores. Bars are hatched, so that sets are
    told apart without colours. Returns the axes.
    """
    names = list(drops.roles)
    found = list(drops.drops)
    if ax is None:
        ax = new_axes(column_or_page(0.6 + 0.1 * len(names) * (len(found) + 2)), 2.9 + 0.14 * (len(found) + 1))
    width = 0.84 / (len(found) + 1)
    places = np.arange(len(names))
    first = drops.drops[found[0]]
    intact = [first[name].baseline for name in names]
    ax.bar(places - 0.42 + width / 2, intact, width, color="0.8", edgecolor=RANDOM, linewidth=0.5, label="intact")
    for number, name in enumerate(found, start=1):
        row = [drops.drops[name][task] for task in names]
        ax.bar(
            places - 0.42 + (number + 0.5) * width,
            [drop.score for drop in row],
            width,
            yerr=_errors(row),
            color=COLOURS[(number - 1) % len(COLOURS)],
            edgecolor="white",
            hatch=HATCHES[(number - 1) % len(HATCHES)],
            linewidth=0.5,
            error_kw={"elinewidth": 0.8, "ecolor": "black", "capsize": 1.5},
            label=_label(drops, name),
        )
    guessed = [(place, first[task].chance) for place, task in enumerate(names) if first[task].chance > 0]
    if guessed:
        at, chances = np.array(guessed).T
        ax.hlines(chances, at - 0.46, at + 0.46, color="black", linewidth=0.8, linestyle=":", label="guessing")
    own = set(drops.own.values())
    labels = [written(f"{name} (own)" if name in own else name) for name in names]
    ax.set_xticks(places, labels, rotation=35, ha="right", rotation_mode="anchor")
    ax.set_ylim(0, 1.03)
    ax.set_ylabel("score on unseen examples")
    key_below(ax)
    return ax


@styled
def plot_radar(drops: TaskDrops, ax: Axes | None = None) -> Axes:
    """Draw the same scores around a circle, one ring for the intact model and one for each set of heads.

    ``ax`` must be polar. Figure 1 of Bair et al. (arXiv 2603.03335) is drawn so; bars are read more exactly. Fewer
    than three tasks, or axes that are not polar, raise ``ValueError``.
    """
    names = list(drops.roles)
    if len(names) < 3:
        raise ValueError(f"drops must be of three tasks or more to be drawn around a circle, got {len(names)}")
    polar: Any = new_axes(COLUMN, 2.5 + 0.14 * (len(drops.drops) + 1), projection="polar") if ax is None else ax
    if polar.name != "polar":
        raise ValueError(f"ax must be polar axes, got {polar.name}")
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    closed = np.append(angles, angles[0])
    polar.set_theta_offset(np.pi / 2)
    polar.set_theta_direction(-1)
    first = next(iter(drops.drops.values()))
    rings = [("intact", [first[name].baseline for name in names], {"color": RANDOM, "linestyle": "-", "marker": "."})]
    for number, (name, row) in enumerate(drops.drops.items()):
        look = {
            "color": COLOURS[number % len(COLOURS)],
            "linestyle": ("--", "-.", ":")[number % 3],
            "marker": "so^D"[number % 4],
        }
        rings.append((_label(drops, name), [row[task].score for task in names], look))
    for label, values, look in rings:
        polar.plot(closed, [*values, values[0]], label=label, markersize=3, **look)
        polar.fill(closed, [*values, values[0]], color=look["color"], alpha=0.08)
    own = set(drops.own.values())
    polar.set_xticks(angles, [_around(f"{name} (own)" if name in own else name) for name in names])
    for label, angle in zip(polar.get_xticklabels(), angles, strict=True):
        across, up = np.sin(angle), np.cos(angle)
        label.set_horizontalalignment("center" if abs(across) < 0.1 else "left" if across > 0 else "right")
        label.set_verticalalignment("center" if abs(up) < 0.9 else "bottom" if up > 0 else "top")
    polar.tick_params(axis="x", pad=1)
    polar.set_ylim(0, 1)
    polar.set_yticks([0.5, 1.0], ["0.5", "1"])
    # Between two names at the right, where these stand one below the other.
    polar.set_rlabel_position((len(names) // 4 + 0.5) * 360 / len(names))
    polar.grid(color="0.85", linewidth=0.5)
    polar.spines["polar"].set_visible(False)
    key_below(polar)
    axes: Axes = polar
    return axes


@styled
def plot_drop_matrix(drops: TaskDrops, ax: Axes | None = None, value: str = "relative_drop") -> Axes:
    """Draw what each set of heads takes from each task: sets down, tasks across, the own task of a set framed.

    ``value`` is a property of ``TaskDrop``; negative drops are white, as none.
    """
    from matplotlib.patches import Rectangle

    table = drops.matrix(value)
    rows, columns = [str(name) for name in table.index], [str(name) for name in table.columns]
    if ax is None:
        ax = matrix_axes(len(rows), len(columns), [*rows, *columns])
    draw_matrix(ax, table.to_numpy(dtype=float), rows, columns, label=value.replace("_", " "))
    for place, name in enumerate(rows):
        if name not in drops.own:
            continue
        column = columns.index(drops.own[name])
        ax.add_patch(
            Rectangle((column - 0.48, place - 0.46), 0.96, 0.92, fill=False, edgecolor=COLOURS[3], linewidth=1.4)
        )
    ax.set_ylabel("heads found on")
    ax.set_xlabel("measured on (framed: their own)" if drops.own else "measured on")
    return ax


def _around(name: str) -> str:
    """A name in lines so short that they fit beside a circle; it is broken after a stroke too."""
    return fill(written(name).replace("/", "/ "), 12, break_long_words=False).replace("/ ", "/")


def _label(drops: TaskDrops, name: str) -> str:
    return written(f"{name} heads off ({len(drops.heads[name])})")


def _errors(row: list[TaskDrop]) -> np.ndarray:
    """How far the interval of each drop reaches below and above the score, within what a score can be."""
    bounds = [
        (min(drop.interval[1] - drop.drop, drop.score), min(drop.drop - drop.interval[0], 1 - drop.score))
        for drop in row
    ]
    return np.maximum(np.array(bounds).T, 0)
