"""What a search found, as the fields of a ranking, and what its reader should know."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool

from cs_heads.heads import Head
from cs_heads.methods.annealing.blame import CLEAR
from cs_heads.methods.annealing.inference import NO_HARM, ROWS_A_HEAD, Contrasts, contrasts, selection_frequency
from cs_heads.methods.annealing.search import Search
from cs_heads.methods.controls import NO_CONTROLS, Controls

# A head that takes this share of the score above chance by itself may be universal, where no control can tell.
_COLLAPSE = 0.5
# Points of score, of all examples, that a claimed head takes beyond the decoys.
BEYOND = 0.02
# Share of a budget that the runs before the first mask may take without a word.
_LARGE_SHARE = 0.25


def ranking_fields(search: Search, k: int, n_bootstraps: int) -> dict[str, Any]:
    """What the search found, in points of score on all examples, as the fields of a ranking."""
    sensor, grid = search.sensor, search.sensor.grid
    share = len(sensor.examples) / sensor.experiment.n_examples
    effect, z = search.blame.task.effect.copy(), search.merit
    taken = search.blame.controls.effect.copy()
    for head, both in search.shared.items():
        effect[head], taken[head] = both.task * sensor.above_guess, both.controls
        z[head] = (both.task - both.controls) / both.task_error
    effect[search.off], z[search.off] = 0.0, 0.0
    interval = np.full((grid.size, 2), np.nan)
    for head, both in search.shared.items():
        interval[head] = np.array(both.intervals[0]) * sensor.above_guess
    claimed: Bool[np.ndarray, " finalist"] = np.zeros(len(search.finalists), dtype=bool)
    known = _contrasts(search)
    if known is not None:
        kept = ~np.isin(search.finalists, list(search.shared))
        heads = search.finalists[kept]
        effect[heads], interval[heads] = known.estimate, known.interval()
        # Nats have no points: two hundredths of what the intact model has above guessing.
        beyond = BEYOND * sensor.above_guess if sensor.response == "margin" else BEYOND / share
        claimed[kept] = known.claims(beyond=beyond)
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
        "claims": tuple(grid.head(int(index)) for index in search.finalists[claimed]),
        "shared": tuple(grid.head(index) for index in sorted(search.shared)),
        "control_importance": taken.reshape(grid.shape) if with_controls else None,
    }


def _contrasts(search: Search) -> Contrasts | None:
    left = [head for head in search.finalists if int(head) not in search.shared]
    decoys = [head for head in search.decoys if int(head) not in search.shared]
    last = search.rows[np.flatnonzero(search.rows.last)]
    return contrasts(last, np.array(left, dtype=int), np.array(decoys, dtype=int))


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
    n_rows = int(search.rows.last.sum())
    needed = ROWS_A_HEAD * sum(int(head) not in search.shared for head in (*search.finalists, *search.decoys))
    if not len(search.decoys):
        notes.append("no intervals and no claims: there are no decoys to hold the finalists against (n_decoys)")
    elif n_rows < needed:
        notes.append(
            f"no intervals and no claims: the last phase has {n_rows} rows, {needed} would do (a larger budget)"
        )
    return tuple(notes)
