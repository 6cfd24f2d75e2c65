"""The search itself: batches of rows, a fit after each, universal heads checked on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from cs_heads.measure.protocol import ExperimentLike
from cs_heads.methods.annealing.regression import Fit, regress
from cs_heads.methods.annealing.rows import BalancedDraws, Rows, in_chunks, sparse_rows
from cs_heads.methods.annealing.schedule import LAST, DensityControl, Groups, finalists_and_decoys, pool_size

# A head this clearly harmful is worth a check on the control.
_SUSPECT = 4.0
# What a universal head leaves of the control's score above chance, at most.
_BROKEN = 0.4
_CHECK_EXAMPLES = 8
# A control that guessing answers so often takes more examples to tell.
_GUESSED, _GUESSED_EXAMPLES = 0.2, 24


@dataclass
class Purse:
    """Example-evaluations, paid before they are measured."""

    budget: int
    spent: int = 0

    @property
    def left(self) -> int:
        """What may still be spent."""
        return self.budget - self.spent

    def pay(self, cost: int) -> None:
        """Take ``cost`` out; more than there is would be an error of the method."""
        assert cost <= self.left, f"{cost} example-evaluations are more than the {self.left} left"
        self.spent += cost


class Control:
    """Tells universal heads from heads of the task: it ablates a head alone on examples of another task."""

    def __init__(self, experiment: ExperimentLike, purse: Purse, rng: np.random.Generator, chance: float = 0.0) -> None:
        self._experiment = experiment
        self._purse = purse
        self._chance = chance
        n = self.cost(experiment, chance)
        examples = rng.permutation(experiment.n_examples)[:n]
        purse.pay(n)
        intact = experiment(np.zeros((1, *experiment.grid.shape), dtype=bool), examples[None])[0]
        right = np.flatnonzero(intact > 0.5)[: self._wanted(chance)]
        self._examples, self._intact = examples[right], intact[right]
        self.checked: dict[int, float] = {}

    @staticmethod
    def _wanted(chance: float) -> int:
        return _GUESSED_EXAMPLES if chance >= _GUESSED else _CHECK_EXAMPLES

    @classmethod
    def cost(cls, experiment: ExperimentLike, chance: float = 0.0) -> int:
        """Example-evaluations of the intact run, in which examples that the model gets right are found."""
        return min(2 * cls._wanted(chance), experiment.n_examples)

    @property
    def usable(self) -> bool:
        """Whether the intact model gets enough of the control right for a head to be missed."""
        return len(self._examples) >= self._wanted(self._chance) // 2 and bool(self._intact.mean() > self._chance)

    def breaks(self, head: int) -> bool | None:
        """Whether the control goes with the head; None where that cannot be paid, or the control cannot tell."""
        if not self.usable or self._purse.left < len(self._examples):
            return None
        self._purse.pay(len(self._examples))
        grid = self._experiment.grid
        scores = self._experiment(grid.mask([grid.head(head)])[None], self._examples[None])[0]
        self.checked[head] = float((scores.mean() - self._chance) / (self._intact.mean() - self._chance))
        return self.checked[head] <= _BROKEN


@dataclass
class Search:
    """Measures batch after batch and keeps what is known so far; ``run`` spends the purse.

    ``examples`` are those to measure with, ``level`` their mean score on the intact model. ``universal`` maps the
    universal heads found to their effect and z when they were.
    """

    experiment: ExperimentLike
    purse: Purse
    control: Control | None
    density: DensityControl
    examples: Int[np.ndarray, " used"]
    level: float
    chance: float
    prior: Float[np.ndarray, " flat"]
    per_row: int
    n_batches: int
    last_target: float
    n_finalists: int
    n_decoys: int
    rng: np.random.Generator
    universal: dict[int, tuple[float, float]] = field(default_factory=dict)
    finalists: Int[np.ndarray, " finalist"] = field(default_factory=lambda: np.zeros(0, dtype=int))
    decoys: Int[np.ndarray, " decoy"] = field(default_factory=lambda: np.zeros(0, dtype=int))
    heads_off: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.experiment.grid.size
        self.fit = Fit(np.zeros(size), np.zeros(size))
        self.rows = Rows.none(size, self.per_row)
        self._groups = Groups()
        self._draws = BalancedDraws(np.arange(size), self.rng)

    @property
    def merit(self) -> Float[np.ndarray, " flat"]:
        """What heads are ranked by: z and the prior; -inf for universal heads."""
        merit = self.fit.z + self.prior
        merit[list(self.universal)] = -np.inf
        return merit

    def run(self) -> None:
        """Spend the budget."""
        for batch in range(self.n_batches):
            n_rows = self.purse.left // (self.per_row * (self.n_batches - batch))
            if not n_rows:
                continue
            self._set_pool(batch / self.n_batches)
            new = self._measure(n_rows)
            self.rows += new
            self._refit()
            while self._ban_universal():
                self._refit()
            self._observe(new.without(self.universal))

    def unchecked(self) -> list[int]:
        """Heads harmful enough to be checked on the control that were not."""
        known = set(self.universal) | (set(self.control.checked) if self.control else set())
        order = np.argsort(-self.fit.z, kind="stable")
        return [int(head) for head in order if self.fit.z[head] > _SUSPECT and int(head) not in known]

    def _refit(self) -> None:
        self.rows = self.rows.without(self.universal)
        if len(self.rows):
            self.fit = regress(self.rows.off, self.rows.response(), self.rows.group)

    def _set_pool(self, done: float) -> None:
        old = self._draws.pool
        if len(self.finalists):
            pool = old[~np.isin(old, list(self.universal))]
        else:
            candidates = np.flatnonzero(np.isfinite(self.merit))
            merit = self.merit[candidates]
            size = pool_size(done, len(candidates), min(self.n_finalists, len(candidates)))
            pool = candidates[np.argsort(-merit, kind="stable")[:size]]
            if done >= LAST:
                best, others = finalists_and_decoys(merit, self.n_finalists, self.n_decoys, self.rng)
                self.finalists, self.decoys = candidates[best], candidates[others]
                pool = np.concatenate([self.finalists, self.decoys])
                self.density.target = self.last_target
        if not np.array_equal(np.sort(pool), np.sort(old)):
            self._draws = BalancedDraws(pool, self.rng)
            self.density.resize(len(old), len(pool))

    def _measure(self, n_rows: int) -> Rows:
        grid, last, size = self.experiment.grid, len(self.finalists) > 0, len(self._draws.pool)
        numbers = self.density.numbers(size, levels=last)
        self.heads_off.append(round(self.density.n_off, 1))
        counts = [numbers[row % len(numbers)] for row in range(n_rows)]
        off = sparse_rows([self._draws.draw(count) for count in counts], grid.size)
        examples = self.examples[self.rng.random((n_rows, len(self.examples))).argsort(axis=1)[:, : self.per_row]]
        self.purse.pay(examples.size)
        scores = [self.experiment(masks.reshape(-1, *grid.shape), examples[rows]) for rows, masks in in_chunks(off)]
        group = np.array([self._groups.of(count, size) for count in counts], dtype=int)
        return Rows(off, examples, np.concatenate(scores), group, np.full(n_rows, last))

    def _observe(self, new: Rows) -> None:
        if len(new):
            ratio = (new.scores.mean() - self.chance) / (self.level - self.chance)
            self.density.observe(float(ratio), float(new.off.sum() / len(new)))

    def _ban_universal(self) -> bool:
        """Check every suspect on the control; whether any turned out universal."""
        if self.control is None:
            return False
        found = [head for head in self.unchecked() if self.control.breaks(head)]
        self.universal |= {head: (float(self.fit.effect[head]), float(self.fit.z[head])) for head in found}
        return bool(found)
