"""Pictures of how failures look, and of heads that serve the form of a question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.failures import FailureModes
from cs_heads.analysis.formats import FormatHeads
from cs_heads.plot.marks import name_heads
from cs_heads.plot.matrix import draw_matrix, matrix_axes
from cs_heads.plot.style import COLOURS, HATCHES, SMALL, column_or_page, key_below, new_axes, styled, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def plot_failures(failures: FailureModes, ax: Axes | None = None) -> Axes:
    """Draw how often each kind of failure is seen, one bar a set of heads, with its interval; intact in grey."""
    found = list(failures.modes)
    kinds = list(failures.modes[found[0]])
    if ax is None:
        ax = new_axes(column_or_page(0.5 + 0.13 * len(kinds) * (len(found) + 1.5)), 2.4)
    width = 0.84 / len(found)
    for number, name in enumerate(found):
        shares = [failures.modes[name][kind] for kind in kinds]
        middle = np.array([share.share for share in shares])
        low, high = np.array([share.interval for share in shares]).T
        ax.bar(
            np.arange(len(kinds)) - 0.42 + (number + 0.5) * width,
            middle,
            width,
            yerr=np.maximum([middle - low, high - middle], 0),
            color="0.8" if number == 0 else COLOURS[(number - 1) % len(COLOURS)],
            edgecolor="0.45" if number == 0 else "white",
            hatch="" if number == 0 else HATCHES[(number - 1) % len(HATCHES)],
            linewidth=0.5,
            error_kw={"elinewidth": 0.8, "ecolor": "black", "capsize": 1.5},
            label=written(name),
        )
    ax.set_xticks(range(len(kinds)), kinds)
    ax.set_ylim(0, 1.03)
    ax.set_ylabel("share of unseen examples")
    key_below(ax)
    return ax


@styled
def plot_format_heads(formats: FormatHeads, ax: Axes | None = None) -> Axes:
    """Draw the share of each score above chance that each candidate takes; its kind stands beside its name.

    Sets in letters, sets in full, and controls stand between lines, with their form above.
    """
    table = formats.drops.matrix("share_lost")
    rows = [f"{name}: {formats.kind(name)}" for name in map(str, table.index)]
    columns = [str(name) for name in table.columns]
    if ax is None:
        ax = matrix_axes(len(rows), len(columns), [*rows, *columns])
    draw_matrix(ax, table.to_numpy(dtype=float), rows, columns, label="share of the score lost")
    sets = [formats.drops.heads[name] for name in map(str, table.index)]
    name_heads(ax, [heads[0] if len(heads) == 1 else None for heads in sets])
    forms = [formats.forms[name] for name in columns]
    for form in dict.fromkeys(forms):
        first, n = forms.index(form), forms.count(form)
        if first:
            ax.axvline(first - 0.5, color="black", linewidth=1.2)
        middle = (first + (n - 1) / 2, 1)
        at = ("data", "axes fraction")
        ax.annotate(form, middle, (0, 3), at, "offset points", ha="center", va="bottom", fontsize=SMALL)
    return ax
