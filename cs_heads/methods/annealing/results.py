"""What a search found, as the fields of a ranking, and what its reader should know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from cs_heads.methods.annealing.estimate import (
    EXACT,
    NO_HARM,
    ROWS_A_HEAD,
    Estimates,
    anchored,
    both_effects,
    selection_frequency,
    taken_by,
)
from cs_heads.methods.annealing.regression import CLEAR, DOUBT, SHARED, BothEffects, blame
from cs_heads.methods.annealing.search import Search
from cs_heads.methods.controls import PLENTY

# A head that takes this share of the score above chance by itself may be universal, where no control can tell.
_COLLAPSE = 0.5
# Points of score, of all examples, that a claimed head takes beyond the decoys.
BEYOND = 0.02
# Heads of a grid that a reader expects to be measured one and all.
_SMALL = 144
# Share of a budget that the runs before the first mask may take without a word.
_LARGE_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Effects:
    """What each head takes from the task (response) and from the controls (losses), from all that was measured.

    ``z`` is the contrast in standard errors of the task's part, and the prior; ``lost`` what rows lose against the
    intact model, where there are enough for least squares; ``alone`` what shared heads take alone, where that was
    measured.
    """

    task: Estimates
    controls: Float[np.ndarray, " flat"]
    z: Float[np.ndarray, " flat"]
    lost: Float[np.ndarray, " row"] | None
    level_is_told: bool
    alone: dict[int, BothEffects]


def effects_of(search: Search) -> Effects:
    """One estimate a head, of the points it takes from the intact model."""
    sensor, rows = search.sensor, search.rows
    above = sensor.above_guess
    last = taken_by(*search.lost(rows[np.flatnonzero(rows.last)])) if rows.last.any() else None
    first = rows if last is None else rows[np.flatnonzero(~rows.last)]
    known = search.blame if last is None or not len(first) else blame(first, above)
    effect, error, told = anchored(first, known.task, sensor.level - known.response, search.lost(first))
    task = Estimates(effect, error, 0.0 if last is None else search.passed, last)
    controls, controls_error = np.zeros(sensor.grid.size), np.full(sensor.grid.size, np.inf)
    if sensor.controls is not None and len(rows):
        of_controls = rows.off, rows.losses, rows.drawn
        controls, controls_error, _ = anchored(rows, search.blame.controls, rows.control_response(), of_controls)
    sure = np.maximum(controls - DOUBT * controls_error, 0)
    plenty = len(rows) and taken_by(*search.lost(rows), rows_a_head=PLENTY) is not None
    z = task.sure_of_more_than(sure * above) + search.prior
    alone = both_effects(*search.sides(search.alone), above) or {}
    return Effects(task, controls, z, sensor.level - search.blame.response if plenty else None, told, alone)


def ranking_fields(search: Search, known: Effects, k: int, n_bootstraps: int) -> dict[str, Any]:
    """What the search found, in points of score on all examples, as the fields of a ranking."""
    sensor, grid = search.sensor, search.sensor.grid
    share = len(sensor.examples) / sensor.experiment.n_examples
    effect, z, taken = known.task.estimate, known.z.copy(), known.controls.copy()
    interval = np.full((grid.size, 2), np.nan)
    interval[search.finalists] = known.task.interval[search.finalists]
    for head, both in (search.shared | known.alone).items():
        effect[head], taken[head] = both.task * sensor.above_guess, both.controls
        z[head] = (both.task - both.controls) / max(np.hypot(both.task_error, both.controls_error), EXACT)
        interval[head] = np.array(both.intervals[0]) * sensor.above_guess if head in known.alone else np.nan
    effect[search.off], z[search.off] = 0.0, 0.0
    if sensor.response != "margin":
        # No more can be lost than there is.
        effect, interval = np.minimum(effect, sensor.level), np.minimum(interval, sensor.level)
    claims: list[int] = []
    if known.task.last is not None:
        finalists, decoys = (
            np.array([head for head in heads if head not in search.shared and head in known.task.last.heads], dtype=int)
            for heads in (search.finalists, search.decoys)
        )
        # Nats have no points: two hundredths of what the intact model has above guessing.
        beyond = BEYOND * sensor.above_guess if sensor.response == "margin" else BEYOND / share
        claims = [int(head) for head in finalists[known.task.claims(finalists, decoys, beyond)]]
        # What the controls lose half as much is claimed for no task of them.
        claims = [head for head in claims if taken[head] <= SHARED * effect[head] / sensor.above_guess]
    frequency = None
    if n_bootstraps and len(search.rows):
        drawn = selection_frequency(
            search.rows,
            search.blame,
            search.prior,
            search.merit,
            known.lost,
            k=k,
            n_bootstraps=n_bootstraps,
            rng=search.rng,
        )
        frequency = drawn.reshape(grid.shape)
    with_controls = sensor.controls is not None
    return {
        "importance": (share * effect).reshape(grid.shape),
        "interval": (share * interval).reshape(*grid.shape, 2),
        "frequency": frequency,
        "z": z.reshape(grid.shape),
        "claims": tuple(grid.head(index) for index in claims),
        "shared": tuple(grid.head(index) for index in sorted(search.shared)),
        "control_importance": taken.reshape(grid.shape) if with_controls else None,
    }


def shared_with(search: Search, alone: dict[int, BothEffects]) -> dict[str, dict[str, Any]]:
    """Of each shared head what it takes from both sides among other heads, and alone, and which control loses most."""
    grid, controls = search.sensor.grid, search.sensor.controls
    if controls is None:
        return {}
    told: dict[str, dict[str, Any]] = {}
    every = search.every_row
    for head, both in search.shared.items():
        rows = every[np.flatnonzero(every.off[:, [head]].toarray()[:, 0])]
        of = controls.of(rows.drawn)
        # By place: experiments of one's own may have the same name.
        lost = [rows.losses[of == place] for place in range(len(controls.tasks))]
        means = [float(losses.mean()) if losses.size else -np.inf for losses in lost]
        told[str(grid.head(head))] = {
            "among_others": {"task": both.task, "controls": both.controls},
            "most": controls.names[int(np.argmax(means))],
        }
        if head in alone:
            task, others = alone[head].intervals
            told[str(grid.head(head))] |= {
                "task": alone[head].task,
                "task_interval": list(task),
                "controls": alone[head].controls,
                "controls_interval": list(others),
            }
    return told


def dear_notes(before: int, budget: int) -> tuple[str, ...]:
    """A note where what runs before the first mask leaves too little for masks."""
    note = (
        f"{before:,} of the budget of {budget:,} went before the first mask, most of it to the intact model: fewer "
        "examples, or a larger budget, would leave more for masks"
    )
    return (note,) if before > _LARGE_SHARE * budget else ()


def search_notes(search: Search, known: Effects) -> tuple[str, ...]:
    """What weakens what the search found."""
    sensor, grid, notes = search.sensor, search.sensor.grid, []
    if sensor.controls is None:
        lost = known.task.estimate / sensor.above_guess
        sure = [str(grid.head(int(h))) for h in np.argsort(-lost) if lost[h] >= _COLLAPSE and known.z[h] > CLEAR]
        if sure:
            notes.append(f"heads that take half of the score by themselves may be task-general: {', '.join(sure)}")
    if grid.size <= _SMALL and not known.level_is_told:
        notes.append(
            f"rows are too few for {grid.size} heads: what those without an interval take is told against the mean of "
            "all, and a small importance may have the wrong sign (a larger budget)"
        )
    unmeasured = [str(grid.head(head)) for head in sorted(search.shared) if head not in known.alone]
    if unmeasured:
        notes.append(
            f"what shared heads take was measured among other heads alone, by themselves they may take more or less: "
            f"{', '.join(unmeasured)} (a larger budget)"
        )
    if search.prior.any():
        notes.append("z, and with it the order of heads that were not chosen, holds half of the standardised prior")
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
