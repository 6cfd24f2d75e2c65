"""What a search knows of one task: its rows, their fit, what controls lose, and heads that are set aside.

Controls are other tasks. A task searched by itself has examples of them in its own rows. Tasks searched together are
controls of each other, each with rows of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int

from cs_heads.methods.annealing.gradient_screen import ORDER, RowSlopes, Screening
from cs_heads.methods.annealing.intervals import Taken, anchored, both_effects, taken_by
from cs_heads.methods.annealing.measurements import Flat, PerRow, Rows, Sensor
from cs_heads.methods.annealing.regression import (
    GRADIENT_MISFIT,
    ContrastFit,
    Fit,
    fit_contrast,
    fit_controls,
    mean_fit,
    pooled,
    regress,
    weighted,
)
from cs_heads.methods.annealing.schedule import LAST, N_DECOYS, DensityControl, pool_size
from cs_heads.methods.controls import BalancedDraws
from cs_heads.methods.losses import CLEAR, EXACT, PLENTY, BothEffects
from cs_heads.progress import step

ROWS_ALONE = 4
"""Rows of each shared head alone that are kept for."""
# Heads off in the first rows after a screen by gradients.
_FIRST_OFF = 2.0
# Rows from which on what a head takes rests on more than gradients.
_SEEN = 4
# Rows in which a head was off below which it is not set aside: what it took may be what others off beside it did.
_OFTEN = 3


@dataclass
class TaskSearch:
    """The rows of one task, and the current estimates.

    ``shared`` are heads that surely take as much from the controls, with what was known of both their effects: they go
    off no more, and where they take much, the rows in which they did are left out, for they tell of no other head. In
    the end each goes off ``alone``. ``of_form`` are heads that sets leave out for what controls in the form of the task
    lose, with what both lose in sets; they are told as shared. ``passed`` is the best z of a head that was no
    finalist. ``weight`` is what the loss of the controls counts beside that of the task. ``gradients`` are of all
    heads.

    ``others`` are the searches of the tasks that are controls, where these are searched as well: ``own`` is then the
    fit of a task's rows by themselves, as losses, and ``masks`` numbers the mask of every row.
    """

    sensor: Sensor
    n_finalists: int
    weight: float = 1.0
    others: Sequence[TaskSearch] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        size, none = self.sensor.grid.size, np.zeros(0, dtype=int)
        self.density = DensityControl.of(size)
        self.own = self._controls_before = Fit.none(size)
        self._each_before = list[Fit]()
        self.fit = ContrastFit.of(self.own, self.own, np.zeros(0))
        self.every_row = self.rows = self.alone = Rows.none(size, self.sensor.per_row, self.sensor.of_controls)
        self.masks = self._used = self.finalists = self.decoys = none
        self.shared: dict[int, BothEffects] = {}
        self.of_form: dict[int, BothEffects] = {}
        self.universal: set[int] = set()
        self.gradients: RowSlopes | None = None
        self.off = np.flatnonzero(self.sensor.task.experiment.off)
        self.passed, self.backwards = 0.0, 0
        self.rng = self.sensor.rng
        self._draws = BalancedDraws(np.arange(size), self.rng)

    @property
    def before(self) -> ContrastFit | None:
        """What gradients say of both sides, in the order of the contrast; None without any."""
        return self._screened(self._controls_before)

    def _screened(self, controls: Fit) -> ContrastFit | None:
        if self.gradients is None:
            return None
        return ContrastFit.of(self.gradients.fit(), controls, np.zeros(0), self.weight, more=ORDER)

    @property
    def merit(self) -> Flat:
        """What heads are ranked by: z; -inf for heads set aside, or off throughout."""
        merit = self.fit.z.copy()
        merit[[*self.shared, *self.off]] = -np.inf
        return merit

    @property
    def pool(self) -> Int[np.ndarray, " head"]:
        """The heads that the next rows draw on."""
        return self._draws.pool

    @property
    def candidates(self) -> Int[np.ndarray, " head"]:
        """The heads that sets are made of: finalists, clearly harmful decoys, and what rows of other tasks show so."""
        others = self.decoys
        if self.gradients is not None and self.others:
            others = np.flatnonzero(self.rows.off.sum(axis=0) >= _SEEN)
        return np.union1d(self.finalists, others[self.merit[others] > CLEAR])

    @property
    def set_apart(self) -> set[int]:
        """The heads that are shared or universal."""
        return self.universal | self.shared.keys()

    @property
    def told_shared(self) -> dict[int, BothEffects]:
        """The shared heads, and those that other tasks need in the form of this one."""
        return self.shared | self.of_form

    @property
    def kept(self) -> int:
        """Example-evaluations reserved for rows that ablate a shared or universal head alone, whosever it is."""
        heads = self.set_apart.union(*(other.set_apart for other in self.others))
        return min(ROWS_ALONE * len(heads) * self.sensor.cost, self.sensor.budget.left // 4)

    def screen(self, screening: Screening) -> None:
        """Begin with what gradients say of all heads; tasks searched together tell what the controls lose."""
        task, controls = self.sensor.task, [] if self.others else self.sensor.controls.tasks
        step(f"gradients of {task.experiment.name}")
        self.sensor.budget.pay(screening.cost(len(controls)))
        self.backwards = screening.cost(len(controls)) // 2
        self.gradients = RowSlopes.of(task, screening.rows, screening.per_row, self.rng)
        fits = [RowSlopes.of(each, screening.control_rows, screening.per_row, self.rng).fit() for each in controls]
        self._each_before = fits
        if fits:
            self._controls_before = mean_fit(fits)
        self.fit = self.before or self.fit

    # Drawing rows

    def set_pool(self, done: float) -> None:
        """Let the next rows draw on the heads that are left when so much of the budget is spent."""
        old, order = self.pool, np.argsort(-self.merit, kind="stable")
        order = order[np.isfinite(self.merit[order])]
        if len(self.finalists):
            pool = old[~np.isin(old, list(self.shared))]
        elif done >= LAST:
            self._begin_last(order)
            return
        else:
            pool = order[: pool_size(done, len(order), min(self.n_finalists, len(order)))]
        if not np.array_equal(np.sort(pool), np.sort(old)):
            self._draws = BalancedDraws(pool, self.rng)
            # Those that remain do more harm.
            self.density.n_off *= float(np.sqrt(len(pool) / len(old)))

    def draw(self, n_rows: int, *, mixed: bool) -> tuple[list[Int[np.ndarray, " head"]], list[int]]:
        """Heads of the pool for so many rows, and how many in each; ``mixed`` takes these in random order."""
        numbers = self.density.numbers(len(self.pool), levels=len(self.finalists) > 0)
        counts = [numbers[row % len(numbers)] for row in range(n_rows)]
        if mixed:
            counts = self.rng.permutation(counts).tolist()
        return [self._draws.draw(count) for count in counts], counts

    def observe(self, rows: Rows, counts: Sequence[int]) -> None:
        """Adjust how many heads go off by what was left of the score."""
        if len(rows):
            self.density.observe(self.kept_by(rows), float(np.mean(counts)))

    def kept_by(self, rows: Rows) -> float:
        """The share of the score above guessing that rows leave, on average."""
        return float((rows.scores.mean() - self.sensor.task.guess) / self.sensor.task.above_guess)

    def _begin_last(self, order: Int[np.ndarray, " head"]) -> None:
        """Choose finalists, and decoys not from the best quarter, and the number of heads off by their effects.

        In a small grid the best quarter may be smaller than the finalists, and there may be few decoys.
        """
        self.finalists = order[: self.n_finalists]
        self.decoys = self.rng.permutation(order[max(self.n_finalists, len(order) // 4) :])[:N_DECOYS]
        self.passed = max([0.0, *self.fit.z[order[self.n_finalists :]]])
        pool = np.concatenate([self.finalists, self.decoys])
        self._draws = BalancedDraws(pool, self.rng)
        self.density.begin_last(float(np.maximum(self.fit.task.effect[pool], 0).mean()))
        if self.gradients is not None:
            # They are of probabilities, and may say too little: rows of few heads off find out.
            self.density.n_off = min(self.density.n_off, _FIRST_OFF)

    # Fitting rows

    def add(self, rows: Rows, masks: Int[np.ndarray, " row"]) -> None:
        """Take rows that were measured, of these masks."""
        self.every_row += rows
        self.masks = np.concatenate([self.masks, masks])

    def fit_own(self, n_masks: int) -> None:
        """Take the rows in which no head is off that takes much from both sides, and fit them by themselves.

        Only the searches of other tasks ask for that fit, and for what of each of ``n_masks`` it leaves.
        """
        self._used = np.flatnonzero(self.every_row.off[:, list(self._large)].sum(axis=1) == 0)
        self.rows = self.every_row[self._used]
        if not self.others:
            return
        lost = self.sensor.lost(self.rows)
        fit = regress(self.rows.off, lost, self.rows.group)
        if self.gradients is not None:
            fit = pooled(self.gradients.fit(), fit)
        # To the others a head that is set aside here still takes what it took: else they would find none but themselves
        # that lose to it.
        effect, z = fit.effect.copy(), fit.z.copy()
        for head, both in self._large.items():
            effect[head], z[head] = both.task, both.task / both.task_error
        self.own = Fit(effect, z)
        self._left = np.full(n_masks, np.nan)
        self._left[self.masks[self._used]] = lost - self.rows.off @ self.own.beyond_doubt

    def fit_all(self) -> None:
        """Fit the contrast, once every task has fitted its own rows."""
        if len(self.rows):
            self.fit = self.fit_of(np.arange(len(self.rows)))
        elif self.others:
            self.fit = self._screened(self._others_fit) or self.fit

    def fit_of(self, some: Int[np.ndarray, " some"]) -> ContrastFit:
        """The fit of some of the rows alone."""
        rows, (controls, left) = self.rows[some], self._controls_of(some)
        return fit_contrast(rows, self.sensor.lost(rows), controls, left, weight=self.weight, before=self.before)

    def _controls_of(self, some: Int[np.ndarray, " some"]) -> tuple[Fit, PerRow]:
        """What each head takes from the controls, and what some of the rows do to these beyond that."""
        if not self.others:
            return fit_controls(self.rows[some], None if self.gradients is None else self._controls_before)
        left = np.array([other._left[self.masks[self._used][some]] for other in self.others])
        return self._others_fit, np.nansum(left, axis=0) / np.maximum(np.isfinite(left).sum(axis=0), 1)

    @property
    def sides(self) -> list[Int[np.ndarray, " control"]]:
        """The controls that count by themselves, by their places: all together, or those in the form of the task."""
        controls = self.sensor.controls
        return [np.arange(len(controls.tasks))] if self.others else controls.sides

    def of_sides(self) -> list[Fit]:
        """What each head takes from each side of the controls."""
        if len(self.sides) < 2:
            return [self.fit.controls]
        fits = list[Fit]()
        for side in self.sides:
            rows, lost = self.sensor.controls_lost(self.rows, side)
            fit = regress(rows.off, lost, rows.group)
            before = [self._each_before[place] for place in side] if self._each_before else []
            fits.append(pooled(mean_fit(before), fit) if before else fit)
        return fits

    @property
    def _others_fit(self) -> Fit:
        """What each head takes from the other tasks, each fitted by itself: one that shares a head is one of many."""
        return mean_fit([other.own for other in self.others])

    # Heads that are set aside

    def set_aside(self) -> bool:
        """Set aside heads that are now found to be shared; returns whether there were any."""
        if not self.sensor.controls.tasks or not len(self.rows):
            return False
        rows = self.rows
        own = taken_by(*self.sensor.answers_lost(rows), PLENTY)
        found = both_effects(own, taken_by(rows.off, rows.losses, rows.drawn, PLENTY))
        if found is None:
            found = {int(head): self.fit.both(int(head)) for head in np.flatnonzero(self.fit.controls.z > CLEAR)}
        often = np.asarray(rows.off.sum(axis=0)).ravel() >= _OFTEN
        found = {
            head: both
            for head, both in found.items()
            if often[head] and both.are_shared(self.weight) and head not in self.shared
        }
        self.shared |= found
        return bool(found)

    def set_aside_universal(self, heads: Int[np.ndarray, " universal"]) -> None:
        """Set aside heads that most tasks need; at a weight below 1 only those of which the controls lose enough."""
        self.universal = {int(head) for head in heads}
        known = {int(head): self.fit.both(int(head)) for head in heads if head not in self.shared}
        self.shared |= {head: both for head, both in known.items() if self.weight >= 1 or both.outweighed(self.weight)}

    @property
    def _large(self) -> dict[int, BothEffects]:
        """Heads set aside with the rows in which they were off."""
        return {head: both for head, both in self.shared.items() if both.are_large}

    # What heads take

    def taken(self) -> tuple[Flat, Flat]:
        """What each head takes from the task against the intact model, a loss, and its error, by its own rows."""
        if self.gradients is None:
            lost = self.sensor.lost(self.rows)
            effect, error, _ = anchored(self.rows, self.own, lost, self.sensor.answers_lost(self.rows))
            for head, both in self._large.items():
                effect[head], error[head] = both.task, both.task_error
            return effect, error
        effect, error = (each.copy() for each in self.own.estimates)
        alone = self.taken_alone()
        if alone is not None:
            # Gradients may miss what a head takes; so do rows with others off, of a head that all tasks need.
            errors = np.hypot(error[alone.heads], GRADIENT_MISFIT), np.maximum(alone.error, EXACT)
            effect[alone.heads], precision = weighted((effect[alone.heads], alone.estimate), errors)
            error[alone.heads] = precision**-0.5
        return effect, error

    def taken_alone(self) -> Taken | None:
        """What shared heads take from the task with nothing else off, by rows of each alone, where there are any."""
        return taken_by(*self.sensor.answers_lost(self.alone))

    def control_effects(self) -> tuple[Flat, Flat]:
        """What each head takes from the controls, against the intact model, and its error: a loss each."""
        if self.others:
            effects, errors = zip(*(other.taken() for other in self.others), strict=True)
            return np.mean(effects, axis=0), np.sqrt(np.square(errors).sum(axis=0)) / len(errors)
        rows, controls = self.rows, self.fit.controls
        if not self.sensor.controls.tasks or not len(rows):
            return np.zeros(self.sensor.grid.size), np.full(self.sensor.grid.size, np.inf)
        if self.gradients is not None:
            return controls.estimates
        return anchored(rows, controls, rows.control_response(), (rows.off, rows.losses, rows.drawn))[:2]

    def alone_effects(self) -> dict[int, BothEffects]:
        """What shared heads take with nothing else off, as far as that was measured."""
        own, controls = self.taken_alone(), taken_by(self.alone.off, self.alone.losses, self.alone.drawn)
        theirs = [each for each in (other.taken_alone() for other in self.others) if each is not None]
        if self.others and own is not None and len(theirs) == len(self.others):
            covariance = np.sum([each.covariance for each in theirs], axis=0) / len(theirs) ** 2
            controls = replace(own, estimate=np.mean([each.estimate for each in theirs], axis=0), covariance=covariance)
        known = both_effects(own, controls) or {}
        return {head: both for head, both in known.items() if head in self.shared}

    def losing_most(self, head: int) -> str:
        """The control that loses most where this head is off, beside others."""
        if self.others:
            return max(self.others, key=lambda other: other.own.effect[head]).sensor.task.experiment.name
        controls, rows = self.sensor.controls, self.every_row[np.flatnonzero(self.every_row.off[:, [head]].toarray())]
        of = controls.of(rows.drawn)
        # By place: experiments of one's own may have the same name.
        lost = [rows.losses[of == place] for place in range(len(controls.tasks))]
        return controls.names[int(np.argmax([losses.mean() if losses.size else -np.inf for losses in lost]))]
