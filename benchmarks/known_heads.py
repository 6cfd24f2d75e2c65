"""What head cards say of heads that the literature describes, in SmolLM2 or another model.

    python benchmarks/known_heads.py --model FOLDER

Two skills whose heads are known in other models: going on with what came before, by *induction heads* (Olsson et al.,
arXiv 2209.11895), which look at what followed an earlier copy, and copy it; and naming the indirect object, by *name
movers* (Wang et al., arXiv 2211.00593), which look at the right name from the last token, and copy it. Explained are
the heads that write most of the answer, and the one with most of the habit *induction*.
"""

from __future__ import annotations

import argparse
from time import process_time

import numpy as np

import cs_heads as cs
from cs_heads.units import Grid

TASKS = {"everyday/copying": "induction heads", "ioi": "name movers"}


def main() -> None:
    """Print a row for each head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--n", type=int, default=60, help="examples")
    parser.add_argument("--heads", type=int, default=4, help="heads that write most, of each skill")
    options = parser.parse_args()
    model = cs.load_model(options.model)
    grid = Grid.from_model(model)
    table = cs.habits(model, progress=False).set_index("head")
    print("| skill | known there | head | clear figures | in words |\n|---|---|---|---|---|")
    for name, known in TASKS.items():
        task = cs.load_task(name, n=100, seed=0)
        start = process_time()
        written = cs.direct_effects(model, task, [grid.unit(0)], n=options.n).writes.heads.mean(axis=0)
        order = [grid.unit(int(place)) for place in np.argsort(-written, axis=None)[: options.heads]]
        heads = [*dict.fromkeys([*map(str, order), str(table["induction"].idxmax())])]
        cards = cs.explain(model, task, heads, n=options.n)
        for card in cards.cards:
            clear = ", ".join(f"{figure.name} {figure.value:.2f}" for figure in card.figures if figure.clear)
            print(f"| {name} | {known} | {card.head} | {clear or 'none'} | {card.words} |")
        print(f"\n{cards.words} ({process_time() - start:.0f} seconds of a core)\n")


if __name__ == "__main__":
    main()
