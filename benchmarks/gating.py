"""Causal head gating of many seeds at once against one after another: time, and whether the gates are the same.

    python benchmarks/gating.py --n-seeds 8 --steps 20

Time grows in proportion to the steps, so that few tell the ratio of many. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter
from typing import Any

import numpy as np

import cs_heads as cs


def main() -> None:
    """Fit both ways, in turn, after a short run that nobody times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--task", default="demo/capitals")
    parser.add_argument("--n-seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batch-tokens", type=int, default=None)
    options = parser.parse_args()
    model, task = cs.load_model(options.model), cs.load_task(options.task)

    def experiment() -> cs.Experiment:
        return cs.Experiment(model, task, batch_tokens=options.batch_tokens, progress=False)

    cs.methods.fit_gates(experiment(), steps=20, batch_size=8)

    def timed(**more: Any) -> tuple[cs.methods.HeadGates, float]:
        start = perf_counter()
        gates = cs.methods.fit_gates(experiment(), steps=options.steps, batch_size=options.batch_size, **more)
        return gates, perf_counter() - start

    together, seconds_together = timed(n_seeds=options.n_seeds)
    alone = [timed(seed=seed) for seed in range(options.n_seeds)]
    seconds_alone = sum(seconds for _, seconds in alone)
    difference = {
        name: float(np.abs(getattr(together, name) - np.concatenate([getattr(one, name) for one, _ in alone])).max())
        for name in ("free", "plus", "minus")
    }
    result = {
        "n_seeds": options.n_seeds,
        "steps": options.steps,
        "seconds_together": round(seconds_together, 2),
        "seconds_one_after_another": round(seconds_alone, 2),
        "ratio": round(seconds_together / seconds_alone, 3),
        "largest_difference_of_a_gate": difference,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
