"""Recovery of planted heads where several tasks are searched jointly, and by one search each.

    python benchmarks/atlas_recovery.py
    python benchmarks/atlas_recovery.py --scenarios main noisy --shapes 16x16 --seeds 10
    python benchmarks/atlas_recovery.py --estimators

A world has eight skills, each with planted heads of its own and the universal ones in common. ``default`` is annealed
sensing of each skill, with the others as controls and the budget it takes by default. ``joint`` searches all of them at
once with half of that for each skill, and ``alike`` each skill for an eighth of what the joint search spent. Recall is
that of a skill's planted heads among its first five, in the mean over skills and worlds, with the standard error
over worlds. *Universal* is the share of the first five that every skill needs, alone or as a group. *Evaluations* are
those of a skill, in thousands. Coverage is of the joint search: how often its intervals hold what a head takes alone
from all examples, of planted heads and of others that are not universal, and by how much the estimate is too large in
the mean. Twelve worlds take about a minute on one core.

``--estimators`` compares ways to tell the heads of a skill from 300 random masks that are measured on all skills: each
skill by itself, contrasts with the other skills, and a multi-task Lasso.
"""

from __future__ import annotations

import argparse
import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import MultiTaskLassoCV

import cs_heads as cs
from cs_heads.arguments import WEIGHT_BY_MASKS
from cs_heads.methods.annealing import annealed, annealed_jointly
from cs_heads.methods.annealing.intervals import alone_intervals
from cs_heads.methods.annealing.regression import Fit, mean_fit, regress
from cs_heads.ranking import HeadRanking
from cs_heads.simulate import PlantedExperiment, World, planted_world
from cs_heads.units import Unit

K = 5
N_SKILLS = 8
SCENARIOS = ("main", "universal_groups", "many_universal", "noisy", "chance50", "ceiling")
SHAPES = ("16x16", "32x32")
FIRST_SEED = 90_000
N_MASKS, DENSITY, N_EXAMPLES = 300, 0.03, 8
"""What estimators are compared on."""


class Skills(NamedTuple):
    """The skills of a world, with the planted heads of each, and the heads that all of them need."""

    experiments: list[PlantedExperiment]
    chance: float
    planted: list[set[Unit]]
    universal: set[Unit]


def skills_of(made: World) -> Skills:
    """All skills of a world, the task first."""
    first = made.scenario.universal
    last = first + len(made.scenario.drops) + 2 * len(made.scenario.hidden)
    planted = [{made.grid.unit(int(index)) for index in roles[first:last]} for roles in (made.own, *made.others)]
    universal = {*made.universal}.union(*made.groups)
    return Skills([made.task, *made.controls], made.scenario.chance, planted, universal)


def truth(skills: Skills) -> np.ndarray:
    """What each head alone takes from each skill [skill, layer, head], as a share of the score above chance."""
    grid = skills.experiments[0].grid
    alone = np.eye(grid.size, dtype=bool).reshape(-1, *grid.shape)
    losses = []
    for experiment in skills.experiments:
        intact = experiment(grid.mask([])[None]).mean()
        losses.append((intact - experiment(alone).mean(axis=1)) / (intact - skills.chance))
    return np.stack(losses).reshape(len(losses), *grid.shape)


def scored(skills: Skills, rankings: list[cs.HeadRanking]) -> dict[str, float]:
    """Recall of the planted heads, and the share of heads that all skills need."""
    tops = [{*ranking.top(K)} for ranking in rankings]
    recalls = [len(top & planted) / len(planted) for top, planted in zip(tops, skills.planted, strict=True)]
    shares = [len(top & skills.universal) / K for top in tops]
    return {"recall": float(np.mean(recalls)), "universal": float(np.mean(shares))}


def coverage(skills: Skills, losses: np.ndarray, errors: np.ndarray) -> dict[str, float]:
    """How often intervals of the losses hold the truth, and how far they are off in the mean."""
    grid, real = skills.experiments[0].grid, truth(skills)
    planted = np.stack([grid.mask(sorted(heads)) for heads in skills.planted])
    others = ~planted & ~grid.mask(sorted(skills.universal))
    low, high = np.moveaxis(alone_intervals(losses, errors), -1, 0)
    holds = (low <= real) & (real <= high)
    known = np.isfinite(errors)
    found: dict[str, float] = {}
    for name, heads in (("planted", planted & known), ("others", others & known)):
        found |= {f"holds, {name}": float(holds[heads].mean()), f"bias, {name}": float((losses - real)[heads].mean())}
    return found


def measure(scenario: str, shape: str, seed: int) -> list[dict[str, object]]:
    """One line a way of searching, of one world."""
    n_layers, n_heads = map(int, shape.split("x"))
    grid = cs.Grid(n_layers, n_heads)
    skills = skills_of(planted_world(scenario, grid, n_controls=N_SKILLS - 1, seed=seed))
    told = skills.experiments
    joint = annealed_jointly(told, seed=seed, n_bootstraps=0)
    ranked = [ranking for ranking in joint.rankings if ranking is not None]
    # The model can do every skill.
    assert len(ranked) == len(told)
    found = {"joint": (ranked, joint.spent)}
    for name, budget in (("alike", joint.spent // N_SKILLS), ("default", None)):
        each = [
            annealed(
                task, controls=[o for o in told if o is not task], budget=budget, seed=seed + place, n_bootstraps=0
            )
            for place, task in enumerate(told)
        ]
        found[name] = each, sum(ranking.spent for ranking in each)
    lines = []
    for name, (rankings, spent) in found.items():
        known = coverage(skills, joint.losses, joint.errors) if name == "joint" else {}
        at = {"scenario": scenario, "heads": grid.size, "search": name, "seed": seed}
        lines.append({**at, "evaluations": spent / N_SKILLS, **scored(skills, rankings), **known})
    return lines


def measured(skills: Skills, masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What each skill loses under each mask, on a few random examples [skill, row]."""
    return np.stack(
        [
            1 - each(masks, rng.integers(each.n_examples, size=(len(masks), N_EXAMPLES))).mean(axis=1)
            for each in skills.experiments
        ]
    )


def fitted(masks: np.ndarray, losses: np.ndarray, group: np.ndarray) -> list[Fit]:
    """What each head takes from each skill, by a regression with an intercept a group."""
    off = sparse.csr_array(masks.reshape(len(masks), -1).astype(float))
    return [regress(off, lost, group) for lost in losses]


def by_contrast(fits: list[Fit]) -> np.ndarray:
    """What each head takes from each skill beyond the others, in standard errors [skill, head]."""
    merits = []
    for place, fit in enumerate(fits):
        others = mean_fit([other for number, other in enumerate(fits) if number != place])
        merits.append((fit.effect - WEIGHT_BY_MASKS * others.beyond_doubt) / fit.error)
    return np.stack(merits)


def estimate(scenario: str, shape: str, seed: int) -> list[dict[str, object]]:
    """One line an estimator, from the same random masks on all skills."""
    n_layers, n_heads = map(int, shape.split("x"))
    grid = cs.Grid(n_layers, n_heads)
    skills = skills_of(planted_world(scenario, grid, n_controls=N_SKILLS - 1, seed=seed))
    masks = cs.designs.stratified(grid, n_masks=N_MASKS, density=DENSITY, seed=seed)
    losses = measured(skills, masks, np.random.default_rng(seed))
    fits = fitted(masks, losses, np.zeros(N_MASKS, dtype=int))
    each = np.stack([fit.effect / fit.error for fit in fits])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        off = masks.reshape(N_MASKS, -1).astype(float)
        lasso = MultiTaskLassoCV(alphas=12, cv=4, max_iter=300).fit(off, losses.T).coef_
    lines = []
    for name, merit in (
        ("each by itself", each),
        ("contrasts", by_contrast(fits)),
        ("multi-task Lasso", lasso),
        ("multi-task Lasso less its mean over skills", lasso - lasso.mean(axis=0)),
    ):
        rankings = [HeadRanking(name, of.reshape(grid.shape), spent=0) for of in merit]
        lines.append({"scenario": scenario, "heads": grid.size, "estimator": name, **scored(skills, rankings)})
    return lines


def table(lines: pd.DataFrame) -> str:
    """The measurements as a Markdown table, one line for each scenario and size."""
    text = [
        "| scenario | heads | recall: joint | alike | default | universal: joint | alike | default "
        "| evaluations: joint, default | holds planted (bias) | holds others (bias) |",
        "|" + "---|" * 11,
    ]
    for (scenario, heads), group in lines.groupby(["scenario", "heads"], sort=False):
        by = dict(iter(group.groupby("search")))
        order = [by[name] for name in ("joint", "alike", "default")]
        recall = [f"{part['recall'].mean():.2f} ± {part['recall'].std() / np.sqrt(len(part)):.2f}" for part in order]
        universal = [f"{part['universal'].mean():.3f}" for part in order]
        cost = ", ".join(f"{by[name]['evaluations'].mean() / 1000:.1f}" for name in ("joint", "default"))
        told = by["joint"].mean(numeric_only=True)
        held = [f"{told[f'holds, {name}']:.2f} ({told[f'bias, {name}']:+.3f})" for name in ("planted", "others")]
        text.append("| " + " | ".join([str(scenario), f"{heads:,}", *recall, *universal, cost, *held]) + " |")
    return "\n".join(text)


def main() -> None:
    """Measure all worlds, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help="layers x heads")
    parser.add_argument("--seeds", type=int, default=6, help="worlds of each scenario and shape")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--estimators", action="store_true", help="compare estimators on random masks instead")
    given = parser.parse_args()
    worlds = [
        (scenario, shape, FIRST_SEED + seed)
        for scenario in given.scenarios
        for shape in given.shapes
        for seed in range(given.seeds)
    ]
    if given.estimators:
        estimated = Parallel(n_jobs=given.jobs)(delayed(estimate)(*each) for each in worlds)
        lines = pd.DataFrame([line for lines in estimated for line in lines])
        found = lines.groupby("estimator", sort=False)[["recall", "universal"]]
        print(found.agg(["mean", "sem"]).round(3).to_string())
        return
    measured = Parallel(n_jobs=given.jobs)(delayed(measure)(*each) for each in worlds)
    print(f"{given.seeds} worlds each; {N_SKILLS} skills\n")
    print(table(pd.DataFrame([line for lines in measured for line in lines])))


if __name__ == "__main__":
    main()
