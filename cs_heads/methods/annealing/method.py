"""Annealed sensing: few examples a mask, and ever fewer heads to choose from.

Rows of one mask and a few examples tell more for their cost than a mask on all examples does; and once most
heads are unlikely, the budget is better spent on the others. The random masks and the sparse regression are
those of compressed sensing (Bair et al., arXiv 2603.03335).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cs_heads.arguments import check_integer, check_seed, check_share
from cs_heads.experiment.baseline import fitting_k
from cs_heads.experiment.controls import check_ranked
from cs_heads.experiment.cost import Budget, Cost, check_budget
from cs_heads.experiment.protocol import ExperimentLike, chance_of, provenance_of, responding
from cs_heads.methods.annealing.fit import DOUBT, GRADIENT_MISFIT, N_ROUNDS, PENALTY, with_errors
from cs_heads.methods.annealing.intervals import (
    NO_HARM,
    ROWS_A_HEAD,
    Estimates,
    anchored,
    selection_frequency,
    taken_by,
)
from cs_heads.methods.annealing.rows import Flat, PerRow, Sensor
from cs_heads.methods.annealing.screen import FIXED_SCREEN, SAVED, Screening, cost_of, screening_of
from cs_heads.methods.annealing.search import LAST, WHOLE, DensityControl, Search, rows_for_intervals
from cs_heads.methods.annealing.sets import best_sets
from cs_heads.methods.controls import (
    CLEAR,
    LARGE,
    PLENTY,
    SHARED,
    BothEffects,
    Contrast,
    Controls,
    TaskLoss,
    check_experiments,
    controls_notes,
    remembers_examples,
)
from cs_heads.progress import expect, one_bar
from cs_heads.ranking import HeadRanking

# Control examples of a row: so many for each control, and no more than of the task.
_OF_EACH_CONTROL = 2
# Where guessing is right so often (two choices), heads that merely shuffle answers mend about as many as they
# break, and would look harmful on those alone that the intact model gets right.
EVEN = 0.4
# Example-evaluations for masks by default, however small the grid.
_LEAST = 8000
_MOST = 60_000
_UNITS = {
    "score": "score lost",
    "probability": "probability lost",
    "margin": "nats",
}
# Rows of a batch below which no regression after it means anything.
MIN_ROWS = 4
# Batches below which there is none after the last phase begins.
MIN_BATCHES = 4
# A head that takes this share of the score above chance by itself may be universal, where no control can tell.
_COLLAPSE = 0.5
# Score, over all examples, that a claimed head takes beyond the decoys: two points.
BEYOND = 0.02
# Heads of a grid that a reader expects to be measured one and all.
_SMALL = 144
# Share of a budget that the runs before the first mask may take without a word.
_LARGE_SHARE = 0.25
# What a standardized prior counts beside z.
PRIOR_WEIGHT = 0.5
# Not arguments: the benchmarks give their figures for these values alone.
FIXED = {
    "penalty": PENALTY,
    "penalty_rounds": N_ROUNDS,
    "doubt": DOUBT,
    "shared": [CLEAR, SHARED, LARGE],
    "phases": [WHOLE, LAST],
    "examples_of_each_control": _OF_EACH_CONTROL,
    "claims_beyond": BEYOND,
    "prior_weight": PRIOR_WEIGHT,
    "all_examples_from_chance": EVEN,
    "screen": {**FIXED_SCREEN, "misfit": GRADIENT_MISFIT},
}


@one_bar("annealed", outermost=True)
@remembers_examples
def annealed(
    experiment: ExperimentLike,
    *,
    k: int | None = None,
    controls: Sequence[ExperimentLike] = (),
    budget: int | None = None,
    seed: int = 0,
    response: str = "score",
    examples_per_mask: int | None = 8,
    n_batches: int = 14,
    target: float = 0.65,
    last_target: float = 0.8,
    density: float = 0.03,
    max_density: float = 0.12,
    n_finalists: int | None = None,
    n_decoys: int = 6,
    n_bootstraps: int = 40,
    screen: str = "auto",
    prior: HeadRanking | Float[np.ndarray, "layer head"] | None = None,
    chance: float | None = None,
) -> HeadRanking:
    """Rank heads by what they take from a task beyond its controls, within a budget of example-evaluations.

    *Search.* The intact model runs on all examples. Those it answers right (a score above .5; of continuous scores
    those above 0) are used, or all of them from a ``chance`` of .4 on, where a head may mend as many answers as it
    breaks. Each of ``n_batches`` then measures rows of one mask and ``examples_per_mask`` random examples, and a Lasso
    with example effects on all rows so far gives each head an effect and a z. The number of heads off begins at
    ``density`` of the grid and is adjusted so that the score above chance stays near ``target`` of the intact one, up
    to ``max_density``. Masks draw on all heads for 40 % of the rows, then on the best by z, ever fewer. In the last 30
    %, the last phase, they draw on ``n_finalists`` heads and ``n_decoys`` random others, nearer to the intact score
    (``last_target``), so that what a head does there is near what it does alone. With ``screen="gradients"`` gradients
    at random places between the intact model and random masks choose the finalists, and the search begins with its last
    phase.

    *Controls.* The intact model is asked 30 to 100 examples of each control. Controls that it can do are measured under
    the same masks: a row has two examples for each control, no more than of the task, four of one control at a time,
    the controls in turn. Their losses are fitted like those of the task, both as shares of the score above chance, and
    z is that of the difference, the *contrast*. So heads that every task needs, alone or as a group, are not ranked. A
    head with a clear and large effect on both sides is set aside with its rows. About the last fifth of the budget
    measures sets of ``k`` finalists (Thompson sampling), and the set that proves best on the task less its controls is
    ``chosen``: its heads come first. ``shared`` are heads with a clear effect on both sides, the controls' more than
    half of the task's; ``control_importance`` is what each head takes from the controls. Without controls, heads of the
    task cannot be distinguished from heads of every task, no set is chosen, and the notes say so.

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
        response: What is fitted: score, probability (of the right answer) or margin (its log-odds, in nats). Which
            answers are right always depends on the score.
        examples_per_mask: Random examples of the task under each mask; none for all of them, where masks are what
            costs.
        n_batches: Batches of masks, each followed by a regression; 4 or more.
        target: Share of the score above chance that masks leave, in 0..1.
        last_target: The same in the last phase, of the best heads alone.
        density: Share of heads off in the first masks, in 0..1.
        max_density: Share of heads off in a mask at most, in 0..1.
        n_finalists: Heads of the last phase (by default 20, or k where that is more).
        n_decoys: Random heads of the last phase, which the finalists are compared with.
        n_bootstraps: Resamples of the rows that give each head's frequency; 0 for none.
        screen: What all heads are screened by: "masks", "gradients", or "auto" for gradients where 200 heads or more
            have less than two thirds of the default budget, with room for them, and where there are some: with a model
            in this process that is not quantized, zero ablation, and answers that no scorer judges.
        prior: A ranking of these weights, or one number a head [layer, head]; standardized, half of it is added to z.
        chance: Score of guessing, 0 or more and below 1 (by default that of the task, 0 where it has none).

    Returns:
        The ranking by z, chosen heads first; its notes say what weakens it.

    Raises:
        ValueError: A wrong argument, before anything is measured.
        BaselineTooLowError: The intact model has fewer than 20 right answers, or is no better than chance.
    """
    seed = check_seed(seed)
    grid, size = experiment.grid, experiment.grid.size
    k, fitted = fitting_k(k, grid)
    per_row, n_finalists = _sizes(
        experiment,
        k,
        examples_per_mask=examples_per_mask,
        n_batches=n_batches,
        n_finalists=n_finalists,
        n_decoys=n_decoys,
    )
    check_experiments(experiment, controls)
    for each in (experiment, *controls):
        responding(each, response)
    check_integer("n_bootstraps", n_bootstraps, 0)
    shares = {"target": target, "last_target": last_target, "density": density, "max_density": max_density}
    for name, share in shares.items():
        check_share(name, share)
    chance = chance_of(experiment) if chance is None else chance
    if not 0 <= chance < 1:
        raise ValueError(f"chance must be 0 or more and below 1, got {chance}")
    before = Contrast.cost(experiment, controls)
    budget, screening = _allotted(
        experiment,
        controls,
        budget,
        per_row=per_row,
        n_batches=n_batches,
        n_last=n_finalists + n_decoys,
        screen=screen,
    )
    expect(budget)
    check_ranked("prior", prior, experiment)
    added = standardized(prior, grid.shape)
    rng, spending = np.random.default_rng(seed), Budget(budget)
    spending.pay(before)
    task = TaskLoss.of(experiment, response, chance=chance, every=chance >= EVEN)
    known, per_row = Controls(controls, seed, response), min(per_row, task.n_examples)
    of_controls = min(controls_of_row(len(known.tasks), per_row), known.n_examples)
    sensor = Sensor(task, known, per_row, of_controls, spending, rng)
    search = Search(
        sensor=sensor,
        density=DensityControl(size, target, max_density, density * size),
        prior=added,
        n_batches=n_batches,
        last_target=last_target,
        # A small grid keeps half of its heads to hold the finalists against.
        n_finalists=min(n_finalists, max(k, size // 2)),
        n_decoys=n_decoys,
        rng=rng,
    )
    if screening:
        search.screen(screening)
    # The first batch of the last phase, then sets or, without controls, its other batches.
    first = math.ceil(LAST * n_batches) + 1
    search.run(range(first - 1 if screening else 0, first))
    chosen = best_sets([search], k)[0] if known.tasks else None
    if chosen is None:
        search.run(range(first, n_batches), keep=search.kept)
    search.measure_alone()
    settings: dict[str, Any] = {
        "budget": budget,
        "k": k,
        "seed": seed,
        "response": response,
        "examples_per_mask": examples_per_mask,
        "n_batches": n_batches,
        **shares,
        "n_finalists": search.n_finalists,
        "n_decoys": n_decoys,
        "n_bootstraps": n_bootstraps,
        "prior": prior is not None,
        "chance": chance,
        "fixed": FIXED,
        "screen": None if screening is None else vars(screening),
    }
    cost = cost_of(spending, screening, len(known.tasks))
    ranking = ranking_of(search, chosen, k=k, n_bootstraps=n_bootstraps, cost=cost, before=before)
    return replace(
        ranking,
        provenance={
            **ranking.provenance,
            "design": settings,
            "controls": known.names,
            "control_tasks": [provenance_of(control).get("task") for control in controls],
            "controls_left_out": known.left_out,
        },
        notes=(*fitted, *task.notes, *controls_notes(known.left_out, known.names), *ranking.notes),
    )


def bound(
    experiment: ExperimentLike,
    *,
    k: int | None = None,
    controls: Sequence[ExperimentLike] = (),
    budget: int | None = None,
    examples_per_mask: int | None = 8,
    n_batches: int = 14,
    n_finalists: int | None = None,
    n_decoys: int = 6,
    screen: str = "auto",
    **_: object,
) -> int:
    """The budget of ``annealed``, that by default where None is given; one below the least raises ``ValueError``."""
    k = fitting_k(k, experiment.grid)[0]
    per_row, n_finalists = _sizes(
        experiment,
        k,
        examples_per_mask=examples_per_mask,
        n_batches=n_batches,
        n_finalists=n_finalists,
        n_decoys=n_decoys,
    )
    return _allotted(
        experiment,
        controls,
        budget,
        per_row=per_row,
        n_batches=n_batches,
        n_last=n_finalists + n_decoys,
        screen=screen,
    )[0]


def _sizes(
    experiment: ExperimentLike,
    k: int,
    *,
    examples_per_mask: int | None,
    n_batches: int,
    n_finalists: int | None,
    n_decoys: int,
) -> tuple[int, int]:
    """Examples of a row, and finalists; numbers that are not allowed raise ``ValueError``."""
    check_integer("n_batches", n_batches, MIN_BATCHES)
    check_integer("n_decoys", n_decoys, 0)
    if examples_per_mask is not None:
        check_integer("examples_per_mask", examples_per_mask, 1, why="or None for all")
    if n_finalists is not None:
        check_integer("n_finalists", n_finalists, k, why="which is k")
    return min(examples_per_mask or experiment.n_examples, experiment.n_examples), n_finalists or max(20, k)


def _allotted(
    experiment: ExperimentLike,
    controls: Sequence[ExperimentLike],
    budget: int | None,
    *,
    per_row: int,
    n_batches: int,
    n_last: int,
    screen: str,
) -> tuple[int, Screening | None]:
    """The budget, that by default where None is given, and the screening by gradients that it has room for."""
    before, of_row = Contrast.cost(experiment, controls), per_row + controls_of_row(len(controls), per_row)
    least, default = before + n_batches * MIN_ROWS * of_row, default_budget(experiment.grid.size)
    check_budget(budget, least, f"{n_batches} batches of {MIN_ROWS} rows, after the intact run")
    left = None if budget is None else int(budget) - before
    usual = max(default, per_row * max(n_batches * MIN_ROWS, rows_for_intervals(n_batches, n_last)))
    screening = screening_of(screen, [experiment, *controls], left, per_row, usual=usual)
    if screening is not None:
        usual = screening.cost(len(controls)) + max(default // SAVED, 2 * ROWS_A_HEAD * n_last * of_row)
    return max(least, before + usual) if budget is None else int(budget), screening


def ranking_of(
    search: Search, chosen: Int[np.ndarray, " k"] | None, *, k: int, n_bootstraps: int, cost: Cost, before: int
) -> HeadRanking:
    """The ranking of a search that has ended, with the set that proved best, where sets were measured.

    Args:
        search: The search.
        chosen: The heads of the set.
        k: Heads wanted.
        n_bootstraps: Resamples of the rows that give each head's frequency.
        cost: What the search took.
        before: Example-evaluations before the first mask.
    """
    effects, task, grid = effects_of(search), search.sensor.task, search.sensor.grid
    fields = ranking_fields(search, effects, k, n_bootstraps)
    if chosen is not None:
        chosen = chosen[np.argsort(-fields["z"].ravel()[chosen], kind="stable")]
    return HeadRanking(
        method="annealed",
        grid=grid,
        spent=cost.spent,
        notes=search_notes(search, effects, before),
        provenance={
            **provenance_of(task.experiment),
            "n_right": task.n_right,
            "n_used": task.n_examples,
            "n_rows": len(search.rows),
            "heads_off": search.heads_off,
            "shared": shared_with(search, effects.alone),
            "cost": cost.to_dict(),
        },
        unit=_UNITS[task.response],
        chosen=() if chosen is None else tuple(grid.unit(int(index)) for index in chosen),
        off=tuple(grid.unit(int(index)) for index in search.off),
        **fields,
    )


def default_budget(size: int) -> int:
    """Example-evaluations for masks by default on a grid of so many heads, unless tasks ask for more.

    Ten for each, up to what is plenty for neurons: masks needed grow with the logarithm of the size.
    """
    return min(max(10 * size, _LEAST), _MOST)


def controls_of_row(n: int, per_row: int) -> int:
    """Control examples of a row, of so many controls."""
    return min(_OF_EACH_CONTROL * n, per_row)


def standardized(prior: HeadRanking | Float[np.ndarray, "..."] | None, shape: tuple[int, int]) -> Flat:
    """What a prior adds to z; nothing where there is none, or where it says the same of all heads."""
    if prior is None:
        return np.zeros(shape[0] * shape[1])
    prior = np.asarray(prior.importance if isinstance(prior, HeadRanking) else prior, dtype=float)
    if prior.shape != shape or not np.isfinite(prior).all():
        raise ValueError(f"prior must be finite, one number a head [layer, head] = {shape}, got shape {prior.shape}")
    spread = prior.std()
    return np.asarray(PRIOR_WEIGHT * (prior - prior.mean()).ravel() / (spread if spread > 0 else 1.0))


@dataclass(frozen=True, eq=False)
class Effects:
    """What each head takes from the task (response) and from the controls (losses), from all that was measured.

    ``z`` is the contrast in standard errors of the task's part, and the prior; ``lost`` what rows lose against the
    intact model, where there are enough for least squares; ``alone`` what shared heads take alone, where that was
    measured.
    """

    task: Estimates
    controls: Flat
    z: Flat
    lost: PerRow | None
    level_is_told: bool
    alone: dict[int, BothEffects]


def effects_of(search: Search) -> Effects:
    """One estimate a head, of the response it takes from the intact model."""
    sensor, rows = search.sensor, search.rows
    above = sensor.task.above_guess
    last = taken_by(*search.lost(rows[np.flatnonzero(rows.last)])) if rows.last.any() else None
    earlier = np.arange(len(rows)) if last is None else np.flatnonzero(~rows.last)
    known = search.blame_of(earlier) if 0 < len(earlier) < len(rows) else search.before or search.blame
    first = rows[earlier]
    if search.gradients is None:
        effect, error, told = anchored(first, known.task, sensor.task.level - known.response, search.lost(first))
    else:
        (effect, error), told = with_errors(known.task), True
        # What rows of the last phase measure they say alone.
        measured = np.isin(np.arange(len(error)), [] if last is None else last.heads)
        error = np.where(measured, np.inf, np.hypot(error, GRADIENT_MISFIT * sensor.task.above_guess))
    task = Estimates(effect, error, 0.0 if last is None else search.passed, last)
    controls, controls_error = search.control_effects()
    sure = search.weight * np.maximum(controls - DOUBT * controls_error, 0)
    plenty = len(rows) and taken_by(*search.lost(rows), rows_a_head=PLENTY) is not None
    z = task.sure_of_more_than(sure * above) + search.prior
    lost = sensor.task.level - search.blame.response if plenty else None
    return Effects(task, controls, z, lost, told, search.alone_effects())


def ranking_fields(search: Search, known: Effects, k: int, n_bootstraps: int) -> dict[str, Any]:
    """What the search found, as score lost on all examples, in the fields of a ranking."""
    sensor, grid = search.sensor, search.sensor.grid
    share = sensor.task.n_examples / sensor.task.experiment.n_examples
    effect, z, taken = known.task.estimate, known.z.copy(), known.controls.copy()
    interval = np.full((grid.size, 2), np.nan)
    interval[search.candidates] = known.task.interval[search.candidates]
    for head, both in (search.shared | known.alone).items():
        effect[head], taken[head] = both.task * sensor.task.above_guess, both.controls
        z[head] = both.z
        alone = np.array(both.to_dict()["task_interval"]) * sensor.task.above_guess
        interval[head] = alone if head in known.alone else np.nan
    effect[search.off], z[search.off] = 0.0, 0.0
    if sensor.task.response != "margin":
        # No more can be lost than there is.
        effect, interval = np.minimum(effect, sensor.task.level), np.minimum(interval, sensor.task.level)
    claims: list[int] = []
    if known.task.last is not None:
        finalists, decoys = (
            np.array([head for head in heads if head not in search.shared and head in known.task.last.heads], dtype=int)
            for heads in (search.finalists, search.decoys)
        )
        # Nats have no points: two hundredths of what the intact model has above guessing.
        beyond = BEYOND * sensor.task.above_guess if sensor.task.response == "margin" else BEYOND / share
        claims = [int(head) for head in finalists[known.task.claims(finalists, decoys, beyond)]]
        # What the controls lose half as much is claimed for no task of them.
        claims = [head for head in claims if taken[head] <= SHARED * effect[head] / sensor.task.above_guess]
    # Of a head that was never off nothing is known, and shared ones were left out of the rows.
    tried = np.array([h for h in np.flatnonzero(np.isfinite(known.task.error)) if h not in search.shared], dtype=int)
    interfering = tried[known.task.interfering(tried, len(search.rows) - 1)]
    frequency, gradients = None, search.gradients
    if n_bootstraps and len(search.rows):
        drawn = selection_frequency(
            search.rows,
            search.blame,
            search.prior,
            search.merit,
            lost=known.lost,
            resampled=None if gradients is None else partial(gradients.resampled, sensor.task.above_guess, search.rng),
            k=k,
            n_bootstraps=n_bootstraps,
            rng=search.rng,
        )
        frequency = drawn.reshape(grid.shape)
    return {
        "importance": (share * effect).reshape(grid.shape),
        "interval": (share * interval).reshape(*grid.shape, 2),
        "frequency": frequency,
        "z": z.reshape(grid.shape),
        "claims": tuple(grid.unit(index) for index in claims),
        "interfering": tuple(grid.unit(int(index)) for index in interfering[np.argsort(effect[interfering])]),
        "shared": tuple(grid.unit(index) for index in sorted(search.shared)),
        "control_importance": taken.reshape(grid.shape) if sensor.controls.tasks else None,
    }


def shared_with(search: Search, alone: dict[int, BothEffects]) -> dict[str, dict[str, Any]]:
    """Of each shared head what it takes from both sides among other heads, and alone, and which control loses most."""
    told: dict[str, dict[str, Any]] = {}
    for head, both in search.shared.items():
        told[str(search.sensor.grid.unit(head))] = {
            "among_others": {"task": both.task, "controls": both.controls},
            "most": search.losing_most(head),
            **(alone[head].to_dict() if head in alone else {}),
        }
    return told


def search_notes(search: Search, known: Effects, before: int) -> tuple[str, ...]:
    """What weakens what the search found."""
    sensor, grid, notes, budget = search.sensor, search.sensor.grid, [], search.sensor.budget.total
    if before > _LARGE_SHARE * budget:
        notes.append(
            f"{before:,} of the budget of {budget:,} went before the first mask, most of it to the intact model: fewer "
            "examples, or a larger budget, would leave more for masks"
        )
    if not sensor.controls.tasks:
        lost = known.task.estimate / sensor.task.above_guess
        sure = [str(grid.unit(int(h))) for h in np.argsort(-lost) if lost[h] >= _COLLAPSE and known.z[h] > CLEAR]
        if sure:
            notes.append(f"heads that take half of the score by themselves may be task-general: {', '.join(sure)}")
    if grid.size <= _SMALL and not known.level_is_told:
        notes.append(
            f"rows are too few for {grid.size} heads: what those without an interval take is compared with the mean of "
            "all, and a small importance may have the wrong sign (a larger budget)"
        )
    unmeasured = [str(grid.unit(head)) for head in sorted(search.shared) if head not in known.alone]
    if unmeasured:
        notes.append(
            f"what shared heads take was measured among other heads alone, by themselves they may take more or less: "
            f"{', '.join(unmeasured)} (a larger budget)"
        )
    if search.prior.any():
        notes.append("z, and with it the order of heads that were not chosen, holds half of the standardized prior")
    if not len(search.rows):
        notes.append("every row had a shared head off: nothing can be ranked")
    elif not np.abs(known.task.sure_of_more_than(0.0)).max() > NO_HARM:
        notes.append(f"every row scored the same ({search.rows.scores.mean():.3f}): nothing can be ranked")
    last = search.rows[np.flatnonzero(search.rows.last)]
    n_rows, needed = len(last), ROWS_A_HEAD * int((last.off.sum(axis=0) > 0).sum())
    if n_rows < needed:
        notes.append(
            f"no intervals and no claims: the last phase has {n_rows} rows, {needed} would do (a larger budget)"
        )
    return tuple(notes)
