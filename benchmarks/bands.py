"""Masks within bands of layers beside masks on all layers: what a row costs, and what it tells.

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/bands.py --model models/smollm2
    python benchmarks/bands.py --seeds 3

A mask whose heads all lie at or above a layer starts there, from the intact model's residual stream. With ``--model``:
CPU seconds of a mask on some examples of an everyday skill, with heads of each band and with as many of all layers,
ways interleaved, each repetition with other masks. The intact run that bands need is a line of its own.

Without: the recall of planted heads from equally many masks of both kinds, with as many heads off in each. Bands have
equally many masks, so that each head is off equally often, and an intercept each. Heads are those of the contrast of
``atlas_recovery.py --estimators``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
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
from cs_heads.units import Grid

ALL = "all layers"
SKILLS = ("code", "plural")
N_TIMED = 64
"""With 16 masks in a call the middle band of three cost as much as all layers."""


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
    given = parser.parse_args()
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
