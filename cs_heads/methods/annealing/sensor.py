"""Measures rows on a task and its controls, and pays for them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from cs_heads.experiment.cost import Budget
from cs_heads.experiment.protocol import ExperimentLike, responding
from cs_heads.methods.annealing.rows import Rows, in_chunks
from cs_heads.methods.controls import Controls
from cs_heads.units import HeadGrid


@dataclass
class Sensor:
    """Measures rows: the response of ``per_row`` examples of the task, and the losses of ``of_controls`` others.

    ``examples`` are those of the task to draw from, ``intact`` the response of each example of the task on the intact
    model, ``guess`` that of guessing.
    """

    experiment: ExperimentLike
    response: str
    examples: Int[np.ndarray, " used"]
    intact: Float[np.ndarray, " example"]
    guess: float
    controls: Controls | None
    per_row: int
    of_controls: int
    purse: Budget
    rng: np.random.Generator = field(repr=False)

    @property
    def grid(self) -> HeadGrid:
        """Layers × heads."""
        return self.experiment.grid

    @property
    def cost(self) -> int:
        """Example-evaluations of a row."""
        return self.per_row + self.of_controls

    @property
    def level(self) -> float:
        """The mean intact response of the examples to draw from."""
        return float(self.intact[self.examples].mean())

    @property
    def above_guess(self) -> float:
        """The mean intact response above guessing, which is a loss of 1."""
        return self.level - self.guess

    def __call__(
        self, off: sparse.csr_array, group: Int[np.ndarray, " row"], *, last: bool, beside: Rows | None = None
    ) -> Rows:
        """Rows with these heads off, each on random examples, or on those of as many other rows."""
        n_rows = off.shape[0]
        if beside is not None:
            examples, drawn = beside.examples, beside.drawn
        else:
            examples = self.examples[self.rng.random((n_rows, len(self.examples))).argsort(axis=1)[:, : self.per_row]]
            drawn = np.zeros((n_rows, 0), dtype=int)
            if self.controls is not None:
                drawn = self.controls.draw(n_rows, self.of_controls)
        self.purse.pay(examples.size + drawn.size)
        answers = responding(self.experiment, self.response)
        scores: list[Float[np.ndarray, "row k"]] = []
        losses: list[Float[np.ndarray, "row c"]] = []
        for rows, flat in in_chunks(off):
            masks = flat.reshape(-1, *self.grid.shape)
            scores.append(answers(masks, examples[rows]))
            if self.controls is None:
                losses.append(np.zeros((len(masks), 0)))
            else:
                losses.append(self.controls(masks, drawn[rows]))
        return Rows(off, examples, np.concatenate(scores), drawn, np.concatenate(losses), group, np.full(n_rows, last))
