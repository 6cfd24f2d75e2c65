"""What fitted gates say of a model's heads taken together: their kinds by task and model, and checks in G⁺.

Table 2, figure 2 and the consistency figures of section 4.2 of Nam et al. (arXiv 2505.13737).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from cs_heads.arguments import check_integer
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import check_k
from cs_heads.methods.gating.result import SCORES, HeadGates, Score

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.experiment.experiment import Experiment

THRESHOLD = 0.5
"""The score from which a head counts as facilitating, irrelevant or interfering."""


@dataclass(frozen=True, eq=False)
class Taxonomy(Drawable, picture="taxonomy"):
    """Shares of heads by kind, ``always`` (in every seed) and ``any`` (in at least one), by the name of a fit.

    ``shares[fit][kind, score]`` with kinds ``mean`` (over seeds), ``always`` and ``any``; ``models`` is each fit's
    model, where its gates say which. ``active`` is the share of heads that facilitate or interfere in at least one
    seed.
    """

    shares: dict[str, dict[tuple[str, Score], float]]
    models: dict[str, str | None]
    n_seeds: dict[str, int]
    active: dict[str, float]
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The whole result, JSON-ready."""
        rows = json.loads(self.to_frame().to_json(orient="records"))
        return {"shares": rows, "provenance": self.provenance}

    def to_frame(self) -> pd.DataFrame:
        """One row a fit and kind of count: its model, seeds, and the share of heads of each score (their table 2)."""
        import pandas as pd

        return pd.DataFrame(
            {
                "fit": name,
                "model": self.models[name],
                "seeds": self.n_seeds[name],
                "heads": kind,
                **{score: shares[kind, score] for score in SCORES},
                "active": self.active[name] if kind == "any" else np.nan,
            }
            for name, shares in self.shares.items()
            for kind in ("mean", "always", "any")
        )

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False, float_format="{:.3f}".format, border=0)


def taxonomy(fits: Mapping[str, HeadGates], threshold: float = THRESHOLD) -> Taxonomy:
    """Count heads whose score is ``threshold`` or more: in every seed, in any, and on average over seeds.

    ``fits`` are gates by any name, as the task they were fitted to. With one seed the three counts are one. No fit at
    all, or a threshold outside (0, 1], raises ``ValueError``.
    """
    if not fits:
        raise ValueError("fits must hold one fit or more")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must lie in (0, 1], got {threshold}")
    shares: dict[str, dict[tuple[str, Score], float]] = {}
    for name, gates in fits.items():
        shares[name] = {}
        for score in SCORES:
            counted = gates.score(score) >= threshold
            shares[name]["mean", score] = float(counted.mean())
            shares[name]["always", score] = float(counted.all(axis=0).mean())
            shares[name]["any", score] = float(counted.any(axis=0).mean())
    return Taxonomy(
        shares=shares,
        models={name: gates.provenance.get("model", {}).get("name") for name, gates in fits.items()},
        n_seeds={name: len(gates.free) for name, gates in fits.items()},
        active={
            name: float(
                ((gates.score("facilitation") >= threshold) | (gates.score("interference") >= threshold))
                .any(axis=0)
                .mean()
            )
            for name, gates in fits.items()
        },
        provenance={"threshold": threshold, "fits": {name: gates.provenance for name, gates in fits.items()}},
    )


def seed_agreement(gates: HeadGates, threshold: float = THRESHOLD) -> pd.DataFrame:
    """How alike two seeds are, by score: Pearson's correlation, and the share of heads in common (Jaccard).

    Means over all pairs of seeds; heads that several solutions share are in common, those of one are not. A score
    that is the same in every head of a seed has no correlation, and one that no head reaches no share: NaN. Fewer
    than two seeds raise ``ValueError``.
    """
    import pandas as pd

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
        rows.append(
            {
                "score": score,
                "correlation": np.mean(correlations) if correlations else np.nan,
                "in common": np.mean(jaccards) if jaccards else np.nan,
            }
        )
    return pd.DataFrame(rows)


@dataclass(frozen=True, eq=False)
class ToggleCurve:
    """The target's log-probability with heads shut less that with the same heads open, all others gated by G⁺.

    ``difference[seed, point]`` (nats per token, mean over examples) is that of the first ``n_heads[point]`` heads by
    one score of the seed: below zero where they facilitate, about zero where they are irrelevant, above where they
    interfere.
    """

    by: Score
    n_heads: Int[np.ndarray, " point"]
    difference: Float[np.ndarray, "seed point"]
    spent: int

    def to_frame(self) -> pd.DataFrame:
        """One row a number of heads: the difference, its mean, least and largest value over seeds."""
        import pandas as pd

        return pd.DataFrame(
            {
                "by": self.by,
                "n_heads": self.n_heads,
                "difference": self.difference.mean(axis=0),
                "low": self.difference.min(axis=0),
                "high": self.difference.max(axis=0),
            }
        )


def toggle_curves(
    experiment: Experiment,
    gates: HeadGates,
    *,
    n_heads: int | None = None,
    n_points: int = 12,
) -> tuple[ToggleCurve, ...]:
    """Set heads to 0 and to 1, one after another in the order of each score, with all other gates at G⁺ (figure 2).

    Every seed goes by its own scores and its own G⁺; up to ``n_heads`` heads (None: half of the grid) at ``n_points``
    numbers from one on. Give an experiment on unseen examples: ``Experiment(model, task).held_out``. Each point of
    each of three curves costs two evaluations a seed. Gates of another grid, or an ``n_heads`` beyond half of it, raise
    ``ValueError``.
    """
    grid = experiment.grid
    if gates.free.shape[1:] != grid.shape:
        raise ValueError(f"gates must be of the grid {grid.shape} of the experiment, got {gates.free.shape[1:]}")
    most = max(1, grid.size // 2) if n_heads is None else n_heads
    check_k(most, grid.size, "n_heads")
    check_integer("n_points", n_points, 1)
    points = np.unique(np.linspace(1, most, min(n_points, most)).round().astype(int))
    curves = []
    for score in SCORES:
        rows = []
        for plus, scores in zip(gates.plus, gates.score(score), strict=True):
            order = np.argsort(-scores.ravel(), kind="stable")
            for value in (0.0, 1.0):
                toggled = np.repeat(plus.reshape(1, -1), len(points), axis=0)
                for row, n in enumerate(points):
                    toggled[row, order[:n]] = value
                rows.append(toggled.reshape(len(points), *grid.shape))
        logprob = experiment.logprob(np.concatenate(rows)).mean(axis=1)
        off, on = logprob.reshape(len(gates.plus), 2, len(points)).transpose(1, 0, 2)
        curves.append(ToggleCurve(score, points, off - on, 2 * off.size * experiment.n_examples))
    return tuple(curves)
