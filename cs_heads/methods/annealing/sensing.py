"""Annealed sensing: few examples a mask, and ever fewer heads to choose from.

Rows of one mask and a few examples tell more for their cost than a mask on all examples does; and once most
heads are unlikely, the budget is better spent on the others. The random masks and the sparse regression are
those of compressed sensing (Bair et al., arXiv 2603.03335).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from cs_heads.arguments import WEIGHT_BY_GRADIENTS, WEIGHT_BY_MASKS, check_integer, check_seed, check_weight
from cs_heads.experiment.baseline import BaselineTooLowError, fitting_k
from cs_heads.experiment.controls import found_on
from cs_heads.experiment.cost import Budget, check_budget
from cs_heads.experiment.protocol import ExperimentLike, preparation_of
from cs_heads.methods.annealing.gradient_screen import SAVED, SMALL, Screening, screening_of
from cs_heads.methods.annealing.measurements import Sensor
from cs_heads.methods.annealing.schedule import (
    MIN_BATCHES,
    MIN_ROWS,
    N_DECOYS,
    N_FINALISTS,
    ROWS_A_HEAD,
    rows_for_intervals,
)
from cs_heads.methods.annealing.search_loop import SearchLoop
from cs_heads.methods.annealing.search_result import ranking_of
from cs_heads.methods.annealing.task_search import TaskSearch
from cs_heads.methods.controls import Contrast, Controls, controls_notes
from cs_heads.methods.losses import TaskLoss, able
from cs_heads.methods.ranking_method import RankingSteps, check_experiments, ranking_method
from cs_heads.progress import expect, one_bar
from cs_heads.ranking import HeadRanking

PER_MASK, N_BATCHES = 8, 14
"""Examples of a task under each mask, and batches of masks, by default."""

# Control examples of a row: so many for each control, and no more than of the task.
_OF_EACH_CONTROL = 2
# Examples of controls in a row of a set, for each of the task's, of tasks searched together after gradients.
_CONTROLS_OF_SETS = 3
# Where guessing is right so often (two choices), heads that merely shuffle answers mend about as many as they
# break, and would look harmful on those alone that the intact model gets right.
_EVEN = 0.4
# Example-evaluations for masks by default, however small or large the grid.
_LEAST, _MOST = 8000, 60_000


@ranking_method("annealed")
def annealed(
    experiment: ExperimentLike,
    *,
    k: int | None = None,
    controls: Sequence[ExperimentLike] = (),
    budget: int | None = None,
    seed: int = 0,
    examples_per_mask: int = PER_MASK,
    n_batches: int = N_BATCHES,
    n_bootstraps: int = 40,
    screen: str = "auto",
) -> RankingSteps:
    """Rank heads by what they take from a task beyond its controls, within a budget of example-evaluations.

    *Search.* The intact model runs on all examples. Those it answers right (a score above .5; of continuous scores
    those above 0) are used, or all of them where guessing is right in .4 of the cases or more, so that a head may mend
    as many answers as it breaks. Each of ``n_batches`` then measures rows of one mask and ``examples_per_mask`` random
    examples, and a Lasso with example effects on all rows so far gives each head an effect and a z. The share of heads
    off begins at .03 and is adjusted so that the score above chance stays near .65 of the intact one, up to .12. Masks
    draw on all heads for 40 % of the rows, then on the best by z, ever fewer. In the last 30 %, the last phase, they
    draw on 20 finalists (or ``k``, if that is more) and 6 random others, the decoys, nearer to the intact score (.8),
    so that what a head does there is near what it does alone. With ``screen="gradients"`` gradients at random places
    between the intact model and random masks choose the finalists, and the search begins with its last phase.

    *Controls.* The intact model is asked 30 to 100 examples of each control. Controls that it can do are measured under
    the same masks: a row has two examples for each control, no more than of the task, four of one control at a time,
    the controls in turn. Their losses are fitted like those of the task, both as shares of the score above chance, and
    z is that of the difference, the *contrast*. So heads that every task needs, alone or as a group, are not ranked. A
    head with a clear and large effect on both sides is set aside with its rows. About the last fifth of the budget
    measures sets of ``k`` finalists, and of decoys that clearly take much after all (Thompson sampling). In a set each
    head takes a share of what the others leave of the task, and from the controls heads take a sum. The set that proves
    best on the task less its controls is ``chosen``: its heads come first. Controls in the form of the task
    (``Task.matched``) have half of the control examples, and what they lose is subtracted by itself, where a set
    that is best so takes a quarter of the task; what all controls lose is then the probability of their answers.
    ``shared`` are heads with a clear effect on both sides (four standard errors), the controls' more than half of
    the task's, and heads that sets leave out for controls in the form of the task (two standard errors, of what
    these lose alone); ``control_importance`` is what each head takes from the controls. Without controls, heads of
    the task cannot be distinguished from heads of every task, no set is chosen, and the notes say so.

    *Result.* Importances are score lost against the intact model, one estimate a head from all rows in which it was
    off. Effects among many other heads that are off count as uncertain by more than half of themselves, those of the
    last phase by a seventh; the earlier rows of the finalists also by the selection of these. **z** is by how many
    standard errors the estimate exceeds what the controls surely lose, and the ranking is by z. Finalists have 95 %
    intervals (other heads have NaN, and all have where the last phase has fewer than two rows for each of its heads).
    ``claims`` are finalists that take more than 2 points beyond the mean decoy (Holm, one-sided 5 %), and of which the
    controls lose at most half as much. Shared heads go off alone, a few rows each, at the end: their importance and
    interval are of these rows. ``frequency`` is the share of ``n_bootstraps`` resamples of the rows that rank a head
    among the ``k`` best. On a large grid, with fewer than four rows a head, the regression only says how heads that are
    no finalists differ; their level is that of the mean head. All figures are of the answers that are used: each right
    answer can be lost, none won. Where gradients screen, heads that are no finalists have what gradients say, which is
    mostly too little, and finalists what the last phase says.

    Args:
        experiment: The task.
        k: Heads wanted (None: 5, or half of a small grid).
        controls: Experiments on other tasks, which the heads should not serve.
        budget: Example-evaluations in all: masks, controls, intact runs and what the ablation runs before; never
            exceeded. By default 10 × heads, from 8,000 to 60,000, for masks (or as many as intervals need), a
            quarter of it where gradients screen, and gradients and what runs before on top.
        seed: Seeds all draws.
        examples_per_mask: Random examples of the task under each mask, or all where it has fewer.
        n_batches: Batches of masks, each followed by a regression; 4 or more.
        n_bootstraps: Resamples of the rows that give each head's frequency; 0 for none.
        screen: What all heads are screened by: "masks", "gradients", or "auto" for gradients where 200 heads or more
            have less than two thirds of the default budget, with room for them, and where there are some: with a model
            in this process that is not quantized, zero ablation, and answers that no scorer judges.

    Returns:
        The ranking by z, chosen heads first; its notes say what weakens it.

    Raises:
        ValueError: A wrong argument, before anything is measured.
        BaselineTooLowError: The intact model has fewer than 20 right answers, or is no better than chance.
    """
    k, fitted = fitting_k(k, experiment.grid)
    for name, value, least in (("n_batches", n_batches, MIN_BATCHES), ("n_bootstraps", n_bootstraps, 0)):
        check_integer(name, value, least)
    per_row = min(check_integer("examples_per_mask", examples_per_mask, 1), experiment.n_examples)
    n, before, size = len(controls), Contrast.cost(experiment, controls), experiment.grid.size
    cost, in_last = per_row + _controls_of_row(n, per_row), max(N_FINALISTS, k) + N_DECOYS
    least = before + n_batches * MIN_ROWS * cost
    left = check_budget(budget, least, f"{n_batches} batches of {MIN_ROWS} rows, after the intact run") - before
    usual = max(default_budget(size), per_row * max(n_batches * MIN_ROWS, rows_for_intervals(n_batches, in_last)))
    screening = screening_of(
        screen, [experiment, *controls], left, per_row, n_controls=n, is_small=left < SMALL * usual
    )
    if screening is not None:
        usual = screening.cost(n) + max(default_budget(size) // SAVED, 2 * ROWS_A_HEAD * in_last * cost)
    rng, spending = np.random.default_rng(seed), Budget(max(least, before + usual) if budget is None else int(budget))
    yield spending.total
    spending.pay(before)
    task = TaskLoss.of(experiment, all_from=_EVEN)
    known, per_row = Controls.able(controls, seed), min(examples_per_mask, task.n_examples)
    of_controls = min(_controls_of_row(len(known.tasks), per_row), known.n_examples)
    sensor = Sensor(task, known, per_row, of_controls, of_controls, spending, rng)
    search = TaskSearch(sensor, _finalists(k, size))
    if screening:
        search.screen(screening)
    (chosen,) = SearchLoop([search], n_batches).run(k)
    options = {"examples_per_mask": examples_per_mask, "n_batches": n_batches, "n_bootstraps": n_bootstraps}
    told = {
        "design": _design(spending.total, k, seed, screening, **options),
        "controls": known.names,
        "control_tasks": [control.provenance().get("task") for control in controls],
        "controls_left_out": known.left_out,
    }
    notes = (*fitted, *task.notes, *controls_notes(known.left_out, known.names))
    yield ranking_of(search, chosen, notes, told, k=k, n_bootstraps=n_bootstraps, before=before)


def _design(budget: int, k: int, seed: int, screening: Screening | None, **options: Any) -> dict[str, Any]:
    """The arguments of a search, JSON-ready, with the gradients that screen where any do."""
    return {**options, "budget": budget, "k": k, "seed": seed, "screen": screening and asdict(screening)}


@dataclass(frozen=True, eq=False)
class JointRankings:
    """What a search of several tasks found.

    Attributes:
        rankings: Of each task, None where the model cannot do it.
        losses: What each head takes from each task that is ranked, in their order, against the intact model: a share of
            the score above chance, estimated among other heads that are off.
        errors: The standard errors of these.
        left_out: The tasks that the model cannot do, by their place, and why.
        spent: Example-evaluations.
        control_weight: What the mean loss of the controls counted beside that of the task.
    """

    rankings: list[HeadRanking | None]
    losses: Float[np.ndarray, "task layer head"]
    errors: Float[np.ndarray, "task layer head"]
    left_out: dict[int, str]
    spent: int
    control_weight: float


@one_bar("annealed", outermost=True)
def annealed_jointly(
    experiments: Sequence[ExperimentLike],
    *,
    kin: Collection[tuple[int, int]] = (),
    k: int | None = None,
    budget: int | None = None,
    seed: int = 0,
    control_weight: float | None = None,
    n_bootstraps: int = 40,
    screen: str = "auto",
) -> JointRankings:
    """Rank the heads of each of several tasks by what they take from it beyond the others: ``annealed``, jointly.

    Every task is a control of the others, at no cost of its own: masks on all heads, where gradients do not take their
    place, are measured on all tasks, those on a task's best heads beside those of another task, on both. What a head
    takes from the controls is its mean effect on the other tasks, each fitted by itself, so that a control that shares
    a head counts as one of many; it counts ``control_weight`` times. Sets of ``k`` finalists are then measured by task
    as in ``annealed``. After a screen by gradients they are many, and may have a head that is no finalist, where rows
    of another task show it to take much; it has an interval, too, from these rows, but is never claimed.

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
    grid, size = experiments[0].grid, experiments[0].grid.size
    k, fitted = fitting_k(k, grid)
    check_integer("n_bootstraps", n_bootstraps, 0)
    sizes = [experiment.n_examples for experiment in experiments]
    before = sum(sizes) + preparation_of(*experiments)
    least = check_joint_budget(budget, sizes, before)
    if wrong := [pair for pair in kin if pair[0] == pair[1] or not {*pair} <= {*range(len(sizes))}]:
        raise ValueError(f"kin must be pairs of two different places in 0..{len(sizes) - 1}, got {wrong[0]!r}")
    room = None if budget is None else (int(budget) - before) // len(experiments)
    # The controls of a task pay their own gradients.
    screening = screening_of(screen, experiments, room, PER_MASK, n_controls=0, is_small=True)
    weight = WEIGHT_BY_MASKS if screening is None else WEIGHT_BY_GRADIENTS
    if control_weight is not None:
        weight = check_weight("control_weight", control_weight)
    expect(max(least, before + per_task(size) * len(experiments)) if budget is None else int(budget))
    tasks, beside, left_out = _able(experiments, kin)
    budget = max(least, before + per_task(size) * len(tasks)) if budget is None else int(budget)
    rng, spending = np.random.default_rng(seed), Budget(budget)
    spending.pay(before)
    searches = {}
    for place, task in tasks.items():
        controls = Controls([tasks[other] for other in beside[place]], np.random.default_rng([seed, 1, place]))
        n = min(PER_MASK, task.n_examples)
        of_controls = _controls_of_row(len(controls.tasks), n if screening is None else _CONTROLS_OF_SETS * n)
        sensor = Sensor(task, controls, n, 0, min(of_controls, controls.n_examples), spending, rng)
        searches[place] = TaskSearch(sensor, _finalists(k, size), weight)
    for place, search in searches.items():
        search.others = [searches[other] for other in beside[place]]
        if screening:
            search.screen(screening)
    loop = SearchLoop(list(searches.values()), N_BATCHES)
    options = {"examples_per_mask": PER_MASK, "n_batches": N_BATCHES, "n_bootstraps": n_bootstraps}
    design = _design(budget, k, seed, screening, **options, control_weight=weight)
    given = {"k": k, "n_bootstraps": n_bootstraps, "before": before}
    backwards, seen = sum(search.backwards for search in searches.values()), found_on(experiments)
    rankings: list[HeadRanking | None] = [None] * len(experiments)
    for (place, search), best in zip(searches.items(), loop.run(k), strict=True):
        told = {"design": design, "controls": search.sensor.controls.names}
        ranking = ranking_of(search, best, (*fitted, *search.sensor.task.notes), told, **given)
        rankings[place] = replace(ranking, method="annealed jointly", backwards=backwards, examples=seen)
    losses, errors = (each.reshape(-1, *grid.shape) for each in loop.taken(alone=True))
    return JointRankings(rankings, losses, errors, left_out, spending.spent, weight)


def default_budget(size: int) -> int:
    """Example-evaluations for masks by default on a grid of so many heads, unless tasks ask for more.

    Ten for each, up to what is plenty for neurons: masks needed grow with the logarithm of the size.
    """
    return min(max(10 * size, _LEAST), _MOST)


def per_task(size: int) -> int:
    """Example-evaluations for each of several tasks by default: half of those of ``annealed``."""
    return default_budget(size) // 2


def check_joint_budget(budget: int | None, sizes: Sequence[int], before: int) -> int:
    """The least that a search of tasks with so many examples takes, and ``before`` it; less raises ``ValueError``."""
    least = before + N_BATCHES * MIN_ROWS * sum(min(PER_MASK, n) for n in sizes)
    check_budget(budget, least, f"{N_BATCHES} batches of {MIN_ROWS} rows, after the intact runs")
    return least


def _finalists(k: int, size: int) -> int:
    """Heads of the last phase; a small grid keeps half of its heads to hold them against."""
    return min(max(N_FINALISTS, k), max(k, size // 2))


def _controls_of_row(n: int, per_row: int) -> int:
    """Control examples of a row, of so many controls."""
    return min(_OF_EACH_CONTROL * n, per_row)


def _able(
    experiments: Sequence[ExperimentLike], kin: Collection[tuple[int, int]]
) -> tuple[dict[int, TaskLoss], dict[int, list[int]], dict[int, str]]:
    """The tasks that the intact model can do and that have a control, by their place, these, and why not the others."""
    tasks, left_out = able(experiments, all_from=_EVEN)
    apart = [*({*pair} for pair in kin), *({place} for place in tasks)]
    beside = {place: [other for other in tasks if {place, other} not in apart] for place in tasks}
    for place in [place for place, others in beside.items() if not others]:
        left_out[place] = "no other task that the model can do is a control of it"
        del tasks[place]
    if len(tasks) < 2:
        why = "; ".join(f"{experiments[place].name!r}: {reason}" for place, reason in left_out.items())
        raise BaselineTooLowError(f"experiments: the model can do fewer than two of the tasks ({why})")
    return tasks, beside, left_out
