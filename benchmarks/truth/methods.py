"""All methods side by side: a table by groups of models, and a picture of recall against cost."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

GROUPS = {
    "heads of its own": (("separate", "early"), "o", "#2a6f97"),
    "shared with the control": (("shared", "same"), "s", "#c44e52"),
    "twins": (("redundant",), "^", "#dd8452"),
}
"""Kinds of models, and how they are drawn."""


def crossed(lines: pd.DataFrame, by: str) -> str:
    """Recall@5 and AUC of each method, one column a group; groups whose tasks need no head have none."""
    known = lines[lines.recall.notna()]
    groups = [*dict.fromkeys(known[by])]
    text = [f"| recall@5, AUC | {' | '.join(groups)} |", f"|{'---|' * (1 + len(groups))}"]
    for method, part in known.groupby("method", sort=False):
        means = [part.loc[part[by] == group, ["recall", "auc"]].mean(skipna=False).dropna() for group in groups]
        text.append(f"| {method} | {' | '.join(', '.join(f'{each:.2f}' for each in mean) for mean in means)} |")
    return "\n".join(text)


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Recall@5 of each method by groups of models, beside its cost."""
    cost = lines.groupby("method").spent.mean()
    order = lines.groupby("method").recall.mean().sort_values().index
    figure = Figure(figsize=(8.4, 0.33 * len(order) + 1.1), layout="constrained")
    recalls, costs = figure.subplots(1, 2, sharey=True, width_ratios=(2.2, 1))
    for i, (group, (kinds, marker, color)) in enumerate(GROUPS.items()):
        means = lines[lines.kind.isin(kinds)].groupby("method").recall.mean()[order]
        places = [place + 0.22 * (1 - i) for place in range(len(order))]
        recalls.scatter(means, places, 34, color, marker=marker, label=group, zorder=3)
    costs.scatter(cost[order], range(len(order)), 34, "0.35", zorder=3)
    costs.set(xscale="log", xlim=(200, 20_000), xlabel="example-evaluations")
    recalls.set(xlim=(-0.03, 1.04), xlabel="recall@5, mean of models")
    recalls.set_yticks(range(len(order)), order)
    recalls.get_yticklabels()[list(order).index("annealed")].set_fontweight("bold")
    for axes in (recalls, costs):
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(GROUPS), frameon=False)
    figure.savefig(path, dpi=150)
