"""The ranking of a search that has ended: one estimate a head, from all that was measured, and what weakens it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int

from cs_heads.methods.annealing.intervals import NO_HARM, Estimates, anchored, selection_frequency, taken_by
from cs_heads.methods.annealing.measurements import Flat, PerRow
from cs_heads.methods.annealing.regression import DOUBT, GRADIENT_MISFIT, with_errors
from cs_heads.methods.annealing.schedule import ROWS_A_HEAD
from cs_heads.methods.annealing.task_search import TaskSearch
from cs_heads.methods.losses import CLEAR, PLENTY, SHARED, BothEffects
from cs_heads.ranking import HeadRanking

_UNITS = {"score": "score lost", "probability": "probability lost", "margin": "nats"}
# A head that takes this share of the score above chance by itself may be universal, where no control can tell.
_COLLAPSE = 0.5
# Score, over all examples, that a claimed head takes beyond the decoys: two points.
_BEYOND = 0.02
# Heads of a grid that a reader expects to be measured one and all.
_SMALL = 144
# Share of a budget that the runs before the first mask may take without a word.
_LARGE_SHARE = 0.25


def ranking_of(
    search: TaskSearch, chosen: Int[np.ndarray, " k"] | None, *, k: int, n_bootstraps: int, before: int
) -> HeadRanking:
    """The ranking of a search that has ended, with the set that proved best, where sets were measured.

    Args:
        search: The search.
        chosen: The heads of the set.
        k: Heads wanted.
        n_bootstraps: Resamples of the rows that give each head's frequency.
        before: Example-evaluations before the first mask.
    """
    effects, task, grid = effects_of(search), search.sensor.task, search.sensor.grid
    fields = ranking_fields(search, effects, k, n_bootstraps)
    if chosen is not None:
        chosen = chosen[np.argsort(-fields["z"].ravel()[chosen], kind="stable")]
    return HeadRanking(
        method="annealed",
        grid=grid,
        spent=search.sensor.budget.spent,
        notes=search_notes(search, effects, before),
        provenance={
            **task.experiment.provenance(),
            "n_right": task.n_right,
            "n_used": task.n_examples,
            "n_rows": len(search.rows),
        },
        unit=_UNITS.get(task.response, f"{task.response} lost"),
        chosen=() if chosen is None else tuple(grid.unit(int(index)) for index in chosen),
        off=tuple(grid.unit(int(index)) for index in search.off),
        k=k,
        shared_effects=shared_effects(search, effects.alone),
        **fields,
    )


@dataclass(frozen=True, eq=False)
class Effects:
    """What each head takes from the task (response) and from the controls (losses), from all that was measured.

    ``z`` is the contrast in standard errors of the task's part; ``lost`` what rows lose against the
    intact model, where there are enough for least squares; ``alone`` what shared heads take alone, where that was
    measured.
    """

    task: Estimates
    controls: Flat
    z: Flat
    lost: PerRow | None
    level_is_told: bool
    alone: dict[int, BothEffects]


def effects_of(search: TaskSearch) -> Effects:
    """One estimate a head, of the response it takes from the intact model."""
    sensor, rows = search.sensor, search.rows
    above = sensor.task.above_guess
    last = taken_by(*search.lost(rows[np.flatnonzero(rows.last)])) if rows.last.any() else None
    earlier = np.arange(len(rows)) if last is None else np.flatnonzero(~rows.last)
    known = search.fit_of(earlier) if 0 < len(earlier) < len(rows) else search.before or search.fit
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
    z = task.sure_of_more_than(sure * above)
    lost = sensor.task.level - search.fit.response if plenty else None
    return Effects(task, controls, z, lost, told, search.alone_effects())


def ranking_fields(search: TaskSearch, known: Effects, k: int, n_bootstraps: int) -> dict[str, Any]:
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
    claims, shared = np.zeros(0, dtype=int), [*search.shared]
    if known.task.last is not None:
        measured = np.setdiff1d(known.task.last.heads, shared)
        finalists, decoys = (heads[np.isin(heads, measured)] for heads in (search.finalists, search.decoys))
        # Nats have no points: two hundredths of what the intact model has above guessing.
        beyond = _BEYOND * sensor.task.above_guess if sensor.task.response == "margin" else _BEYOND / share
        claims = finalists[known.task.claims(finalists, decoys, beyond)]
        # What the controls lose half as much is claimed for no task of them.
        claims = claims[taken[claims] <= SHARED * effect[claims] / sensor.task.above_guess]
    # Of a head that was never off nothing is known, and shared ones were left out of the rows.
    tried = np.setdiff1d(np.flatnonzero(np.isfinite(known.task.error)), shared)
    interfering = tried[known.task.interfering(tried, len(search.rows) - 1)]
    frequency, gradients = None, search.gradients
    if n_bootstraps and len(search.rows):
        drawn = selection_frequency(
            search.rows,
            search.fit,
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
        "claims": tuple(grid.unit(int(index)) for index in claims),
        "interfering": tuple(grid.unit(int(index)) for index in interfering[np.argsort(effect[interfering])]),
        "shared": tuple(grid.unit(index) for index in sorted(shared)),
        "control_importance": taken.reshape(grid.shape) if sensor.controls.tasks else None,
    }


def shared_effects(search: TaskSearch, alone: dict[int, BothEffects]) -> tuple[dict[str, Any], ...]:
    """Of each shared head what it takes from both sides among other heads, and alone, and which control loses most."""
    return tuple(
        {
            "head": str(search.sensor.grid.unit(head)),
            "among_others": {"task": both.task, "controls": both.controls},
            "most": search.losing_most(head),
            **(alone[head].to_dict() if head in alone else {}),
        }
        for head, both in search.shared.items()
    )


def search_notes(search: TaskSearch, known: Effects, before: int) -> tuple[str, ...]:
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
