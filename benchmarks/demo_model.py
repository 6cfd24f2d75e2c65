"""Search the demo model for the heads of each skill, blindly, and hold the answers against the planted truth.

    python benchmarks/demo_model.py --seeds 0 1 2 --out demo_model.json
    python benchmarks/demo_model.py --methods "iterative greedy" --seeds 0 --out demo_model.json --minutes 10

The searches see "find" examples alone and are fixed in advance: CSB and CSS with 100 and 200 masks of density .05
and alpha .01; annealed sensing with 2,000, 4,000 and 5,000 example-evaluations and what it takes by default, the next
skill as its control; one-shot greedy (every single head); iterative greedy (up to five such rounds, each with the heads
chosen so far off, until no head lowers the score). Five heads are returned each time and ablated on "confirm" examples
of every skill.
Every search is a line of the file, and a run goes on where the last one stopped; with ``--store`` also within a search,
and what one method measured is free for the next. Prints the tables of the model card in Markdown, of all searches in
the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

import cs_heads as cs
from cs_heads.demo import SKILLS, planted_heads, planted_universal_heads
from cs_heads.units import Unit

K = 5
N_FIND = 100
N_CONFIRM = 300


Search = Callable[[Callable[[cs.Task], cs.Experiment], str, int], cs.HeadRanking]
"""Makes experiments, and is given a skill and a seed."""


def finding(skill: str, seed: int) -> cs.Task:
    """The examples that a search sees."""
    return cs.load_task(f"demo/{skill}", n=N_FIND, seed=seed)


def annealed(budget: int | None) -> Search:
    """Annealed sensing; the control, whose cost counts, is the next skill."""

    def run(made: Callable[[cs.Task], cs.Experiment], skill: str, seed: int) -> cs.HeadRanking:
        control = made(finding(SKILLS[(SKILLS.index(skill) + 1) % len(SKILLS)], seed))
        return cs.methods.annealed(made(finding(skill, seed)), controls=[control], budget=budget, k=K, seed=seed)

    return run


def alone(method: Callable[..., cs.HeadRanking], **options: Any) -> Search:
    """A method that needs the skill's own examples and no control."""
    return lambda made, skill, seed: method(made(finding(skill, seed)), seed=seed, **options)


def sensing(design: str, n_masks: int) -> Search:
    """Compressed sensing with so many masks of density .05."""
    return alone(cs.methods.compressed_sensing, n_masks=n_masks, density=0.05, alpha=0.01, design=design)


METHODS: dict[str, Search] = {
    "annealed, 2,000": annealed(2000),
    "annealed, 4,000": annealed(4000),
    "annealed, 5,000": annealed(5000),
    "annealed, default": annealed(None),
    "CSB, 100 masks": sensing("bernoulli", 100),
    "CSB, 200 masks": sensing("bernoulli", 200),
    "CSS, 100 masks": sensing("stratified", 100),
    "CSS, 200 masks": sensing("stratified", 200),
    "one-shot greedy": alone(cs.methods.greedy, one_shot=True),
    "iterative greedy": alone(cs.methods.greedy, k=K),
}


def main() -> None:
    """Run the searches that are missing, print the tables, write every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--skills", nargs="+", choices=SKILLS, default=list(SKILLS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, default=None, help="JSON file of every search, read and added to")
    parser.add_argument("--store", type=Path, default=None, help="SQLite file of every result")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no search after so long")
    options = parser.parse_args()
    start = perf_counter()
    model = cs.load_model("demo")
    made = partial(cs.Experiment, model, store=options.store, progress=False)
    confirm = {skill: made(confirming_task(skill, N_CONFIRM)) for skill in SKILLS}
    rows: list[dict[str, Any]] = []
    if options.out is not None and options.out.exists():
        rows = json.loads(options.out.read_text())
    done = {(row["method"], row["seed"], row["skill"]) for row in rows}
    wanted = itertools.product(options.methods, options.seeds, options.skills)
    for method, seed, skill in tqdm([search for search in wanted if search not in done]):
        if perf_counter() - start > 60 * options.minutes:
            break
        ranking = METHODS[method](made, skill, seed)
        heads = ranking.top(K)
        rows.append({"method": method, "seed": seed, "skill": skill, "heads": [str(head) for head in heads]})
        rows[-1] |= {"spent": ranking.spent, **judged(heads, skill, confirm)}
        tqdm.write(json.dumps(rows[-1]))
        if options.out is not None:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        return
    frame = pd.DataFrame(rows)
    # In the order of METHODS and SKILLS, in whatever order they were run.
    for column, order in (("method", METHODS), ("skill", SKILLS)):
        frame[column] = pd.Categorical(frame[column], [name for name in order if name in set(frame[column])])
    frame = frame.sort_values(["method", "skill", "seed"])
    accuracy = {skill: float(experiment.baseline().mean()) for skill, experiment in confirm.items()}
    print(planted_table(confirm, accuracy), search_table(frame), recall_table(frame), sep="\n\n")


def confirming_task(skill: str, n: int) -> cs.Task:
    """``n`` confirming examples, the same for every search."""
    held_out = cs.load_task(f"demo/{skill}", n=1, seed=0).held_out
    assert held_out is not None
    return held_out.take(n)


def judged(heads: list[Unit], skill: str, confirm: dict[str, cs.Experiment]) -> dict[str, Any]:
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
        groups = [[head] for head in heads] + [planted_universal_heads()]
        lost = accuracy[skill] - experiment(cs.designs.explicit(experiment.grid, groups)).mean(axis=1)
        alone = ", ".join(f"{head} ({100 * drop:.0f})" for head, drop in zip(heads, lost, strict=False))
        five = judged(heads, skill, confirm)
        cells = f"{100 * five['own']:.0f} / {100 * five['worst']:.0f} {five['worst_skill']} | {100 * lost[-1]:.0f}"
        lines.append(f"| {skill} | {accuracy[skill]:.3f} | {alone} | {cells} |")
    return "\n".join(lines)


def search_table(frame: pd.DataFrame) -> str:
    """Recall and own drop / worst other drop in points of the five heads of each search, seed after seed."""
    methods = list(frame.method.cat.categories)
    lines = [f"| skill | {' | '.join(methods)} |", "|---|" + "---|" * len(methods)]
    for skill in frame.skill.cat.categories:
        cells = []
        for method in methods:
            rows = frame[(frame.skill == skill) & (frame.method == method)]
            cells.append(
                ", ".join(f"{row.recall:.1f}: {100 * row.own:.0f}/{100 * row.worst:.0f}" for row in rows.itertuples())
            )
        lines.append(f"| {skill} | {' | '.join(cells)} |")
    return "\n".join(lines)


def recall_table(frame: pd.DataFrame) -> str:
    """Mean recall of the planted heads and mean own drop by method, with its cost."""
    lines = ["| method | searches | recall@5 | drop@5, points | example-evaluations |", "|---|---|---|---|---|"]
    for method, rows in frame.groupby("method", observed=True):
        lines.append(
            f"| {method} | {len(rows)} | {rows.recall.mean():.3f} | {100 * rows.own.mean():.1f} | "
            f"{rows.spent.mean():,.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
