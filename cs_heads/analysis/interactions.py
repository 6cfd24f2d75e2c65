"""How heads work together: every subset of them off, Shapley values, and pairs that do more or less than summed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from typing_extensions import Unpack

from cs_heads.analysis.columns import Judged, in_role, unseen_columns
from cs_heads.analysis.found_heads import Found, heads_of, model_of
from cs_heads.analysis.intervals import drop_interval
from cs_heads.analysis.least_set import MOST_OF
from cs_heads.analysis.result import Result
from cs_heads.cluster import ModelLike
from cs_heads.designs import explicit
from cs_heads.experiment.protocol import measured
from cs_heads.progress import expect, one_bar
from cs_heads.settings import SettingsArguments
from cs_heads.units import Unit

MOST_HEADS = 6
"""Heads at most: of six there are 64 subsets."""


@dataclass(frozen=True, eq=False, repr=False)
class Interactions(Result):
    """Drops of a task's score with every subset of some heads off.

    Attributes:
        heads: The heads.
        subsets: True where a head is off; the first has none, the last all.
        drops: By subset and example the score with nothing off less that with the subset off.
        spent: Example-evaluations.
        provenance: Model and task.
        notes: Examples that were left out.
    """

    heads: tuple[Unit, ...]
    subsets: Bool[np.ndarray, "subset chosen"]
    drops: Float[np.ndarray, "subset example"]

    @property
    def harm(self) -> Float[np.ndarray, " subset"]:
        """The mean drop of each subset."""
        return self.drops.mean(axis=1)

    def is_beyond(self, chance: float) -> bool:
        """Whether all heads together take surely more than nothing, and more than ``chance``.

        Args:
            chance: What all must take, at least; NaN where nothing tells.
        """
        taken, low, _ = drop_interval(self.drops[-1])
        return low > 0 and taken > chance

    def shapley(self) -> pd.DataFrame:
        """One row per head: its share of the harm of all (Shapley value), alone, and as the last one turned off.

        Shapley values sum to the harm of all heads together; the interval is of their mean over examples (95 %),
        corrected for the number of heads.
        """
        rows = []
        for place, head in enumerate(self.heads):
            others = self._rows_without([place])
            n_off = self.subsets[others].sum(axis=1)
            weights = 1 / (len(self.heads) * np.array([comb(len(self.heads) - 1, n) for n in n_off]))
            gains = self.drops[others + 2**place] - self.drops[others]
            mean, low, high = drop_interval(weights @ gains, 0.05 / len(self.heads))
            row = {"head": str(head), "shapley": mean, "low": low, "high": high}
            rows.append({**row, "alone": gains[0].mean(), "last": gains[-1].mean()})
        return pd.DataFrame(rows)

    def pairs(self) -> pd.DataFrame:
        """One row per pair: what both take beyond the sum of each, over all subsets of the others (interaction index).

        Above 0 each *backs up* the other: together they take more. Below 0 they *overlap*: what one takes, the other
        takes too. ``kind`` says so where the interval, corrected for the number of pairs, has one sign.
        """
        every = list(combinations(range(len(self.heads)), 2))
        rows = []
        for first, second in every:
            others = self._rows_without([first, second])
            n_off, k = self.subsets[others].sum(axis=1), len(self.heads)
            weights = 1 / ((k - 1) * np.array([comb(k - 2, n) for n in n_off]))
            one, two = 2**first, 2**second
            beyond = self.drops[others + one + two] - self.drops[others + one] - self.drops[others + two]
            mean, low, high = drop_interval(weights @ (beyond + self.drops[others]), 0.05 / len(every))
            kind = "backup" if low > 0 else "overlap" if high < 0 else ""
            pair = {"first": str(self.heads[first]), "second": str(self.heads[second])}
            rows.append({**pair, "beyond the sum": mean, "low": low, "high": high, "kind": kind})
        return pd.DataFrame(rows, columns=["first", "second", "beyond the sum", "low", "high", "kind"])

    @property
    def least(self) -> tuple[Unit, ...]:
        """The fewest heads that do nine tenths of the harm of all.

        Of as many those of which most have a Shapley value that is certain (its interval lies above 0), and of these
        those that do most harm.
        """
        return tuple(head for head, off in zip(self.heads, self.subsets[self.least_row], strict=True) if off)

    @property
    def least_row(self) -> int:
        """Which of the subsets ``least`` is."""
        enough = np.flatnonzero(self.harm >= MOST_OF * self.harm[-1] - 1e-9)
        uncertain = self.subsets & ~(self.shapley()["low"] > 0).to_numpy()
        return int(min(enough, key=lambda row: (self.subsets[row].sum(), uncertain[row].sum(), -self.harm[row])))

    def to_frame(self) -> pd.DataFrame:
        """One row per subset: the heads that are off, and the drop with its 95 % interval."""
        rows = []
        for off, drops in zip(self.subsets, self.drops, strict=True):
            mean, low, high = drop_interval(drops) if off.any() else (0.0, 0.0, 0.0)
            named = " ".join(str(head) for head, is_off in zip(self.heads, off, strict=True) if is_off)
            rows.append({"off": named, "drop": mean, "low": low, "high": high})
        return pd.DataFrame(rows)

    def _table(self) -> pd.DataFrame:
        return self.shapley()

    def _remarks(self) -> Sequence[str]:
        told = self.pairs()
        said = [f"{row.first} and {row.second}: {row.kind}" for row in told[told["kind"] != ""].itertuples()]
        return [f"least set: {', '.join(map(str, self.least)) or 'none'}", *said, *self.notes]

    def _rows_without(self, places: Sequence[int]) -> np.ndarray:
        """The subsets in which some heads are on, by row: a subset's row is the sum of 2 to the place of each head."""
        return np.flatnonzero(~self.subsets[:, list(places)].any(axis=1))


@one_bar("interactions")
def interactions(
    model: ModelLike | None,
    task: Judged,
    heads: Found,
    *,
    n: int = 100,
    **settings: Unpack[SettingsArguments],
) -> Interactions:
    """Turn off every subset of up to six heads on unseen examples, and say what each does beside the others.

    Shapley values are exact, as are interaction indices of pairs (Grabisch and Roubens, *An axiomatic approach to the
    concept of interaction among players in cooperative games*, 1999). Costs 2^k example-evaluations an example.

    Args:
        model: A model, the name of one, or a ``Cluster``; None: the task is an experiment (see ``cs_heads.analysis``).
        task: The task that the heads were found on.
        heads: A ranking, whose first heads are taken, or a list of heads.
        n: Unseen examples at most.
        settings: As of ``Experiment``.

    Returns:
        The drop of every subset, with ``shapley()``, ``pairs()`` and the ``least`` set.

    Raises:
        ValueError: What ``specificity`` refuses, more heads than six, or a ranking found with other heads off.
    """
    with unseen_columns(model, in_role("own", [task]), heads, n=n, seed=0, settings=settings) as [column]:
        [experiment] = column.parts
        chosen = heads_of(experiment.grid, heads, model=model_of(experiment))
        if len(chosen) > MOST_HEADS:
            raise ValueError(f"heads must be {MOST_HEADS} or fewer, got {len(chosen)}: {', '.join(map(str, chosen))}")
        subsets = (np.arange(2 ** len(chosen))[:, None] >> np.arange(len(chosen))) % 2 == 1
        off = [[head for head, is_off in zip(chosen, row, strict=True) if is_off] for row in subsets]
        spent = len(subsets) * experiment.n_examples
        expect(spent)
        scores = measured(experiment, explicit(experiment.grid, off))
        return Interactions(
            heads=chosen,
            subsets=subsets,
            drops=scores[:1] - scores,
            spent=spent,
            provenance=experiment.provenance(),
            notes=column.notes,
        )
