"""Pictures of a comparison of methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cs_heads.analysis.compare import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vPX*<>"


def plot_drops(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw drop@k on unseen examples against k, one line a method, random heads as a grey line and its range.

    Lines carry markers of their own, so that they can be told apart without colours and where they
    coincide. Returns the axes.
    """
    if ax is None:
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(8.5, 4.2), layout="constrained")[1]
    ks = np.arange(1, comparison.random_drops.shape[1] + 1)
    sets = comparison.random_drops
    ax.fill_between(ks, sets.min(axis=0), sets.max(axis=0), color="0.85", linewidth=0)
    ax.plot(ks, comparison.random_drop, color="0.45", linestyle="--", label=f"random heads ({len(sets)} sets)")
    for number, (name, one) in enumerate(comparison.methods.items()):
        label = f"{name} ({one.ranking.spent:,})"
        # The first lines are drawn larger: where lines coincide, both are seen.
        size = 9 - 5 * number / max(1, len(comparison.methods) - 1)
        ax.plot(ks, one.drops, marker=MARKERS[number % len(MARKERS)], markersize=size, linewidth=1.2, label=label)
    ax.set_xticks(ks)
    ax.set_xlabel("heads ablated, the most important first (k)")
    ax.set_ylabel(f"drop@k (baseline {comparison.baseline:.2f})")
    task = comparison.provenance.get("task", {}).get("name")
    ax.set_title("drop on unseen examples" if task is None else f"{task}: drop on unseen examples", fontsize=10)
    ax.legend(
        fontsize=8, title="method (example-evaluations)", title_fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5)
    )
    return ax


def plot_agreement(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the share of their top k heads that each two methods have in common, as a table of squares."""
    if ax is None:
        from matplotlib import pyplot as plt

        side = 2.2 + 0.7 * len(comparison.methods)
        ax = plt.subplots(figsize=(side + 0.6, side), layout="constrained")[1]
    names = list(comparison.methods)
    column = f"overlap@{comparison.k}"
    share = np.eye(len(names))
    for row in comparison.agreement().to_dict("records"):
        first, second = names.index(row["first"]), names.index(row["second"])
        share[first, second] = share[second, first] = row[column]
    image = ax.imshow(share, cmap="Greens", vmin=0, vmax=1)
    ax.figure.colorbar(image, ax=ax, label=f"share of the top {comparison.k} in common", shrink=0.8)
    for (row_index, column_index), value in np.ndenumerate(share):
        colour = "white" if value > 0.6 else "black"
        ax.text(column_index, row_index, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right")
    ax.set_yticks(range(len(names)), names)
    return ax


def save_comparison(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write both pictures to a folder, ``drops.png`` and ``agreement.png``; no window, no figure left open."""
    from matplotlib.figure import Figure

    side = 2.2 + 0.7 * len(comparison.methods)
    written = []
    for name, size, draw in (("drops", (8.5, 4.2), plot_drops), ("agreement", (side + 0.6, side), plot_agreement)):
        figure = Figure(figsize=size, layout="constrained")
        draw(comparison, figure.subplots())
        written.append(Path(folder) / f"{name}.png")
        figure.savefig(written[-1], dpi=150)
    return written
