"""The adaptive search of one task, or of several that are controls of each other: batch after batch, then sets.

What one task pays for its controls is what the others need anyway: the rows of eleven tasks tell the twelfth which
heads every task needs. Gradients screen all heads, or masks of a first phase do, which draw on all heads and are
measured on every task. Then tasks are measured in pairs, other ones in each batch: a mask has heads of both pools off
and is measured on both tasks, so that a row costs each no more than its own examples. Sets of heads come last. A task
that is searched by itself has rows of its own throughout, with examples of its controls in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Int

from cs_heads.experiment.cost import Budget
from cs_heads.methods.annealing.head_sets import best_sets
from cs_heads.methods.annealing.intervals import OfTasks, universal_of
from cs_heads.methods.annealing.measurements import Planned, Rows, measure, sparse_rows
from cs_heads.methods.annealing.regression import GRADIENT_MISFIT
from cs_heads.methods.annealing.schedule import LAST, ROWS_A_HEAD, WHOLE, DensityControl, Groups
from cs_heads.methods.annealing.task_search import ROWS_ALONE, TaskSearch
from cs_heads.methods.controls import BalancedDraws
from cs_heads.progress import step

# Rows of the first batches after a screen by gradients, which adjust how many heads go off, and such batches.
_ROWS_OF_PILOT, _N_PILOTS = 10, 2
# Of the budget that is left, the share that rows of the last phase may take before sets are measured: of one task, and
# of several, whose sets are measured with more examples of controls.
_BEFORE_SETS = 0.5, 0.75
# Rows of each shared head alone, at most, of a task searched by itself.
_MOST_ALONE = 12

Chosen = list[Int[np.ndarray, " k"] | None]


@dataclass
class SearchLoop:
    """Measures rows for all searches within the one budget that they have."""

    searches: Sequence[TaskSearch]
    n_batches: int

    def __post_init__(self) -> None:
        first = self.searches[0]
        self.budget, self.rng = first.sensor.budget, first.sensor.rng
        self.size, self.screened = first.sensor.grid.size, first.gradients is not None
        self.density = DensityControl.of(self.size)
        self._n_masks = 0
        self._groups = Groups()
        self._draws = BalancedDraws(np.arange(self.size), self.rng)
        self._pairs: list[list[TaskSearch]] = []
        # Whether each is a control of others.
        self.of_several = len(self.searches) > 1

    def run(self, k: int) -> Chosen:
        """Search until the budget is spent: the set of ``k`` heads of each task that proved best, if sets were."""
        # The first batch of the last phase, then sets or, without controls, its other batches.
        first = math.ceil(LAST * self.n_batches) + 1
        self._refit()
        self._measure_batches(range(first - 1 if self.screened else 0, first))
        chosen = self._best_sets(k)
        if not self.of_several and chosen[0] is None:
            self._measure_batches(range(first, self.n_batches), keep=self.searches[0].kept)
        self._measure_alone()
        return chosen

    def taken(self, *, alone: bool = False) -> tuple[OfTasks, OfTasks]:
        """What each head takes from each task, and the errors: losses.

        In the end errors have what gradients may miss of heads that were never off ``alone``.
        """
        losses, errors = map(np.stack, zip(*(search.taken() for search in self.searches), strict=True))
        if alone and self.screened:
            missed = np.full(self.size, GRADIENT_MISFIT)
            missed[self.searches[0].alone.off.indices] = 0.0
            errors = np.hypot(errors, missed)
        return losses, errors

    def _measure_batches(self, batches: range, keep: int = 0) -> None:
        """Measure these batches while any head is left; the last one spends the rest of the budget but for ``keep``."""
        per_row = sum(search.sensor.cost for search in self.searches)
        for batch in batches:
            step(f"batch {batch + 1}/{self.n_batches}")
            done = batch / self.n_batches
            n_rows = (self.budget.left - keep) // (per_row * (self.n_batches - batch))
            if self.of_several and done < WHOLE:
                self._measure_on_all(n_rows)
                continue
            begins = self.screened and not self._n_masks and n_rows > 2 * _N_PILOTS * _ROWS_OF_PILOT
            for _ in range(_N_PILOTS if begins else 0):
                # How many heads may be off gradients do not say.
                self._measure_pairs(_ROWS_OF_PILOT, done, pilot=True)
                n_rows -= 0 if self.of_several else _ROWS_OF_PILOT
            self._measure_pairs(n_rows, done)

    def _measure_on_all(self, n_rows: int) -> None:
        """Rows of heads that not all tasks share, on every task."""
        merit = np.max([search.merit for search in self.searches], axis=0)
        pool = np.flatnonzero(np.isfinite(merit))
        if not len(pool):
            return
        if len(pool) < len(self._draws.pool):
            self._draws = BalancedDraws(pool, self.rng)
        (count,) = self.density.numbers(len(pool), levels=False)
        off = sparse_rows([self._draws.draw(count) for _ in range(n_rows)], self.size)
        group = np.full(n_rows, self._groups.of(count, len(pool)))
        measured = measure([search.sensor.plan(off, group) for search in self.searches])
        self._add(self.searches, measured)
        self._refit()
        kept = [search.kept_by(rows) for search, rows in zip(self.searches, measured, strict=True)]
        self.density.observe(float(np.mean(kept)), float(count))
        for search in self.searches:
            search.density.n_off = self.density.n_off / 2

    def _measure_pairs(self, n_rows: int, done: float, *, pilot: bool = False) -> None:
        """Rows of two tasks' heads, on both, or of one task's; a pilot has no more of them than it is told."""
        searching = [search for search in self.searches if np.isfinite(search.merit).any()]
        for search in searching:
            search.set_pool(done)
        pairs = self._in_pairs(searching)
        planned, drawn = list[Planned](), list[tuple[TaskSearch, list[int]]]()
        each = _BEFORE_SETS[self.of_several] * self.budget.left / max(len(searching), 1)
        kept = n_rows * sum(search.sensor.cost for search in searching)
        for pair in pairs:
            cost = sum(search.sensor.cost for search in pair)
            kept -= n_rows * cost
            last, n = len(pair[0].finalists) > 0, n_rows
            if last and not pilot and pair[0].sensor.controls.tasks:
                # Sets may follow instead of more such rows: intervals need some. Pairs to come have their rows, too.
                pools = np.unique(np.concatenate([search.pool for search in pair]))
                needed = ROWS_A_HEAD * len(pools) - (0 if self.of_several else int(pair[0].rows.last.sum()))
                n = max(n, min(needed, int(min(each * len(pair), self.budget.left - kept) / cost)))
            draws = [search.draw(n, mixed=len(pair) > 1) for search in pair]
            heads = [np.unique(np.concatenate(parts)) for parts in zip(*(each for each, _ in draws), strict=True)]
            sizes = [(count, len(pair[0].pool)) for count in draws[0][1]]
            alike = [self._groups.of(*size) for size in sizes] if len(pair) == 1 else [self._groups.new()] * n
            off, group = sparse_rows(heads, self.size), np.array(alike, dtype=int)
            planned += [search.sensor.plan(off, group, last=last) for search in pair]
            drawn += [(search, counts) for search, (_, counts) in zip(pair, draws, strict=True)]
        measured = measure(planned)
        remaining = iter(measured)
        for pair in pairs:
            self._add(pair, [next(remaining) for _ in pair])
        self._refit()
        for (search, counts), rows in zip(drawn, measured, strict=True):
            search.observe(rows, counts)

    def _in_pairs(self, searching: Sequence[TaskSearch]) -> list[list[TaskSearch]]:
        """Other pairs each time, but once all have finalists: these go off with as few other heads as can be."""
        if len(searching) < 2:
            return [[search] for search in searching]
        if self._pairs and sum(map(len, self._pairs)) == len(searching):
            return self._pairs
        order = [searching[place] for place in self.rng.permutation(len(searching))]
        # An odd one makes a pair a group of three.
        pairs = [order[start : start + 2] for start in range(0, len(order) - 1, 2)]
        pairs[-1] += order[2 * len(pairs) :]
        if all(len(search.finalists) for search in searching):
            self._pairs = pairs
        return pairs

    def _add(self, searches: Sequence[TaskSearch], measured: Sequence[Rows]) -> None:
        """Take rows of the same masks on several tasks."""
        masks = np.arange(self._n_masks, self._n_masks + len(measured[0]))
        self._n_masks += len(masks)
        for search, rows in zip(searches, measured, strict=True):
            search.add(rows, masks)

    def _refit(self) -> None:
        """Fit all tasks, and set aside what they share."""
        while True:
            for search in self.searches:
                search.fit_own(self._n_masks)
            for search in self.searches:
                search.fit_all()
            # Each is asked: what one sets aside, another may have to as well.
            if not sum(search.set_aside() for search in self.searches):
                return

    def _best_sets(self, k: int) -> Chosen:
        """The set of ``k`` heads of each task that proves best; spends the budget in equal parts.

        Heads that most tasks need are shared from here on, by all of them where controls count in full.
        """
        if not self.searches[0].sensor.controls.tasks:
            return [None]
        if self.of_several:
            pairs = combinations(enumerate(self.searches), 2)
            kin = [(i, j) for (i, one), (j, other) in pairs if all(each is not other for each in one.others)]
            universal = universal_of(*self.taken(), kin=kin)
            for search in self.searches:
                search.set_aside_universal(universal)
        for search in self.searches:
            search.sensor.budget = Budget(self.budget.left // len(self.searches))
        chosen = best_sets(self.searches, k)
        for search in self.searches:
            self.budget.pay(search.sensor.budget.spent)
            search.sensor.budget = self.budget
        return chosen

    def _measure_alone(self) -> None:
        """Measure rows with each shared or universal head off alone, on all tasks, as far as the budget allows."""
        heads = sorted(set().union(*(search.set_apart for search in self.searches)))
        cost = sum(search.sensor.cost for search in self.searches) * len(heads)
        n = min(ROWS_ALONE if self.of_several else _MOST_ALONE, self.budget.left // cost) if heads else 0
        if n < ROWS_A_HEAD:
            return
        off = sparse_rows([np.array([head]) for head in heads] * n, self.size)
        planned = [search.sensor.plan(off, np.zeros(off.shape[0], dtype=int)) for search in self.searches]
        for search, rows in zip(self.searches, measure(planned), strict=True):
            search.alone = rows
