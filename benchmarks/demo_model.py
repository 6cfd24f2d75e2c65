"""Search the demo model for the heads of each skill, blindly, and hold the answers against the planted truth.

    python benchmarks/demo_model.py --seeds 0 1 2 --out demo_model.json

The searches see "find" examples alone and are fixed in advance: CSS with 100 and 200 masks of density .05
and alpha .01; annealed sensing with 2,000, 4,000 and 5,000 example-evaluations, the next skill as its control;
one-shot greedy (every single head); iterative greedy (up to five such rounds, each with the heads chosen so
far off, until no head lowers the score). Five heads are returned each time and ablated on "confirm" examples of
every skill.
Prints the tables of the model card in Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

import cs_heads as cs
from cs_heads.demo import SKILLS, planted_heads, universal_heads

K = 5
N_FIND = 100
N_CONFIRM = 300


def annealed(experiment: cs.Experiment, seed: int, budget: int) -> cs.HeadRanking:
    """Annealed sensing; the control, whose cost counts, is the next skill."""
    following = SKILLS[(SKILLS.index(experiment.task.name.removeprefix("demo/")) + 1) % len(SKILLS)]
    control = cs.Experiment(experiment.model, cs.load_task(f"demo/{following}", n=N_FIND, seed=seed), progress=False)
    return cs.methods.annealed(experiment, control=control, budget=budget, k=K, seed=seed)


METHODS: dict[str, Callable[..., cs.HeadRanking]] = {
    "annealed, 2,000": partial(annealed, budget=2000),
    "annealed, 4,000": partial(annealed, budget=4000),
    "annealed, 5,000": partial(annealed, budget=5000),
    "CSS, 100 masks": partial(cs.methods.compressed_sensing, n_masks=100, density=0.05),
    "CSS, 200 masks": partial(cs.methods.compressed_sensing, n_masks=200, density=0.05),
    "one-shot greedy": partial(cs.methods.greedy, one_shot=True),
    "iterative greedy": partial(cs.methods.greedy, k=K),
}


def main() -> None:
    """Run the searches, print the tables, write every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--skills", nargs="+", choices=SKILLS, default=list(SKILLS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, default=None, help="JSON file of every search")
    options = parser.parse_args()
    model = cs.load_model("demo")
    confirm = {skill: cs.Experiment(model, confirming_task(skill, N_CONFIRM), progress=False) for skill in SKILLS}
    rows: list[dict[str, Any]] = []
    bar = tqdm(total=len(options.seeds) * len(options.skills) * len(options.methods))
    for seed in options.seeds:
        for skill in options.skills:
            task = cs.load_task(f"demo/{skill}", n=N_FIND, seed=seed)
            experiment = cs.Experiment(model, task, progress=False)
            for method in options.methods:
                ranking = METHODS[method](experiment, seed=seed)
                heads = ranking.top(K)
                rows.append({"method": method, "seed": seed, "skill": skill, "heads": [str(h) for h in heads]})
                rows[-1] |= {"spent": ranking.spent, **judged(heads, skill, confirm)}
                bar.update()
                bar.write(json.dumps(rows[-1]))
                if options.out is not None:
                    options.out.write_text(json.dumps(rows, indent=1) + "\n")
    frame = pd.DataFrame(rows)
    accuracy = {skill: float(experiment.baseline().mean()) for skill, experiment in confirm.items()}
    print(planted_table(confirm, accuracy), search_table(frame), recall_table(frame), sep="\n\n")


def confirming_task(skill: str, n: int) -> cs.Task:
    """``n`` confirming examples, the same for every search."""
    held_out = cs.load_task(f"demo/{skill}", n=1, seed=0).held_out
    assert held_out is not None
    return held_out.take(n)


def judged(heads: list[cs.Head], skill: str, confirm: dict[str, cs.Experiment]) -> dict[str, Any]:
    """Recall of the planted heads, and the drop of the skill itself and of the other skill that suffers most."""
    drops = {}
    for name, experiment in confirm.items():
        mask = experiment.grid.mask(heads)[None]
        drops[name] = float(experiment.baseline().mean() - experiment(mask).mean())
    own = drops.pop(skill)
    worst = max(drops, key=lambda name: drops[name])
    recall = len({*heads} & {*planted_heads(skill)}) / K
    return {"recall": recall, "own": own, "worst": drops[worst], "worst_skill": worst}


def planted_table(confirm: dict[str, cs.Experiment], accuracy: dict[str, float]) -> str:
    """Drops, in points: each planted head alone, the five together, the universal heads."""
    lines = ["| skill | accuracy | planted heads (drop alone) | five off: own / worst other | universal off |"]
    lines.append("|---|---|---|---|---|")
    for skill, experiment in confirm.items():
        heads = planted_heads(skill)
        groups = [[head] for head in heads] + [universal_heads()]
        lost = accuracy[skill] - experiment(cs.masks.explicit(experiment.grid, groups)).mean(axis=1)
        alone = ", ".join(f"{head} ({100 * drop:.0f})" for head, drop in zip(heads, lost, strict=False))
        five = judged(heads, skill, confirm)
        cells = f"{100 * five['own']:.0f} / {100 * five['worst']:.0f} {five['worst_skill']} | {100 * lost[-1]:.0f}"
        lines.append(f"| {skill} | {accuracy[skill]:.3f} | {alone} | {cells} |")
    return "\n".join(lines)


def search_table(frame: pd.DataFrame) -> str:
    """Recall and own drop / worst other drop in points of the five heads of each search, seed after seed."""
    methods = list(frame.method.unique())
    lines = [f"| skill | {' | '.join(methods)} |", "|---|" + "---|" * len(methods)]
    for skill in frame.skill.unique():
        cells = []
        for method in methods:
            rows = frame[(frame.skill == skill) & (frame.method == method)].sort_values("seed")
            cells.append(
                ", ".join(f"{row.recall:.1f}: {100 * row.own:.0f}/{100 * row.worst:.0f}" for row in rows.itertuples())
            )
        lines.append(f"| {skill} | {' | '.join(cells)} |")
    return "\n".join(lines)


def recall_table(frame: pd.DataFrame) -> str:
    """Mean recall of the planted heads and mean own drop by method, with its cost."""
    lines = ["| method | searches | recall@5 | own drop | example-evaluations |", "|---|---|---|---|---|"]
    for method, rows in frame.groupby("method", sort=False):
        lines.append(
            f"| {method} | {len(rows)} | {rows.recall.mean():.2f} | {100 * rows.own.mean():.0f} | "
            f"{rows.spent.mean():,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
