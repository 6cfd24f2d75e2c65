"""What a comparison of methods gives: rankings, and the drops of their heads on the same unseen examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cs_heads.analysis.agreement import overlap, rank_biased_overlap, spearman
from cs_heads.analysis.losses import Specificity, loss_of
from cs_heads.analysis.task_drop import TaskDrop
from cs_heads.arguments import check_integer
from cs_heads.drawable import Drawable
from cs_heads.ranking import HeadRanking
from cs_heads.tasks.controls import AUTO

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Compared:
    """One method: its ranking, how long it took, and what its heads do to unseen examples.

    ``curve[i]`` is what its first i + 1 heads take; ``control_drops`` what the top heads take from each control.
    """

    ranking: HeadRanking
    seconds: float
    curve: tuple[TaskDrop, ...]
    control_drops: dict[str, TaskDrop]

    @property
    def drops(self) -> Float[np.ndarray, " k"]:
        """drop@k for k = 1, 2, ..., in points."""
        return np.array([drop.drop for drop in self.curve])

    @property
    def controls(self) -> dict[str, float]:
        """The drop of each control with the top heads off, in points."""
        return {name: drop.drop for name, drop in self.control_drops.items()}

    @property
    def cost(self) -> dict[str, int | float]:
        """Example-evaluations, the forward and backward passes of one example among them, and seconds."""
        return {"spent": self.ranking.spent, **self.ranking.provenance["cost"], "seconds": self.seconds}


@dataclass(frozen=True, eq=False)
class Comparison(Drawable, picture="comparison"):
    """What several methods say of one task, by the name of the method.

    ``random_drops`` are the drops of random heads, ``[set, k]``: each set grows from one head to the most, through the
    layers of the heads of one method, in turn, and has none of its heads.
    ``k`` is the number of heads that controls and agreement are told of; ``baseline`` and all drops are
    those of unseen examples; ``spent`` counts the example-evaluations of this judgement alone; ``refused``
    has the methods that did not run, and why; ``notes`` say which default controls do not count.
    """

    methods: dict[str, Compared]
    random_drops: Float[np.ndarray, "set k"]
    k: int
    baseline: float
    spent: int
    refused: dict[str, str]
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def random_drop(self) -> Float[np.ndarray, " k"]:
        """Mean drop of random heads: the line a method must beat."""
        return self.random_drops.mean(axis=0)

    @property
    def default_controls(self) -> bool:
        """Whether the controls are the default ones, and nobody's choice."""
        return self.provenance.get("controls_from") == AUTO

    def specificity(self, method: str) -> Specificity | None:
        """What a method's top heads take from the task and from each control that counts; None where none does."""
        one = self.methods[method]
        own = loss_of(one.curve[self.k - 1])
        losses = {name: loss for name, drop in one.control_drops.items() if (loss := loss_of(drop)) is not None}
        return Specificity(own, losses) if own is not None and losses else None

    def leading(self, k: int | None = None) -> tuple[str, ...]:
        """The methods whose first ``k`` heads (None: as many as the comparison is of) take the most, as far as told.

        The one with the largest drop first, then all whose drop lies within its 95 % interval. ``k`` beyond the curve
        raises ``ValueError``.
        """
        most = self.random_drops.shape[1]
        k = self.k if k is None else k
        check_integer("k", k, 1, most, "the heads of the drop curve")
        drops = {name: one.curve[k - 1] for name, one in self.methods.items()}
        order = sorted(drops, key=lambda name: -drops[name].drop)
        low = drops[order[0]].interval[0]
        return tuple(name for name in order if name == order[0] or drops[name].drop >= low)

    def to_frame(self) -> pd.DataFrame:
        """One row a method: its top heads, cost, drop@1, @k (with its interval) and at the end, and its controls.

        Where there are controls, ``loss`` is the share of the score above chance that the task loses with the top heads
        off, ``control loss`` the mean of theirs; the drop of each control given has a column of its own.
        """
        import pandas as pd

        losses = {name: self._losses(name) for name in self.methods}
        most = self.random_drops.shape[1]
        at = sorted({1, min(self.k, most), most})
        return pd.DataFrame(
            {
                "method": name,
                "heads": " ".join(map(str, one.ranking.top(self.k))),
                **one.cost,
                **{f"drop@{k}": one.drops[k - 1] for k in at},
                "low": one.curve[self.k - 1].interval[0],
                "high": one.curve[self.k - 1].interval[1],
                **losses[name],
                **({} if self.default_controls else {f"control {task}": drop for task, drop in one.controls.items()}),
            }
            for name, one in self.methods.items()
        )

    def _losses(self, method: str) -> dict[str, float]:
        if not self.methods[method].control_drops:
            return {}
        found = self.specificity(method)
        own, mean = (np.nan, np.nan) if found is None else (found.own.loss, found.mean.loss)
        return {"loss": own, "control loss": mean}

    def curves(self) -> pd.DataFrame:
        """Drop by number of heads off: one row a (method, k) with its interval, and random heads' mean, least and most.

        ``low`` and ``high`` are bounds of the 95 % interval of a method's drop, and the range of the random sets.
        """
        import pandas as pd

        rows = [
            {"method": name, "k": k, "drop": drop.drop, "low": drop.interval[0], "high": drop.interval[1]}
            for name, one in self.methods.items()
            for k, drop in enumerate(one.curve, start=1)
        ]
        rows += [
            {"method": "random", "k": k, "drop": sets.mean(), "low": sets.min(), "high": sets.max()}
            for k, sets in enumerate(self.random_drops.T, start=1)
        ]
        return pd.DataFrame(rows).astype({"low": float, "high": float})

    def agreement(self) -> pd.DataFrame:
        """One row a pair of methods: overlap of the top k, rank-biased overlap of the curve's heads, Spearman.

        Spearman is over heads with an importance other than zero in both; NaN where there is no order to compare.
        """
        import pandas as pd

        most = self.random_drops.shape[1]
        rows = []
        for (first, a), (second, b) in combinations(self.methods.items(), 2):
            rows.append(
                {
                    "first": first,
                    "second": second,
                    f"overlap@{self.k}": overlap(a.ranking, b.ranking, self.k),
                    "rank-biased overlap": rank_biased_overlap(a.ranking.top(most), b.ranking.top(most)),
                    "spearman": spearman(a.ranking, b.ranking),
                }
            )
        columns = ["first", "second", f"overlap@{self.k}", "rank-biased overlap", "spearman"]
        return pd.DataFrame(rows, columns=columns).astype({"spearman": float})

    def to_dict(self) -> dict[str, Any]:
        """The whole comparison but for the rankings' importances, JSON-ready."""
        return {
            "k": self.k,
            "baseline": self.baseline,
            "random_drops": self.random_drops.tolist(),
            "methods": {
                name: {
                    "heads": [str(head) for head in one.ranking.top(self.random_drops.shape[1])],
                    **one.cost,
                    "drops": one.drops.tolist(),
                    "controls": one.controls,
                    "curve": [drop.to_dict() for drop in one.curve],
                    "control_drops": {task: drop.to_dict() for task, drop in one.control_drops.items()},
                    "notes": list(one.ranking.notes),
                }
                for name, one in self.methods.items()
            },
            "agreement": [
                {**row, "spearman": None if np.isnan(row["spearman"]) else row["spearman"]}  # NaN is no JSON
                for row in self.agreement().to_dict("records")
            ],
            "spent": self.spent,
            "refused": self.refused,
            "notes": list(self.notes),
            "provenance": self.provenance,
        }

    def _repr_html_(self) -> str:
        from html import escape

        table = self.to_frame().to_html(index=False, float_format="{:.3f}".format, border=0)
        refused = (f"<p>{escape(name)} did not run: {escape(reason)}</p>" for name, reason in self.refused.items())
        notes = (f"<p>{escape(note)}</p>" for note in self.notes)
        return table + "".join((*refused, *notes))
