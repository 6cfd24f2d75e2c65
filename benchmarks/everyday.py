"""What models score on the everyday skills, intact: the table of docs/benchmarks/everyday.md.

    python benchmarks/real_models.py --out models
    python benchmarks/everyday.py --models models/smollm2 models/gemma3 models/qwen2.5-coder

One row a skill: what it asks, examples to find and to confirm with, the score of guessing, and each model's score on
the first finding examples with no head off. ``--tokens`` counts the answers that are one token to each model instead.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import cs_heads as cs
from cs_heads.tasks import builtin_tasks

FAMILY = "everyday/"


def baseline(model: Any, task: cs.Task) -> float:
    """The mean score of the intact model."""
    return float(cs.Experiment(model, task, progress=False).baseline().mean())


def one_token(model: Any, task: cs.Task) -> float:
    """The share of answers that are one token to the model."""
    encoded = cs.Experiment(model, task, progress=False).encoded
    pairs = zip(encoded, task.examples, strict=True)
    return sum(len(tokens.continuations[example.answer]) == 1 for tokens, example in pairs) / len(task)


def main() -> None:
    """Print one row a skill, in Markdown, once the last model has been run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, help="folders, or names of models")
    parser.add_argument("--skills", nargs="+", help="default: all")
    parser.add_argument("--n", type=int, default=60, help="examples a skill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", action="store_true", help="the share of answers of one token, not the score")
    options = parser.parse_args()
    entries = {name.removeprefix(FAMILY): entry for name, entry in builtin_tasks().items() if name.startswith(FAMILY)}
    skills = options.skills or list(entries)
    tasks = {skill: cs.load_task(f"{FAMILY}{skill}", seed=options.seed) for skill in skills}
    columns: dict[str, list[float]] = {}
    for name in options.models:
        model = cs.load_model(name)
        column = columns.setdefault(Path(name).name, [])
        for skill, task in tasks.items():
            column.append((one_token if options.tokens else baseline)(model, task.take(options.n)))
            print(f"{name}: {skill} {column[-1]:.2f}", file=sys.stderr, flush=True)
    print(f"| skill | what it asks | to find, to confirm | chance | {' | '.join(columns)} |")
    print("|---|---|---|---|" + "---|" * len(columns))
    for row, (skill, task) in enumerate(tasks.items()):
        assert task.held_out is not None
        cells = [skill, entries[skill].about, f"{len(task)}, {len(task.held_out)}", f"{task.chance:.2f}"]
        print(f"| {' | '.join([*cells, *(f'{column[row]:.2f}' for column in columns.values())])} |")


if __name__ == "__main__":
    main()
