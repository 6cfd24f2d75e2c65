"""The tables and the figure of ``recovery.py``, from the lines it keeps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from cs_heads import plot
from cs_heads.analysis.losses import Loss, Specificity, weighted_sum
from cs_heads.analysis.verdict import MIN_DIFFERENCE, Verdict
from cs_heads.simulate import SCENARIOS

NO_STRUCTURE = ("no_structure", "no_structure_fragile", "no_structure_chance50")


def recovery_table(lines: pd.DataFrame) -> str:
    """Recall, and drop as a share of greedy's on the worlds both searched, by heads and method."""
    main = lines[lines.scenario == "main"]
    text = ["| heads | method | evaluations | worlds | recall@5 | drop / greedy's | arithmetic, CPU s |"]
    text.append("|---|---|---|---|---|---|---|")
    for (n_heads, method, _), part in main.groupby(["n_heads", "method", "size"], sort=False):
        best = main[(main.n_heads == n_heads) & (main.method == "greedy") & main.seed.isin(part.seed)]
        same = part[part.seed.isin(best.seed)]
        ratio = f"{same['drop'].mean() / best['drop'].mean():.2f}" if len(best) else ""
        error = part.recall.std() / np.sqrt(len(part))
        # Not in files of before.
        known = part.arithmetic.dropna() if "arithmetic" in part else pd.Series(dtype=float)
        seconds = f"{np.median(known):.1f}" if len(known) else ""
        text.append(
            f"| {n_heads:,} | {method} | {part.spent.mean() / 100:,.0f} | {len(part)} "
            f"| {part.recall.mean():.2f} ± {error:.2f} | {ratio} | {seconds} |"
        )
    return "\n".join(text)


def certainty_table(lines: pd.DataFrame) -> str:
    """What annealed sensing at 100 evaluations says of its certainty on 1,024 heads, by scenario."""
    part = lines[(lines.method == "annealed") & (lines.n_heads == 1024) & (lines["size"] == 100)]
    text = [
        "| scenario | worlds | recall@5 | intervals that cover "
        "| claims planted | frequency ≥ .9 planted "
        "| universal found |"
    ]
    text.append("|---|---|---|---|---|---|---|")
    for name, group in part.groupby("scenario", sort=False):
        scenario = str(name)
        structured = scenario not in NO_STRUCTURE
        counts = ["covered", "intervals", "claims_right", "claims", "sure_right", "sure", "universal_found"]
        sums = group[[*counts, "universal_wrong"]].sum().astype(int)
        n_universal = SCENARIOS[scenario].universal * int(group.universal_found.notna().sum())
        wrong = f", {sums.universal_wrong} wrong" if sums.universal_wrong else ""
        cells = [
            scenario,
            str(len(group)),
            "" if group.recall.isna().all() else f"{group.recall.mean():.2f}",
            f"{sums.covered / sums.intervals:.2f}" if sums.intervals else "",
            f"{sums.claims_right} of {sums.claims}" if sums.intervals or not structured else "",
            f"{sums.sure_right} of {sums.sure}" if sums.intervals or not structured else "",
            f"{sums.universal_found} of {n_universal}{wrong}" if n_universal else wrong.removeprefix(", "),
        ]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text)


def arithmetic(lines: pd.DataFrame) -> str:
    """Processor time of searches at the default cost, beside that of their worlds."""
    if not len(lines):
        return ""
    seconds = lines.arithmetic
    return (
        f"{len(lines)} searches of {lines.n_heads.iloc[0]:,} heads at {lines.spent.mean() / 100:,.0f} evaluations: "
        f"{seconds.median():.1f} CPU s of arithmetic ({seconds.min():.1f} to {seconds.max():.1f}), "
        f"recall {lines.recall.mean():.2f}"
    )


def verdict_table(lines: pd.DataFrame) -> str:
    """Worlds by scenario and verdict, and how many verdicts are close."""
    said = get_args(Verdict)
    text = [f"| scenario | worlds | {' | '.join(said)} | close |", "|---" * (len(said) + 3) + "|"]
    for name, group in lines.groupby("scenario", sort=False):
        counts = [len(group), *(sum(group.verdict == verdict) for verdict in said), int(group.close.sum())]
        text.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(text)


def threshold_table(lines: pd.DataFrame) -> str:
    """Worlds in a hundred that would be *specific* by what controls may lose at most, on average and the worst."""
    means, worsts = (1 / 4, 1 / 3, 1 / 2), (0.4, 0.5, 0.6)
    pairs = list(itertools.product(means, worsts))
    text = ["| scenario | " + " | ".join(f"{mean:.2f}, {worst:.1f}" for mean, worst in pairs) + " |"]
    text.append("|---" * (len(pairs) + 1) + "|")
    for name, group in lines.groupby("scenario", sort=False):
        counts = [
            sum(_specific(losses, *pair) for losses in group.losses if isinstance(losses, dict)) for pair in pairs
        ]
        text.append(f"| {name} | {' | '.join(f'{100 * count / len(group):.0f}' for count in counts)} |")
    return "\n".join(text)


def _specific(losses: dict[str, Any], most_of_mean: float, most_of_one: float) -> bool:
    """Whether heads with these losses are *specific* by other thresholds than those of the library."""

    def loss_of(one: dict[str, float]) -> Loss:
        return Loss(one["loss"], one["low"], one["high"])

    found = Specificity(loss_of(losses["own"]), {name: loss_of(one) for name, one in losses["controls"].items()})
    little = found.mean.loss <= most_of_mean * found.own.within.loss
    beyond = [weighted_sum([one.within, found.own.within], [1, -most_of_one]) for one in found.controls.values()]
    return little and found.difference.low > MIN_DIFFERENCE and all(one.low <= 0 for one in beyond)


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Recall against evaluations, one panel a number of heads."""
    main = lines[lines.scenario == "main"].sort_values("method", kind="stable")
    axes = plot.recalls(main.assign(spent=main.spent / 100))
    plot.save(axes[0], path)
