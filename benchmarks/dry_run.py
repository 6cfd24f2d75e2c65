"""What ``--dry-run`` says beside what the same command takes: example-evaluations, seconds, and its own seconds.

    python benchmarks/dry_run.py
    python benchmarks/dry_run.py --model models/smollm2 --task everyday/plural --more "--budget 1500 --dtype float32"

Each command runs twice as a user runs it, with ``--dry-run`` and without, in processes of their own, ``--repeats``
times in turn: medians are printed. Seconds said and taken are on the wall. Those of the dry run count from its start to
its end, with the imports and the loading of the model, on the wall and of the processor: where these differ, other work
ran beside, and the seconds of both sides hold for that load alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import subprocess
import sys
from statistics import median
from time import perf_counter
from typing import Any

CASES = (
    "find",
    "find --method css",
    "find --method one-shot",
    "find --method gradient",
    "atlas",
    "compare --methods annealed,css,gradient --budget 6000",
)


def run(command: list[str]) -> tuple[dict[str, Any], float, float]:
    """What a command prints as JSON, and the seconds of its process: on the wall, and of the processor."""
    start, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "cs_heads.cli", *command, "--json"], capture_output=True, check=False, text=True
    )
    if done.returncode:
        raise SystemExit(f"cs-heads {shlex.join(command)} failed:\n{done.stderr}")
    wall, after = perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout.splitlines()[-1]), wall, cpu


def loading(model: str) -> float:
    """Seconds of a process that imports what runs methods and loads a model, which are no step of a command."""
    code = "import sys, cs_heads as cs; cs.compare, cs.load_model(sys.argv[1])"
    start = perf_counter()
    subprocess.run([sys.executable, "-c", code, model], check=True)
    return perf_counter() - start


def taken(case: str, result: dict[str, Any], seconds: float) -> dict[str, tuple[int, float]]:
    """Example-evaluations and seconds of each step; of a comparison all, in so many ``seconds``."""
    if case.startswith("atlas"):
        return {"search and proof": (result["spent"], result["seconds"])}
    if case.startswith("compare"):
        methods = result["methods"].values()
        spent = result["spent"] + sum(each["spent"] for each in methods)
        return {"all": (spent, seconds)}
    return {
        "search": (result["spent"], result["seconds"]["find"]),
        "proof": (result["confirm"]["spent"], result["seconds"]["confirm"]),
    }


def main() -> None:
    """Run all commands, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--task", default="demo/code")
    parser.add_argument("--cases", nargs="+", default=CASES, help="commands of cs-heads, without model and task")
    parser.add_argument("--more", default="", help="put behind every command")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    print("| command | step | evaluations: said, taken, ratio | seconds: said, taken, ratio | dry run, s (processor) |")
    print("|---|---|---|---|---|")
    for case in options.cases:
        command = [*shlex.split(f"{case} {options.more}"), "--model", options.model]
        command += [] if case.startswith("atlas") else ["--task", options.task]
        rows: dict[str, list[tuple[float, ...]]] = {}
        for _ in range(options.repeats):
            said, wall, cpu = run([*command, "--dry-run"])
            result, whole, _ = run(command)
            steps = taken(case, result, whole - loading(options.model) if case.startswith("compare") else 0.0)
            if "all" in steps:
                said = {kind: {"all": sum(said[kind].values())} for kind in ("evaluations", "seconds")}
            for step, (spent, seconds) in steps.items():
                rows.setdefault(step, []).append(
                    (said["evaluations"][step], spent, said["seconds"][step], seconds, wall, cpu)
                )
        for step, each in rows.items():
            n, spent, s, seconds, wall, cpu = map(median, zip(*each, strict=True))
            print(
                f"| `{case}` | {step} | {n:,.0f}, {spent:,.0f}, {n / spent:.2f} | {s:.1f}, {seconds:.1f}, "
                f"{s / seconds:.2f} | {wall:.1f} ({cpu:.1f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
