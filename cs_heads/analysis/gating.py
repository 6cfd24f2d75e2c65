"""What fitted gates say of a model's heads, and what checks them, as in Nam et al. (arXiv 2505.13737).

Kinds of heads by task and model (their table 2), ablation in the order of their scores (figure 2), the distribution of
scores (figure 3a), mediation (figure 4), and consistency over seeds (section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import ttest_ind

from cs_heads.analysis.found_heads import check_states, model_of
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_integer, check_one_of
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import check_k
from cs_heads.experiment.controls import unseen_parts
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import check_weights
from cs_heads.methods.gating.result import SCORES, HeadGates, Score
from cs_heads.progress import expect, one_bar, step
from cs_heads.units import HeadLike, Unit

THRESHOLD = 0.5
"""The score from which a head counts as facilitating, irrelevant or interfering."""


def score_distribution(gates: HeadGates, bins: int = 10) -> pd.DataFrame:
    """Share of heads whose score is the index or less, all seeds together: the distribution of their figure 3a.

    Args:
        gates: Fitted gates.
        bins: Steps of equal width between 0 and 1.

    Returns:
        A column for each score; the index is the score reached.
    """
    edges = np.linspace(0, 1, bins + 1)
    reached = {name: (gates.score(name).reshape(1, -1) <= edges[:, None]).mean(axis=1) for name in SCORES}
    return pd.DataFrame(reached, index=pd.Index(edges, name="score"))


@dataclass(frozen=True, eq=False, repr=False)
class GroupTest(Result, Drawable, picture="group"):
    """Whether some heads have a higher score than all others: the score of each head, Welch's t and its one-sided p.

    Attributes:
        by: The score: ``"facilitation"``, ``"irrelevance"`` or ``"interference"``.
        over: How it was taken over the seeds: ``"mean"``, or ``"any"``, the largest value.
        heads: The heads asked about, in the order of the grid.
        scores: Their scores, in this order.
        others: The scores of all others, in the order of the grid.
        t: Welch's t.
        p: Its one-sided p-value.
        provenance: That of the gates.
        spent, notes: Of every result; nothing is measured.
    """

    _number = "{:.3g}"

    by: str
    over: Literal["mean", "any"]
    heads: tuple[Unit, ...]
    scores: Float[np.ndarray, " inside"]
    others: Float[np.ndarray, " outside"]
    t: float
    p: float

    @property
    def inside(self) -> float:
        """The mean score of the heads asked about."""
        return float(self.scores.mean())

    @property
    def outside(self) -> float:
        """The mean score of all others."""
        return float(self.others.mean())

    def to_frame(self) -> pd.DataFrame:
        """One row: how many heads on either side, their mean scores, t and p."""
        sizes = {"n_inside": len(self.scores), "n_outside": len(self.others)}
        means = {"inside": self.inside, "outside": self.outside}
        return pd.DataFrame([{"by": self.by, "over": self.over, **sizes, **means, "t": self.t, "p": self.p}])

    def __str__(self) -> str:
        return (
            f"{self.by} {self.inside:.3f} in {len(self.scores)} heads, {self.outside:.3f} in the other "
            f"{len(self.others)}: t = {self.t:.2f}, p = {self.p:.2g}"
        )


def score_of_heads(
    gates: HeadGates, heads: Iterable[HeadLike], by: str = "facilitation", over: Literal["mean", "any"] = "mean"
) -> GroupTest:
    """Compare a score of some heads with that of all others, by Welch's t-test, one-sided.

    With the heads that mediation finds (``Mediation.heads()``) it is their figure 4: heads that mediate should
    facilitate.

    Args:
        gates: Fitted gates.
        heads: The heads; at least two, and two others.
        by: The score: ``"facilitation"``, ``"irrelevance"`` or ``"interference"``.
        over: ``"mean"`` over seeds, or ``"any"``, the largest value, as theirs is: whether a head takes part in any
            solution.

    Returns:
        Welch's t, its one-sided p, the score of each of the heads (``scores``) and of all others (``others``).

    Raises:
        ValueError: Fewer than two heads on either side.
    """
    check_one_of("over", over, ("mean", "any"))
    grid = gates.ranking().grid
    inside = grid.mask(heads)
    if not 2 <= inside.sum() <= grid.size - 2:
        raise ValueError(f"heads must be 2..{grid.size - 2} of the {grid.size} of the grid, got {inside.sum()}")
    score = gates.any(by) if over == "any" else gates.score(by).mean(axis=0)
    scores, others = score[inside], score[~inside]
    test = ttest_ind(scores, others, equal_var=False, alternative="greater")
    t, p = float(test.statistic), float(test.pvalue)
    return GroupTest(by, over, tuple(grid.units(inside)), scores, others, t, p, provenance=gates.provenance)


def taxonomy(fits: Mapping[str, HeadGates], threshold: float = THRESHOLD) -> pd.DataFrame:
    """Count heads whose score is ``threshold`` or more: in every seed, in any, and on average over seeds (table 2).

    With one seed the three counts are one.

    Args:
        fits: Gates by any name, as the task they were fitted to.
        threshold: The score from which a head counts.

    Returns:
        One row per fit and kind of count (``mean``, ``always``, ``any``): its model, seeds, the share of heads that
        reach ``threshold`` in each score, and beside ``any`` the share that facilitates or interferes in some seed
        (``active``).

    Raises:
        ValueError: No fit, a threshold outside (0, 1], or fits of one model with other weights.
    """
    if not fits:
        raise ValueError("fits must hold one fit or more")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must lie in (0, 1], got {threshold}")
    check_states("fits", fits)
    rows = []
    for name, gates in fits.items():
        reached = {score: gates.score(score) >= threshold for score in SCORES}
        active = (reached["facilitation"] | reached["interference"]).any(axis=0).mean()
        made = {"fit": name, "model": gates.provenance.get("model", {}).get("name"), "seeds": len(gates.free)}
        for kind, over_seeds in (("mean", np.mean), ("always", np.all), ("any", np.any)):
            shares: dict[str, Any] = {score: over_seeds(each, axis=0).mean() for score, each in reached.items()}
            rows.append({**made, "heads": kind, **shares, "active": active if kind == "any" else np.nan})
    return pd.DataFrame(rows)


def seed_agreement(gates: HeadGates, threshold: float = THRESHOLD) -> pd.DataFrame:
    """How much two seeds agree, by score: Pearson's correlation, and the share of heads in common (Jaccard).

    Means over all pairs of seeds; heads that several solutions share are in common, those of one are not.

    Args:
        gates: Gates of two seeds or more.
        threshold: The score from which a head counts.

    Returns:
        One row per score. NaN where a score is the same in every head of a seed (no correlation), or no head reaches
        the threshold (no share).

    Raises:
        ValueError: Fewer than two seeds.
    """
    if len(gates.free) < 2:
        raise ValueError(f"gates must have two seeds or more, got {len(gates.free)}")
    rows = []
    for score in SCORES:
        values = gates.score(score).reshape(len(gates.free), -1)
        correlations, jaccards = [], []
        for a, b in combinations(values, 2):
            if np.ptp(a) > 0 and np.ptp(b) > 0:
                correlations.append(np.corrcoef(a, b)[0, 1])
            either = ((a >= threshold) | (b >= threshold)).sum()
            if either:
                jaccards.append(((a >= threshold) & (b >= threshold)).sum() / either)
        means = (np.mean(shares) if shares else np.nan for shares in (correlations, jaccards))
        rows.append((score, *means))
    return pd.DataFrame(rows, columns=["score", "correlation", "in common"])


@dataclass(frozen=True, eq=False, repr=False)
class ToggleCurve(Result):
    """The target's log-probability with heads shut less that with the same heads open, all others gated by G⁺.

    Attributes:
        by: The score whose order heads are taken in.
        n_heads: How many of the first heads are toggled.
        difference: Nats per token, mean over examples, of the first ``n_heads[point]`` heads of the seed: below zero
            where they facilitate, about zero where they are irrelevant, above where they interfere.
        spent: Example-evaluations of this curve.
        notes: Which examples were left out, or were those that the gates were fitted to.
        provenance: Of every result; that of the gates says where they are from.
    """

    by: Score
    n_heads: Int[np.ndarray, " point"]
    difference: Float[np.ndarray, "seed point"]

    def to_frame(self) -> pd.DataFrame:
        """One row per number of heads: the difference, its mean, least and largest value over seeds."""
        over: dict[str, Any] = {"difference": np.mean, "low": np.min, "high": np.max}
        seeds = {name: each(self.difference, axis=0) for name, each in over.items()}
        return pd.DataFrame({"by": self.by, "n_heads": self.n_heads, **seeds})


def most_of_toggles(max_heads: int, n_seeds: int, n_points: int = 12) -> int:
    """The most masks that ``toggle_curves`` measures on every example, of so many heads toggled and seeds of gates."""
    return len(SCORES) * n_seeds * 2 * min(n_points, max_heads)


@one_bar("toggle curves")
def toggle_curves(
    experiment: Experiment,
    gates: HeadGates,
    *,
    max_heads: int | None = None,
    n_points: int = 12,
) -> tuple[ToggleCurve, ...]:
    """Set heads to 0 and to 1, one after another in the order of each score, with all other gates at G⁺ (figure 2).

    Every seed goes by its own scores and its own G⁺. Each point of each of three curves costs two masks on every
    example, for each seed.

    Args:
        experiment: One on unseen examples: ``Experiment(model, task).held_out``, of which those that the gates were
            fitted to are left out.
        gates: Gates fitted to the task.
        max_heads: Heads toggled at most (None: half of the grid).
        n_points: Numbers of heads, from one on, at which the difference is measured.

    Returns:
        One curve for facilitation, irrelevance and interference each: ``difference`` ``[seed, point]``, off less on, in
        nats per token.

    Raises:
        ValueError: Gates of another grid or other weights, or a ``max_heads`` beyond half of the grid.
    """
    experiment, notes = _judging(experiment, gates)
    grid = experiment.grid
    max_heads = max(1, grid.size // 2) if max_heads is None else max_heads
    check_k(max_heads, grid, "max_heads")
    check_integer("n_points", n_points, 1)
    points = np.unique(np.linspace(1, max_heads, min(n_points, max_heads)).round().astype(int))
    curves = []
    expect(len(SCORES) * len(gates.plus) * 2 * len(points) * experiment.n_examples)
    for score in SCORES:
        step(f"by {score}")
        rows = []
        for plus, scores in zip(gates.plus, gates.score(score), strict=True):
            rank = np.argsort(np.argsort(-scores.ravel(), kind="stable"))
            for value in (0.0, 1.0):
                toggled = np.where(rank < points[:, None], value, plus.ravel())
                rows.append(toggled.reshape(len(points), *grid.shape))
        logprob = experiment.logprob(np.concatenate(rows)).mean(axis=1)
        off, on = logprob.reshape(len(gates.plus), 2, len(points)).transpose(1, 0, 2)
        spent = 2 * off.size * experiment.n_examples
        curves.append(ToggleCurve(score, points, off - on, spent=spent, notes=notes))
    return tuple(curves)


def _judging(experiment: Experiment, gates: HeadGates) -> tuple[Experiment, tuple[str, ...]]:
    """An experiment on the grid and weights of the gates, if unseen without what they were fitted to, and notes."""
    if gates.ranking().grid != experiment.grid:
        raise ValueError(f"gates must be of the grid of the experiment, {experiment.grid}, got {gates.ranking().grid}")
    check_weights("gates and the model", gates.provenance.get("model"), model_of(experiment))
    task, fitted = experiment.task, {*gates.examples}
    if task.role == "confirming":
        (unseen,), notes = unseen_parts([experiment], fitted)
        return cast(Experiment, unseen), notes
    n = sum(not fitted.isdisjoint(keys) for keys in task.known)
    return experiment, (f"{n} of {len(task)} examples are those that the gates were fitted to",) if n else ()
