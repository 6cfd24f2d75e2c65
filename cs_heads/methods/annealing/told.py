"""What a search found, as the fields of a ranking, and what its reader should know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import sparse
from scipy.stats import t

from cs_heads.heads import Head
from cs_heads.methods.annealing.blame import CLEAR, DOUBT, blame, standard_error
from cs_heads.methods.annealing.inference import NO_HARM, ROWS_A_HEAD, Taken, selection_frequency, taken_by
from cs_heads.methods.annealing.regression import Fit
from cs_heads.methods.annealing.rows import Rows
from cs_heads.methods.annealing.search import Search
from cs_heads.methods.controls import NO_CONTROLS, Controls

# A head that takes this share of the score above chance by itself may be universal, where no control can tell.
_COLLAPSE = 0.5
# Points of score, of all examples, that a claimed head takes beyond the decoys.
BEYOND = 0.02
# What a head does among many others that are off may differ from what it does alone by this share of itself (one
# standard deviation).
MISFIT = 0.6
# Standard error of what does not vary at all, which keeps z finite.
_EXACT = 1e-6
# Rows a head from which on least squares need no help from most heads doing nothing.
_PLENTY = 4
# Share of a budget that the runs before the first mask may take without a word.
_LARGE_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class _Known:
    """What each head takes from the task (response) and from the controls (losses), from all that was measured.

    ``z`` is the contrast in sampling errors, ``interval`` that of the task's part; ``last`` is what the last phase says
    by itself, where it has rows enough.
    """

    effect: Float[np.ndarray, " flat"]
    controls: Float[np.ndarray, " flat"]
    interval: Float[np.ndarray, "flat bound"]
    z: Float[np.ndarray, " flat"]
    last: Taken | None


def _known(search: Search) -> _Known:
    """One estimate a head, of the points it takes from the intact model.

    Rows before the last phase and rows of it are weighted by their precision. Among the many heads that are off before
    the last phase a head does not do what it does alone: its effect there may be off by a share ``MISFIT`` of itself,
    which counts as an error beside that of sampling. Without an effect there is no such error, so z has none.
    """
    sensor, rows = search.sensor, search.rows
    above = sensor.above_guess
    is_last = rows.last
    last = taken_by(*_lost(search, rows[np.flatnonzero(is_last)])) if is_last.any() else None
    first = rows if last is None else rows[np.flatnonzero(~is_last)]
    known = search.blame if last is None or not len(first) else blame(first, above)
    effect, error = _levelled(first, known.task, sensor.level - known.response, _lost(search, first))
    every = search.blame
    controls, controls_error = np.zeros(sensor.grid.size), np.full(sensor.grid.size, np.inf)
    if sensor.controls is not None and len(rows):
        of_controls = rows.off, rows.losses, rows.drawn
        controls, controls_error = _levelled(rows, every.controls, rows.control_response(), of_controls)
    sure = np.maximum(controls - DOUBT * controls_error, 0)
    interval = np.full((sensor.grid.size, 2), np.nan)
    if last is not None:
        heads = last.heads
        before, now = error[heads] ** -2, np.maximum(last.error, _EXACT) ** -2
        weight = (error[heads] ** 2 + (MISFIT * effect[heads]) ** 2) ** -1
        effect[heads] = (weight * effect[heads] + now * last.estimate) / (weight + now)
        error[heads] = (before + now) ** -0.5
        reach = t.ppf(0.975, last.dof) * (weight + now) ** -0.5
        finalists = np.isin(heads, search.finalists)
        interval[heads[finalists]] = np.stack([effect[heads] - reach, effect[heads] + reach], axis=1)[finalists]
    contrast = effect / above - sure
    z = contrast * above / error + search.prior
    return _Known(effect, controls, interval, z, last)


def _lost(search: Search, rows: Rows) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """The heads off in rows, what each answer lost against the intact model, and whose answer it is."""
    return rows.off, search.sensor.intact[rows.examples] - rows.scores, rows.examples


def _levelled(
    rows: Rows,
    fit: Fit,
    lost: Float[np.ndarray, " row"],
    singles: tuple[sparse.csr_array, np.ndarray, np.ndarray],
) -> tuple[Float[np.ndarray, " flat"], Float[np.ndarray, " flat"]]:
    """Effects against the intact model, and their errors; 0 and infinite for heads that were never off.

    A fit with free intercepts says how heads differ. Where there are rows enough least squares say what each takes;
    else all effects are raised by what a head off costs in the mean beyond them.
    """
    every = taken_by(*singles, rows_a_head=_PLENTY) if singles[1].size else None
    effect, error = fit.effect.copy(), standard_error(fit)
    tried = np.asarray(rows.off.sum(axis=0)).ravel() > 0
    if every is not None:
        effect[every.heads], error[every.heads] = every.estimate, every.error
    elif len(rows):
        times = np.asarray(rows.off.sum(axis=1)).ravel()
        effect[tried] += float(times @ (lost - rows.off @ effect) / max(times @ times, 1e-12))
    return effect, np.where(tried, np.maximum(error, _EXACT), np.inf)


def ranking_fields(search: Search, k: int, n_bootstraps: int) -> dict[str, Any]:
    """What the search found, in points of score on all examples, as the fields of a ranking."""
    sensor, grid = search.sensor, search.sensor.grid
    share = len(sensor.examples) / sensor.experiment.n_examples
    known = _known(search)
    effect, z, taken, interval = known.effect, known.z, known.controls, known.interval
    for head, both in search.shared.items():
        effect[head], taken[head] = both.task * sensor.above_guess, both.controls
        z[head] = (both.task - both.controls) / both.task_error
        interval[head] = np.array(both.intervals[0]) * sensor.above_guess
    effect[search.off], z[search.off] = 0.0, 0.0
    claims: list[int] = []
    if known.last is not None:
        finalists, decoys = (
            np.array([head for head in heads if int(head) not in search.shared and head in known.last.heads], dtype=int)
            for heads in (search.finalists, search.decoys)
        )
        # Nats have no points: two hundredths of what the intact model has above guessing.
        beyond = BEYOND * sensor.above_guess if sensor.response == "margin" else BEYOND / share
        claims = [int(head) for head in finalists[known.last.claims(finalists, decoys, beyond)]]
    frequency = None
    if n_bootstraps and len(search.rows):
        drawn = selection_frequency(
            search.rows, search.blame, search.prior, search.merit, k=k, n_bootstraps=n_bootstraps, rng=search.rng
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


def shared_with(search: Search) -> dict[str, dict[str, Any]]:
    """Of each shared head what it takes from both sides, and the control that loses most with it off."""
    grid, controls = search.sensor.grid, search.sensor.controls
    if controls is None:
        return {}
    told, every = {}, search.every_row
    for head, both in search.shared.items():
        rows = every[np.flatnonzero(every.off[:, [head]].toarray()[:, 0])]
        of = controls.of(rows.drawn)
        # By place: experiments of one's own may have the same name.
        lost = [rows.losses[of == place] for place in range(len(controls.tasks))]
        means = [float(losses.mean()) if losses.size else -np.inf for losses in lost]
        task, others = both.intervals
        told[str(grid.head(head))] = {
            "task": both.task,
            "task_interval": list(task),
            "controls": both.controls,
            "controls_interval": list(others),
            "most": controls.names[int(np.argmax(means))],
        }
    return told


def controls_notes(known: Controls | None) -> tuple[str, ...]:
    """What the reader should know of the controls."""
    if known is None:
        return (NO_CONTROLS,)
    if not known.tasks:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in known.left_out.items())
        return (f"no control can be used, so heads of this task cannot be told from task-general heads: {reasons}",)
    if known.left_out:
        return (f"controls that the intact model cannot do were left out: {', '.join(known.left_out)}",)
    return ()


def dear_notes(before: int, budget: int) -> tuple[str, ...]:
    """A note where what runs before the first mask leaves too little for masks."""
    note = (
        f"{before:,} of the budget of {budget:,} went before the first mask, most of it to the intact model: fewer "
        "examples, or a larger budget, would leave more for masks"
    )
    return (note,) if before > _LARGE_SHARE * budget else ()


def search_notes(search: Search) -> tuple[str, ...]:
    """What weakens what the search found."""
    sensor, grid, notes = search.sensor, search.sensor.grid, []
    if sensor.controls is None:
        lost = search.blame.contrast
        broken = [str(grid.head(int(head))) for head in np.argsort(-lost) if lost[head] >= _COLLAPSE]
        sure = [name for name in broken if search.blame.z[grid.index(Head.parse(name))] > CLEAR]
        if sure:
            notes.append(f"heads that take half of the score by themselves may be task-general: {', '.join(sure)}")
    if search.prior.any():
        notes.append("z, and with it the order of heads that were not chosen, holds half of the standardised prior")
    if not len(search.rows):
        notes.append("every row had a shared head off: nothing can be ranked")
    elif not np.abs(search.blame.task.z).max() > NO_HARM:
        notes.append(f"every row scored the same ({search.rows.scores.mean():.3f}): nothing can be ranked")
    last = search.rows[np.flatnonzero(search.rows.last)]
    n_rows, needed = len(last), ROWS_A_HEAD * int((last.off.sum(axis=0) > 0).sum())
    if n_rows < needed:
        notes.append(
            f"no intervals and no claims: the last phase has {n_rows} rows, {needed} would do (a larger budget)"
        )
    return tuple(notes)
