"""Pairs of heads that are fully redundant: which search finds them, in planted worlds of 1,024 heads.

    python benchmarks/backups.py --worlds 24

A pair counts as found where both its heads are chosen, by either search where there are two. *Again* is a second search
with the five heads of the first off (``off=``), *beside* one that knows nothing of the first; the cost is that of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import cs_heads as cs
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.simulate import World, planted_world
from cs_heads.units import Unit

Search = Callable[[World, Sequence[Unit], int], cs.HeadRanking]
SCENARIOS = ("hidden_pair", "hidden_pairs")


def annealed(made: World, off: Sequence[Unit], seed: int) -> cs.HeadRanking:
    """The default method, with its default budget."""
    return cs.methods.annealed(
        WithHeadsOff(made.task, off), controls=[WithHeadsOff(made.control, off)], seed=seed, n_bootstraps=0
    )


def group_testing(made: World, off: Sequence[Unit], seed: int) -> cs.HeadRanking:
    """Group testing, with its default budget."""
    return cs.methods.group_testing(WithHeadsOff(made.task, off), controls=[WithHeadsOff(made.control, off)], seed=seed)


SEARCHES: dict[str, tuple[tuple[Search, ...], bool]] = {
    "annealed": ((annealed,), False),
    "annealed, annealed again": ((annealed, annealed), True),
    "annealed, group testing again": ((annealed, group_testing), True),
    "annealed, group testing beside": ((annealed, group_testing), False),
    "group testing": ((group_testing,), False),
}
"""Searches in turn, and whether what the first found is off in the second."""


def main() -> None:
    """Print a row for each scenario and search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=24)
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    options = parser.parse_args()
    print("| scenario | search | pairs found | planted heads found | other heads claimed | evaluations |")
    print("|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        for name in options.searches:
            searches, again = SEARCHES[name]
            pairs = of_pairs = heads = of_heads = others = spent = 0
            for seed in range(options.first, options.first + options.worlds):
                made = planted_world(scenario, seed=seed)
                planted, hidden = {*made.planted}, made.planted[len(made.scenario.drops) :]
                found: list[Unit] = []
                for search in searches:
                    try:
                        ranking = search(made, found if again else (), seed)
                    except cs.BaselineTooLowError:
                        # With the heads of the first search off too little is left to search.
                        continue
                    # Annealed sensing always chooses five: claims are what it is sure of.
                    found = [*found, *ranking.chosen]
                    others += len({*ranking.claims} - planted)
                    spent += ranking.spent
                partners = list(zip(hidden[::2], hidden[1::2], strict=True))
                pairs, of_pairs = pairs + sum({*pair} <= {*found} for pair in partners), of_pairs + len(partners)
                heads, of_heads = heads + len(planted & {*found}), of_heads + len(planted)
            row = (scenario, name, f"{pairs} of {of_pairs}", f"{heads / of_heads:.2f}", others)
            print(f"| {' | '.join(map(str, row))} | {spent / options.worlds / 100:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
