"""Skills of the compressed-sensing paper on a small model: sums, school mathematics, programs, and five heads of each.

    python benchmarks/real_models.py --out models --models qwen2.5-coder
    python benchmarks/paper_skills.py --model models/qwen2.5-coder --data data --store paper_skills.sqlite \
        --out benchmarks/real/qwen2.5-coder --search two_digit_sums programs

Bair et al. (arXiv 2603.03335) turn off five heads of Llama 3.1 8B Instruct and look at mathematics and programs. Here
the same kinds of skill are asked of a smaller model, float32, with few examples:

- *two_digit_sums*, *three_digit_sums*: lm-eval's arithmetic (``--data``/arithmetic), the right answer token for token
- *programs*: of MBPP's test split (``--data``/mbpp, one worked example) the problems with the shortest programs,
  solved where the program passes its tests in the sandbox. Heads are found by whether the model still writes, token for
  token, the passing programs that it writes when intact; they are proved by running what it writes for other problems,
  all of which it solves when intact
- *word_problems*: GSM8K (``--data``/gsm8k, one worked example), whose baseline alone is measured

Six everyday skills are controls. A skill that the intact model does too rarely has its baseline alone. Into ``--out``
go ``baselines.csv``, ``skills.csv`` (the heads of each skill, and their proof), ``losses.csv`` (what the heads of one
skill take from it, from each control, and from the other skills, there beside random heads of the same layers) and
``run.json``, each as soon as it is measured.
With ``--store`` an interrupted run goes on; its CPU seconds are those since.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from atlas import write
from scipy.stats import binomtest
from specificity import FAMILY

import cs_heads as cs
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.losses import TaskDrop, task_drop
from cs_heads.analysis.random_heads import random_sets

CONTROLS = ("agreement", "antonyms", "closing", "copying", "indirect_object", "plural")
SUMS = {"two_digit_sums": ("2da", "two_digit_addition"), "three_digit_sums": ("3da", "three_digit_addition")}
SKILLS = ("two_digit_sums", "programs", "word_problems", "three_digit_sums")
K = 5
N, N_UNSEEN = 100, 60
"""Sums to find heads with, and unseen ones."""
N_WORDS, WORD_TOKENS = 20, 120
"""Problems of GSM8K, and tokens of an answer."""
N_SHORTEST, PROGRAM_TOKENS = 140, 48
"""Problems of MBPP that the intact model is asked, and tokens of a program."""
N_PASSING, N_RUN = 22, 25
"""Of those solved, problems to find heads with at least, and to prove them with."""
SEARCH: dict[str, dict[str, Any]] = {
    "two_digit_sums": {"budget": 2400},
    "three_digit_sums": {"budget": 2400},
    "programs": {"budget": 1000, "examples_per_mask": 4, "n_batches": 4},
}
N_RANDOM = 8
"""Random sets of heads in the losses of each skill."""


@dataclass(frozen=True)
class Skill:
    """What the intact model does of a skill; where that is enough, what finds its heads and what proves them."""

    baseline: dict[str, Any]
    finding: cs.Task | None = None
    unseen: cs.Task | None = None

    @classmethod
    def of(cls, name: str, model: Any, data: Path, settings: dict[str, Any], seed: int) -> Skill:
        """A skill, after the intact model was asked."""
        asked = asked_of(name, data, seed)
        experiment = cs.Experiment(model, asked, **settings)
        right = experiment.baseline() > 0
        bounds = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
        row = {"skill": name, "asked": len(right), "right": int(right.sum()), "baseline": right.mean()}
        row |= {"low": bounds.low, "high": bounds.high}
        if right.sum() < N_PASSING + N_RUN:
            return cls(row)
        if name in SUMS:
            assert asked.held_out is not None
            return cls(row, asked, asked.held_out.take(N_UNSEEN))
        if name == "programs":
            texts = experiment.generate(experiment.grid.mask([])[None])[0]
            return cls(row, *passing(asked, texts, right, seed))
        return cls(row)


def asked_of(name: str, data: Path, seed: int) -> cs.Task:
    """What the intact model is asked; of sums others are held out."""
    if name in SUMS:
        digits, file = SUMS[name]
        task = cs.load_task(
            f"lm-eval/arithmetic_{digits}", n=N, seed=seed, data_files=data / "arithmetic" / f"{file}.jsonl"
        )
        # The rule of a completion is that of lm-eval; without its scorer there are gradients.
        assert task.held_out is not None
        return replace(task, name=name, scorer=None, held_out=replace(task.held_out, name=name, scorer=None))
    if name == "word_problems":
        files = {"train": data / "gsm8k" / "train_first1000.jsonl", "test": data / "gsm8k" / "test.jsonl"}
        task = cs.load_task(
            "gsm8k", n=N_WORDS, seed=seed, data_files=files, few_shot=1, shared=True, max_new_tokens=WORD_TOKENS
        )
        return replace(task, name=name, held_out=None)
    task = cs.load_task("mbpp", seed=seed, data_files=data / "mbpp" / "mbpp.jsonl", allow_code=True, few_shot=1)
    assert task.held_out is not None
    every = (*task.examples, *task.held_out.examples)
    shortest = sorted(every, key=lambda example: (len(example.target), example.prompt))[:N_SHORTEST]
    unsplit: dict[str, Any] = {"role": "whole", "held_out": None, "name": name}
    return replace(task, examples=tuple(shortest), max_new_tokens=PROGRAM_TOKENS, **unsplit)


def passing(asked: cs.Task, texts: np.ndarray, right: np.ndarray, seed: int) -> tuple[cs.Task, cs.Task]:
    """The programs that the intact model writes for problems it solves, to find heads; other such problems to prove."""
    solved = np.random.default_rng(seed).permutation(np.flatnonzero(right))
    written = [{"prompt": asked.examples[place].prompt, "target": texts[place]} for place in solved[N_RUN:]]
    run = tuple(asked.examples[place] for place in solved[:N_RUN])
    finding = replace(cs.Task.from_records(written, asked.name), role="finding")
    return finding, replace(asked, examples=run, role="confirming")


def searched(
    name: str, model: Any, skill: Skill, settings: dict[str, Any], seed: int
) -> tuple[dict[str, Any], cs.HeadRanking, Confirmation]:
    """Five heads of a skill, and their proof."""
    assert skill.finding is not None
    assert skill.unseen is not None
    controls = [cs.load_task(f"{FAMILY}{control}", seed=seed) for control in CONTROLS]
    given: dict[str, Any] = {"controls": controls, "seed": seed, **settings}
    start = process_time()
    found = cs.find_heads(model, skill.finding, k=K, screen="gradients", **SEARCH[name], **given)
    seconds = process_time() - start
    proof = cs.confirm(model, skill.unseen, found, n=len(skill.unseen), **given)
    own, others = proof.result, None if proof.specificity is None else proof.specificity.mean
    low, high = own.loss_interval
    row = {
        "skill": name,
        "heads": " ".join(map(str, proof.heads)),
        "shared": " ".join(map(str, found.shared)),
        "found with": len(skill.finding),
        "unseen": own.n_examples,
        "baseline": own.baseline,
        "own loss": own.loss,
        "low": low,
        "high": high,
        "others' mean loss": None if others is None else others.loss,
        "others low": None if others is None else others.low,
        "others high": None if others is None else others.high,
        "random": proof.random.drop / (own.baseline - own.chance),
        "p": f"{proof.p:.4f}",
        "verdict": proof.verdict + (" (close)" if proof.close else ""),
        "search": found.spent,
        "search CPU s": round(seconds),
        "proof": proof.spent,
        "proof CPU s": round(process_time() - start - seconds),
    }
    return row, found, proof


def taken(heads_of: str, drops: Iterable[TaskDrop]) -> Iterator[dict[str, Any]]:
    """A row of the matrix for each task: its loss with these heads off."""
    for drop in drops:
        low, high = drop.loss_interval
        row: dict[str, Any] = {"heads of": heads_of, "task": drop.task, "n": drop.n_examples}
        yield {**row, "baseline": drop.baseline, "loss": drop.loss, "low": low, "high": high}


def main() -> None:
    """Measure skill after skill, and write what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or name")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--skills", nargs="+", choices=SKILLS, default=list(SKILLS))
    parser.add_argument("--search", nargs="*", choices=list(SEARCH), default=list(SEARCH), help="skills to search")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"store": options.store, "progress": False}
    model = cs.load_model(options.model, dtype="float32")
    skills: dict[str, Skill] = {}
    for name in options.skills:
        skills[name] = Skill.of(name, model, options.data, settings, options.seed)
        write(options.out, {"baselines": pd.DataFrame([skill.baseline for skill in skills.values()])})
        print(skills[name].baseline, flush=True)
    rows: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    sets, said = {}, {}
    for name, skill in skills.items():
        if skill.finding is None or name not in options.search:
            continue
        row, found, proof = searched(name, model, skill, settings, options.seed)
        rows.append(row)
        sets[name] = proof.heads
        said[name] = {"search": found.notes, "proof": [proof.verdict, *proof.lines]}
        print(name, json.dumps(said[name], indent=1), flush=True)
        cells += taken(name, [proof.result, *proof.controls])
        write(options.out, {"skills": pd.DataFrame(rows), "losses": pd.DataFrame(cells)})
        record = {
            "command": shlex.join(["python", "benchmarks/paper_skills.py", *sys.argv[1:]]),
            **{each: proof.provenance.get(each) for each in ("model", "seed")},
            "said": said,
        }
        (options.out / "run.json").write_text(json.dumps(record, indent=1, default=str) + "\n")
    for name, skill in skills.items():
        others = {other: heads for other, heads in sets.items() if other != name}
        if skill.unseen is None or not others:
            continue
        experiment = cs.Experiment(model, skill.unseen, **settings)
        intact = experiment.baseline()
        chance, grid = skill.unseen.chance, experiment.grid
        for other, heads in others.items():
            own = grid.mask(heads)
            off, *random = experiment(np.stack([own, *random_sets(grid, own, grid.mask([]), N_RANDOM, options.seed)]))
            (cell,) = taken(other, [task_drop(name, chance, [(intact, off)], options.seed)])
            left = np.mean(random) - chance
            cells.append({**cell, "random": 1 - left / (intact.mean() - chance)})
        write(options.out, {"losses": pd.DataFrame(cells)})


if __name__ == "__main__":
    main()
