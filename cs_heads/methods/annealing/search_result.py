"""The ranking of a search that has ended: one estimate a head, from all that was measured, and what weakens it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy import sparse

from cs_heads.methods.annealing.intervals import NO_HARM, Estimates, anchored, taken_by
from cs_heads.methods.annealing.measurements import Flat
from cs_heads.methods.annealing.regression import DOUBT, GRADIENT_MISFIT, Fit, pooled, regress
from cs_heads.methods.annealing.schedule import ROWS_A_HEAD
from cs_heads.methods.annealing.task_search import TaskSearch
from cs_heads.methods.losses import CLEAR, PLENTY, SHARED, BothEffects
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, Unit

# A head that takes this share of the score above chance by itself may be universal, where no control can tell.
_COLLAPSE = 0.5
# Score, over all examples, that a claimed head takes beyond the decoys: two points.
_BEYOND = 0.02
# Heads of a grid that a reader expects to be measured one and all.
_SMALL = 144
# Heads a bootstrap may select: the best by merit; the others are beyond its reach.
_CANDIDATES = 256
# Share of a budget that the runs before the first mask may take without a word.
_LARGE_SHARE = 0.25


def ranking_of(
    search: TaskSearch,
    chosen: Int[np.ndarray, " k"] | None,
    notes: tuple[str, ...],
    told: dict[str, Any],
    *,
    k: int,
    n_bootstraps: int,
    before: int,
) -> HeadRanking:
    """The ranking of a search that has ended, with the set that proved best, where sets were measured.

    Args:
        search: The search.
        chosen: The heads of the set.
        notes: What else weakens it.
        told: More of its provenance.
        k: Heads wanted.
        n_bootstraps: Resamples of the rows that give each head's frequency.
        before: Example-evaluations before the first mask.
    """
    known, task, grid = effects_of(search), search.sensor.task, search.sensor.grid
    fields = ranking_fields(search, known, k, n_bootstraps)
    used = {"n_right": task.n_right, "n_used": task.n_examples, "n_rows": len(search.rows)}
    if chosen is not None:
        chosen = chosen[np.argsort(-fields["z"].ravel()[chosen], kind="stable")]
    return HeadRanking(
        method="annealed",
        grid=grid,
        spent=search.sensor.budget.spent,
        backwards=search.backwards,
        notes=(*notes, *search_notes(search, known, before)),
        provenance={**task.experiment.provenance(), **used, **told},
        chosen=_units(grid, () if chosen is None else chosen),
        off=_units(grid, search.off),
        k=k,
        shared_effects=tuple(_told(search, head, known.alone) for head in search.told_shared),
        **fields,
    )


@dataclass(frozen=True, eq=False)
class Effects:
    """What each head takes from the task and from the controls, losses, from all that was measured.

    ``z`` is the contrast in standard errors of the task's part; ``alone`` what shared heads take alone, where that was
    measured.
    """

    task: Estimates
    controls: Flat
    z: Flat
    level_is_told: bool
    alone: dict[int, BothEffects]


def effects_of(search: TaskSearch) -> Effects:
    """One estimate a head, of what it takes from the intact model."""
    sensor, rows = search.sensor, search.rows
    last = taken_by(*sensor.answers_lost(rows[np.flatnonzero(rows.last)]))
    earlier = np.arange(len(rows)) if last is None else np.flatnonzero(~rows.last)
    known = search.fit_of(earlier) if 0 < len(earlier) < len(rows) else search.before or search.fit
    first = rows[earlier]
    if search.gradients is None:
        effect, error, told = anchored(first, known.task, known.lost, sensor.answers_lost(first))
    else:
        (effect, error), told = known.task.estimates, True
        # What rows of the last phase measure they say alone.
        measured = np.isin(np.arange(len(error)), [] if last is None else last.heads)
        error = np.where(measured, np.inf, np.hypot(error, GRADIENT_MISFIT))
    task = Estimates(effect, error, 0.0 if last is None else search.passed, last)
    controls, controls_error = search.control_effects()
    sure = search.weight * np.maximum(controls - DOUBT * controls_error, 0)
    return Effects(task, controls, task.sure_of_more_than(sure), told, search.alone_effects())


def ranking_fields(search: TaskSearch, known: Effects, k: int, n_bootstraps: int) -> dict[str, Any]:
    """What the search found, as score lost on all examples, in the fields of a ranking."""
    task, grid, rows = search.sensor.task, search.sensor.grid, search.rows
    scale = task.all_lost
    effect, z, taken = known.task.estimate, known.z.copy(), known.controls.copy()
    interval = np.full((grid.size, 2), np.nan)
    interval[search.candidates] = known.task.interval[search.candidates]
    for head, both in (search.told_shared | known.alone).items():
        effect[head], taken[head], z[head] = both.task, both.controls, both.z
        interval[head] = both.to_dict()["task_interval"] if head in known.alone else np.nan
    effect[search.off], z[search.off] = 0.0, 0.0
    # No more can be lost than there is.
    effect, interval = np.minimum(effect, task.most), np.minimum(interval, task.most)
    claims, shared = np.zeros(0, dtype=int), [*search.told_shared]
    if known.task.last is not None:
        measured = np.setdiff1d(known.task.last.heads, shared)
        finalists, decoys = (heads[np.isin(heads, measured)] for heads in (search.finalists, search.decoys))
        claimed = known.task.claims(finalists, decoys, _BEYOND / scale)
        # What the controls lose half as much is claimed for no task of them.
        claims = finalists[claimed & (taken[finalists] <= SHARED * effect[finalists])]
    # Of a head that was never off nothing is known, and shared ones were left out of the rows.
    tried = np.setdiff1d(np.flatnonzero(np.isfinite(known.task.error)), shared)
    interfering = tried[known.task.interfering(tried, len(rows) - 1)]
    frequency = None
    if n_bootstraps and len(rows):
        frequency = selection_frequency(search, k, n_bootstraps).reshape(grid.shape)
    return {
        "importance": (scale * effect).reshape(grid.shape),
        "interval": (scale * interval).reshape(*grid.shape, 2),
        "frequency": frequency,
        "z": z.reshape(grid.shape),
        "claims": _units(grid, claims),
        "interfering": _units(grid, interfering[np.argsort(effect[interfering])]),
        "shared": _units(grid, sorted(shared)),
        "control_importance": taken.reshape(grid.shape) if search.sensor.controls.tasks else None,
    }


def selection_frequency(search: TaskSearch, k: int, n_bootstraps: int) -> Flat:
    """Share of bootstraps over rows that find a head harmful and among the ``k`` best.

    What the controls take off its z stays as it is for all rows. Where these are enough for least squares against the
    intact model, these select. Gradients have a bootstrap of their own.
    """
    rows, known, rng, gradients = search.rows, search.fit, search.rng, search.gradients
    plenty = taken_by(*search.sensor.answers_lost(rows), rows_a_head=PLENTY) is not None
    candidates = np.sort(np.argsort(-search.merit, kind="stable")[:_CANDIDATES])
    candidates = candidates[np.isfinite(search.merit[candidates])]
    off, beside = sparse.csr_array(rows.off[:, candidates]), (known.z - known.task.z)[candidates]
    error, frequency = known.task.estimates[1][candidates], np.zeros(len(known.z))
    for _ in range(n_bootstraps):
        drawn = rng.integers(len(rows), size=len(rows))
        if plenty:
            z = np.linalg.lstsq(off[drawn].toarray(), known.lost[drawn], rcond=None)[0] / error
        else:
            fit = regress(off[drawn], known.lost[drawn], rows.group[drawn])
            if gradients is not None:
                before = gradients.fit(rng.integers(len(gradients.taken), size=len(gradients.taken)))
                fit = pooled(Fit(before.effect[candidates], before.z[candidates]), fit)
            z = fit.z
        best = np.argsort(-(z + beside), kind="stable")[:k]
        frequency[candidates[best[z[best] > NO_HARM]]] += 1 / n_bootstraps
    return np.minimum(frequency, 1.0)


def _units(grid: Grid, heads: Iterable[Any]) -> tuple[Unit, ...]:
    return tuple(grid.unit(int(head)) for head in heads)


def _told(search: TaskSearch, head: int, alone: dict[int, BothEffects]) -> dict[str, Any]:
    """What a shared head takes from both sides among other heads, and alone, and which control loses most."""
    both = search.told_shared[head]
    among = {"task": both.task, "controls": both.controls}
    told = {"head": str(search.sensor.grid.unit(head)), "among_others": among, "most": search.losing_most(head)}
    return told | (alone[head].to_dict() if head in alone else {})


def search_notes(search: TaskSearch, known: Effects, before: int) -> tuple[str, ...]:
    """What weakens what the search found."""
    grid, notes, budget = search.sensor.grid, list[str](), search.sensor.budget.total

    def named(heads: Iterable[Any]) -> str:
        return ", ".join(map(str, _units(grid, heads)))

    if before > _LARGE_SHARE * budget:
        went = f"{before:,} of the budget of {budget:,} went before the first mask, most of it to the intact model"
        notes.append(f"{went}: fewer examples, or a larger budget, would leave more for masks")
    lost = known.task.estimate
    general = [head for head in np.argsort(-lost) if lost[head] >= _COLLAPSE and known.z[head] > CLEAR]
    if general and not search.sensor.controls.tasks:
        notes.append(f"heads that take half of the score by themselves may be task-general: {named(general)}")
    if grid.size <= _SMALL and not known.level_is_told:
        few = f"rows are too few for {grid.size} heads: an importance without an interval is relative to the mean"
        notes.append(f"{few}, and a small one may have the wrong sign; a larger budget helps")
    if unmeasured := sorted(search.shared.keys() - known.alone.keys()):
        among = "what shared heads take was measured among other heads alone, by themselves they may take more or less"
        notes.append(f"{among}: {named(unmeasured)} (a larger budget)")
    if search.of_form:
        notes.append(f"{named(sorted(search.of_form))}: left out, since other tasks need them in the same form")
    if not len(search.rows):
        notes.append("every row had a shared head off: nothing can be ranked")
    elif not np.abs(known.task.sure_of_more_than(0.0)).max() > NO_HARM:
        notes.append(f"every row scored the same ({search.rows.scores.mean():.3f}): nothing can be ranked")
    last = search.rows.off[np.flatnonzero(search.rows.last)]
    n, needed = last.shape[0], ROWS_A_HEAD * int((last.sum(axis=0) > 0).sum())
    if n < needed:
        notes.append(f"no intervals and no claims: the last phase has {n} rows, {needed} would do (a larger budget)")
    return tuple(notes)
