"""The head atlas of a real model, and what of the papers' claims holds at its size: the CSV files of benchmarks/real.

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/atlas.py --model models/smollm2 --out benchmarks/real/smollm2
    python benchmarks/atlas.py --model models/smollm2 --out benchmarks/real/smollm2_more --more --blimp blimp

The skills are ``everyday/*``; with ``--more`` also the six of *Function Vectors* and IOI, with ``--blimp`` the sets in
a folder of BLiMP files. Written are small files: ``skills.csv`` (heads of each skill, own loss, loss of the others,
verdict), ``matrix.csv`` (the heads of one skill off, all skills measured), ``universal.csv`` and ``shared.csv``,
``curve.csv`` (own loss with the first 1 to 10 heads off), ``habits.csv`` (what universal heads and the first heads look
at) and ``run.json`` (command, seconds, cost); and pictures of the map, the matrix and the tree. ``--save`` keeps the
whole atlas, from which ``--saved`` writes all but the curve and habits anew. With ``--store`` an interrupted run goes
on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd

import cs_heads as cs
from cs_heads import plot
from cs_heads.plot.style import draw_to
from cs_heads.settings import SCREENS
from cs_heads.tasks import builtin_tasks

MORE = ("ioi", "function_vectors/")
N, N_UNSEEN = 100, 60
"""Examples to find heads with, and unseen ones of each skill."""
MOST = 10
"""Heads of the curve."""


def skills_of(options: argparse.Namespace) -> list[cs.Task]:
    """The tasks of an atlas, each with unseen examples."""
    names = [name for name in builtin_tasks() if name.startswith("everyday/")]
    if options.more:
        names += [name for name in builtin_tasks() if name.startswith(MORE)]
    tasks = []
    for name in names:
        given: dict[str, Any] = {"few_shot": 5, "shared": True} if name.startswith("function_vectors/") else {}
        size: dict[str, Any] = {} if name.startswith(("everyday/", "function_vectors/")) else {"n": N}
        tasks.append(cs.load_task(name, seed=options.seed, **size, **given))
    for path in sorted(options.blimp.glob("*.jsonl")) if options.blimp else ():
        from blimp import blimp_task

        tasks.append(blimp_task(path).split(N, options.seed)[0])
    return tasks


def curves(model: Any, tasks: list[cs.Task], found: cs.Atlas, seed: int) -> pd.DataFrame:
    """Own loss on unseen examples with the first heads of each skill off."""
    rows = []
    for task in tasks:
        if task.name not in found.rankings:
            continue
        curve = cs.sparsity_curve(
            model, task, found.rankings[task.name], max_heads=MOST, n=N_UNSEEN, controls=None, seed=seed, progress=False
        )
        for k, drop in enumerate(curve.drops[curve.own]):
            rows.append({"skill": task.name, "k": k, "loss": drop.share_lost})
    return pd.DataFrame(rows)


def looked_at(model: Any, found: cs.Atlas) -> pd.DataFrame:
    """The habits of universal heads, and of the first heads of each skill, with what they serve."""
    serves: dict[str, list[str]] = {str(head): ["all"] for head in found.universal}
    for name, heads in found.heads.items():
        for head in map(str, heads):
            serves.setdefault(head, []).append(name)
    table = cs.habits(model, list(serves))
    return table.assign(serves=[" ".join(serves[head]) for head in table["head"]])


def write(folder: Path, tables: dict[str, pd.DataFrame]) -> None:
    """Small files: three digits."""
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=name == "matrix", float_format="%.3f", lineterminator="\n")


def tables_of(found: cs.Atlas) -> dict[str, pd.DataFrame]:
    """What is written of an atlas itself."""
    shared = [{"head": str(head), "skills": " ".join(names)} for head, names in found.shared.items()]
    mean, error = found.losses.mean(axis=0), (found.errors**2).sum(axis=0) ** 0.5 / len(found.losses)
    universal = [
        {"head": str(head), "mean loss": mean[head.layer, head.index], "error": error[head.layer, head.index]}
        for head in found.universal
    ]
    return {
        "skills": found.to_frame(),
        "matrix": found.matrix(),
        "universal": pd.DataFrame(universal, columns=["head", "mean loss", "error"]),
        "shared": pd.DataFrame(shared, columns=["head", "skills"]),
    }


def main() -> None:
    """Measure, write, and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or name")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--more", action="store_true", help="IOI and the tasks of Function Vectors, too")
    parser.add_argument("--blimp", type=Path, help="folder of BLiMP files, JSON lines")
    parser.add_argument("--screen", choices=SCREENS, default="masks")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--save", type=Path, help="file for the whole atlas")
    parser.add_argument("--saved", type=Path, help="write the tables of this atlas, and run nothing")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.saved:
        write_atlas(options.out, cs.Atlas.load(options.saved))
        return
    if options.model is None:
        parser.error("--model says what is measured")
    model = cs.load_model(options.model, dtype="float32")
    tasks = skills_of(options)
    start = perf_counter()
    found = cs.atlas(model, tasks, seed=options.seed, n=N_UNSEEN, screen=options.screen, store=options.store)
    seconds = perf_counter() - start
    if options.save:
        found.save(options.save)
    write_atlas(options.out, found)
    own, others = found.means()
    record = {
        "command": shlex.join(["python", "benchmarks/atlas.py", *sys.argv[1:]]),
        "seconds": round(seconds),
        "spent": found.spent,
        "own": round(own, 4),
        "others": round(others, 4),
        "left_out": found.left_out,
        "clusters": found.clusters(),
        **{name: found.provenance.get(name) for name in ("model", "search", "seed")},
    }
    (options.out / "run.json").write_text(json.dumps(record, indent=1, default=str) + "\n")
    print(found)
    print(f"{seconds:.0f} s, own {own:.3f}, others {others:.3f}", flush=True)
    write(options.out, {"curve": curves(model, tasks, found, options.seed), "habits": looked_at(model, found)})


def write_atlas(folder: Path, found: cs.Atlas) -> None:
    """Tables and pictures."""
    write(folder, tables_of(found))
    for name, draw in (("atlas", plot.atlas), ("matrix", plot.skill_matrix), ("tree", plot.skill_tree)):
        draw_to(folder / f"{name}.png", draw, found)


if __name__ == "__main__":
    main()
