"""What breaks and what stays: the drops that a confirmation measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.plot.style import COLUMN, HATCHES, key_below, line_look, new_axes, styled, written

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Numbers = Float[np.ndarray, "_"]


@styled
def plot_confirmation(
    proof: Any, ax: Axes | None = None, *, relative: bool = True, random: float | None = None
) -> Axes:
    """Draw how much of each task is lost with the heads off, one bar a task with its 95 % interval.

    ``proof`` is a ``Confirmation``, any result or frame with the columns ``task``, ``baseline``, ``drop``, ``low`` and
    ``high``, or a dict of these by the name of their heads: one series each, told apart by colour and
    hatching; so are the sets of heads of one ``TaskDrops`` (a column ``found``). ``relative`` shows drops as a share of
    the baseline, with the intervals in ``relative_low`` and ``relative_high``; a task that cannot show a drop
    (``too_low``) says so in place of a bar. ``random`` marks the drop of random heads on the first task by a grey line
    (None: that of a ``Confirmation``), whose verdict is the title. Returns the axes.
    """
    if random is None:
        random = getattr(proof, "random_drop", None)
    series = _series(proof)
    tasks = list(dict.fromkeys(task for frame in series.values() for task in frame["task"]))
    each = 0.8 / len(series)
    ax = (
        new_axes(COLUMN, 0.85 + 0.24 * len(tasks) * max(1.0, 0.6 * len(series)) + 0.14 * len(series))
        if ax is None
        else ax
    )
    for number, (name, frame) in enumerate(series.items()):
        drop, low, high = _shares(frame) if relative else _numbers(frame, "drop", "low", "high")
        places = np.array([tasks.index(task) for task in frame["task"]]) + (number - (len(series) - 1) / 2) * each
        ax.barh(
            places,
            drop,
            each * 0.9,
            xerr=np.nan_to_num([np.maximum(drop - low, 0), np.maximum(high - drop, 0)]),
            color=line_look(number)["color"],
            hatch=HATCHES[number % len(HATCHES)],
            edgecolor="white",
            linewidth=0,
            error_kw={"elinewidth": 0.8, "capsize": 2, "ecolor": "black"},
            label=written(name) or None,
        )
        for place in places[np.isnan(drop)]:
            ax.text(0.01, place, "baseline too low", va="center", color="0.35")
    if random is not None:
        first = next(iter(series.values()))["baseline"].iloc[0]
        at = random / first if relative and first else random
        ax.plot([at, at], [-0.48, 0.48], color="0.45", linestyle="--", label="random heads")
    if hasattr(proof, "verdict"):
        ax.set_title(f"{proof.verdict}{' (close)' if proof.close else ''}")
    ax.axvline(0, color="black", linewidth=0.6)
    ax.set_yticks(range(len(tasks)), [written(task, 24) for task in tasks])
    ax.set_ylim(len(tasks) - 0.5, -0.5)
    ax.set_xlabel(f"score lost with the heads off\n({'share of the baseline' if relative else 'points'})")
    if relative:
        ax.set_xlim(min(ax.get_xlim()[0], -0.02), max(1.02, ax.get_xlim()[1]))
    if any(series) or random is not None:
        key_below(ax)
    return ax


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
    missing = [name for name in ("task", "baseline", "drop", "low", "high") if name not in frame]
    if missing or not len(frame):
        raise ValueError(f"proof must have a row a task and columns task, baseline, drop, low, high; misses {missing}")
    return frame


def _numbers(frame: pd.DataFrame, *columns: str) -> tuple[Numbers, ...]:
    """Columns as numbers; NaN where there is none."""
    return tuple(
        frame[name].to_numpy(dtype=float) if name in frame else np.full(len(frame), np.nan) for name in columns
    )


def _shares(frame: pd.DataFrame) -> tuple[Numbers, ...]:
    """Drops as shares of the baseline, with the intervals that know of its uncertainty: none where they are missing."""
    drop, baseline = _numbers(frame, "drop", "baseline")
    able = (baseline > 0) & (frame["too_low"].isna().to_numpy() if "too_low" in frame else True)
    share = np.divide(drop, baseline, out=np.full(len(frame), np.nan), where=able)
    return share, *_numbers(frame, "relative_low", "relative_high")
