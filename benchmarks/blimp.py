"""Find and confirm the heads of BLiMP sets on any model: the tables of docs/benchmarks/real-models.md.

    python benchmarks/blimp.py --model FOLDER_OR_NAME --data FOLDER

``--data`` holds BLiMP files (JSON lines with ``sentence_good`` and ``sentence_bad``). Each pair becomes a
choice between two whole sentences after an empty prompt, the good one first and second in turn. ``--control`` gives
annealed sensing the next file as its control. CSS beside annealed sensing at half its cost:

    python benchmarks/blimp.py --model ... --data ... --n 200 --unseen 400 --seed 0
    python benchmarks/blimp.py --model ... --data ... --n 200 --unseen 400 --seed 0 --method annealed --budget 17500
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import cs_heads as cs


def blimp_task(path: Path) -> cs.Task:
    """The pairs of one file as a task of the built-in one's name; pairs of equal sentences are left out."""
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        pair = json.loads(line)
        choices = [pair["sentence_good"], pair["sentence_bad"]]
        if choices[0] != choices[1]:
            answer = number % 2
            records.append({"prompt": "", "choices": choices[::-1] if answer else choices, "answer": answer})
    return cs.Task.from_records(records, name=f"blimp_{path.stem}")


def main() -> None:
    """Print one row a file, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--n", type=int, default=400, help="finding examples")
    parser.add_argument("--unseen", type=int, default=100, help="examples to confirm with")
    parser.add_argument("--method", choices=("css", "annealed"), default="css")
    parser.add_argument("--n-masks", type=int, default=200, help="masks of css")
    parser.add_argument("--budget", type=int, default=None, help="example-evaluations of annealed")
    parser.add_argument("--control", action="store_true", help="a control for annealed")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = cs.load_model(options.model)
    own: dict[str, Any] = {"n_masks": options.n_masks} if options.method == "css" else {"budget": options.budget}
    own["controls"] = None
    print("| BLiMP set | baseline | first head (importance) | top 5 off | random heads off | p | verdict | cost |")
    print("|---|---|---|---|---|---|---|---|")
    paths = sorted(options.data.glob("*.jsonl"))
    for path, following in zip(paths, [*paths[1:], paths[0]], strict=True):
        task, _ = blimp_task(path).split(options.n, options.seed)
        if options.control:
            own["controls"] = [blimp_task(following).split(options.n, options.seed)[0]]
        try:
            found = cs.find_heads(model, task, method=options.method, seed=options.seed, **own)
        except cs.BaselineTooLowError as error:
            print(f"| {path.stem} | {error} | | | | | baseline too low | |")
            continue
        proof = cs.confirm(model, task, found.top(5), controls=None, n=options.unseen, seed=options.seed)
        first = found.top(1)[0]
        cells = [
            path.stem,
            f"{proof.result.baseline:.2f}",
            f"{first} ({found.importance[first.layer, first.index]:.3f})",
            f"{proof.result.score:.2f}",
            f"{proof.result.baseline - proof.random.drop:.2f}",
            f"{proof.p:.4f}",
            proof.verdict,
            f"{found.spent:,}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
