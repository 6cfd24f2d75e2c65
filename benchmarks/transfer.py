"""Do heads found on one data set serve another of the same skill, and can the model do knowledge multiple-choice?

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/transfer.py --model models/smollm2 --atlas benchmarks/real/smollm2 --data data

Into the folder of the atlas (``atlas.py``) goes ``transfer.csv``, one row for each data set and each skill's heads:
what the data set loses with these heads off. ``same`` says whether both ask for the same skill. The data sets are five
of *Function Vectors* in ``--data`` (``function_vectors/antonym.json``, ...: other words and another form of question),
with five worked examples, and then multiple-choice: CommonsenseQA, ARC-Challenge and MMLU by lm-eval, without worked
examples. What the model cannot do above chance by its 95 % interval has one row, without losses. With ``--search`` five
heads of each multiple-choice set that it can do are found and proved, six everyday skills as controls, and
``knowledge.csv`` says what they take, beside random heads of the same layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from atlas import sets_of, write
from paper_skills import CONTROLS
from scipy.stats import binomtest

import cs_heads as cs
from cs_heads.analysis.losses import loss_of, task_drop

SAME = {
    "antonym": "antonyms",
    "capitalize": "upper_case",
    "country-capital": "capitals",
    "present-past": "past",
    "singular-plural": "plural",
}
"""Sets of *Function Vectors*, and the everyday skill that asks for the same."""
KNOWLEDGE = {
    "commonsense_qa": "commonsenseqa/commonsense_qa.jsonl",
    "arc_challenge": "arc/ARC-Challenge-Test.jsonl",
    "mmlu": "mmlu/mmlu.zip",
}
N, N_KNOWLEDGE, N_PROOF = 100, 200, 400
"""Examples of each data set, and unseen ones of a proof."""


def tasks_of(data: Path, seed: int) -> Iterator[cs.Task]:
    """The data sets."""
    for name in SAME:
        file = data / "function_vectors" / f"{name}.json"
        yield cs.load_task(f"function_vectors/{name}", n=N, seed=seed, few_shot=5, shared=True, data_files=file)
    for name, place in KNOWLEDGE.items():
        yield cs.load_task(name, n=N_KNOWLEDGE, seed=seed, data_files=data / place)


def rows_of(model: Any, task: cs.Task, sets: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """The intact score of a data set, and what each set of heads takes from it."""
    experiment = cs.Experiment(model, task, progress=False)
    intact = experiment.baseline()
    bounds = binomtest(round(float(intact.sum())), len(intact)).proportion_ci(method="wilson")
    known = {"data set": task.name, "n": len(intact), "chance": task.chance, "baseline": intact.mean()}
    known |= {"baseline low": bounds.low, "baseline high": bounds.high}
    if bounds.low <= task.chance:
        yield known
        return
    same = SAME.get(task.name.partition("/")[2])
    masks = np.stack([experiment.grid.mask(heads) for heads in sets.values()])
    for name, off in zip(sets, experiment(masks), strict=True):
        loss = loss_of(task_drop(task.name, task.chance, [(intact, off)]))
        skill = name.removeprefix("everyday/")
        told = {} if loss is None else {"loss": loss.loss, "low": loss.low, "high": loss.high}
        yield {**known, "heads of": skill, "same": skill == same, **told}


def searched(model: Any, task: cs.Task, seed: int) -> dict[str, Any]:
    """Five heads of a data set, and their proof."""
    controls = [cs.load_task(f"everyday/{name}", seed=seed) for name in CONTROLS]
    found = cs.find_heads(model, task, k=5, controls=controls, seed=seed, progress=False)
    proof = cs.confirm(model, task, found, n=N_PROOF, controls=controls, seed=seed, progress=False)
    own, others = proof.result, None if proof.specificity is None else proof.specificity.mean
    low, high = own.share_interval
    row = {"data set": task.name, "heads": " ".join(map(str, proof.heads)), "shared": " ".join(map(str, found.shared))}
    row |= {"unseen": own.n_examples, "baseline": own.baseline, "own loss": own.share_lost, "low": low, "high": high}
    if others is not None:
        row |= {"others' mean loss": others.loss, "others low": others.low, "others high": others.high}
    random = proof.random_drop / (own.baseline - own.chance)
    return {
        **row,
        "random": random,
        "p": proof.p,
        "verdict": proof.verdict,
        "search": found.spent,
        "proof": proof.spent,
    }


def main() -> None:
    """Measure, write, and print of each data set the loss by the same skill's heads and the mean by others'."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or name")
    parser.add_argument("--atlas", type=Path, required=True, help="folder of the model's atlas, and of the table")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--search", action="store_true", help="heads of multiple-choice that the model can do, too")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sets = {name: heads for name, heads in sets_of(options.atlas)[2].items() if name != "universal"}
    tasks = list(tasks_of(options.data, options.seed))
    model = cs.load_model(options.model, dtype="float32")
    rows: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for task in tasks:
        mine = list(rows_of(model, task, sets))
        rows += mine
        table = pd.DataFrame(rows)
        write(options.atlas, {"transfer": table})
        said = "baseline {baseline:.2f} ({baseline low:.2f} to {baseline high:.2f}), chance {chance:.2f}"
        print(task.name, said.format(**mine[0]), flush=True)
        if "same" in mine[0]:
            for said, same in (("same", True), ("others", False)):
                losses = [min(max(row["loss"], 0.0), 1.0) for row in mine if "loss" in row and row["same"] is same]
                print(f"  {said}: {np.mean(losses):.2f}" if losses else f"  {said}: none", flush=True)
        if options.search and task.name in KNOWLEDGE and "same" in mine[0]:
            found.append(searched(model, task, options.seed))
            write(options.atlas, {"knowledge": pd.DataFrame(found)})
            print("  " + ", ".join(f"{name} {value}" for name, value in found[-1].items()), flush=True)


if __name__ == "__main__":
    main()
