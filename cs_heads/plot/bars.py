"""Bars with their intervals: what sets of heads take from tasks, how failures look, and held-out formats."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.contrasts import HeldOutContrasts
from cs_heads.analysis.drops import TaskDrops
from cs_heads.analysis.failures import FailureModes
from cs_heads.plot import parts, style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_INTACT: dict[str, Any] = {"color": "0.8", "edgecolor": style.RANDOM, "hatch": ""}


@style.styled
def confirmation(proof: Any, ax: Axes | None = None, *, relative: bool = True, random: float | None = None) -> Axes:
    """Draw how much of each task is lost with the heads off, one bar per task with its 95 % interval.

    The title is the verdict of a ``Confirmation``. A task that cannot show a drop (``too_low``) says so in place of a
    bar.

    Args:
        proof: a ``Confirmation``, any result or frame with the columns ``task``, ``baseline``, ``drop``, ``low`` and
            ``high``, or a dict of these by the name of their heads. Sets of heads, also those of one ``TaskDrops`` (a
            column ``found``), are series of bars, told apart by color and hatching.
        ax: axes to draw on; None: those of a new figure.
        relative: drops are shares of the baseline, with the intervals in ``relative_low`` and ``relative_high``; False:
            they are in the score, from 0 to 1.
        random: drop of random heads on the first task, marked by a gray line; None: that of a ``Confirmation``.

    Returns:
        The axes.

    Raises:
        ValueError: for a table without a row or without one of these columns.
    """
    if random is None and isinstance(proof, Confirmation):
        random = proof.random_drop
    series = _series(proof)
    tasks = list(dict.fromkeys(task for frame in series.values() for task in frame["task"]))
    each = 0.8 / len(series)
    if ax is None:
        ax = style.new_axes(height=0.85 + 0.24 * len(tasks) * max(1.0, 0.6 * len(series)) + 0.14 * len(series))
    for number, (name, frame) in enumerate(series.items()):
        drop, *bounds = _shares(frame) if relative else _numbers(frame, "drop", "low", "high")
        places = np.array([tasks.index(task) for task in frame["task"]]) + (number - (len(series) - 1) / 2) * each
        label = style.safe_text(name) or None
        parts.interval_bars(ax, places, drop, np.array(bounds), each * 0.9, number=number, horizontal=True, label=label)
        for place in places[np.isnan(drop)]:
            ax.text(0.01, place, "baseline too low", va="center", color="0.35")
    if random is not None:
        first = next(iter(series.values()))["baseline"].iloc[0]
        at = random / first if relative and first else random
        ax.plot([at, at], [-0.48, 0.48], label="random heads", **{**parts.random_look(), "linewidth": 2.2, "zorder": 4})
    if isinstance(proof, Confirmation):
        ax.set_title(f"{proof.headline}{' (close)' if proof.close else ''}")
    ax.axvline(0, color="0.7", linewidth=0.6, zorder=0)
    kin = {task for frame in series.values() if "role" in frame for task in frame["task"][frame["role"] == "kin"]}
    parts.names_down(ax, [style.safe_text(task, 24) + " (kin)" * (task in kin) for task in tasks])
    ax.set_xlabel(
        f"score lost with the heads off\n({'share of the intact score' if relative else 'scores are from 0 to 1'})"
    )
    if relative:
        ax.set_xlim(min(ax.get_xlim()[0], -0.02), max(1.02, ax.get_xlim()[1]))
    return parts.add_legend(ax)


def _series(proof: Any) -> dict[str, pd.DataFrame]:
    """The tables to draw, by the name of their heads."""
    if isinstance(proof, Mapping):
        return {str(name): _frame(one) for name, one in proof.items()}
    frame = _frame(proof)
    if "found" not in frame or frame["found"].nunique() == 1:
        return {"": frame}
    return {str(name): rows for name, rows in frame.groupby("found", sort=False)}


def _frame(one: Any) -> pd.DataFrame:
    frame: pd.DataFrame = one.to_frame() if hasattr(one, "to_frame") else one
    columns = ("task", "baseline", "drop", "low", "high")
    missing = [name for name in columns if name not in frame]
    if missing or not len(frame):
        raise ValueError(f"proof must have one row per task and columns {', '.join(columns)}; missing: {missing}")
    return frame


def _numbers(frame: pd.DataFrame, *columns: str) -> tuple[style.Numbers, ...]:
    """Columns as numbers; NaN where there is none."""
    return tuple(frame.reindex(columns=list(columns)).to_numpy(dtype=float).T)


def _shares(frame: pd.DataFrame) -> tuple[style.Numbers, ...]:
    """Drops as shares of the baseline, with the intervals that know of its uncertainty: none where they are missing."""
    drop, baseline = _numbers(frame, "drop", "baseline")
    able = (baseline > 0) & (frame["too_low"].isna().to_numpy() if "too_low" in frame else True)
    share = np.divide(drop, baseline, out=np.full(len(frame), np.nan), where=able)
    return share, *_numbers(frame, "relative_low", "relative_high")


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
    width = 0.84 / (len(sets) + 1)
    places = np.arange(len(names)) - 0.42 + width / 2
    first = drops.drops[sets[0]]
    ax.bar(places, [first[name].baseline for name in names], width, linewidth=0.5, label="intact", **_INTACT)
    for number, name in enumerate(sets):
        row = [drops.drops[name][task] for task in names]
        baseline, score = (np.array([getattr(drop, part) for drop in row]) for part in ("baseline", "score"))
        # What a score can be.
        bounds = np.clip(baseline - np.array([drop.interval[::-1] for drop in row]).T, 0, 1)
        label = _set_label(drops, name)
        parts.interval_bars(ax, places + (number + 1) * width, score, bounds, width, number=number, label=label)
    guessed = [(place, first[task].chance) for place, task in enumerate(names) if first[task].chance > 0]
    if guessed:
        at, chances = np.array(guessed).T
        ax.hlines(chances, at - 0.46, at + 0.46, color="black", linewidth=0.8, linestyle=":", label="guessing")
    parts.turned_names(ax, map(style.safe_text, _with_own(drops)))
    ax.set(ylim=(0, 1.03), ylabel="score on unseen examples")
    return parts.add_legend(ax)


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
    return parts.add_legend(polar)


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
    sets = list(modes.modes)
    kinds = list(modes.modes[sets[0]])
    ax = style.new_axes(style.width_for(0.5 + 0.13 * len(kinds) * (len(sets) + 1.5)), 2.4) if ax is None else ax
    width = 0.84 / len(sets)
    for number, name in enumerate(sets):
        places = np.arange(len(kinds)) - 0.42 + (number + 0.5) * width
        shares = [modes.modes[name][kind] for kind in kinds]
        seen, bounds = np.array([share.share for share in shares]), np.array([share.interval for share in shares]).T
        look = {} if number else _INTACT
        label = style.safe_text(name)
        parts.interval_bars(ax, places, seen, bounds, width, number=number - 1, label=label, **look)
    ax.set_xticks(range(len(kinds)), [kind.replace(" ", "\n") for kind in kinds])
    ax.set(ylim=(0, 1.03), ylabel="share of unseen examples")
    return parts.add_legend(ax)


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
    ax = style.new_axes(style.width_for(0.7 + 0.42 * len(groups)), 3.0) if ax is None else ax
    for number, measured in enumerate(formats):
        chosen = {(s.held_out, s.retained): s for s in found.scores if s.measured == measured}
        row = [chosen[group] for group in groups]
        places = np.arange(len(groups)) + 0.36 * (number - 0.5)
        scores, bounds = np.array([s.score for s in row]), np.array([s.interval for s in row]).T
        bars = parts.interval_bars(ax, places, scores, bounds, 0.34, number=number, hatch="")
        for bar, score in zip(bars, row, strict=True):
            bar.set_hatch("" if score.measured == score.retained else "////")
        ax.hlines([s.baseline for s in row], places - 0.17, places + 0.17, color="black", linewidth=1)
        # Bars that draw nothing: in the legend a format is plain.
        ax.bar(
            [np.nan], [np.nan], color=style.line_look(number)["color"], label=style.safe_text(f"measured: {measured}")
        )
    ax.bar([np.nan], [np.nan], color="0.6", edgecolor="white", hatch="////", label="the format forgotten")
    ax.plot([], [], color="black", linewidth=1, label="intact")
    names = [(style.safe_text(held), style.safe_text(retained)) for held, retained in groups]
    parts.turned_names(ax, [f"{held}\nretains {retained}" for held, retained in names])
    ax.set(ylim=(0, 1.03), ylabel="score of the held-out task")
    return parts.add_legend(ax)
