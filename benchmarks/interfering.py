"""Heads whose removal helps: how many of those planted ``found.interfering`` names, and how often it names a wrong one.

    python benchmarks/interfering.py --worlds 16

In each world of 256 heads the task rests on two heads, and gains 8, 14 and 20 points without three others, each alone;
in as many worlds more nothing helps: the same two heads alone, and no head at all. A head counts as wrong where it is
none of the three. Default budget.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace

import cs_heads as cs
from cs_heads.simulate import SCENARIOS, planted_world

GAINS = (0.08, 0.14, 0.2)
HELPED = replace(SCENARIOS["main"], baseline=0.5, drops=(0.3, 0.2), pairs=(), weak=tuple(-gain for gain in GAINS))
WORLDS = {
    "three help": HELPED,
    "none helps": replace(HELPED, weak=()),
    "no structure": SCENARIOS["no_structure"],
}


def main() -> None:
    """Print a row for each kind of world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    options = parser.parse_args()
    columns = (*(f"gain of {gain:.2f} named" for gain in GAINS), "worlds with a wrong head", "wrong heads")
    print(f"| worlds | {' | '.join(columns)} |")
    print(f"|{'---|' * (1 + len(columns))}")
    for name, scenario in WORLDS.items():
        named, wrong = Counter[float](), []
        for seed in range(options.first, options.first + options.worlds):
            made = planted_world(scenario, cs.Grid(16, 16), seed=seed)
            ranking = cs.methods.annealed(made.task, controls=[made.control], seed=seed, n_bootstraps=0)
            helping = made.own[len(made.own) - len(scenario.weak) :].tolist() if scenario is HELPED else []
            units = map(made.grid.unit, helping)
            gains = dict(zip(units, GAINS, strict=True)) if helping else {}
            named.update(gains[head] for head in ranking.interfering if head in gains)
            wrong.append(sum(head not in gains for head in ranking.interfering))
        hits = [f"{named[gain]} of {options.worlds}" if scenario is HELPED else "" for gain in GAINS]
        row = (f"{options.worlds}, {name}", *hits, sum(map(bool, wrong)), sum(wrong))
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
