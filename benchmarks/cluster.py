"""Two workers against one, on a compute-bound model: ``python benchmarks/cluster.py``.

GPT-2 small's shape with random weights, one thread a worker; runs of one and of two workers take turns, and medians
are given, with the spread. The numbers of both must be the same bit for bit. Needs as many free cores as workers: where
others take them, the CPU seconds of the busiest worker say what the wall clock would show on free ones.

Promised for two workers: 1.6 times as fast by the clock. Exit status 1 where that is missed, as it will be where other
work takes the cores (the load is printed), or where the numbers differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from time import perf_counter

import numpy as np
import psutil
from engine_models import folder_of

from cs_heads import Cluster
from cs_heads.engine.protocol import PairMasks
from cs_heads.lens import EncodedExample
from cs_heads.units import Grid

# Of the ideal ratio, the number of workers: 1.6 with two.
PROMISED = 0.8

Work = tuple[list[EncodedExample], np.ndarray, np.ndarray]


def workload(grid: Grid, n_masks: int) -> Work:
    """Eight prompts of about 40 tokens with two short choices each, and masks of density .05 on all of them."""
    rng = np.random.default_rng(0)
    examples = [
        EncodedExample(
            tuple(rng.integers(3, 50_000, rng.integers(30, 50)).tolist()),
            tuple(tuple(rng.integers(3, 50_000, 2).tolist()) for _ in range(2)),
            False,
        )
        for _ in range(8)
    ]
    masks = rng.random((n_masks, *grid.shape)) < 0.05
    return examples, np.repeat(masks, 8, axis=0), np.tile(np.arange(8), n_masks)


def measured(cluster: Cluster, work: Work) -> tuple[float, float, np.ndarray]:
    """Seconds, CPU seconds of the busiest worker, and every log-probability."""
    examples, masks, numbers = work
    workers = [psutil.Process(report.pid) for report in cluster._pool.reports]
    before, start = [cpu_seconds(worker) for worker in workers], perf_counter()
    engine = cluster.engine(examples)
    found = {pair: said for batch in engine.run(PairMasks.of(masks), numbers) for pair, said in batch}
    took = perf_counter() - start
    busiest = max(cpu_seconds(worker) - then for worker, then in zip(workers, before, strict=True))
    return took, busiest, np.stack([found[pair] for pair in range(len(numbers))])


def cpu_seconds(process: psutil.Process) -> float:
    """Spent by a process so far."""
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    """Runs take turns; medians, their ratio, whether the numbers are the same, and whether that is as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--masks", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="gpt2-shape", help="a shape of engine_models.py")
    options = parser.parse_args()
    folder = folder_of(options.model)
    with Cluster(folder, 1) as one, Cluster(folder, options.workers) as many:
        clusters = {1: one, options.workers: many}
        examples, masks, numbers = work = workload(Grid.from_model(one.model_or_info), options.masks)
        seconds: dict[int, list[tuple[float, float]]] = {n: [] for n in clusters}
        logprobs: dict[int, np.ndarray] = {}
        for cluster in clusters.values():
            measured(cluster, (examples, masks[:32], numbers[:32]))  # warm
        for _ in range(options.rounds):
            for n, cluster in clusters.items():
                took, busiest, logprobs[n] = measured(cluster, work)
                seconds[n].append((took, busiest))
                print(f"{n} workers: {took:.1f} s, busiest {busiest:.1f}, load {os.getloadavg()[0]:.1f}", flush=True)
    medians = {n: np.median(each, axis=0) for n, each in seconds.items()}
    for n, each in seconds.items():
        low, high = np.min(each, axis=0)[0], np.max(each, axis=0)[0]
        print(f"{n} workers: median {medians[n][0]:.1f} s ({low:.1f} to {high:.1f}), busiest {medians[n][1]:.1f} CPU s")
    ratio = medians[1] / medians[options.workers]
    print(f"ratio of medians: {ratio[0]:.2f} by the clock, {ratio[1]:.2f} by the busiest worker's CPU seconds")
    same, least = np.array_equal(logprobs[1], logprobs[options.workers]), PROMISED * options.workers
    print(f"the same numbers bit for bit: {same}")
    words = ["kept" if each >= least else "MISSED" for each in ratio]
    print(f"promised {least:.1f}: {words[0]} by the clock, {words[1]} by CPU seconds")
    sys.exit(not (same and ratio[0] >= least))


if __name__ == "__main__":
    main()
