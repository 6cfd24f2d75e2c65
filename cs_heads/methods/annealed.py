"""Annealed sensing: few examples a mask, and ever fewer heads to choose from.

Rows of one mask and a few examples tell more for their cost than a mask on all examples does; and once most
heads are unlikely, the budget is better spent on the others. The random masks and the sparse regression are
those of compressed sensing (Bair et al., arXiv 2603.03335).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from cs_heads.integers import check_integer
from cs_heads.measure.baseline import (
    MAX_LEFT,
    MAX_LEFT_OF_TASK,
    BaselineTooLowError,
    check_k,
    few_correct,
    too_low,
)
from cs_heads.measure.cost import Cost, check_budget
from cs_heads.measure.protocol import ExperimentLike, measured, preparation_of, provenance_of
from cs_heads.methods.annealing.arguments import (
    PRIOR_WEIGHT,
    check_shares,
    checked_chance,
    checked_control,
    standardised,
)
from cs_heads.methods.annealing.inference import NO_HARM, ROWS_A_HEAD, Contrasts, contrasts, selection_frequency
from cs_heads.methods.annealing.regression import N_ROUNDS, PENALTY
from cs_heads.methods.annealing.schedule import LAST, WHOLE, DensityControl, rows_for_intervals
from cs_heads.methods.annealing.search import (
    CHECK_EXAMPLES,
    DOUBTFUL,
    GUESSED_EXAMPLES,
    SUSPECT,
    Alone,
    Control,
    Purse,
    Search,
    few_examples,
)
from cs_heads.ranking import HeadRanking

# A head that takes this share of the score above chance by itself may be universal, where no control can tell.
_COLLAPSE = 0.5
# Points of score, of all examples, that a claimed head takes beyond the decoys.
_BEYOND = 0.02
# Where guessing is right so often (two choices), heads that merely shuffle answers mend about as many as they
# break, and would look harmful on those alone that the intact model gets right.
_EVEN = 0.4
# Example-evaluations for masks by default, however small the grid.
_LEAST = 8000
# Share of a budget that the runs before the first mask may take without a word.
_LARGE_SHARE = 0.25
# Rows of a batch below which no regression after it means anything.
_MIN_ROWS = 4
# Batches below which there is none after the last phase begins.
_MIN_BATCHES = 4
# Not arguments: the README gives its figures for these values alone.
_FIXED = {
    "penalty": PENALTY,
    "penalty_rounds": N_ROUNDS,
    "suspect_z": SUSPECT,
    "max_left": MAX_LEFT,
    "max_left_of_task": MAX_LEFT_OF_TASK,
    "check_examples": CHECK_EXAMPLES,
    "check_examples_guessed": GUESSED_EXAMPLES,
    "doubtful_left": DOUBTFUL,
    "phases": [WHOLE, LAST],
    "claims_beyond": _BEYOND,
    "prior_weight": PRIOR_WEIGHT,
    "all_examples_from_chance": _EVEN,
}


def annealed(
    experiment: ExperimentLike,
    controls: Sequence[ExperimentLike] = (),
    budget: int | None = None,
    k: int = 5,
    seed: int = 0,
    *,
    examples_per_mask: int | None = 8,
    n_batches: int = 14,
    target: float = 0.65,
    last_target: float = 0.8,
    density: float = 0.03,
    max_density: float = 0.12,
    n_finalists: int | None = None,
    n_decoys: int = 6,
    n_bootstraps: int = 40,
    prior: HeadRanking | Float[np.ndarray, "layer head"] | None = None,
    chance: float | None = None,
    control_chance: float | None = None,
) -> HeadRanking:
    """Rank heads within a budget of example-evaluations, and find universal heads on the way.

    The intact model runs on all examples; only those it answers right (a score above .5) go on, or all of them from
    a ``chance`` of .4 on, where a head may mend as many answers as it breaks (``chance`` is the score of guessing,
    by default that of the experiment's task, 0 where it has none). Each of ``n_batches`` then measures rows of one
    mask and ``examples_per_mask`` random examples (None: all of them with every mask, for where masks are what
    costs), and a Lasso with example effects on all rows so far gives each head an effect and a z. The number of
    heads off begins at ``density`` of the grid and is steered so that the score above chance stays near ``target``
    of the intact one, up to ``max_density``. Masks draw on all heads for 40 % of the budget, then on the best by z,
    ever fewer, and for the last 30 % on ``n_finalists`` (20, or ``k`` where that is more) and ``n_decoys`` random
    others, nearer to the intact score (``last_target``), so that what a head does there is near what it does alone.

    ``controls`` are experiments on other tasks, of which the first is used. A clearly harmful head (z above 4) is
    ablated alone on 8 examples of it, and where that breaks it on 8 of the task. A head that leaves at most .4 of the
    control's score above chance, and .7 of the task's, is universal, reported as such, never ranked among the top, and
    its rows are set aside. Without a control, universal heads cannot be told from heads of the task, and the notes say
    so.
    ``control_chance`` is the score of guessing, by default that of the control's task (0 where it has none); from .2
    on, 24 examples are used, and all of up to 72 that the intact model answers right where these leave .4 to .8.
    ``prior``, another ranking (its importances) or one number a head, such as a gradient importance, is standardised
    and half of it is added to z, in the ranking too, whose notes say so; it alone rules out no head.

    The ranking is by z. Importances are points of score beyond the average head; those of finalists come from
    the last phase alone, against its decoys, with 95 % intervals clustered on rows and on examples (NaN for
    other heads, and for all where the last phase has fewer than two rows for each of its heads); ``claims``
    are finalists that take more than 2 points beyond the decoys (Holm, one-sided 5 %). ``frequency`` is the
    share of ``n_bootstraps`` resamples of the rows that rank a head among the ``k`` best.

    ``budget`` counts everything: masks, the control, the intact run and what the ablation runs before; no more is ever
    spent. By default 10 × heads, 8,000 at least, go to masks (as many as intervals need, where every mask takes all
    examples), and what runs before the first mask comes on top: more examples never leave less for masks. A wrong
    argument raises ``ValueError`` before anything is measured; an intact model with fewer than 20 right answers, or no
    better than chance, raises ``BaselineTooLowError`` after its run.
    """
    grid, size = experiment.grid, experiment.grid.size
    k = check_k(k, size)
    control = checked_control(experiment, controls[0] if controls else None)
    n_finalists = max(20, k) if n_finalists is None else check_integer("n_finalists", n_finalists, k, why="which is k")
    n_batches = check_integer("n_batches", n_batches, _MIN_BATCHES)
    n_decoys, n_bootstraps = check_integer("n_decoys", n_decoys, 0), check_integer("n_bootstraps", n_bootstraps, 0)
    if examples_per_mask is not None:
        examples_per_mask = check_integer("examples_per_mask", examples_per_mask, 1, why="or None for all")
    per_row = min(examples_per_mask or experiment.n_examples, experiment.n_examples)
    check_shares(target=target, last_target=last_target, density=density, max_density=max_density)
    chance = checked_chance("chance", chance, experiment)
    control_chance = checked_chance("control_chance", control_chance, control)
    before = preparation_of(experiment, control) + experiment.n_examples
    least = before + n_batches * _MIN_ROWS * per_row
    least += Control.cost(control, control_chance) if control is not None else 0
    if budget is None:
        rows = max(n_batches * _MIN_ROWS, rows_for_intervals(n_batches, n_finalists + n_decoys))
        budget = least - n_batches * _MIN_ROWS * per_row + max(10 * size, _LEAST, rows * per_row)
    check_budget(budget, least, f"{n_batches} batches of {_MIN_ROWS} rows, after the intact run")
    budget = int(budget)
    added = standardised(prior, grid.shape)
    check_integer("seed", seed, 0)
    rng = np.random.default_rng(seed)
    purse = Purse(budget)
    purse.pay(before)
    intact = measured(experiment, np.zeros((1, *grid.shape), dtype=bool), None)[0]
    right = np.flatnonzero(intact > 0.5)
    reason = too_low((intact > 0.5).astype(float), chance)
    if reason:
        raise BaselineTooLowError(reason)
    used = np.arange(len(intact)) if chance >= _EVEN else right
    # Of its own: what the check draws changes no other draw.
    few = np.sort(np.random.default_rng([seed, 1]).permutation(right)[: few_examples(chance)])
    alone = Alone(experiment, few, intact[few], chance, purse)
    search = Search(
        experiment=experiment,
        purse=purse,
        control=None if control is None else Control(control, alone, rng, control_chance),
        density=DensityControl(size, target, max_density, density * size),
        examples=used,
        level=float(intact[used].mean()),
        chance=chance,
        prior=added,
        per_row=min(per_row, len(used)),
        n_batches=n_batches,
        last_target=last_target,
        # A small grid keeps half of its heads to hold the finalists against.
        n_finalists=min(n_finalists, max(k, size // 2)),
        n_decoys=n_decoys,
        rng=rng,
    )
    search.run()
    ranking = _ranking(search, k, n_bootstraps)
    origin = provenance_of(experiment)
    settings: dict[str, Any] = {"budget": budget, "k": k, "seed": seed, "examples_per_mask": examples_per_mask}
    settings |= {"n_batches": n_batches, "target": target, "last_target": last_target, "density": density}
    settings |= {"max_density": max_density, "n_finalists": search.n_finalists, "n_decoys": n_decoys}
    settings |= {"n_bootstraps": n_bootstraps, "prior": prior is not None, "chance": chance}
    settings |= {"control_chance": control_chance, "fixed": _FIXED}
    found = {"n_right": len(right), "n_used": len(used), "n_rows": len(search.rows), "heads_off": search.heads_off}
    checked = {
        "control": provenance_of(control).get("task"),
        **_checks(search),
        "cost": Cost(forwards=purse.spent).to_dict(),
    }
    return HeadRanking(
        method="annealed",
        spent=purse.spent,
        notes=(*few_correct(len(right)), *_dear(before, budget), *_notes(search)),
        provenance={**origin, "design": settings, **found, **checked},
        **ranking,
    )


def _ranking(search: Search, k: int, n_bootstraps: int) -> dict[str, Any]:
    """What the search found, in points of score on all examples, as the fields of a ranking."""
    grid = search.experiment.grid
    share = len(search.examples) / search.experiment.n_examples
    effect, z = search.fit.effect.copy(), search.merit
    for head, (last_effect, last_z) in search.universal.items():
        effect[head], z[head] = last_effect, last_z
    interval = np.full((grid.size, 2), np.nan)
    claimed: Bool[np.ndarray, " finalist"] = np.zeros(len(search.finalists), dtype=bool)
    known = _contrasts(search)
    if known is not None:
        kept = ~np.isin(search.finalists, list(search.universal))
        heads = search.finalists[kept]
        effect[heads], interval[heads] = known.estimate, known.interval()
        claimed[kept] = known.claims(beyond=_BEYOND / share)
    frequency = None
    if n_bootstraps and len(search.rows):
        drawn = selection_frequency(
            search.rows, search.merit, search.prior, k=k, n_bootstraps=n_bootstraps, rng=search.rng
        )
        frequency = drawn.reshape(grid.shape)
    return {
        "importance": (share * effect).reshape(grid.shape),
        "interval": (share * interval).reshape(*grid.shape, 2),
        "frequency": frequency,
        "z": z.reshape(grid.shape),
        "claims": tuple(grid.head(int(index)) for index in search.finalists[claimed]),
        "universal": tuple(grid.head(index) for index in sorted(search.universal)),
    }


def _contrasts(search: Search) -> Contrasts | None:
    left = [head for head in search.finalists if int(head) not in search.universal]
    decoys = [head for head in search.decoys if int(head) not in search.universal]
    last = search.rows[np.flatnonzero(search.rows.last)]
    return contrasts(last, np.array(left, dtype=int), np.array(decoys, dtype=int))


def _checks(search: Search) -> dict[str, dict[str, float]]:
    """What heads checked for universality left of the control, and of the task, by name."""
    grid, control = search.experiment.grid, search.control
    known = {} if control is None else {"control_left": control.checked, "task_left": control.checked_on_task}
    return {
        name: {str(grid.head(head)): left for head, left in known.get(name, {}).items()}
        for name in ("control_left", "task_left")
    }


def _dear(before: int, budget: int) -> tuple[str, ...]:
    """A note where what runs before the first mask leaves too little for masks."""
    note = (
        f"{before:,} of the budget of {budget:,} went before the first mask, most of it to the intact model: fewer "
        "examples, or a larger budget, would leave more for masks"
    )
    return (note,) if before > _LARGE_SHARE * budget else ()


def _notes(search: Search) -> tuple[str, ...]:
    grid, notes = search.experiment.grid, []
    unchecked = search.unchecked()
    if search.control is None:
        lost = search.fit.effect / (search.level - search.chance)
        broken = [str(grid.head(head)) for head in unchecked if lost[head] >= _COLLAPSE]
        collapse = f": {', '.join(broken)} may be such" if broken else ""
        notes.append(f"without a control task, universal heads cannot be told from heads of the task{collapse}")
    elif not search.control.usable:
        control = search.control
        notes.append(
            f"the control could tell no universal heads: the intact model answers {control.n_right} of the "
            f"{control.n_asked} examples asked right, {control.n_needed} are needed"
        )
    elif unchecked:
        names = ", ".join(str(grid.head(head)) for head in unchecked)
        notes.append(f"not checked on the control, the budget being spent: {names}")
    if search.prior.any():
        notes.append("z, and with it the order, holds half of the standardised prior")
    if not len(search.rows):
        notes.append("every row had a universal head off: nothing can be ranked")
    elif not np.abs(search.fit.z).max() > NO_HARM:
        notes.append(f"every row scored the same ({search.rows.scores.mean():.3f}): nothing can be ranked")
    n_rows = int(search.rows.last.sum())
    needed = ROWS_A_HEAD * sum(int(head) not in search.universal for head in (*search.finalists, *search.decoys))
    if not len(search.decoys):
        notes.append("no intervals and no claims: there are no decoys to hold the finalists against (n_decoys)")
    elif n_rows < needed:
        notes.append(
            f"no intervals and no claims: the last phase has {n_rows} rows, {needed} would do (a larger budget)"
        )
    return tuple(notes)
