"""Annealed sensing of several tasks at once: a mask is measured on more than one of them, each a control of the others.

What one task pays for its controls is what the others need anyway: the rows of eleven tasks tell the twelfth which
heads every task needs. Gradients screen all heads, or masks of a first phase do, which draw on all heads and are
measured on every task. Then tasks go by twos, another two in each batch: a mask has heads of both pools off and is
measured on both tasks, so that a row costs each no more than its own examples. Sets of heads come last.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from cs_heads.arguments import (
    WEIGHT_BY_GRADIENTS,
    WEIGHT_BY_MASKS,
    check_integer,
    check_seed,
    check_share,
    check_weight,
)
from cs_heads.experiment.baseline import BaselineTooLowError, fitting_k
from cs_heads.experiment.controls import found_on
from cs_heads.experiment.cost import Budget, check_budget
from cs_heads.experiment.protocol import ExperimentLike, chance_of, name_of, preparation_of, responding
from cs_heads.experiment.together import Asked, measure_together
from cs_heads.methods.annealing.fit import GRADIENT_MISFIT
from cs_heads.methods.annealing.intervals import ROWS_A_HEAD
from cs_heads.methods.annealing.method import (
    EVEN,
    FIXED,
    MIN_BATCHES,
    MIN_ROWS,
    controls_of_row,
    default_budget,
    ranking_of,
)
from cs_heads.methods.annealing.rows import Planned, Rows, Sensor, measure, sparse_rows
from cs_heads.methods.annealing.screen import Screening, cost_of, screening_of
from cs_heads.methods.annealing.search import (
    LAST,
    N_PILOTS,
    ROWS_ALONE,
    ROWS_OF_PILOT,
    WHOLE,
    DensityControl,
    Groups,
)
from cs_heads.methods.annealing.sets import SummingSets, best_sets
from cs_heads.methods.annealing.shares import SaturatingSets
from cs_heads.methods.annealing.task_search import TaskSearch, universal_of
from cs_heads.methods.controls import BalancedDraws, Controls, TaskLoss, check_experiments
from cs_heads.progress import expect, one_bar, step
from cs_heads.ranking import HeadRanking

# Examples of controls in a row of a set, for each of the task's, after a screen by gradients.
_CONTROLS_OF_SETS = 3
# Of the budget that is left, the share that rows of the last phase may take before sets are measured.
_BEFORE_SETS = 0.75


@dataclass
class JointSearch:
    """Measures batch after batch on several tasks, and holds the search of each."""

    searches: Sequence[TaskSearch]
    density: DensityControl
    budget: Budget
    n_batches: int
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self._n_masks, self._n_groups = 0, 0
        self._groups = Groups()
        self._draws = BalancedDraws(np.arange(self.density.n_heads), self.rng)
        self._pairs: list[list[TaskSearch]] = []

    @property
    def screened(self) -> bool:
        """Whether gradients have screened all heads."""
        return any(search.gradients is not None for search in self.searches)

    def run(self, batches: range) -> None:
        """The batches before sets are measured."""
        for batch in batches:
            step(f"batch {batch + 1}/{self.n_batches}")
            done = batch / self.n_batches
            per_row = sum(search.sensor.per_row for search in self.searches)
            n_rows = self.budget.left // (per_row * (self.n_batches - batch))
            if done < WHOLE:
                self._on_all(n_rows)
            else:
                begins = self.screened and not self._n_masks
                for _ in range(N_PILOTS if begins and n_rows > 2 * N_PILOTS * ROWS_OF_PILOT else 0):
                    self._by_twos(ROWS_OF_PILOT, done, pilot=True)
                self._by_twos(n_rows, done)

    def measure_alone(self) -> None:
        """Measure rows with each shared or universal head off alone, on all tasks, as far as the budget allows."""
        heads = sorted(set().union(*(search.set_apart for search in self.searches)))
        cost = sum(search.sensor.per_row for search in self.searches) * len(heads)
        n = min(ROWS_ALONE, self.budget.left // cost) if heads else 0
        if n < ROWS_A_HEAD:
            return
        off = sparse_rows([np.array([head]) for head in heads] * n, self.density.n_heads)
        none = np.zeros(off.shape[0], dtype=int)
        for search, rows in zip(self.searches, measure(_planned(self.searches, off, none)), strict=True):
            search.alone = rows

    def best_sets(self, k: int) -> list[Int[np.ndarray, " k"] | None]:
        """The set of ``k`` heads of each task that proves best; spends the budget in equal parts.

        Heads that most tasks need are shared from here on, by all of them where controls count in full.
        """
        universal = universal_of(*self.taken(), kin=self._kin())
        for search in self.searches:
            search.set_aside_universal(universal)
            search.sensor.budget = Budget(self.budget.left // len(self.searches))
        # Few sets are measured after masks: too few to fit how they saturate.
        chosen = best_sets(self.searches, k, SaturatingSets if self.screened else SummingSets)
        for search in self.searches:
            self.budget.pay(search.sensor.budget.spent)
            search.sensor.budget = self.budget
        return chosen

    def _kin(self) -> list[tuple[int, int]]:
        """The pairs of searches that are no controls of each other."""
        pairs = combinations(range(len(self.searches)), 2)
        return [(i, j) for i, j in pairs if all(other is not self.searches[j] for other in self.searches[i].others)]

    def taken(self) -> tuple[Float[np.ndarray, "task flat"], Float[np.ndarray, "task flat"]]:
        """What each head takes from each task, and the errors: losses."""
        losses, errors = zip(*(search.taken() for search in self.searches), strict=True)
        return np.stack(losses), np.stack(errors)

    def taken_alone(self) -> tuple[Float[np.ndarray, "task flat"], Float[np.ndarray, "task flat"]]:
        """The same at the end: errors have what gradients may miss of heads that were never off alone."""
        losses, errors = self.taken()
        first = self.searches[0]
        if first.gradients is not None:
            missed = np.full(errors.shape[1], GRADIENT_MISFIT)
            missed[first.alone.off.indices] = 0.0
            errors = np.hypot(errors, missed)
        return losses, errors

    def _on_all(self, n_rows: int) -> None:
        """Rows of heads that not all tasks share, on every task."""
        merit = np.max([search.merit for search in self.searches], axis=0)
        pool = np.flatnonzero(np.isfinite(merit))
        if not len(pool):
            return
        if len(pool) < len(self._draws.pool):
            self._draws = BalancedDraws(pool, self.rng)
        (count,) = self.density.numbers(len(pool), levels=False)
        off = sparse_rows([self._draws.draw(count) for _ in range(n_rows)], self.density.n_heads)
        group = np.full(n_rows, self._groups.of(count, len(pool)))
        self._n_groups = max(self._n_groups, int(group.max()) + 1)
        measured = measure(_planned(self.searches, off, group))
        self._add(self.searches, measured)
        self.refit()
        ratios = [
            (rows.scores.mean() - search.sensor.task.guess) / search.sensor.task.above_guess
            for search, rows in zip(self.searches, measured, strict=True)
        ]
        self.density.observe(float(np.mean(ratios)), float(count))
        for search in self.searches:
            search.density.n_off = self.density.n_off / 2

    def _by_twos(self, n_rows: int, done: float, *, pilot: bool = False) -> None:
        """Rows of two tasks' heads, on both; a pilot has no more of them than it is told."""
        searching = [search for search in self.searches if np.isfinite(search.merit).any()]
        for search in searching:
            search.set_pool(done)
        if not searching:
            return
        pairs = self._in_pairs(searching)
        planned, counted = [], []
        each = _BEFORE_SETS * self.budget.left / len(searching)
        kept = n_rows * sum(search.sensor.per_row for search in searching)
        for together in pairs:
            last, n, cost = len(together[0].finalists) > 0, n_rows, sum(search.sensor.per_row for search in together)
            kept -= n_rows * cost
            if last and not pilot:
                pools = len(np.unique(np.concatenate([search.pool for search in together])))
                # Pairs to come have their rows, too.
                most = min(each * len(together), self.budget.left - kept)
                n = max(n, min(ROWS_A_HEAD * pools, int(most / cost)))
            drawn = [search.draw(n) for search in together]
            heads = [np.unique(np.concatenate(each)) for each in zip(*(rows for rows, _ in drawn), strict=True)]
            group = np.full(n, self._n_groups)
            self._n_groups += 1
            planned.append(_planned(together, sparse_rows(heads, self.density.n_heads), group, last=last))
            counted += [counts for _, counts in drawn]
        measured = measure([*chain.from_iterable(planned)])
        rows = iter(measured)
        for together in pairs:
            self._add(together, [next(rows) for _ in together])
        self.refit()
        for search, mine, counts in zip(chain.from_iterable(pairs), measured, counted, strict=True):
            search.observe(mine, counts)

    def _in_pairs(self, searching: Sequence[TaskSearch]) -> list[list[TaskSearch]]:
        """Other pairs each time, but once all have finalists: these go off with as few other heads as can be."""
        if self._pairs and sum(map(len, self._pairs)) == len(searching):
            return self._pairs
        order = self.rng.permutation(len(searching)).tolist()
        pairs = [[searching[place] for place in order[start : start + 2]] for start in range(0, len(order), 2)]
        if len(pairs) > 1 and len(pairs[-1]) == 1:
            odd = pairs.pop()
            pairs[-1] += odd
        if all(len(search.finalists) for search in searching):
            self._pairs = pairs
        return pairs

    def _add(self, searches: Sequence[TaskSearch], measured: Sequence[Rows]) -> None:
        """Take rows of the same masks on several tasks."""
        n = len(measured[0])
        masks = np.arange(self._n_masks, self._n_masks + n)
        self._n_masks += n
        for search, rows in zip(searches, measured, strict=True):
            search.add(rows, masks)

    def refit(self) -> None:
        """Fit all tasks, and set aside what they share."""
        while True:
            for search in self.searches:
                search.fit_own()
            for search in self.searches:
                search.fit()
            # Each is asked: what one sets aside, another may have to as well.
            if not sum(search.set_aside() for search in self.searches):
                return


def _planned(
    searches: Sequence[TaskSearch], off: sparse.csr_array, group: Int[np.ndarray, " row"], *, last: bool = False
) -> list[Planned]:
    """The same masks on several tasks, each on random examples of its own."""
    return [search.sensor.plan(off, group, last=last, of_controls=0) for search in searches]


@dataclass(frozen=True, eq=False)
class Joint:
    """What a joint search found.

    Attributes:
        rankings: Of each task, None where the model cannot do it.
        losses: What each head takes from each task that is ranked, in their order, against the intact model: a share of
            the score above chance, estimated among other heads that are off.
        errors: The standard errors of these.
        left_out: The tasks that the model cannot do, by their place, and why.
        spent: Example-evaluations.
    """

    rankings: list[HeadRanking | None]
    losses: Float[np.ndarray, "task layer head"]
    errors: Float[np.ndarray, "task layer head"]
    left_out: dict[int, str]
    spent: int


def check_joint_budget(
    budget: int | None, sizes: Sequence[int], before: int, examples_per_mask: int = 8, n_batches: int = 14
) -> int:
    """The least that a search of tasks with so many examples takes, and ``before`` it; less raises ``ValueError``."""
    least = before + n_batches * MIN_ROWS * sum(min(examples_per_mask, n) for n in sizes)
    check_budget(budget, least, f"{n_batches} batches of {MIN_ROWS} rows, after the intact runs")
    return least


def per_task(size: int) -> int:
    """Example-evaluations for each task by default on a grid of so many heads: half of those of ``annealed``."""
    return default_budget(size) // 2


@one_bar("annealed", outermost=True)
def annealed_jointly(
    experiments: Sequence[ExperimentLike],
    *,
    kin: Collection[tuple[int, int]] = (),
    k: int | None = None,
    budget: int | None = None,
    seed: int = 0,
    control_weight: float | None = None,
    response: str = "score",
    examples_per_mask: int = 8,
    n_batches: int = 14,
    target: float = 0.65,
    last_target: float = 0.8,
    density: float = 0.03,
    max_density: float = 0.12,
    n_finalists: int | None = None,
    n_decoys: int = 6,
    n_bootstraps: int = 40,
    screen: str = "auto",
) -> Joint:
    """Rank the heads of each of several tasks by what they take from it beyond the others: ``annealed``, jointly.

    Every task is a control of the others, at no cost of its own: masks on all heads, where gradients do not take their
    place, are measured on all tasks, those on a task's best heads beside those of another task, on both. What a head
    takes from the controls is its mean effect on the other tasks, each fitted by itself, so that a control that shares
    a head counts as one of many; it counts ``control_weight`` times. Sets of ``k`` finalists are then measured by task
    as in ``annealed``. After a screen by gradients they are many, and may have a head that is no finalist, where rows
    of another task show it to take much; it has an interval, too, from these rows, but is never claimed. Sets are then
    fitted as they saturate: each head takes a share of what the others leave of the task.

    Heads that most tasks need are universal, and shared by all: more than half of the tasks lose, by more than .05
    beyond a standard error, and all in the mean more than .1, and without the one that loses most more than 4 errors.

    Args:
        experiments: Two tasks or more, of one grid.
        kin: Places of two tasks that are no controls of each other.
        k: Heads wanted of each (None: 5, or half of a grid of fewer than 10 heads).
        budget: Example-evaluations of all tasks together (None: the intact runs, and for
            each half of what ``annealed`` takes).
        seed: Seeds all draws.
        control_weight: What the mean loss of the controls counts beside that of the task, 0 or more (None: 1.5 after
            a screen by gradients, 3 by masks). Below 1 a task keeps shared and universal heads that take more from it
            than twice the weight times what the controls lose.
        response: What is fitted, as in ``annealed``.
        examples_per_mask: Random examples of a task under each mask.
        n_batches: As in ``annealed``, like all further arguments.
        target: Share of the score above chance that masks leave, on average over the tasks.
        last_target: The same in the last phase, of the best heads alone.
        density: Share of heads off in the first masks.
        max_density: Share of a task's heads off in a mask at most.
        n_finalists: Heads of the last phase.
        n_decoys: Random heads of the last phase.
        n_bootstraps: Resamples of the rows that give each head's frequency; 0 for none.
        screen: What all heads are screened by: "masks", "gradients", which leave out masks on all heads, or "auto" for
            gradients where there are 200 heads or more and the tasks have them, at any budget that has room for them.

    Returns:
        A ranking of each task, in their order (None: ``left_out`` says why), and ``losses`` ``[task, layer, head]`` of
        the tasks ranked, as shares of the score above chance.

    Raises:
        ValueError: A wrong argument, before anything is measured.
        BaselineTooLowError: The intact model can do fewer than two of the tasks that are no kin.
    """
    seed = check_seed(seed)
    if len(experiments) < 2:
        raise ValueError(f"experiments must be two tasks or more, got {len(experiments)}")
    check_experiments(experiments[0], experiments[1:])
    for experiment in experiments:
        responding(experiment, response)
    grid, size = experiments[0].grid, experiments[0].grid.size
    k, fitted = fitting_k(k, grid)
    examples_per_mask = check_integer("examples_per_mask", examples_per_mask, 1)
    n_batches = check_integer("n_batches", n_batches, MIN_BATCHES)
    n_finalists = max(20, k) if n_finalists is None else check_integer("n_finalists", n_finalists, k, why="which is k")
    n_decoys, n_bootstraps = check_integer("n_decoys", n_decoys, 0), check_integer("n_bootstraps", n_bootstraps, 0)
    shares = {"target": target, "last_target": last_target, "density": density, "max_density": max_density}
    for name, share in shares.items():
        check_share(name, share)
    sizes = [experiment.n_examples for experiment in experiments]
    before = sum(sizes) + preparation_of(*experiments)
    least = check_joint_budget(budget, sizes, before, examples_per_mask, n_batches)
    apart = _pairs(kin, len(experiments))
    room = None if budget is None else (int(budget) - before) // len(experiments)
    # The controls of a task pay their own gradients.
    screening = screening_of(screen, experiments, room, examples_per_mask, usual=None, with_controls=False)
    weight = _weight(control_weight, screening)
    each = per_task(size)
    expect(max(least, before + each * len(experiments)) if budget is None else int(budget))
    tasks, left_out = _able(experiments, response, apart)
    if budget is None:
        budget = max(least, before + each * len(tasks))
    rng, spending = np.random.default_rng(seed), Budget(int(budget))
    spending.pay(before)
    searches = {}
    for place, task in tasks.items():
        beside = [tasks[other] for other in _others(place, tasks, apart)]
        n = min(examples_per_mask, task.n_examples)
        controls = Controls.among(beside, np.random.default_rng([seed, 1, place]))
        searches[place] = TaskSearch(
            sensor=Sensor(task, controls, n, _of_controls(controls, n, screening), spending, rng),
            density=DensityControl(size, target, max_density, density * size),
            prior=np.zeros(size),
            n_batches=n_batches,
            last_target=last_target,
            n_finalists=min(n_finalists, max(k, size // 2)),
            n_decoys=n_decoys,
            rng=rng,
            weight=weight,
        )
        if screening:
            searches[place].screen(screening)
    for place, search in searches.items():
        search.others = [searches[other] for other in _others(place, searches, apart)]
    joint = JointSearch(
        list(searches.values()), DensityControl(size, target, max_density, density * size), spending, n_batches, rng
    )
    first = math.ceil(LAST * n_batches) + 1
    if screening:
        joint.refit()
    joint.run(range(first - 1 if screening else 0, first))
    chosen = joint.best_sets(k)
    joint.measure_alone()
    settings: dict[str, Any] = {
        "budget": budget,
        "k": k,
        "seed": seed,
        "control_weight": weight,
        "response": response,
        "n_batches": n_batches,
        **shares,
        "examples_per_mask": examples_per_mask,
        "n_finalists": n_finalists,
        "n_decoys": n_decoys,
        "n_bootstraps": n_bootstraps,
        "fixed": FIXED,
        "screen": None if screening is None else vars(screening),
    }
    cost = cost_of(spending, screening, n_tasks=len(searches))
    rankings: list[HeadRanking | None] = [None] * len(experiments)
    for (place, search), best in zip(searches.items(), chosen, strict=True):
        ranking = ranking_of(search, best, k=k, n_bootstraps=n_bootstraps, cost=cost, before=before)
        names = search.sensor.controls.names
        rankings[place] = replace(
            ranking,
            method="annealed jointly",
            notes=(*fitted, *search.sensor.task.notes, *ranking.notes),
            provenance={**ranking.provenance, "design": settings, "controls": names},
            examples=found_on(experiments),
        )
    losses, errors = (each.reshape(-1, *grid.shape) for each in joint.taken_alone())
    return Joint(rankings, losses, errors, left_out, spending.spent)


def _pairs(kin: Collection[tuple[int, int]], n: int) -> set[frozenset[int]]:
    """The pairs of places of ``n`` tasks; others raise ``ValueError``."""
    wrong = [pair for pair in kin if pair[0] == pair[1] or not {*pair} <= {*range(n)}]
    if wrong:
        raise ValueError(f"kin must be pairs of two different places in 0..{n - 1}, got {wrong[0]!r}")
    return {frozenset(pair) for pair in kin}


def _others(place: int, tasks: Collection[int], apart: set[frozenset[int]]) -> list[int]:
    """The tasks that are controls of the one at this place."""
    return [other for other in tasks if other != place and frozenset((place, other)) not in apart]


def _weight(given: float | None, screening: Screening | None) -> float:
    """What the controls count: as given, or by what screens the heads."""
    if given is None:
        return WEIGHT_BY_MASKS if screening is None else WEIGHT_BY_GRADIENTS
    return check_weight("control_weight", given)


def _of_controls(controls: Controls, per_row: int, screening: Screening | None) -> int:
    """Examples of controls in a row of a set."""
    asked = per_row if screening is None else _CONTROLS_OF_SETS * per_row
    return min(controls_of_row(len(controls.tasks), asked), controls.n_examples)


def _able(
    experiments: Sequence[ExperimentLike], response: str, apart: set[frozenset[int]]
) -> tuple[dict[int, TaskLoss], dict[int, str]]:
    """The tasks that the intact model can do and that have a control, by their place, and why not the others."""
    nothing_off = np.zeros((1, *experiments[0].grid.shape), dtype=bool)
    measure_together([Asked(experiment, nothing_off) for experiment in experiments])
    tasks, left_out = {}, {}
    for place, experiment in enumerate(experiments):
        try:
            tasks[place] = TaskLoss.of(experiment, response, every=chance_of(experiment) >= EVEN)
        except BaselineTooLowError as error:
            left_out[place] = str(error)
    for place in list(tasks):
        if not _others(place, tasks, apart):
            left_out[place] = "no other task that the model can do is a control of it"
    tasks = {place: task for place, task in tasks.items() if place not in left_out}
    if len(tasks) < 2:
        why = "; ".join(f"{name_of(experiments[place])!r}: {reason}" for place, reason in left_out.items())
        raise BaselineTooLowError(f"experiments: the model can do fewer than two of the tasks ({why})")
    return tasks, left_out
