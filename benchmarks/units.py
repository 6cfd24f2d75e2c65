"""What masks of each kind of unit cost, and at each of the positions, as multiples of heads off at all tokens.

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/units.py --model models/smollm2

A mask has one unit off in each of five layers, the same layers for every kind. Times are medians of interleaved runs,
after one of each that is not counted; memory is the largest resident size of a process of its own for each kind.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

import cs_heads as cs
from cs_heads.cluster import ModelLike
from cs_heads.units import POSITIONS, UNITS, Grid, Positions, Units

Way = tuple[Units, Positions]

KINDS = tuple(kind for kind in UNITS if kind != "experts")


def masks_of(grid: Grid, n_masks: int, seed: int) -> np.ndarray:
    """One unit off in each of five layers; the layers do not depend on the kind of unit."""
    layers, units = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    masks = np.zeros((n_masks, *grid.shape), dtype=bool)
    for mask in masks:
        for layer in layers.choice(grid.n_layers, min(5, grid.n_layers), replace=False):
            mask[layer, units.integers(grid.n_units)] = True
    return masks


def seconds(model: ModelLike, task: cs.Task, way: Way, n_masks: int, seed: int) -> float:
    """Of every mask on every example, none of which is known; what is run beforehand is not counted."""
    units, positions = way
    experiment = cs.Experiment(model, task, units=units, positions=positions, progress=False)
    experiment.baseline()
    masks = masks_of(experiment.grid, n_masks, seed)
    start = time.perf_counter()
    experiment(masks)
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="folder or name")
    parser.add_argument("--task", default="everyday/plural")
    parser.add_argument("--n", type=int, default=20, help="examples")
    parser.add_argument("--masks", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs=2, metavar=("UNITS", "POSITIONS"), help="run these once and print the memory")
    options = parser.parse_args()
    if not options.only:
        ways = [(units, positions) for units in KINDS for positions in POSITIONS]
        memory = {way: _memory_of(way) for way in ways}
    model = cs.load_model(options.model)
    task = cs.load_task(options.task, n=options.n, seed=0)
    if options.only:
        seconds(model, task, tuple(options.only), options.masks, 0)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    times: dict[Way, list[float]] = {way: [] for way in ways}
    for run in range(options.runs + 1):
        for way in ways:
            measured = seconds(model, task, way, options.masks, run)
            if run:
                times[way].append(measured)
    base = statistics.median(times["heads", "all"])
    print(f"{options.model}, {options.n} examples of {options.task}, {options.masks} masks: heads {base:.2f} s\n")
    print("| units | " + " | ".join(f"positions {positions}" for positions in POSITIONS) + " | MiB |")
    print("|---" * (len(POSITIONS) + 2) + "|")
    for units in KINDS:
        ratios = [statistics.median(times[units, positions]) / base for positions in POSITIONS]
        most = max(memory[units, positions] for positions in POSITIONS)
        print(f"| {units} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + f" | {most:,.0f} |")


def _memory_of(way: Way) -> float:
    command = [sys.executable, *sys.argv, "--only", *way]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


if __name__ == "__main__":
    main()
