"""What gradients alone say of a model's heads: how many of an atlas's heads are among their best.

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/screen.py --model models/smollm2 --skills skills.csv

Each skill of a table of ``benchmarks/atlas.py`` is screened as a search screens it (rows of gradients on the way to
random masks, two examples each), and at the intact model itself, with as many examples. Heads are ordered by what
they take from the skill less the mean of what they take from the others; a table says what share of the heads of the
skills is among the best 10, 20, 30 and 60, and the seconds of processors a skill.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import process_time

import numpy as np
import pandas as pd

import cs_heads as cs
from cs_heads.methods.annealing.gradient_screen import RowSlopes, Screening
from cs_heads.methods.losses import TaskLoss
from cs_heads.tasks import finding_side

BEST = (10, 20, 30, 60)
EXAMPLES = 8
"""Of a task under one mask in a search; a row of gradients has as many or fewer."""


def rank(effects: dict[str, np.ndarray], skill: str) -> np.ndarray:
    """The place of each head, by what it takes from a skill less what it takes from the others in the mean."""
    others = np.mean([effect for name, effect in effects.items() if name != skill], axis=0)
    return np.argsort(np.argsort(-(effects[skill] - np.maximum(others, 0))))


def main() -> None:
    """Screen all skills, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--skills", type=Path, required=True, help="skills.csv of an atlas")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--density", type=float, help="share of the heads in each mask (default: that of a search)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table = pd.read_csv(options.skills)
    found = dict(zip(table["skill"], table["heads"].str.split(), strict=True))
    model = cs.load_model(options.model, dtype="float32")
    first = cs.Experiment(model, finding_side(cs.load_task(next(iter(found)), seed=options.seed)), progress=False)
    first = first.in_faster_dtype()
    tasks = {name: TaskLoss.of(first.on(finding_side(cs.load_task(name, seed=options.seed)))) for name in found}
    print(f"| rows | {' | '.join(f'of the best {best}' for best in BEST)} | s a skill |\n{'|---' * (2 + len(BEST))}|")
    screening = Screening.of(None, 0, EXAMPLES)
    assert screening is not None
    ways = [("on the way to masks", rows) for rows in options.rows] + [("at the intact model", max(options.rows))]
    for way, rows in ways:
        start = process_time()
        effects: dict[str, np.ndarray] = {}
        density = options.density if way.startswith("on") else 0.0
        put = {} if density is None else {"density": density}
        for name, task in tasks.items():
            rng = np.random.default_rng(options.seed)
            effects[name] = RowSlopes.of(task, rows, screening.per_row, rng, **put).fit().effect
        seconds = (process_time() - start) / len(tasks)
        places = [rank(effects, name)[first.grid.index(head)] for name, heads in found.items() for head in heads]
        shares = [f"{np.mean(np.array(places) < best):.2f}" for best in BEST]
        print(f"| {rows}, {way} | {' | '.join(shares)} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
