"""The search of one of several tasks that are sensed jointly: what the controls lose is what the other tasks lose."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from cs_heads.experiment.protocol import name_of
from cs_heads.methods.annealing.blame import Blame, contrasted
from cs_heads.methods.annealing.fit import (
    GRADIENT_MISFIT,
    Fit,
    beyond_doubt,
    mean_fit,
    pooled,
    regress,
    weighted,
    with_errors,
)
from cs_heads.methods.annealing.intervals import MISFIT, anchored, both_effects, taken_by
from cs_heads.methods.annealing.rows import Flat, PerRow, Rows
from cs_heads.methods.annealing.screen import Gradients, Screening, screened
from cs_heads.methods.annealing.search import ROWS_ALONE, Search
from cs_heads.methods.controls import CLEAR, EXACT, BothEffects
from cs_heads.progress import step

# What a universal head takes from more than this share of the tasks, and in the mean.
_SOME, _MOST, _MUCH = 0.05, 0.5, 0.1
# Tasks below which nothing can be called universal.
_FEWEST = 2
# Rows from which on what a head takes rests on more than gradients.
_SEEN = 4


@dataclass
class TaskSearch(Search):
    """The search of one of several tasks, to which the ``others`` are controls: their rows tell what these lose.

    ``masks`` numbers the mask of every row; ``own`` is the fit of its rows by themselves, as losses.
    """

    others: Sequence[TaskSearch] = field(default=(), repr=False)
    masks: Int[np.ndarray, " row"] = field(default_factory=lambda: np.zeros(0, dtype=int))

    def __post_init__(self) -> None:
        super().__post_init__()
        size, per_row = self.sensor.grid.size, self.sensor.per_row
        self.every_row = self.rows = self.alone = Rows.none(size, per_row)
        self.own = Blame.none(size).task
        self._used = self.masks
        self.universal: set[int] = set()

    @property
    def pool(self) -> Int[np.ndarray, " head"]:
        """The heads that the next rows draw on."""
        return self._draws.pool

    @property
    def candidates(self) -> Int[np.ndarray, " head"]:
        """The finalists, and after gradients all heads that clearly take from the task and were off in its rows."""
        if self.gradients is None:
            return self.finalists
        seen = self.rows.off.sum(axis=0) >= _SEEN
        return np.union1d(self.finalists, np.flatnonzero(seen & (self.merit > CLEAR)))

    @property
    def set_apart(self) -> set[int]:
        """The heads that are shared or universal."""
        return self.universal | self.shared.keys()

    @property
    def kept(self) -> int:
        """Example-evaluations reserved for rows that ablate a shared or universal head alone, whosever it is."""
        if self.gradients is None:
            return super().kept
        heads = self.set_apart.union(*(other.set_apart for other in self.others))
        return min(ROWS_ALONE * len(heads) * self.sensor.per_row, self.sensor.budget.left // 4)

    def screen(self, screening: Screening) -> None:
        """Begin with what gradients say of all heads; the other tasks tell what the controls lose."""
        step(f"gradients of {name_of(self.sensor.task.experiment)}")
        self.sensor.budget.pay(screening.cost(0))
        self.gradients = Gradients.of(self.sensor.task, screening.rows, screening.per_row, self.rng)

    def draw(self, n_rows: int) -> tuple[list[Int[np.ndarray, " head"]], list[int]]:
        """Heads of the pool for so many rows, and how many in each."""
        numbers = self.density.numbers(len(self.pool), levels=len(self.finalists) > 0)
        self.heads_off.append(round(self.density.n_off, 1))
        counts = [numbers[row % len(numbers)] for row in range(n_rows)]
        return [self._draws.draw(count) for count in self.rng.permutation(counts).tolist()], counts

    def add(self, rows: Rows, masks: Int[np.ndarray, " row"]) -> None:
        """Take rows that were measured, of these masks."""
        self.every_row += rows
        self.masks = np.concatenate([self.masks, masks])

    def fit_own(self) -> None:
        """Fit the rows, but for those in which a head is off that takes much from both sides."""
        self._used = np.flatnonzero(self.every_row.off[:, list(self._large)].sum(axis=1) == 0)
        self.rows = self.every_row[self._used]
        lost = self._loss(self.rows)
        self.own = (
            regress(self.rows.off, -lost, self.rows.group) if len(self.rows) else Blame.none(self.sensor.grid.size).task
        )
        if self.gradients is not None:
            self.own = pooled(self.gradients.fit(), self.own)
        # To the others a head that is set aside here still takes what it took: else they would find none but themselves
        # that lose to it.
        effect, z = self.own.effect.copy(), self.own.z.copy()
        for head, both in self._large.items():
            effect[head], z[head] = both.task, both.task / both.task_error
        self.own = Fit(effect, z)
        self._left = np.full(int(self.masks.max(initial=-1)) + 1, np.nan)
        self._left[self.masks[self._used]] = lost - self.rows.off @ beyond_doubt(self.own)

    def fit(self) -> None:
        """Fit the contrast, where all of the tasks have fitted their own rows."""
        if len(self.rows):
            self.blame = self.blame_of(np.arange(len(self.rows)))
        elif self.gradients is not None:
            controls = mean_fit([other.own for other in self.others])
            self.blame = screened(self.gradients, controls, self.sensor.task, self.weight)

    def blame_of(self, some: Int[np.ndarray, " some"]) -> Blame:
        """The fit of some of the rows, with the effects on the others as they are known."""
        masks = self.masks[self._used][some]
        left = np.full((len(self.others), len(masks)), np.nan)
        for row, other in zip(left, self.others, strict=True):
            known = masks < len(other._left)
            row[known] = other._left[masks[known]]
        n = np.isfinite(left).sum(axis=0)
        beside = np.nansum(left, axis=0) / np.maximum(n, 1)
        above = self.sensor.task.above_guess
        controls = mean_fit([other.own for other in self.others])
        return contrasted(self.rows[some], controls, beside, above, weight=self.weight, before=self.before)

    def set_aside_universal(self, heads: Int[np.ndarray, " universal"]) -> None:
        """Set aside heads that most tasks need; at a weight below 1 only those of which the controls lose enough."""
        self.universal = {int(head) for head in heads}
        known = {int(head): self.blame.both(int(head)) for head in heads if head not in self.shared}
        self.shared |= {head: both for head, both in known.items() if self.weight >= 1 or both.outweighed(self.weight)}

    def control_effects(self) -> tuple[Flat, Flat]:
        """What each head takes from the others in the mean, against the intact model, and its error."""
        effects, errors = zip(*(other.taken() for other in self.others), strict=True)
        return np.mean(effects, axis=0), np.sqrt(np.square(errors).sum(axis=0)) / len(errors)

    def alone_effects(self) -> dict[int, BothEffects]:
        """What shared heads take with nothing else off, as far as that was measured."""
        own = taken_by(*self.lost(self.alone))
        estimates, covariances = [], []
        for other in self.others:
            theirs, above = taken_by(*other.lost(other.alone)), other.sensor.task.above_guess
            if theirs is None:
                return {}
            estimates.append(theirs.estimate / above)
            covariances.append(theirs.covariance / above**2)
        if own is None:
            return {}
        n = len(estimates)
        controls = replace(own, estimate=np.mean(estimates, axis=0), covariance=np.sum(covariances, axis=0) / n**2)
        known = both_effects(own, controls, self.sensor.task.above_guess) or {}
        return {head: both for head, both in known.items() if head in self.shared}

    def losing_most(self, head: int) -> str:
        """The other task that loses most to this head."""
        return name_of(max(self.others, key=lambda other: other.own.effect[head]).sensor.task.experiment)

    def observe(self, rows: Rows, counts: Sequence[int]) -> None:
        """Adjust how many heads go off by what was left of the score."""
        ratio = (rows.scores.mean() - self.sensor.task.guess) / self.sensor.task.above_guess
        self.density.observe(float(ratio), float(np.mean(counts)))

    def _loss(self, rows: Rows) -> PerRow:
        return (self.sensor.task.level - rows.response()) / self.sensor.task.above_guess if len(rows) else np.zeros(0)

    def taken(self) -> tuple[Flat, Flat]:
        """What each head takes from the task against the intact model, a loss, and its error."""
        above = self.sensor.task.above_guess
        if self.gradients is not None:
            effect, error = (each.copy() for each in with_errors(self.own))
            alone = taken_by(*self.lost(self.alone)) if len(self.alone) else None
            if alone is not None:
                # Gradients may miss what a head takes; so do rows with others off, of a head that all tasks need.
                errors = np.hypot(error[alone.heads], GRADIENT_MISFIT), np.maximum(alone.error / above, EXACT)
                estimates = effect[alone.heads], alone.estimate / above
                effect[alone.heads], precision = weighted(estimates, errors)
                error[alone.heads] = precision**-0.5
            return effect, error
        response = Fit(self.own.effect * above, self.own.z)
        effect, error, _ = anchored(self.rows, response, self._loss(self.rows) * above, self.lost(self.rows))
        effect, error = effect / above, error / above
        for head, both in self._large.items():
            effect[head], error[head] = both.task, both.task_error
        return effect, error

    @property
    def _large(self) -> dict[int, BothEffects]:
        """Heads set aside with the rows in which they were off."""
        return {head: both for head, both in self.shared.items() if both.are_large}


def universal_of(
    losses: Float[np.ndarray, "task flat"],
    errors: Float[np.ndarray, "task flat"],
    kin: Collection[tuple[int, int]] = (),
) -> Int[np.ndarray, " universal"]:
    """The heads that most tasks need: more than half of them lose, a tenth and more in the mean, and not one alone.

    The mean loss must be clear also without the task that loses most.
    Tasks that are ``kin``, pairs of their places, count as one, which loses their mean.

    >>> universal_of(np.array([[0.3, 0.4, 0.0], [0.2, 0.0, 0.0], [0.2, 0.0, 0.1]]), np.full((3, 3), 0.02))
    array([0])
    """
    first, second = np.array([*kin], dtype=int).reshape(-1, 2).T
    pairs = sparse.coo_array((np.ones(len(first)), (first, second)), shape=(len(losses), len(losses)))
    n, family = connected_components(pairs, directed=False)
    groups = [family == each for each in range(n)]
    losses = np.stack([losses[group].mean(axis=0) for group in groups])
    errors = np.stack([np.sqrt(np.square(errors[group]).sum(axis=0)) / group.sum() for group in groups])
    if n < _FEWEST:
        return np.zeros(0, dtype=int)
    mean, most = losses.mean(axis=0), (losses > _SOME + errors).mean(axis=0) > _MOST
    # Without the task that loses most, whose own head it may be.
    without = np.argsort(losses, axis=0, kind="stable")[:-1]
    rest, error = (np.take_along_axis(each, without, axis=0) for each in (losses, errors))
    clear = rest.mean(axis=0) > CLEAR * np.sqrt(np.square(error).sum(axis=0)) / (n - 1)
    found = np.flatnonzero(most & clear & (mean > _MUCH))
    return found[np.argsort(-mean[found], kind="stable")]


def alone_intervals(
    losses: Float[np.ndarray, "*heads"], errors: Float[np.ndarray, "*heads"]
) -> Float[np.ndarray, "*heads 2"]:
    """The 95 % intervals of what heads take alone, from what they take among others that are off.

    That may differ by more than half of itself (``MISFIT``), beside its standard error.

    >>> alone_intervals(np.array([0.0, 0.5]), np.array([0.1, 0.0])).round(2).tolist()
    [[-0.2, 0.2], [-0.09, 1.09]]
    """
    reach = 1.96 * np.hypot(errors, MISFIT * losses)
    return np.stack([losses - reach, losses + reach], axis=-1)
