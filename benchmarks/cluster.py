"""Two workers against one, on a compute-bound model: ``python benchmarks/cluster.py``.

GPT-2 small's shape with random weights, one thread a worker; runs of one and of two workers take turns, and medians
are given, with the spread. The numbers of both must be the same bit for bit. Needs as many free cores as workers.
"""

from __future__ import annotations

import argparse
import os
from time import perf_counter

import numpy as np
from engine_models import folder_of

from cs_heads import Cluster
from cs_heads.heads import HeadGrid
from cs_heads.lens import EncodedExample
from cs_heads.measure.cluster.engine import ClusterEngine


def workload(grid: HeadGrid, n_masks: int) -> tuple[list[EncodedExample], np.ndarray, np.ndarray]:
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


def measured(engine: ClusterEngine, masks: np.ndarray, numbers: np.ndarray) -> tuple[float, np.ndarray]:
    """Seconds, and every log-probability."""
    start = perf_counter()
    found = {pair: logprobs for batch in engine.run(masks, numbers, False) for pair, logprobs, _ in batch}
    return perf_counter() - start, np.stack([found[pair] for pair in range(len(numbers))])


def main() -> None:
    """Runs take turns; medians, their ratio, and whether the numbers are the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--masks", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="gpt2-shape", help="a shape of engine_models.py")
    options = parser.parse_args()
    folder = folder_of(options.model)
    with Cluster(folder, 1) as one, Cluster(folder, options.workers) as many:
        clusters = {1: one, options.workers: many}
        examples, masks, numbers = workload(HeadGrid.from_model(one.here), options.masks)
        seconds: dict[int, list[float]] = {n: [] for n in clusters}
        logprobs: dict[int, np.ndarray] = {}
        for cluster in clusters.values():
            measured(cluster.engine(examples), masks[:64], numbers[:64])  # warm
        for _ in range(options.rounds):
            for n, cluster in clusters.items():
                took, logprobs[n] = measured(cluster.engine(examples), masks, numbers)
                seconds[n].append(took)
                print(f"{n} workers: {took:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    for n, each in seconds.items():
        print(f"{n} workers: median {np.median(each):.1f} s ({min(each):.1f} to {max(each):.1f})")
    print(f"ratio of medians: {np.median(seconds[1]) / np.median(seconds[options.workers]):.2f}")
    print(f"the same numbers bit for bit: {np.array_equal(logprobs[1], logprobs[options.workers])}")


if __name__ == "__main__":
    main()
