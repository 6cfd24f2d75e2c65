"""All methods side by side: a table by groups of models, and a picture of recall against cost."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

GROUPS = {
    "heads of its own": ("separate", "early"),
    "heads shared with the control": ("shared", "same"),
    "twins": ("redundant",),
}


def crossed(lines: pd.DataFrame, by: str) -> str:
    """Recall@5 and AUC of each method, one column a group; groups whose tasks need no head have none."""
    known = lines[lines.recall.notna()]
    groups = [*dict.fromkeys(known[by])]
    text = [f"| method, recall@5 / AUC | {' | '.join(groups)} |", f"|{'---|' * (1 + len(groups))}"]
    for method, part in known.groupby("method", sort=False):
        means = [part.loc[part[by] == group, ["recall", "auc"]].mean() for group in groups]
        text.append(f"| {method} | {' | '.join(f'{mean.recall:.2f} / {mean.auc:.2f}' for mean in means)} |")
    return "\n".join(text)


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Recall@5 against example-evaluations, one point a method, in a panel for each group of models."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    panels = figure.subplots(1, len(GROUPS), sharey=True)
    for axes, (title, kinds) in zip(panels, GROUPS.items(), strict=True):
        means = lines[lines.kind.isin(kinds)].groupby("method", sort=False)[["spent", "recall"]].mean()
        for i, (method, (spent, recall)) in enumerate(means.iterrows()):
            own = method == "annealed"
            marker, color = ("*", "#c44e52") if own else ("osD^vPX"[i % 7], f"C{i % 10}")
            axes.scatter(spent, recall, 130 if own else 42, color, marker=marker, label=method, alpha=0.85, zorder=3)
        axes.set(title=title, xscale="log", xlabel="example-evaluations", ylim=(-0.04, 1.06), xlim=(200, 15_000))
        axes.grid(color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("recall@5")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)
