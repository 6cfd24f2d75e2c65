"""Compressed sensing, as in the paper: random masks, then a sparse regression.

Bair et al., *Compressed Sensing for Capability Localization in Large Language Models*
(arXiv 2603.03335), section 4.1 and appendix A.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float

from cs_heads import designs
from cs_heads.arguments import check_integer, check_one_of, check_seed
from cs_heads.experiment.baseline import fitting_k
from cs_heads.experiment.cost import check_budget
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.controls import Contrast, Controls
from cs_heads.methods.losses import PLENTY
from cs_heads.methods.ranking_method import BOUNDS, RankingSteps, ranking_method
from cs_heads.progress import expect, one_bar, step
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid

N_MASKS, DENSITY = 100, 0.05
"""Masks by default, and the share of heads that is off in each."""

_DESIGNS = {"stratified": designs.stratified, "bernoulli": designs.bernoulli}

# Below this many masks with a head off, its coefficient is hardly more than chance.
_FEW_TIMES_OFF = 5


@ranking_method("compressed sensing")
def compressed_sensing(
    experiment: ExperimentLike,
    *,
    controls: Sequence[ExperimentLike] = (),
    budget: int | None = None,
    seed: int = 0,
    n_masks: int | None = None,
    density: float | None = None,
    design: str = "stratified",
    alpha: float = 0.01,
) -> RankingSteps:
    """Rank heads by a Lasso of the mean score of each mask on which heads it ablates.

    Every mask runs on all examples, and the response is standardized. The coefficients, converted back into score
    lost, say how heads differ. Importances are score lost against the intact model, which runs too: all coefficients
    are raised by the mean cost of a head beyond them, which keeps their order. With four masks a head or more, least
    squares against the intact model give importances without shrinkage (``"regression"`` in the provenance says which).
    The provenance holds the out-of-sample R² of the Lasso (5 folds), and the notes say what weakens the ranking. Costs
    ``n_examples`` example-evaluations for each different mask and for the intact model, and what the ablation runs
    before.

    With ``controls`` the response is the contrast, and importances are the share of the score above chance that the
    task loses less the mean share that its controls lose. Every mask then runs on as many examples of the controls as
    the task has, the same for all masks, balanced over the controls (fewer where they have fewer). The intact model
    first runs on all examples of the task and up to 100 of each control; those it answers right are used. A control
    that it cannot do is left out, and the notes say so. All of this counts in ``spent`` and ``budget``.

    Args:
        experiment: The task.
        controls: Experiments on other tasks, which the heads should not serve.
        budget: Example-evaluations in all; None for no limit.
        seed: Seeds all draws.
        n_masks: Masks to measure, 5 or more (by default 100, or as many as a budget covers).
        density: Share of heads ablated in a mask, in 0..1 (by default .05, or one head of a grid of fewer than 20).
        design: ``"stratified"`` for the paper's CSS, ``"bernoulli"`` for its CSB.
        alpha: Penalty of the Lasso, as in scikit-learn.

    Returns:
        The ranking by importance, which has no intervals, with its cost, provenance and notes.

    Raises:
        ValueError: A wrong argument, or a budget below five masks or the masks asked for, before anything is measured.
        BaselineTooLowError: With controls, a task that the intact model cannot do, or no control that it can.
    """
    grid, n, before = experiment.grid, experiment.n_examples, Contrast.cost(experiment, controls)
    check_one_of("design", design, _DESIGNS)
    check_integer("n_masks", 5 if n_masks is None else n_masks, 5, why="one a fold of the regression")
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    density, fitted = _fitting(density, grid)
    # Cheap to draw, and it names what is wrong with a density.
    _DESIGNS[design](grid, 1, density, 0)
    n_others, beside = Controls.most(controls, n), f" and {Controls.most(controls, n)} of controls" if controls else ""
    why = f"{n_masks or 5} masks on {n} examples{beside}, after intact runs of {before:,}"
    check_budget(budget, before + (n_masks or 5) * (n + n_others), why)
    yield before + (n_masks or N_MASKS) * (n + n_others) if budget is None or n_masks else budget
    measure = Contrast(experiment, controls, np.arange(n), seed)
    if n_masks is None:
        n_masks = N_MASKS if budget is None else (budget - before) // measure.a_mask
    step(f"{n_masks} masks")
    off = _DESIGNS[design](grid, n_masks, density, seed)
    # Each different mask once: not every experiment remembers what it was asked.
    once, place = designs.different(off)
    response, intact = measure.mean(measure(once))[place], float(measure.mean(measure.intact()[None])[0])
    lost, ablated = intact - response, off.reshape(n_masks, -1).astype(float)
    plenty = bool(n_masks >= PLENTY * grid.size and np.linalg.matrix_rank(ablated) == grid.size)
    importance, r2 = _regress(ablated, response, alpha, seed)
    said = _notes(importance, ablated, response, r2, contrast=bool(controls), plenty=plenty)
    if plenty:
        # Least squares: what each head costs, where nothing off costs nothing.
        importance = np.linalg.lstsq(ablated, lost, rcond=None)[0]
    else:
        # All by as much, so that nothing off costs nothing: masks of one size tell how heads differ, and no level.
        n_off = ablated.sum(axis=1)
        importance = importance + n_off @ (lost - ablated @ importance) / max(n_off @ n_off, 1.0)
    yield HeadRanking(
        method={"stratified": "css", "bernoulli": "csb"}[design],
        importance=importance.reshape(grid.shape),
        grid=grid,
        spent=before + len(once) * measure.a_mask,
        provenance={
            "design": {"name": design, "n_masks": n_masks, "density": density, "seed": seed},
            "alpha": alpha,
            "intact": intact,
            "regression": "least squares" if plenty else "lasso",
            "r2_out_of_sample": r2,
            **measure.provenance,
        },
        notes=(*fitted, *measure.notes, *said),
        unit=measure.unit,
    )


def bound_of_tuning(n_examples: int, n_masks: Sequence[int], densities: Sequence[float]) -> int:
    """The most example-evaluations of ``tune``: each setting has its intact run and the heads that it finds."""
    return n_examples * sum(number + 2 for number in n_masks) * len(densities)


@one_bar("compressed sensing")
def tune(
    experiment: ExperimentLike,
    *,
    k: int | None = None,
    seed: int = 0,
    n_masks: Sequence[int] = (100, 200, 400),
    densities: Sequence[float] = (0.01, 0.02, 0.05, 0.1),
    design: str = "stratified",
) -> HeadRanking:
    """The ranking of the setting whose top ``k`` heads drop the score most: the paper's search (appendix A.1).

    The drop is measured on the same examples, as in the paper: it selects a setting and proves nothing. Of equal
    settings the one that ablates each head most often is kept. ``spent`` is the cost of the whole search, and
    ``provenance["tuning"]`` has one record a setting.

    Args:
        experiment: The task.
        k: Heads whose drop is compared (None: 5, or half of a small grid).
        seed: Seeds all draws.
        n_masks: Numbers of masks to try.
        densities: Densities to try, each with every number of masks; those that ablate no head of the grid are left
            out.
        design: ``"stratified"`` or ``"bernoulli"``, as of ``compressed_sensing``.

    Returns:
        The ranking of the best setting, which ``provenance["design"]`` names.

    Raises:
        ValueError: A wrong argument, or densities of which none ablates a head, before anything is measured.
    """
    seed, size, before = check_seed(seed), experiment.grid.size, experiment.preparation
    lists: dict[str, Any] = {"n_masks": n_masks, "densities": densities}
    for name, value in lists.items():
        if not isinstance(value, Sequence | np.ndarray) or not len(value):
            raise ValueError(f"{name} must be a list of values to try, got {value!r}")
    k, fitted = fitting_k(k, experiment.grid, beside=False)
    used = [density for density in densities if round(density * size, 9) >= 1]
    if not used:
        raise ValueError(f"densities must hold one of {1 / size:.3g} or more: others ablate no head of {size}")
    settings = [*product(sorted(n_masks), used)]
    for number, density in settings:
        BOUNDS[compressed_sensing](experiment, n_masks=number, density=density, design=design)
    expect(before + bound_of_tuning(experiment.n_examples, n_masks, used))
    tried, rankings = [], []
    for number, density in settings:
        step(f"{number} masks at density {density:g}")
        found = compressed_sensing(experiment, n_masks=number, density=density, design=design, seed=seed)
        rankings.append(found)
        drop = found.provenance["intact"] - float(experiment(experiment.grid.mask(found.top(k))[None]).mean())
        tried.append({"n_masks": number, "density": density, "drop": drop, "spent": found.spent - before})
    best = rankings[max(range(len(tried)), key=lambda at: (tried[at]["drop"], np.prod(settings[at])))]
    spent = before + sum(each["spent"] + experiment.n_examples for each in tried)
    provenance = {**best.provenance, "tuning": tried}
    return replace(best, k=k, spent=spent, notes=(*fitted, *best.notes), provenance=provenance)


def _fitting(density: float | None, grid: Grid) -> tuple[float, tuple[str, ...]]:
    """A density, that by default where None is given; a note where that would ablate no head of a small grid."""
    if density is not None or round(DENSITY * grid.size, 9) >= 1:
        return DENSITY if density is None else density, ()
    of = f"one of the {grid.size} {grid.word}s of the grid"
    return 1 / grid.size, (f"density is {1 / grid.size:.3g}, {of}, and not {DENSITY} as by default",)


def _regress(
    ablated: Float[np.ndarray, "mask flat"], response: Float[np.ndarray, " mask"], alpha: float, seed: int
) -> tuple[Float[np.ndarray, " flat"], float | None]:
    """The score lost with each head, and the out-of-sample R² (None where the response is constant)."""
    from sklearn.linear_model import Lasso
    from sklearn.model_selection import KFold, cross_val_predict

    spread = response.std()
    if spread < 1e-12:
        return np.zeros(ablated.shape[1]), None
    standardized, lasso = (response - response.mean()) / spread, Lasso(alpha=alpha, max_iter=50_000)
    folds = KFold(n_splits=5, shuffle=True, random_state=seed)
    r2 = 1 - float(np.mean((standardized - cross_val_predict(lasso, ablated, standardized, cv=folds)) ** 2))
    # 0.0 - x and not -x: a head that is not selected has importance 0.0, not -0.0.
    return 0.0 - lasso.fit(ablated, standardized).coef_ * spread, r2


def _notes(
    importance: Float[np.ndarray, " flat"],
    ablated: Float[np.ndarray, "mask flat"],
    response: Float[np.ndarray, " mask"],
    r2: float | None,
    *,
    contrast: bool,
    plenty: bool,
) -> tuple[str, ...]:
    notes, times_off, (n_masks, n_heads) = [], ablated.sum(axis=0), ablated.shape
    if r2 is None and not plenty:
        same, value = ("has the same contrast", 0.0 - response[0]) if contrast else ("scored the same", response[0])
        notes.append(f"every mask {same} ({value:.3f}): nothing can be ranked; change the density")
    if r2 is not None and r2 <= 0:
        why = f"out-of-sample R² {r2:.2f}"
        notes.append(f"the regression predicts no unseen mask ({why}): use more masks or another density")
    if times_off.min() < _FEW_TIMES_OFF:
        times = f"{int(times_off.min())} times (mean {times_off.mean():.1f})"
        notes.append(f"some heads were ablated only {times}: use more masks or a higher density")
    if r2 is not None and not plenty:
        if (n := int((importance > 0).sum())) < 5:
            notes.append(f"only {n} heads have an importance above the average head's; the order of others is void")
        few = f"{n_masks} masks of {n_heads} heads say how heads differ, and what all take in the mean: a small"
        notes.append(f"{few} importance may have the wrong sign ({PLENTY * n_heads} masks would tell)")
    return tuple(notes)
