"""What fitted gates are checked by: ablation in the order of their scores, their distribution, and mediation.

The checks of Nam et al. (arXiv 2505.13737): figures 2, 3a and 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.stats import ttest_ind

from cs_heads.arguments import check_integer
from cs_heads.drawable import Drawable
from cs_heads.methods.gating.result import SCORES, HeadGates
from cs_heads.units import Head, HeadLike

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.experiment.experiment import Experiment


@dataclass(frozen=True, eq=False)
class AblationCurve:
    """What is left of a task as heads are ablated one after another in the order of one score.

    ``score`` and ``logprob`` (nats per token of the target) are means over the examples, from the intact model on:
    entry i has the first i heads of ``heads`` off.
    """

    by: str
    heads: tuple[Head, ...]
    score: Float[np.ndarray, " n_off"]
    logprob: Float[np.ndarray, " n_off"]

    def to_frame(self) -> pd.DataFrame:
        """One row a number of heads off: the head that joined last, the score and the log-probability left."""
        import pandas as pd

        return pd.DataFrame(
            {
                "by": self.by,
                "n_off": range(len(self.score)),
                "head": ["", *map(str, self.heads)],
                "score": self.score,
                "logprob": self.logprob,
            }
        )


def ablation_curves(experiment: Experiment, gates: HeadGates, n_heads: int | None = None) -> tuple[AblationCurve, ...]:
    """Ablate the first 1, 2, ..., ``n_heads`` heads by mean facilitation, irrelevance and interference.

    Facilitating heads should cost most, irrelevant ones little, and interfering ones nothing or less
    (their figure 2). Give an experiment on unseen examples: ``Experiment(model, task.held_out)``. Costs
    at most ``3 * n_heads + 1`` evaluations (``n_heads`` None: half of the grid). Gates of another grid, or
    an ``n_heads`` outside the grid, raise ``ValueError``.
    """
    grid = experiment.grid
    if gates.free.shape[1:] != grid.shape:
        raise ValueError(f"gates must be of the grid {grid.shape} of the experiment, got {gates.free.shape[1:]}")
    n_heads = max(1, grid.size // 2) if n_heads is None else n_heads
    check_integer("n_heads", n_heads, 1, grid.size, "the heads of the grid")
    curves = []
    for name in SCORES:
        order = np.argsort(-gates.score(name).mean(axis=0).ravel(), kind="stable")[:n_heads]
        heads = tuple(grid.head(int(index)) for index in order)
        masks = np.stack([grid.mask(heads[:n]) for n in range(n_heads + 1)])
        curves.append(
            AblationCurve(name, heads, experiment(masks).mean(axis=1), experiment.logprob(masks).mean(axis=1))
        )
    return tuple(curves)


def score_distribution(gates: HeadGates, bins: int = 10, cumulative: bool = False) -> pd.DataFrame:
    """Share of heads by bin of each score, all seeds together: one row a bin.

    The column is the score, the index the middle of the bin; each column sums to 1. ``cumulative`` gives the share of
    heads whose score is the index or less, at the ends of the bins: the empirical distribution of their figure 3a.
    """
    import pandas as pd

    edges = np.linspace(0, 1, bins + 1)
    if cumulative:
        reached = {name: (gates.score(name).reshape(1, -1) <= edges[:, None]).mean(axis=1) for name in SCORES}
        return pd.DataFrame(reached, index=pd.Index(edges, name="score"))
    shares = {name: np.histogram(gates.score(name), bins=edges)[0] / gates.free.size for name in SCORES}
    return pd.DataFrame(shares, index=pd.Index((edges[:-1] + edges[1:]) / 2, name="score"))


@dataclass(frozen=True, eq=False)
class GroupTest(Drawable, picture="group"):
    """Whether some heads have a higher score than all others: the score of each head, Welch's t and its one-sided p.

    ``heads`` are those asked about, with the scores ``within``; ``without`` are the scores of all others; both in the
    order of the grid. ``over`` says how the score was taken over the seeds.
    """

    by: str
    over: Literal["mean", "any"]
    heads: tuple[Head, ...]
    within: Float[np.ndarray, " inside"]
    without: Float[np.ndarray, " outside"]
    t: float
    p: float
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def n_inside(self) -> int:
        """How many heads were asked about."""
        return len(self.within)

    @property
    def n_outside(self) -> int:
        """How many heads are the others."""
        return len(self.without)

    @property
    def inside(self) -> float:
        """The mean score of the heads asked about."""
        return float(self.within.mean())

    @property
    def outside(self) -> float:
        """The mean score of all others."""
        return float(self.without.mean())

    def to_frame(self) -> pd.DataFrame:
        """One row: how many heads on either side, their mean scores, t and p."""
        import pandas as pd

        return pd.DataFrame([self._row()])

    def to_dict(self) -> dict[str, Any]:
        """The whole result, JSON-ready."""
        return {
            **self._row(),
            "heads": [str(head) for head in self.heads],
            "within": self.within.tolist(),
            "without": self.without.tolist(),
            "provenance": self.provenance,
        }

    def _row(self) -> dict[str, Any]:
        names = ("by", "over", "n_inside", "n_outside", "inside", "outside", "t", "p")
        return {name: getattr(self, name) for name in names}

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False, float_format="{:.3g}".format, border=0)

    def __str__(self) -> str:
        return (
            f"{self.by} {self.inside:.3f} in {self.n_inside} heads, {self.outside:.3f} in the other {self.n_outside}: "
            f"t = {self.t:.2f}, p = {self.p:.2g}"
        )


def score_of_heads(
    gates: HeadGates, heads: Iterable[HeadLike], by: str = "facilitation", over: Literal["mean", "any"] = "mean"
) -> GroupTest:
    """Hold a score of some heads against that of all others, by Welch's t-test, one-sided.

    With the heads that mediation finds (``Mediation.heads()``) it is their figure 4: heads that mediate
    should facilitate. A score is the mean over seeds, or with ``over="any"`` its largest value, as theirs is: whether
    a head takes part in any solution. Fewer than two heads on either side raise ``ValueError``.
    """
    grid = gates.ranking().grid
    inside = grid.mask(heads)
    if not 2 <= inside.sum() <= grid.size - 2:
        raise ValueError(f"heads must be 2..{grid.size - 2} of the {grid.size} of the grid, got {inside.sum()}")
    score = gates.any(by) if over == "any" else gates.score(by).mean(axis=0)
    chosen = tuple(grid.head(int(index)) for index in np.flatnonzero(inside))
    test = ttest_ind(score[inside], score[~inside], equal_var=False, alternative="greater")
    return GroupTest(
        by=by,
        over=over,
        heads=chosen,
        within=score[inside],
        without=score[~inside],
        t=float(test.statistic),
        p=float(test.pvalue),
        provenance=gates.provenance,
    )
