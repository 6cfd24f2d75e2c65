"""What breaks and what stays: the drop of each task with some heads off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.views.style import COLUMN, key_below, line_look, new_axes, styled, written

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")


@styled
def plot_task_drops(
    drops: Any, ax: Axes | None = None, *, kind: str = "bars", relative: bool = True, random: float | None = None
) -> Axes:
    """Draw how much of each task is lost with the heads off, one bar a task with its 95 % interval.

    ``drops`` is a ``Confirmation``, any result or frame with the columns ``task``, ``baseline``, ``drop``, ``low`` and
    ``high``, or a dict of these by the name of their heads: one series each, told apart by colour and
    hatching. ``relative`` shows drops as a share of the baseline; ``random`` draws the drop of random heads on the
    first task as a grey line. ``kind="radar"`` shows what is *left* of each task on an axis of its own, which takes
    three tasks or more (Bair et al., arXiv 2603.03335, figure 1). Returns the axes; a radar needs polar ones, which it
    makes where ``ax`` is None.
    """
    series = {name: _frame(one) for name, one in (drops if isinstance(drops, Mapping) else {"": drops}).items()}
    tasks = list(dict.fromkeys(task for frame in series.values() for task in frame["task"]))
    if kind == "bars":
        return _bars(ax, series, tasks, relative=relative, random=random)
    if kind == "radar":
        return _radar(ax, series, tasks)
    raise ValueError(f"kind must be 'bars' or 'radar', got {kind!r}")


def _frame(one: Any) -> pd.DataFrame:
    frame: pd.DataFrame = one.to_frame() if hasattr(one, "to_frame") else one
    missing = [name for name in ("task", "baseline", "drop", "low", "high") if name not in frame]
    if missing or not len(frame):
        raise ValueError(f"drops must have a row a task and columns task, baseline, drop, low, high; misses {missing}")
    return frame


def _bars(
    ax: Axes | None, series: Mapping[str, pd.DataFrame], tasks: list[str], *, relative: bool, random: float | None
) -> Axes:
    each = 0.8 / len(series)
    ax = (
        new_axes(COLUMN, 0.85 + 0.24 * len(tasks) * max(1.0, 0.6 * len(series)) + 0.14 * len(series))
        if ax is None
        else ax
    )
    for number, (name, frame) in enumerate(series.items()):
        scale = frame["baseline"].to_numpy(dtype=float) if relative else np.ones(len(frame))
        unit = np.divide(1, scale, out=np.zeros(len(frame)), where=scale > 0)
        drop, low, high = (frame[column].to_numpy(dtype=float) * unit for column in ("drop", "low", "high"))
        places = np.array([tasks.index(task) for task in frame["task"]]) + (number - (len(series) - 1) / 2) * each
        ax.barh(
            places,
            drop,
            each * 0.9,
            xerr=[np.maximum(drop - low, 0), np.maximum(high - drop, 0)],
            color=line_look(number)["color"],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="white",
            linewidth=0,
            error_kw={"elinewidth": 0.8, "capsize": 2, "ecolor": "black"},
            label=written(name) or None,
        )
    if random is not None:
        first = next(iter(series.values()))["baseline"].iloc[0]
        ax.axvline(random / first if relative and first else random, color="0.45", linestyle="--", label="random heads")
    ax.axvline(0, color="black", linewidth=0.6)
    ax.set_yticks(range(len(tasks)), [written(task) for task in tasks])
    ax.invert_yaxis()
    ax.set_xlabel(f"score lost with the heads off\n({'share of the baseline' if relative else 'points'})")
    if relative:
        ax.set_xlim(min(ax.get_xlim()[0], -0.02), max(1.02, ax.get_xlim()[1]))
    if any(series) or random is not None:
        key_below(ax)
    return ax


def _radar(ax: Axes | None, series: Mapping[str, pd.DataFrame], tasks: list[str]) -> Axes:
    if len(tasks) < 3:
        raise ValueError(f"kind 'radar' needs three tasks or more, got {', '.join(tasks)}; bars take any number")
    ax = new_axes(COLUMN, 2.5 + 0.14 * len(series), projection="polar") if ax is None else ax
    ax.set_theta_zero_location("N")  # type: ignore[attr-defined]
    ax.set_rlabel_position(180 / len(tasks))  # type: ignore[attr-defined]
    angles = np.linspace(0, 2 * np.pi, len(tasks), endpoint=False)
    ax.plot(np.append(angles, 0), np.ones(len(tasks) + 1), color="0.6", linestyle=":", label="intact")
    for number, (name, frame) in enumerate(series.items()):
        shares = 1 - frame.set_index("task")["drop"] / frame.set_index("task")["baseline"]
        left = shares.reindex(tasks).to_numpy(dtype=float)
        ax.plot(np.append(angles, 0), np.append(left, left[0]), label=written(name) or "heads off", **line_look(number))
        ax.fill(angles, left, color=line_look(number)["color"], alpha=0.12)
    ax.set_xticks(angles, [written(task) for task in tasks])
    ax.tick_params(axis="x", pad=1)
    for label, angle in zip(ax.get_xticklabels(), angles, strict=True):
        label.set_horizontalalignment(
            "center" if abs(np.sin(angle)) < 0.1 else "right" if np.sin(angle) > 0 else "left"
        )
    ax.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "50 %", "", "100 %"])
    ax.set_ylim(0, 1.05)
    ax.spines["polar"].set_visible(False)
    key_below(ax)
    return ax
