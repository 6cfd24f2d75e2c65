"""From a loaded model to a ranking and its verdict: seconds, and what the heads found take from every skill.

    python benchmarks/real_models.py --out models --models smollm2
    git worktree add before 2d04b5d
    python benchmarks/minute.py --model models/smollm2 --before before --out minute.jsonl
    python benchmarks/minute.py --table minute.jsonl > minute.md

Every way finds five heads of an everyday skill with the default controls and proves them, in a process of its own that
has loaded the model, the ways of a skill and seed one after another, an atlas once a seed. *before* is the library as
it lies in another folder; *float32* leaves out the faster dtype; *gradients* screens all heads by gradients and not by
masks; *atlas* finds and proves all everyday skills at once by masks, and each counts its share of the seconds;
*together* is an atlas screened by gradients at three fifths of the budget, and *lean* at two fifths: in all three a
loss of others counts three of one of the own skill. *thrifty* is one at a half, where it counts .8, so that a skill may
keep universal heads. Seconds are on the wall, and beside them those of processors, which other work on the machine
touches less. Own loss and others' mean loss are of 60 unseen examples of every skill that the model can do, as in
``specificity.py``; they are measured when all ways have ended, those of the same heads and examples once. Results are
appended to ``--out``; what is there is not run again. A table has the runs that all of ``--ways`` have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Collection
from inspect import signature
from itertools import product
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

import cs_heads as cs

# What runs an older library imports no other benchmark: these are of this one.
FAMILY = "everyday/"
N_UNSEEN = 60
SKILLS = ("agreement", "code", "indirect_object", "kinds", "plural", "succession")
WAYS: dict[str, dict[str, Any]] = {
    "before": {},
    "float32": {"compute_dtype": "float32"},
    "now": {},
    "gradients": {"screen": "gradients"},
    "atlas": {"screen": "masks", "control_weight": 3.0},
    "together": {"screen": "gradients", "budget": 35_000, "control_weight": 3.0},
    "lean": {"screen": "gradients", "budget": 22_500, "control_weight": 3.0},
    "thrifty": {"screen": "gradients", "budget": 30_000, "control_weight": 0.8},
}
"""What ``find_heads`` is given beside its defaults, or ``atlas``."""
OF_ATLAS = ("atlas", "together", "lean", "thrifty")
"""Ways that find and prove all everyday skills in one call."""


def find_and_prove(model: str, skill: str, seed: int, given: dict[str, Any]) -> dict[str, Any]:
    """One record of this library's way, or of what ``PYTHONPATH`` has in its place."""
    loaded = cs.load_model(model, dtype="float32")
    task = cs.load_task(f"{FAMILY}{skill}", seed=seed)
    start, worked = perf_counter(), process_time()
    ranking = cs.find_heads(loaded, task, seed=seed, progress=False, **given)
    found, searched = perf_counter(), process_time()
    # An argument that had another name.
    (exclude,) = {"exclude", "apart"} & {*signature(cs.confirm).parameters}
    put: dict[str, Any] = {exclude: ranking.shared}
    proof = cs.confirm(loaded, task, ranking.top(5), seed=seed, progress=False, **put)
    return {
        "seconds": [round(found - start, 1), round(perf_counter() - found, 1)],
        "processor": [round(searched - worked, 1), round(process_time() - searched, 1)],
        "spent": [ranking.spent, proof.spent],
        "heads": [str(head) for head in ranking.top(5)],
        "verdict": proof.verdict,
        "close": proof.close,
        "threads": torch.get_num_threads(),
    }


def atlas(model: str, seed: int, given: dict[str, Any], keep: Path | None) -> dict[str, dict[str, Any]]:
    """The records of all skills by name; each has its share of the seconds and of the cost. The atlas may be kept."""
    loaded = cs.load_model(model, dtype="float32")
    start, worked = perf_counter(), process_time()
    found = cs.atlas(loaded, seed=seed, n=N_UNSEEN, progress=False, **given)
    seconds, processor, n = perf_counter() - start, process_time() - worked, len(found.proofs)
    if keep:
        found.save(keep)
    return {
        name.removeprefix(FAMILY): {
            "seconds": [round(seconds / n, 1)],
            "processor": [round(processor / n, 1)],
            "spent": [found.spent // n],
            "heads": list(map(str, found.heads[name])),
            "verdict": proof.verdict,
            "close": proof.close,
            "threads": torch.get_num_threads(),
        }
        for name, proof in found.proofs.items()
    }


def measure(options: argparse.Namespace) -> None:
    """Run what is missing of all ways, skill by skill; then say what their heads take."""
    from specificity import records

    for seed in options.seeds:
        done = {(r["skill"], r["way"]) for r in records(options.out) if r["seed"] == seed}
        for skill, way in product(options.skills, options.ways):
            if (skill, way) in done:
                continue
            library = options.before if way == "before" else Path(__file__).resolve().parent.parent
            command = [sys.executable, __file__, "--model", options.model, "--one", skill, str(seed), way]
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                command += ["--keep", str(options.keep / f"{way}_{seed}.json")]
            ran = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(library)}, stdout=subprocess.PIPE, text=True, check=True
            )
            told = json.loads(ran.stdout.splitlines()[-1])
            for name, one in told.items() if way in OF_ATLAS else [(skill, told)]:
                if name not in options.skills:
                    continue
                record = {"skill": name, "seed": seed, "way": way, **one, "losses": {}}
                done.add((name, way))
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                print(f"{seed} {name}, {way}: {record['seconds']} s", flush=True)
    measure_losses(options)


def measure_losses(options: argparse.Namespace) -> None:
    """Measure the losses that records still lack: after all ways, so that no other work is beside them."""
    from specificity import Judge, own_and_others, records

    from cs_heads.tasks import builtin_tasks
    from cs_heads.units import as_heads

    def key(record: dict[str, Any]) -> tuple[Any, ...]:
        return record["seed"], *sorted(record["heads"])

    names = [name.removeprefix(FAMILY) for name in builtin_tasks() if name.startswith(FAMILY)]
    done = list(records(options.out))
    lacking = [record for record in done if not record["losses"]]
    known = {key(r): r["losses"] for file in (options.out, *options.judged) for r in records(file) if r["losses"]}
    model = cs.load_model(options.model, dtype="float32")
    for seed in dict.fromkeys(record["seed"] for record in lacking):
        judge = Judge(model, {name: cs.load_task(f"{FAMILY}{name}", seed=seed) for name in names}, "heads")
        for record in lacking:
            if record["seed"] != seed:
                continue
            if key(record) not in known:
                known[key(record)] = judge.losses(list(as_heads("heads", record["heads"])))
            record["losses"] = known[key(record)]
            with_losses = options.out.with_suffix(".new")
            with_losses.write_text("".join(json.dumps(r) + "\n" for r in done), encoding="utf-8")
            with_losses.replace(options.out)
            if record["skill"] in record["losses"]:
                own, others = own_and_others(record)
                print(f"{seed} {record['skill']}, {record['way']}: own {own:.2f}, others {others:.2f}", flush=True)


def table(path: Path, ways: Collection[str]) -> str:
    """Means by way over the skills and seeds that each of these ways has; then seconds by skill.

    Losses are left empty where a record still lacks them.
    """
    from specificity import own_and_others, records, share

    def judged(some: list[dict[str, Any]]) -> bool:
        return all(record["losses"] for record in some)

    done = [record for record in records(path) if not record["losses"] or record["skill"] in record["losses"]]
    ways = [way for way in WAYS if way in ways and any(record["way"] == way for record in done)]
    runs = {way: {(r["skill"], r["seed"]): r for r in done if r["way"] == way} for way in ways}
    common = sorted(set.intersection(*(set(each) for each in runs.values())))
    lines = [
        "| way | runs | search, s of processors | proof, s | together: median, s | times faster | on the wall: median, "
        "s | times faster | example-evaluations | own loss | others' mean loss |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    first = {clock: sum(sum(runs[ways[0]][key][clock]) for key in common) for clock in ("processor", "seconds")}
    for way in ways:
        mine = [runs[way][key] for key in common]
        parts = np.array([record["processor"] for record in mine])
        wall = np.array([sum(record["seconds"]) for record in mine])
        seconds = parts.sum(axis=1)
        search, proof = (f"{side:.0f}" for side in parts.mean(axis=0)) if parts.shape[1] > 1 else ("", "")
        own, others = map(share, np.mean([*map(own_and_others, mine)], axis=0)) if judged(mine) else ("", "")
        spent = np.mean([sum(record["spent"]) for record in mine])
        lines.append(
            f"| {way} | {len(mine)} | {search} | {proof} | {np.median(seconds):.0f} | "
            f"{first['processor'] / seconds.sum():.1f} | {np.median(wall):.0f} | {first['seconds'] / wall.sum():.1f} | "
            f"{spent:,.0f} | {own} | {others} |"
        )
    lines += ["", "| skill | " + " | ".join(ways) + " |", "|" + "---|" * (len(ways) + 1)]
    for skill in dict.fromkeys(skill for skill, _ in common):
        cells = []
        for way in ways:
            mine = [runs[way][key] for key in common if key[0] == skill]
            pairs = [" / ".join(map(share, own_and_others(record))) for record in mine] if judged(mine) else []
            seconds = ", ".join(f"{sum(record['processor']):.0f}" for record in mine)
            verdicts = ", ".join(f"{r['verdict']}{' (close)' if r['close'] else ''}" for r in mine)
            cells.append(f"{seconds} s: {', '.join(pairs)}{'; ' if pairs else ''}{verdicts}")
        lines.append(f"| {skill} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, print the tables, or run one way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or name")
    parser.add_argument("--before", type=Path, help="folder of the library to compare with")
    parser.add_argument("--out", type=Path, help="results, one JSON object a line")
    parser.add_argument("--judged", type=Path, nargs="+", default=[], help="earlier results; losses of the same heads")
    parser.add_argument("--table", type=Path, help="print the tables of these results, of --ways, and run nothing")
    parser.add_argument("--skills", nargs="+", default=list(SKILLS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--keep", type=Path, help="folder for the atlases, as benchmarks/atlas.py --saved reads them")
    parser.add_argument("--one", nargs=3, metavar=("SKILL", "SEED", "WAY"), help="run one, and print its record")
    options = parser.parse_args()
    if options.table:
        print(table(options.table, options.ways))
    elif options.one:
        skill, seed, way = options.one
        given = WAYS[way]
        if way in OF_ATLAS:
            print(json.dumps(atlas(options.model, int(seed), given, options.keep)))
        else:
            print(json.dumps(find_and_prove(options.model, skill, int(seed), given)))
    elif options.model is None or options.out is None:
        parser.error("--model and --out say what is measured, and where results go")
    elif missing := [str(path) for path in options.judged if not path.is_file()]:
        parser.error(f"--judged must be files of results, got {', '.join(missing)}")
    elif "before" in options.ways and not (options.before and (options.before / "cs_heads").is_dir()):
        parser.error(f"--before must be a folder with the library to compare with, got {options.before}")
    else:
        measure(options)


if __name__ == "__main__":
    main()
