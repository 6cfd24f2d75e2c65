"""The adaptive search: batches of rows with a fit after each; heads that the controls need as well are set aside."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from cs_heads.experiment.protocol import name_of
from cs_heads.methods.annealing.blame import Blame, blame
from cs_heads.methods.annealing.fit import Fit, mean_fit, with_errors
from cs_heads.methods.annealing.intervals import ROWS_A_HEAD, Taken, anchored, both_effects, taken_by
from cs_heads.methods.annealing.rows import Flat, Rows, Sensor, measure, sparse_rows
from cs_heads.methods.annealing.screen import Gradients, Screening, screened
from cs_heads.methods.controls import CLEAR, PLENTY, BalancedDraws, BothEffects
from cs_heads.progress import step

WHOLE = 0.4
"""Share of the budget that is spent on all heads."""
LAST = 0.7
"""Share of the budget after which the last phase begins."""

ROWS_OF_PILOT, N_PILOTS = 10, 2
"""Rows of the first batches after a screen by gradients, which adjust how many heads go off, and such batches."""
# Heads off in the first of them.
_FIRST_OFF = 2.0
_MAX_STEP = 1.7
_LEVELS = (0.6, 1.0, 1.4)


@dataclass
class DensityControl:
    """Adjusts the number of heads off so that the mean score of a batch stays near ``target`` of the intact one.

    A score that falls by the same factor with each head off gives ``ratio = exp(-a * n_off)``; each
    batch estimates ``a`` anew. One step changes the number by a factor of 1.7 at most, within 1 and
    both ``max_density`` of the grid and half of the pool.
    """

    n_heads: int
    target: float
    max_density: float
    n_off: float

    def observe(self, ratio: float, n_off: float) -> None:
        """Update after rows that kept this share of the intact score, with ``n_off`` heads off on average."""
        slope = -np.log(np.clip(ratio, 0.02, 0.999)) / n_off
        wanted = -np.log(self.target) / slope
        self.n_off *= float(np.clip(wanted / self.n_off, 1 / _MAX_STEP, _MAX_STEP))

    def resize(self, old: int, new: int) -> None:
        """Adjust to a pool that shrinks from ``old`` heads to ``new``: those that remain do more harm."""
        self.n_off *= float(np.sqrt(new / old))

    def begin(self, target: float, taken: float) -> None:
        """Set a new ``target``, for heads each of which takes this share of the score above guessing on average."""
        self.target = target
        self.n_off = float(-np.log(target) / max(taken, 1e-3))

    def numbers(self, pool: int, levels: bool) -> list[int]:
        """The numbers of heads off in a row: one, or with ``levels`` three in turn, all within the bounds."""
        most = max(1.0, min(pool / 2, self.max_density * self.n_heads))
        self.n_off = float(np.clip(self.n_off, 1.0, most))
        factors = _LEVELS if levels else (1.0,)
        return [int(np.clip(round(self.n_off * factor), 1, int(most))) for factor in factors]


@dataclass
class Groups:
    """Numbers the groups of rows that share an intercept, by heads off and size of the pool."""

    max_off: float = 1.15
    max_pool: float = 1.65
    _seen: list[tuple[int, int]] = field(default_factory=list)

    def of(self, n_off: int, pool: int) -> int:
        """The first group that is similar in both, or a new one."""
        for number, (off, size) in enumerate(self._seen):
            if _ratio(off, n_off) <= self.max_off and _ratio(size, pool) <= self.max_pool:
                return number
        self._seen.append((n_off, pool))
        return len(self._seen) - 1


def pool_size(done: float, n_heads: int, n_finalists: int) -> int:
    """Heads in the pool when ``done`` of the budget is spent: all at first, then geometrically fewer."""
    annealed = min(max((done - WHOLE) / (LAST - WHOLE), 0.0), 1.0)
    return max(n_finalists, round(n_heads * (n_finalists / n_heads) ** annealed))


def rows_for_intervals(n_batches: int, n_heads: int) -> int:
    """Rows of the whole search that leave the last phase two for each of its heads, and some for those left out.

    >>> rows_for_intervals(14, 26)
    201
    """
    last = sum(batch / n_batches >= LAST for batch in range(n_batches))
    return ceil(1.1 * ROWS_A_HEAD * n_heads * n_batches / last)


def finalists_and_decoys(
    merit: Float[np.ndarray, " head"], n_finalists: int, n_decoys: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " finalist"], Int[np.ndarray, " decoy"]]:
    """The best heads by merit, and random others to compare them with, none from the best quarter.

    Positions in ``merit``. In a small grid the best quarter may be smaller than the finalists, and there may
    be fewer decoys than asked for.
    """
    order = np.argsort(-merit, kind="stable")
    rest = order[max(n_finalists, len(order) // 4) :]
    return order[:n_finalists], rng.permutation(rest)[:n_decoys]


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)


# Rows of each shared head alone: as many are kept for, and as many are measured of what is left in the end.
ROWS_ALONE, _MOST_ALONE = 4, 12


@dataclass
class Search:
    """Measures batch after batch and holds the current estimates.

    ``shared`` are heads that surely take as much from the controls, with what was known of both their effects: they go
    off no more, and where they take much, the rows in which they did are left out, for they tell of no other head. In
    the end each goes off ``alone``. ``passed`` is the best z of a head that was no finalist. ``weight``
    is what the loss of the controls counts beside that of the task. ``gradients`` are of all heads, and what
    ``controls_before`` says of the controls by theirs: then the search begins with its last phase.
    """

    sensor: Sensor
    density: DensityControl
    prior: Flat
    n_batches: int
    last_target: float
    n_finalists: int
    n_decoys: int
    rng: np.random.Generator
    weight: float = 1.0
    shared: dict[int, BothEffects] = field(default_factory=dict)
    finalists: Int[np.ndarray, " finalist"] = field(default_factory=lambda: np.zeros(0, dtype=int))
    decoys: Int[np.ndarray, " decoy"] = field(default_factory=lambda: np.zeros(0, dtype=int))
    heads_off: list[float] = field(default_factory=list)
    gradients: Gradients | None = None
    controls_before: Fit | None = None

    def __post_init__(self) -> None:
        size = self.sensor.grid.size
        self.blame = Blame.none(size)
        self.every_row = self.rows = Rows.none(size, self.sensor.per_row, self.sensor.of_controls)
        self.off = np.flatnonzero(getattr(self.sensor.task.experiment, "off", np.zeros(0)))
        self.passed, self.alone = 0.0, Rows.none(size, self.sensor.per_row, self.sensor.of_controls)
        self._groups = Groups()
        self._draws = BalancedDraws(np.arange(size), self.rng)

    @property
    def before(self) -> Blame | None:
        """What gradients say of both sides; None without any."""
        if self.gradients is None:
            return None
        none = np.zeros(self.sensor.grid.size)
        return screened(self.gradients, self.controls_before or Fit(none, none), self.sensor.task, self.weight)

    @property
    def merit(self) -> Flat:
        """What heads are ranked by: z and the prior; -inf for heads set aside, or off throughout."""
        merit = self.blame.z + self.prior
        merit[list(self.shared)] = -np.inf
        merit[self.off] = -np.inf
        return merit

    @property
    def candidates(self) -> Int[np.ndarray, " head"]:
        """The heads that sets are made of: the finalists."""
        return self.finalists

    @property
    def kept(self) -> int:
        """Example-evaluations reserved for rows that ablate a shared head alone."""
        return min(ROWS_ALONE * len(self.shared) * self.sensor.cost, self.sensor.budget.left // 4)

    def blame_of(self, some: Int[np.ndarray, " some"]) -> Blame:
        """The fit of some of the rows alone."""
        return blame(self.rows[some], self.sensor.task.above_guess, self.before)

    def control_effects(self) -> tuple[Flat, Flat]:
        """What each head takes from the controls, against the intact model, and its error: a loss each."""
        size = self.sensor.grid.size
        if not self.sensor.controls.tasks or not len(self.rows):
            return np.zeros(size), np.full(size, np.inf)
        if self.gradients is not None:
            return with_errors(self.blame.controls)
        of_controls = self.rows.off, self.rows.losses, self.rows.drawn
        return anchored(self.rows, self.blame.controls, self.rows.control_response(), of_controls)[:2]

    def alone_effects(self) -> dict[int, BothEffects]:
        """What shared heads take with nothing else off, as far as that was measured."""
        return both_effects(*self.sides(self.alone), self.sensor.task.above_guess) or {}

    def losing_most(self, head: int) -> str:
        """The control that loses most where this head is off, beside others."""
        controls, rows = self.sensor.controls, self.every_row[np.flatnonzero(self.every_row.off[:, [head]].toarray())]
        of = controls.of(rows.drawn)
        # By place: experiments of one's own may have the same name.
        lost = [rows.losses[of == place] for place in range(len(controls.tasks))]
        return controls.names[int(np.argmax([losses.mean() if losses.size else -np.inf for losses in lost]))]

    def lost(self, rows: Rows) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
        """The heads off in each row, what each answer lost against the intact model, and the example of each answer."""
        task = self.sensor.task
        intact = task.intact[np.searchsorted(task.examples, rows.examples)]
        return rows.off, intact - rows.scores, rows.examples

    def screen(self, screening: Screening) -> None:
        """Begin with what gradients say of all heads."""
        sensor = self.sensor
        step(f"gradients of {name_of(sensor.task.experiment)}")
        sensor.budget.pay(screening.cost(len(sensor.controls.tasks)))
        self.gradients = Gradients.of(sensor.task, screening.rows, screening.per_row, self.rng)
        others = [
            Gradients.of(control, screening.control_rows, screening.per_row, self.rng)
            for control in sensor.controls.tasks
        ]
        self.controls_before = mean_fit([other.fit() for other in others]) if others else None
        self.blame = self.before or self.blame

    def run(self, batches: range, keep: int = 0) -> None:
        """Measure these batches while any head is left; the last one spends the rest of the budget but for ``keep``."""
        for batch in batches:
            if not np.isfinite(self.merit).any():
                return
            step(f"batch {batch + 1}/{self.n_batches}")
            n_rows = (self.sensor.budget.left - keep) // (self.sensor.cost * (self.n_batches - batch))
            self.set_pool(batch / self.n_batches)
            if len(self.finalists) and self.sensor.controls.tasks:
                # Sets may follow instead of more such rows: intervals need some.
                needed = ROWS_A_HEAD * len(self._draws.pool) - int(self.rows.last.sum())
                n_rows = max(n_rows, min(needed, self.sensor.budget.left // (2 * self.sensor.cost)))
            if self.gradients is not None and not len(self.every_row):
                # How many heads may be off gradients do not say.
                for _ in range(N_PILOTS if n_rows > 2 * N_PILOTS * ROWS_OF_PILOT else 0):
                    self._add(ROWS_OF_PILOT)
                    n_rows -= ROWS_OF_PILOT
            if n_rows > 0:
                self._add(n_rows)

    def measure_alone(self) -> None:
        """Measure rows with each shared head off alone, a few each, as far as the budget allows."""
        heads = sorted(self.shared)
        n = min(_MOST_ALONE, self.sensor.budget.left // (self.sensor.cost * max(1, len(heads))))
        if heads and n >= ROWS_A_HEAD:
            off = sparse_rows([np.array([head]) for head in heads] * n, self.sensor.grid.size)
            (self.alone,) = measure([self.sensor.plan(off, np.zeros(off.shape[0], dtype=int))])

    def _add(self, n_rows: int) -> None:
        new = self._measure(n_rows)
        self.every_row += new
        self._refit()
        while self.set_aside():
            self._refit()
        self._observe(new)

    def _refit(self) -> None:
        """Fit the rows in which no head is off that takes much from both sides."""
        self.rows = self.every_row.without(head for head, both in self.shared.items() if both.are_large)
        if len(self.rows):
            self.blame = self.blame_of(np.arange(len(self.rows)))

    def set_aside(self) -> bool:
        """Set aside heads that are now found to be shared; returns whether there were any."""
        if not self.sensor.controls.tasks or not len(self.rows):
            return False
        found = both_effects(*self.sides(self.rows, PLENTY), self.sensor.task.above_guess)
        if found is None:
            found = {int(head): self.blame.both(int(head)) for head in np.flatnonzero(self.blame.controls.z > CLEAR)}
        found = {head: both for head, both in found.items() if both.are_shared(self.weight) and head not in self.shared}
        self.shared |= found
        return bool(found)

    def sides(self, rows: Rows, rows_a_head: int = ROWS_A_HEAD) -> tuple[Taken | None, Taken | None]:
        """What heads take from the task and its controls, against the intact model; None where rows are too few."""
        losses = rows.off, rows.losses, rows.drawn
        return taken_by(*self.lost(rows), rows_a_head=rows_a_head), taken_by(*losses, rows_a_head=rows_a_head)

    def set_pool(self, done: float) -> None:
        """Let the next rows draw on the heads that are left when so much of the budget is spent."""
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
        """Choose finalists and decoys, and the number of heads off by their estimated effects."""
        candidates = np.flatnonzero(np.isfinite(self.merit))
        best, others = finalists_and_decoys(self.merit[candidates], self.n_finalists, self.n_decoys, self.rng)
        self.finalists, self.decoys = candidates[best], candidates[others]
        self.passed = max([0.0, *self.blame.z[candidates[~np.isin(candidates, self.finalists)]]])
        pool = np.concatenate([self.finalists, self.decoys])
        self._draws = BalancedDraws(pool, self.rng)
        taken = np.maximum(self.blame.task.effect[pool], 0).mean() / self.sensor.task.above_guess
        self.density.begin(self.last_target, float(taken))
        if self.gradients is not None:
            # They are of probabilities, and may say too little: rows of few heads off find out.
            self.density.n_off = min(self.density.n_off, _FIRST_OFF)

    def _measure(self, n_rows: int) -> Rows:
        size, last = len(self._draws.pool), len(self.finalists) > 0
        numbers = self.density.numbers(size, levels=last)
        self.heads_off.append(round(self.density.n_off, 1))
        counts = [numbers[row % len(numbers)] for row in range(n_rows)]
        off = sparse_rows([self._draws.draw(count) for count in counts], self.sensor.grid.size)
        group = np.array([self._groups.of(count, size) for count in counts], dtype=int)
        (rows,) = measure([self.sensor.plan(off, group, last=last)])
        return rows

    def _observe(self, new: Rows) -> None:
        if len(new):
            ratio = (new.scores.mean() - self.sensor.task.guess) / self.sensor.task.above_guess
            self.density.observe(float(ratio), float(new.off.sum() / len(new)))
