"""What ``--dry-run`` says beside what the same command takes: example-evaluations, seconds, and its own seconds.

    python benchmarks/dry_run.py
    python benchmarks/dry_run.py --model models/smollm2 --task everyday/plural --more "--budget 1500 --dtype float32"

Each command runs twice as a user runs it, with ``--dry-run`` and without, in processes of their own. Seconds are on the
wall, so nothing else should run on the machine; those of the dry run count from its start to its end, with the imports
and the loading of the model.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from time import perf_counter
from typing import Any

CASES = (
    "find",
    "find --method css",
    "find --method one-shot",
    "find --method gradient",
    "atlas --budget 3000",
)


def run(command: list[str]) -> tuple[dict[str, Any], float]:
    """What a command prints as JSON, and the seconds of its process."""
    start = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cs_heads.cli", *command, "--json"], capture_output=True, check=False, text=True
    )
    if done.returncode:
        raise SystemExit(f"cs-heads {shlex.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1]), perf_counter() - start


def taken(case: str, result: dict[str, Any]) -> dict[str, tuple[int, float]]:
    """Example-evaluations and seconds of each step."""
    if case.startswith("atlas"):
        return {"search and proof": (result["spent"], result["seconds"])}
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
    options = parser.parse_args()
    print("| command | step | evaluations: said, taken, ratio | seconds: said, taken, ratio | the dry run, s |")
    print("|---|---|---|---|---|")
    for case in options.cases:
        command = [*shlex.split(f"{case} {options.more}"), "--model", options.model]
        command += ["--task", options.task] if case.startswith("find") else []
        said, own = run([*command, "--dry-run"])
        result, _ = run(command)
        for step, (spent, seconds) in taken(case, result).items():
            n, s = said["evaluations"][step], said["seconds"][step]
            print(
                f"| `{case}` | {step} | {n:,}, {spent:,}, {n / spent:.2f} | {s:.1f}, {seconds:.1f}, {s / seconds:.2f} "
                f"| {own:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
