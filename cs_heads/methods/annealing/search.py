"""The search itself: batches of rows, a fit after each, heads that the controls need as much set aside on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from cs_heads.methods.annealing.blame import CLEAR, Blame, BothEffects, blame
from cs_heads.methods.annealing.inference import ROWS_A_HEAD
from cs_heads.methods.annealing.rows import BalancedDraws, Rows, sparse_rows
from cs_heads.methods.annealing.schedule import LAST, DensityControl, Groups, finalists_and_decoys, pool_size
from cs_heads.methods.annealing.sensor import Sensor


@dataclass
class Search:
    """Measures batch after batch and keeps what is known so far.

    ``shared`` are heads that surely take as much from the controls, with what was known of both their effects: they go
    off no more, and where they take much, the rows in which they did are left out, for they tell of no other head.
    """

    sensor: Sensor
    density: DensityControl
    prior: Float[np.ndarray, " flat"]
    n_batches: int
    last_target: float
    n_finalists: int
    n_decoys: int
    rng: np.random.Generator
    shared: dict[int, BothEffects] = field(default_factory=dict)
    finalists: Int[np.ndarray, " finalist"] = field(default_factory=lambda: np.zeros(0, dtype=int))
    decoys: Int[np.ndarray, " decoy"] = field(default_factory=lambda: np.zeros(0, dtype=int))
    heads_off: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.sensor.grid.size
        self.blame = Blame.none(size)
        self.every_row = self.rows = Rows.none(size, self.sensor.per_row, self.sensor.of_controls)
        self.off = np.flatnonzero(getattr(self.sensor.experiment, "off", np.zeros(0)))
        self._groups = Groups()
        self._draws = BalancedDraws(np.arange(size), self.rng)

    @property
    def merit(self) -> Float[np.ndarray, " flat"]:
        """What heads are ranked by: z and the prior; -inf for heads set aside, or off throughout."""
        merit = self.blame.z + self.prior
        merit[list(self.shared)] = -np.inf
        merit[self.off] = -np.inf
        return merit

    def run(self, batches: range) -> None:
        """Measure these of the batches; the last of all spends what is left."""
        for batch in batches:
            n_rows = self.sensor.purse.left // (self.sensor.cost * (self.n_batches - batch))
            self._set_pool(batch / self.n_batches)
            if len(self.finalists) and self.sensor.controls is not None:
                # Sets may follow instead of more such rows: intervals need some.
                needed = ROWS_A_HEAD * len(self._draws.pool) - int(self.rows.last.sum())
                n_rows = max(n_rows, min(needed, self.sensor.purse.left // (2 * self.sensor.cost)))
            if n_rows > 0:
                self._add(n_rows)

    def _add(self, n_rows: int) -> None:
        new = self._measure(n_rows)
        self.every_row += new
        self._refit()
        while self._set_aside():
            self._refit()
        self._observe(new)

    def _refit(self) -> None:
        self.rows = self.every_row.without(head for head, both in self.shared.items() if both.are_large)
        if len(self.rows):
            self.blame = blame(self.rows, self.sensor.above_guess)

    def _set_aside(self) -> bool:
        """Set aside heads that are found shared now; whether there were any."""
        taking = [int(head) for head in np.flatnonzero(self.blame.controls.z > CLEAR) if int(head) not in self.shared]
        found = {head: both for head in taking if (both := self.blame.both(head)).are_shared}
        self.shared |= found
        return bool(found)

    def _set_pool(self, done: float) -> None:
        old = self._draws.pool
        if len(self.finalists):
            pool = old[~np.isin(old, list(self.shared))]
        elif done >= LAST:
            self._begin_last()
            return
        else:
            candidates = np.flatnonzero(np.isfinite(self.merit))
            size = pool_size(done, len(candidates), min(self.n_finalists, len(candidates)))
            pool = candidates[np.argsort(-self.merit[candidates], kind="stable")[:size]]
        if not np.array_equal(np.sort(pool), np.sort(old)):
            self._draws = BalancedDraws(pool, self.rng)
            self.density.resize(len(old), len(pool))

    def _begin_last(self) -> None:
        """Choose finalists and decoys; as many of them are to go off as their effects so far allow."""
        candidates = np.flatnonzero(np.isfinite(self.merit))
        best, others = finalists_and_decoys(self.merit[candidates], self.n_finalists, self.n_decoys, self.rng)
        self.finalists, self.decoys = candidates[best], candidates[others]
        pool = np.concatenate([self.finalists, self.decoys])
        self._draws = BalancedDraws(pool, self.rng)
        taken = np.maximum(self.blame.task.effect[pool], 0).mean() / self.sensor.above_guess
        self.density.begin(self.last_target, float(taken))

    def _measure(self, n_rows: int) -> Rows:
        size, last = len(self._draws.pool), len(self.finalists) > 0
        numbers = self.density.numbers(size, levels=last)
        self.heads_off.append(round(self.density.n_off, 1))
        counts = [numbers[row % len(numbers)] for row in range(n_rows)]
        off = sparse_rows([self._draws.draw(count) for count in counts], self.sensor.grid.size)
        group = np.array([self._groups.of(count, size) for count in counts], dtype=int)
        return self.sensor(off, group, last=last)

    def _observe(self, new: Rows) -> None:
        if len(new):
            ratio = (new.scores.mean() - self.sensor.guess) / self.sensor.above_guess
            self.density.observe(float(ratio), float(new.off.sum() / len(new)))
