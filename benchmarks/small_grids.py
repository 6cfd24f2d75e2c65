"""Recall in planted worlds of small grids, by cost and by examples to find with.

A table of docs/benchmarks/planted.md:

    python benchmarks/small_grids.py
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
from recovery import K, greedy, sensing, told

import cs_heads as cs
from cs_heads.simulate import World, planted_world

SEED = 50_000
"""The first world's."""


def annealed(made: World, budget: int | None, seed: int) -> dict[str, Any]:
    """Annealed sensing with a control; it finds the universal heads by itself."""
    found = cs.methods.annealed(made.task, controls=[made.control], budget=budget, k=K, seed=seed)
    return {"heads": found.top(K), "spent": found.spent}


SEARCHES = (
    ("annealed", (12, 12), 100, partial(annealed, budget=2000)),
    ("annealed", (12, 12), 100, partial(annealed, budget=None)),
    ("annealed", (12, 12), 100, partial(annealed, budget=12_100)),
    ("annealed", (12, 12), 400, partial(annealed, budget=None)),
    ("annealed", (12, 12), 1000, partial(annealed, budget=None)),
    ("css", (12, 12), 100, partial(told(sensing("stratified")), size=100)),
    ("css", (12, 12), 100, partial(told(sensing("stratified")), size=400)),
    ("one-shot", (12, 12), 100, partial(told(greedy(one_shot=True)), size=0)),
    ("annealed", (16, 16), 100, partial(annealed, budget=None)),
)
"""Method, layers and heads of each, examples to find with, the search."""


def main() -> None:
    """Measure each search on the same worlds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=40)
    n = parser.parse_args().worlds
    print("| heads | method | examples to find with | example-evaluations | recall@5 |\n|---|---|---|---|---|")
    for method, shape, n_examples, search in SEARCHES:
        recalls, spent = [], []
        for seed in range(SEED, SEED + n):
            made = planted_world("main", cs.Grid(*shape), n_examples=n_examples, seed=seed)
            found = search(made, seed=seed)
            recalls.append(len({*found["heads"]} & {*made.planted}) / K)
            spent.append(found["spent"])
        error = np.std(recalls, ddof=1) / np.sqrt(n)
        row = (f"{np.prod(shape)}", method, f"{n_examples:,}", f"{np.mean(spent):,.0f}")
        print(f"| {' | '.join(row)} | {np.mean(recalls):.2f} ± {error:.2f} |".replace("0.", "."), flush=True)


if __name__ == "__main__":
    main()
