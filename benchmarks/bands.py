"""Masks within bands of layers, and at the last position, beside masks on all layers: what a row costs and tells.

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/bands.py --model models/smollm2
    python benchmarks/bands.py --model models/smollm2 --atlas skills.csv --seed 1
    python benchmarks/bands.py --seeds 3

A mask whose heads all lie at or above a layer starts there, from the intact model's residual stream. With ``--model``:
CPU seconds of a mask on some examples of an everyday skill, with heads of each band and with as many of all layers,
ways interleaved, each repetition with other masks. The intact run that bands need is a line of its own.

With ``--atlas``: equally many masks of each way on every skill of an atlas (``skills.csv`` of ``atlas.py``), and four
times as many at the last position of the prompt alone. The regression orders the heads of each skill; a table says what
share of the atlas's heads is among the best 10, 20, 30 and 60, and the seconds of processors a skill.

Without a model: the recall of planted heads from equally many masks of both kinds, with as many heads off in each.
Bands have equally many masks, so that each head is off equally often, and an intercept each. Heads are those of the
contrast of ``atlas_recovery.py --estimators``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import numpy as np
import pandas as pd
from atlas_recovery import (
    DENSITY,
    FIRST_SEED,
    N_EXAMPLES,
    N_MASKS,
    N_SKILLS,
    SCENARIOS,
    by_contrast,
    fitted,
    measured,
    scored,
    skills_of,
)

import cs_heads as cs
from cs_heads.ranking import HeadRanking
from cs_heads.simulate import planted_world
from cs_heads.tasks import finding_side
from cs_heads.units import Grid, Positions

ALL = "all layers"
SKILLS = ("code", "plural")
N_TIMED = 64
"""With 16 masks in a call the middle band of three cost as much as all layers."""
BEST = (10, 20, 30, 60)


def band(grid: Grid, number: int, n_bands: int, n_masks: int, seed: int) -> np.ndarray:
    """Masks with the heads of one band of layers, as many off in each as at ``DENSITY`` on all layers."""
    low, high = (grid.n_layers * place // n_bands for place in (number, number + 1))
    masks = np.zeros((n_masks, *grid.shape), dtype=bool)
    part = cs.HeadGrid(high - low, grid.shape[1])
    masks[:, low:high] = cs.designs.stratified(part, n_masks, DENSITY * grid.size / part.size, seed=seed)
    return masks


def costs(name: str, skill: str, n_bands: int, repetitions: int) -> Iterator[dict[str, object]]:
    """One line a repetition and way: CPU seconds of a mask."""
    task = cs.load_task(f"everyday/{skill}")
    experiment = cs.Experiment(cs.load_model(name, dtype="float32"), task, progress=False)
    grid, rng = experiment.grid, np.random.default_rng(0)
    # The engine plans its forwards once.
    experiment(grid.mask([])[None], np.zeros((1, 1), dtype=int))
    start = process_time()
    experiment.baseline()
    yield {"skill": skill, "way": "intact, once", "seconds": process_time() - start}
    for repetition in range(repetitions):
        ways = {ALL: cs.designs.stratified(grid, N_TIMED, DENSITY, seed=repetition)}
        for number in range(n_bands):
            ways[f"band {number + 1} of {n_bands}"] = band(grid, number, n_bands, N_TIMED, repetition)
        for way in rng.permutation(list(ways)):
            examples = np.stack([rng.permutation(experiment.n_examples)[:N_EXAMPLES] for _ in range(N_TIMED)])
            start = process_time()
            experiment(ways[way], examples)
            yield {"skill": skill, "way": way, "seconds": (process_time() - start) / N_TIMED}


@dataclass(frozen=True)
class Way:
    """Masks, and where their heads are off."""

    name: str
    positions: Positions
    n_bands: int
    n_masks: int


def ordered(first: cs.Experiment, tasks: dict[str, cs.Task], way: Way, seed: int) -> np.ndarray:
    """The place of each head among those of each skill [skill, head], by masks and a regression."""
    each = way.n_masks // way.n_bands
    masks = np.concatenate([band(first.grid, number, way.n_bands, each, seed) for number in range(way.n_bands)])
    rng, losses = np.random.default_rng(seed), []
    for task in tasks.values():
        experiment = first.on(task)
        baseline, chance = experiment.baseline(), task.chance or 0.0
        right = np.flatnonzero(baseline > 0.5)
        examples = rng.choice(right, size=(len(masks), N_EXAMPLES))
        lost = (baseline[examples] - experiment(masks, examples)).mean(axis=1)
        losses.append(lost / (baseline[right].mean() - chance))
    fits = fitted(masks, np.stack(losses), np.repeat(np.arange(way.n_bands), each))
    # A head without an effect has no error, and comes after those that have one.
    with np.errstate(divide="ignore", invalid="ignore"):
        merits = by_contrast(fits)
    return np.argsort(np.argsort(-merits, axis=1), axis=1)


def among_best(name: str, path: Path, n_bands: int, n_masks: int, seed: int) -> Iterator[dict[str, object]]:
    """One line a way: the share of an atlas's heads among the best, and seconds."""
    table = pd.read_csv(path)
    found = dict(zip(table["skill"], table["heads"].str.split(), strict=True))
    tasks = {skill: finding_side(cs.load_task(skill, seed=seed)) for skill in found}
    model = cs.load_model(name, dtype="float32")
    for way in (
        Way(ALL, "all", 1, n_masks),
        Way(f"{n_bands} bands", "all", n_bands, n_masks),
        Way("last position", "last", 1, n_masks),
        Way("last position", "last", 1, 4 * n_masks),
    ):
        first = cs.Experiment(model, next(iter(tasks.values())), positions=way.positions, progress=False)
        first, start = first.in_faster_dtype(), process_time()
        places = ordered(first, tasks, way, seed)
        seconds = (process_time() - start) / len(tasks)
        mine = [places[row, first.grid.index(head)] for row, heads in enumerate(found.values()) for head in heads]
        shares = {f"of the best {best}": (np.array(mine) < best).mean() for best in BEST}
        yield {"way": way.name, "masks": way.n_masks, **shares, "s a skill": seconds}


def recalls(scenario: str, seed: int, bands: list[int]) -> Iterator[dict[str, object]]:
    """One line a number of bands: the recall of planted heads in one world."""
    grid = cs.HeadGrid(16, 16)
    skills = skills_of(planted_world(scenario, grid, n_controls=N_SKILLS - 1, seed=seed))
    for n_bands in bands:
        each = N_MASKS // n_bands
        masks = np.concatenate([band(grid, number, n_bands, each, seed) for number in range(n_bands)])
        losses = measured(skills, masks, np.random.default_rng(seed))
        merits = by_contrast(fitted(masks, losses, np.repeat(np.arange(n_bands), each)))
        found = scored(skills, [HeadRanking("contrast", of.reshape(grid.shape), spent=0) for of in merits])
        yield {"scenario": scenario, "bands": n_bands, **found}


def main() -> None:
    """Measure costs on a model, or recall in planted worlds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="measure what masks cost on this model")
    parser.add_argument("--skills", nargs="+", default=list(SKILLS))
    parser.add_argument("--bands", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, help="worlds of each scenario")
    parser.add_argument("--atlas", type=Path, help="skills.csv of an atlas: measure what masks tell of its heads")
    parser.add_argument("--masks", type=int, default=N_MASKS, help="masks of each way with --atlas")
    parser.add_argument("--seed", type=int, default=0, help="draws masks and examples with --atlas")
    given = parser.parse_args()
    if given.atlas and not given.model:
        parser.error("--atlas needs the --model that it is of")
    if given.atlas:
        for line in among_best(given.model, given.atlas, max(given.bands), given.masks, given.seed):
            print(pd.DataFrame([line]).round(2).to_string(index=False), flush=True)
        return
    if given.model:
        n_bands = max(given.bands)
        lines = pd.DataFrame(
            [line for skill in given.skills for line in costs(given.model, skill, n_bands, given.repetitions)]
        )
        print(lines.pivot_table("seconds", "way", "skill", aggfunc="median").round(2).to_string())
        return
    worlds = [(scenario, FIRST_SEED + seed) for scenario in SCENARIOS for seed in range(given.seeds)]
    lines = pd.DataFrame([line for world in worlds for line in recalls(*world, given.bands)])
    print(lines.pivot_table("recall", "scenario", "bands", margins=True, sort=False).round(2).to_string())


if __name__ == "__main__":
    main()
