"""What annealed sensing measures: rows of few heads off, each on few examples of the task and of its controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import add
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from cs_heads.experiment.cost import Budget
from cs_heads.experiment.protocol import measured
from cs_heads.experiment.shared_forwards import Call, measure_together
from cs_heads.methods.controls import Controls
from cs_heads.methods.losses import Masks, TaskLoss
from cs_heads.units import Grid

# Entries of the masks built at once, 64 MiB of bools.
_MAX_ENTRIES = 2**26

Flat: TypeAlias = Float[np.ndarray, " flat"]
"""A number for each head, by its flat index."""
PerRow: TypeAlias = Float[np.ndarray, " row"]
"""A number for each row."""
OfRows: TypeAlias = Int[np.ndarray, " row"]
"""A whole number for each row."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Measured rows: the heads off in each (sparse, 1 = off), its examples, their scores, its group.

    ``drawn`` are the examples of the controls and ``losses`` what they lost; without controls a row has none. Rows of
    one group share an intercept; ``last`` marks those of the last phase. Before rows are measured their scores and
    losses are 0.
    """

    off: sparse.csr_array
    examples: Int[np.ndarray, "row k"]
    scores: Float[np.ndarray, "row k"]
    drawn: Int[np.ndarray, "row c"]
    losses: Float[np.ndarray, "row c"]
    group: OfRows
    last: Bool[np.ndarray, " row"]

    @classmethod
    def none(cls, n_heads: int, per_row: int, of_controls: int = 0) -> Rows:
        """No rows yet."""
        shapes = (0, per_row), (0, per_row), (0, of_controls), (0, of_controls), (0,), (0,)
        kinds = zip(shapes, (int, float, int, float, int, bool), strict=True)
        return cls(sparse_rows([], n_heads), *(np.zeros(shape, dtype=kind) for shape, kind in kinds))

    def __len__(self) -> int:
        return len(self.group)

    def __getitem__(self, chosen: np.ndarray | slice) -> Rows:
        return Rows(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def __add__(self, other: Rows) -> Rows:
        arrays = [each.name for each in fields(self) if each.name != "off"]
        joined = [np.concatenate([getattr(self, name), getattr(other, name)]) for name in arrays]
        return Rows(sparse.vstack([self.off, other.off], format="csr"), *joined)

    def control_response(self, counted: Bool[np.ndarray, "row c"] | None = None) -> PerRow:
        """Mean loss of each row's control examples, or of those counted, hard examples not held against it."""
        return row_means(self.losses, self.drawn, counted)


def row_means(
    values: Float[np.ndarray, "row k"],
    examples: Int[np.ndarray, "row k"],
    counted: Bool[np.ndarray, "row k"] | None = None,
    n_passes: int = 5,
) -> PerRow:
    """Mean over a row's examples of value less example effect, which alternating passes estimate; NaN without any.

    An example's effect is its mean distance from the rows it stands in, so a row is not called
    harmful for the hard examples it happened to be given. All examples are ``counted``, or some.
    """
    counted = np.ones(examples.shape, dtype=bool) if counted is None else counted
    some, effect, row = examples[counted], np.zeros(int(examples.max(initial=-1)) + 1), np.zeros(len(examples))
    times = np.bincount(some, minlength=len(effect))
    for turn in range(n_passes + 1):
        # ``where`` leaves rows without any as NaN, and says nothing of it.
        rest = np.where(counted, values - effect[examples], 0.0).sum(axis=1)
        row = np.divide(rest, n := counted.sum(axis=1), out=np.full(len(rest), np.nan), where=n > 0)
        if turn < n_passes:
            distance = (values - row[:, None])[counted]
            effect = np.bincount(some, distance, len(effect)) / np.maximum(times, 1)
            effect -= (effect * times).sum() / max(times.sum(), 1)
    return row


def sparse_rows(heads_off: list[np.ndarray], n_heads: int) -> sparse.csr_array:
    """Lists of heads off as a sparse matrix, 1 = off."""
    ends = np.cumsum([0, *map(len, heads_off)])
    indices = np.concatenate(heads_off) if heads_off else np.zeros(0, dtype=int)
    return sparse.csr_array((np.ones(len(indices)), indices, ends), shape=(len(heads_off), n_heads))


@dataclass
class Sensor:
    """Measures rows: the scores of ``per_row`` examples of the task, and the losses of examples of its controls.

    Of these a row has ``of_controls``, and one of a set ``of_controls_in_sets``.
    """

    task: TaskLoss
    controls: Controls
    per_row: int
    of_controls: int
    of_controls_in_sets: int
    budget: Budget
    rng: np.random.Generator = field(repr=False)

    @property
    def grid(self) -> Grid:
        """Layers × heads."""
        return self.task.experiment.grid

    @property
    def cost(self) -> int:
        """Example-evaluations of a row."""
        return self.per_row + self.of_controls

    def lost(self, rows: Rows) -> PerRow:
        """What rows lost of the task, hard examples not held against them: a loss each."""
        return (self.task.level - row_means(rows.scores, rows.examples)) / self.task.above_guess

    def controls_lost(self, rows: Rows, side: Int[np.ndarray, " control"]) -> tuple[Rows, PerRow]:
        """The rows that have examples of a side of the controls, and what these lost."""
        lost = rows.control_response(np.isin(self.controls.of(rows.drawn), side))
        return rows[seen := np.isfinite(lost)], lost[seen]

    def answers_lost(self, rows: Rows) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
        """The heads off in each row, what each answer lost against the intact model, and the example of each answer."""
        intact = self.task.intact[np.searchsorted(self.task.examples, rows.examples)]
        return rows.off, (intact - rows.scores) / self.task.above_guess, rows.examples

    def plan(self, off: sparse.csr_array, group: OfRows, *, last: bool = False, in_sets: bool = False) -> Planned:
        """Draw random examples for rows with these heads off, and pay for them.

        Args:
            off: The heads off in each row.
            group: Of each row.
            last: Whether the rows are of the last phase.
            in_sets: Whether the rows measure sets of heads.
        """
        n_rows = off.shape[0]
        places = self.rng.random((n_rows, self.task.n_examples)).argsort(axis=1)[:, : self.per_row]
        examples = self.task.examples[places]
        drawn = self.controls.draw(n_rows, self.of_controls_in_sets if in_sets else self.of_controls)
        self.budget.pay(examples.size + drawn.size)
        scores, losses = np.zeros(examples.shape), np.zeros(drawn.shape)
        return self, Rows(off, examples, scores, drawn, losses, group, np.full(n_rows, last))

    def asked(self, masks: Masks, rows: Rows) -> list[Call]:
        """What rows are made of, for ``measure_together``."""
        return [Call(self.task.experiment, masks, rows.examples), *self.controls.asked(masks, rows.drawn)]

    def measured(self, masks: Masks, rows: Rows) -> Rows:
        """Rows with their scores and losses."""
        scores = measured(self.task.experiment, masks, rows.examples)
        return replace(rows, scores=scores, losses=self.controls(masks, rows.drawn))


Planned: TypeAlias = tuple[Sensor, Rows]
"""Rows that are drawn and paid for, and the sensor that measures them."""


def measure(planned: Sequence[Planned]) -> list[Rows]:
    """Measure the rows of one search or several, in forwards that they share."""
    measured: list[list[Rows]] = [[] for _ in planned]
    # The masks of a big grid, of all that is measured beside each other, do not fit into memory at once.
    at_once = max(1, _MAX_ENTRIES // max(sum(sensor.grid.size for sensor, _ in planned), 1))
    for start in range(0, max((len(rows) for _, rows in planned), default=0), at_once):
        run = []
        for place, (sensor, rows) in enumerate(planned):
            some = rows[start : start + at_once]
            if len(some):
                masks = some.off.astype(bool).toarray().reshape(-1, *sensor.grid.shape)
                run.append((measured[place], sensor, masks, some))
        measure_together([call for _, sensor, masks, rows in run for call in sensor.asked(masks, rows)])
        for parts, sensor, masks, rows in run:
            parts.append(sensor.measured(masks, rows))
    return [reduce(add, parts, rows[:0]) for parts, (_, rows) in zip(measured, planned, strict=True)]
