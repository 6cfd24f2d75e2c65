"""Fitted gates, and the scores of each head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int

from cs_heads.drawable import Drawable
from cs_heads.experiment.cost import Cost
from cs_heads.lens import check_weights
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid

if TYPE_CHECKING:
    import pandas as pd

Score = Literal["facilitation", "irrelevance", "interference"]
SCORES: tuple[Score, ...] = ("facilitation", "irrelevance", "interference")
PHASES = ("free", "plus", "minus")


def range_over_seeds(each: Float[np.ndarray, "seed layer head"]) -> Float[np.ndarray, "layer head bound"] | None:
    """The minimum and maximum of each head over seeds; None for one seed."""
    return np.stack([each.min(axis=0), each.max(axis=0)], axis=-1) if len(each) > 1 else None


@dataclass(frozen=True, eq=False)
class HeadGates(Drawable, picture="roles"):
    """Fitted gates of every seed, with losses and trajectories.

    Attributes:
        free: Gates, 0 (shut) to 1 (open), fitted to the loss alone.
        plus: G⁺, those pushed open from there.
        minus: G⁻, those pushed shut from there.
        losses: Mean negative log-probability of the target (nats per token) on each step's batch; phases are in the
            order of ``PHASES``.
        trajectory: The gates at the steps ``at``, by phase.
        at: Steps made at each point of the trajectory, from 0 on.
        cost: Forward and backward passes of single examples, the intact run among them.
        provenance: How the gates were fitted, JSON-ready.
        notes: What weakens them.
        grid: Of the gates (None: of heads).
        examples: Hashes of the questions that they were fitted to, as of ``HeadRanking``.
    """

    free: Float[np.ndarray, "seed layer head"]
    plus: Float[np.ndarray, "seed layer head"]
    minus: Float[np.ndarray, "seed layer head"]
    losses: Float[np.ndarray, "phase seed step"]
    trajectory: Float[np.ndarray, "phase seed point layer head"]
    at: Int[np.ndarray, " point"]
    cost: Cost
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    grid: Grid | None = None
    examples: tuple[str, ...] = field(default=(), repr=False)

    def score(self, name: str) -> Float[np.ndarray, "seed layer head"]:
        """Facilitation G⁻, interference 1 - G⁺ or irrelevance G⁺(1 - G⁻), in [0, 1], of every seed.

        Args:
            name: ``"facilitation"``, ``"interference"`` or ``"irrelevance"``.

        Raises:
            ValueError: Another name.
        """
        if name not in SCORES:
            raise ValueError(f"name must be one of {', '.join(SCORES)}, got {name!r}")
        if name == "irrelevance":
            return self.plus * (1 - self.minus)
        return self.minus if name == "facilitation" else 1 - self.plus

    def always(self, name: str) -> Float[np.ndarray, "layer head"]:
        """A score's minimum over the seeds: its value in every solution found.

        Args:
            name: ``"facilitation"``, ``"interference"`` or ``"irrelevance"``.

        Raises:
            ValueError: Another name.
        """
        return self.score(name).min(axis=0)

    def any(self, name: str) -> Float[np.ndarray, "layer head"]:
        """A score's maximum over the seeds: its value in some solution found.

        Args:
            name: ``"facilitation"``, ``"interference"`` or ``"irrelevance"``.

        Raises:
            ValueError: Another name.
        """
        return self.score(name).max(axis=0)

    @property
    def kind(self) -> np.ndarray:
        """The score that is largest in each head, on average over the seeds: ``[layer, head]`` of names."""
        means = np.stack([self.score(name).mean(axis=0) for name in SCORES])
        return np.array(SCORES)[means.argmax(axis=0)]

    def to_frame(self) -> pd.DataFrame:
        """One row a head: kind, and each score's mean, least ("always") and largest ("any") value over seeds."""
        frame = self.ranking().to_frame()[["rank", "head", "layer", "index"]]
        frame["kind"] = self.kind.ravel()[frame["index"]]
        for name in SCORES:
            mean = self.score(name).mean(axis=0)
            for kind, values in (("", mean), ("_always", self.always(name)), ("_any", self.any(name))):
                frame[f"{name}{kind}"] = values.ravel()[frame["index"]]
        return frame

    def ranking(self, controls: Sequence[HeadGates] = ()) -> HeadRanking:
        """Heads by facilitation less interference, in [-1, 1]; the interval is its range over two seeds or more.

        With ``controls`` by that less the mean of theirs, seed by seed; ``frequency`` is then the share of seeds in
        which that is above .5, and ``spent`` counts all fits.

        Args:
            controls: Gates of other tasks, of as many seeds.

        Raises:
            ValueError: Gates of controls have another shape, or are of other weights.
        """
        each, unit = self.score("facilitation") - self.score("interference"), "facilitation - interference"
        frequency, cost, used = (self.score("facilitation") > 0.5).mean(axis=0), self.cost, {}
        if controls:
            shapes = [control.free.shape for control in controls]
            if set(shapes) != {self.free.shape}:
                raise ValueError(f"controls must have gates [seed, layer, head] = {self.free.shape}, got {shapes}")
            for origin in (control.provenance.get("model") for control in controls):
                check_weights("gates and those of controls", self.provenance.get("model"), origin)
            other = [control.score("facilitation") - control.score("interference") for control in controls]
            each, unit = each - np.mean(other, axis=0), f"{unit}, less that of the controls"
            frequency, cost = (each > 0.5).mean(axis=0), sum((control.cost for control in controls), cost)
            used = {"controls": [control.provenance.get("task", {}).get("name") for control in controls]}
        return HeadRanking(
            method="chg",
            importance=each.mean(axis=0),
            spent=cost.spent,
            backwards=cost.backwards,
            interval=range_over_seeds(each),
            frequency=frequency,
            provenance={**self.provenance, **used},
            notes=self.notes,
            unit=unit,
            grid=Grid(*self.free.shape[1:]) if self.grid is None else self.grid,
            examples=tuple(sorted({key for gates in (self, *controls) for key in gates.examples})),
        )
