"""Heatmaps, one square per number: what sets of heads take from tasks, and what sets have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cs_heads.analysis.compare import Comparison
from cs_heads.analysis.drops import TaskDrops
from cs_heads.analysis.formats import FormatHeads
from cs_heads.analysis.overlap import Overlap
from cs_heads.analysis.universal import UniversalHeads
from cs_heads.plot import guides, style
from cs_heads.plot.head_markers import name_heads
from cs_heads.plot.skills import common_folder
from cs_heads.units import Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_Q = 0.05
# Letters of a name that a picture of one column has room for.
_LETTERS = 20
# Inches of a square.
_SIDE = 0.27
# Inches that a number needs.
_NUMBER = 0.22


def draw_table(
    ax: Axes | None,
    table: pd.DataFrame,
    label: str,
    *,
    limit: float = 1.0,
    form: str = "{:.2f}",
    over: str = "",
    colors: str = "Blues",
) -> Axes:
    """Draw a table as squares with a color bar, numbers written in them where there is room; NaN stays white.

    Args:
        ax: axes to draw on; None: those of a new figure with room for all squares and names, a column wide or a page.
        table: numbers from 0 to ``limit``, named by its index and columns; others have the color of the nearer end.
        label: what the numbers are.
        limit: the number that has the last color of the map.
        form: how numbers are written.
        over: what stands behind those above ``limit``, which then have one digit after the point.
        colors: a map of matplotlib; by default white is none and dark is much, for any kind of color vision.

    Returns:
        The axes.
    """
    values = table.to_numpy(dtype=float)
    rows, columns = list(map(str, table.index)), list(map(str, table.columns))
    if ax is None:
        letters = 0.058 * min(_LETTERS, max(map(len, [*rows, *columns])))
        height = 0.6 + 0.75 * letters + max(1.1, _SIDE * len(rows))
        ax = style.new_axes(style.width_for(0.9 + letters + _SIDE * len(columns)), height)
    image = ax.imshow(values, cmap=colors, vmin=0, vmax=limit, aspect="auto")
    bar = guides.color_bar(ax, image, label, shrink=0.9)
    if (values > limit).any():
        ticks = np.linspace(0, limit, 6).tolist()
        bar.set_ticks(ticks, labels=[f"{tick:.1f}" for tick in ticks[:-1]] + [f"≥ {limit:.1f}"])
    room = ax.get_position().width * style.figure_of(ax).get_size_inches()[0] / max(1, len(columns))
    for (row, column), value in np.ndenumerate(values):
        if room >= _NUMBER and not np.isnan(value):
            # Rounded first: what is nought to the last digit shown has no sign.
            text = form.format(round(float(value), 6)).replace("-0.00", "0.00")
            if over and value > limit:
                text = f"{value:.1f}{over}"
            color = style.letter_on(image.to_rgba(value))
            ax.text(column, row, text, ha="center", va="center", color=color, fontsize=style.SMALL)
    max_letters = _LETTERS if style.figure_of(ax).get_size_inches()[0] <= style.COLUMN else 2 * _LETTERS
    guides.turned_names(ax, [style.safe_text(name, max_letters) for name in columns])
    ax.set_yticks(range(len(rows)), [style.safe_text(name, max_letters) for name in rows])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


@style.styled
def agreement(compared: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the share of their top k heads that each two methods have in common.

    Args:
        compared: as ``compare`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    names = list(compared.methods)
    share = np.eye(len(names))
    for row in compared.agreement().to_dict("records"):
        first, second = names.index(row["first"]), names.index(row["second"])
        share[first, second] = share[second, first] = row[f"overlap@{compared.k}"]
    return draw_table(ax, pd.DataFrame(share, names, names), f"share of top {compared.k}")


@style.styled
def overlap(found: Overlap, ax: Axes | None = None, value: str = "heads") -> Axes:
    """Draw how many heads each two rankings share; an asterisk where chance does not explain it.

    The asterisk is for a false discovery rate below .05. The diagonal has the number of heads of each ranking.

    Args:
        found: as ``head_overlap`` gives it.
        ax: axes to draw on; None: those of a new figure.
        value: ``"heads"``, or ``"groups"`` of heads that share keys and values.

    Returns:
        The axes.

    Raises:
        ValueError: for another ``value``, or groups where heads share no keys and values.
    """
    from matplotlib.ticker import MaxNLocator

    if value not in ("heads", "groups") or (value == "groups" and found.n_groups is None):
        raise ValueError(f"value must be 'heads', or 'groups' where heads share keys and values; got {value!r}")
    table = found.matrix(value)
    limit = max(1.0, float(np.nanmax(table.to_numpy(dtype=float))))
    ax = draw_table(ax, table, f"{value} in common", limit=limit, form="{:.0f}")
    bar = ax.images[-1].colorbar
    if bar is not None:
        bar.locator = MaxNLocator(integer=True, nbins=5)
        bar.update_ticks()
    q = found.matrix(f"q_{value}").to_numpy(dtype=float)
    for text in list(ax.texts):
        column, row = (round(at) for at in text.get_position())
        if q[row, column] < MAX_Q:
            text.set_text(f"{text.get_text()}*")
            ax.set_xlabel(f"* more than chance explains (q < {MAX_Q:g})")
    return ax


@style.styled
def universal(found: UniversalHeads, ax: Axes | None = None) -> Axes:
    """Draw what each candidate leaves of each task, as a share of the score above chance; universal heads carry a U.

    Args:
        found: as ``universal_heads`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    rows = [f"{head} U" if head in found.heads else str(head) for head in found.candidates]
    left = pd.DataFrame(found.left, rows, found.tasks)
    ax = draw_table(ax, left, "share of the score left", colors="Blues_r")
    name_heads(ax, found.candidates)
    ax.set(ylabel="head ablated", xlabel="U universal" if found.heads else "")
    return ax


@style.styled
def drop_matrix(
    drops: TaskDrops, ax: Axes | None = None, value: str = "loss", *, order: Sequence[str] | None = None
) -> Axes:
    """Draw what each set of heads takes from each task: sets down, tasks across, the own task of a set framed.

    Numbers below 0 have the color of 0, and those above 1 that of 1; a loss above 1, of what falls below chance, has an
    arrow. A folder that all names begin with, such as ``everyday/``, stands in the label of the axis alone.

    Args:
        drops: as ``cs.specificity`` of several tasks gives it.
        ax: axes to draw on; None: those of a new figure.
        value: a property of ``TaskDrop``.
        order: sets and tasks that come first, in this order; None: as in ``drops``.

    Returns:
        The axes.
    """
    table = drops.matrix(value)
    first = list(order or ())
    rows, columns = (
        sorted(names, key=lambda name: first.index(name) if name in first else len(first))
        for names in (table.index, table.columns)
    )
    folder = common_folder([*rows, *columns])
    shown = table.loc[rows, columns].rename(lambda name: name[len(folder) :]).rename(columns=lambda c: c[len(folder) :])
    ax = draw_table(ax, shown, value.replace("_", " "), over="↓" if value == "loss" else "")
    for place, name in enumerate(rows):
        if name in drops.own:
            guides.frame_square(ax, place, columns.index(drops.own[name]))
    legend = ["framed: their own"] if drops.own else []
    if value == "loss" and (table > 1).any(axis=None):
        legend.append("↓: falls below chance")
    measured = f"measured on {folder}".rstrip()
    ax.set(ylabel="heads found on", xlabel=f"{measured} ({'; '.join(legend)})" if legend else measured)
    return ax


@style.styled
def format_heads(formats: FormatHeads, ax: Axes | None = None) -> Axes:
    """Draw the share of each score above chance that each candidate takes; its kind stands beside its name.

    Tasks answered by letters, tasks answered in full, and controls stand between lines, with their form above.

    Args:
        formats: as ``cs_heads.format_heads`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.
    """
    table = formats.drops.matrix()
    ax = draw_table(ax, table.rename(lambda name: f"{name}: {formats.kind(name)}"), "loss")
    sets = [formats.drops.heads[name] for name in table.index]
    name_heads(ax, [heads[0] if len(heads) == 1 else None for heads in sets])
    forms = [formats.drops.roles[name] for name in table.columns]
    for form in dict.fromkeys(forms):
        first, n = forms.index(form), forms.count(form)
        if first:
            ax.axvline(first - 0.5, color="black", linewidth=1.2)
        middle = (first + (n - 1) / 2, 1)
        at = ("data", "axes fraction")
        ax.annotate(form, middle, (0, 3), at, "offset points", ha="center", va="bottom", fontsize=style.SMALL)
    return ax


@style.styled
def habits(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the habits of heads: the mean share of attention of each habit, over the tokens that can follow it.

    These are all but the first, for *same token* and *induction* those with an earlier copy.

    Args:
        table: one row per head, as ``cs_heads.habits`` gives it.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: for a table without a row or without the column ``head``.
    """
    if "head" not in table or not len(table):
        raise ValueError("table must have one row per head and a column head, as cs_heads.habits gives them")
    ax = draw_table(ax, table.set_index("head"), "share of attention")
    name_heads(ax, [Unit.parse(str(head)) for head in table["head"]])
    return ax
