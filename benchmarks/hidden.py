"""Skills that no choice was made on: what heads take from theirs and from others, judged by plain Hugging Face alone.

    python benchmarks/hidden.py --model models/smollm2 --out hidden.jsonl
    python benchmarks/hidden.py --table hidden.jsonl

``--tasks`` is a folder of task files; by default it is ``benchmarks/hidden``, eight skills whose words and forms are
others than those of ``everyday``. Nothing in the library was chosen by what is measured on them, and nothing should
be. Five heads of each skill are sought with the defaults of the search, the everyday skills as controls among them.
The judge is another program: the model as transformers loads it, in float32, with the heads' part of the input of each
output projection at zero, on unseen examples of all skills of the folder. A *loss* is the share of the score above
chance that is lost, from 0 to 1; skills with fewer than 20 right answers, or hardly more than chance gives, have none.
Results are appended to ``--out``; what is there already is not run again. ``--methods least`` proves the heads that
``annealed+`` found there, and judges the least set of them. The proof saw the same unseen examples as the judge, and
is not told which examples of the controls the search has seen. ``atlas`` and ``atlas-least`` are the five heads of
each skill and the least set of them by one atlas of all skills of the folder that the model can do, with ``--budget``
for each skill; the cost of the latter has the proofs'. Methods of ``truth/rivals.py`` run in an environment of their
own, and draw by seed 0.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from specificity import own_and_others, records
from transformers import AutoModelForCausalLM, AutoTokenizer
from truth.rivals import RIVALS, ranked

import cs_heads as cs
from cs_heads.tasks.controls import default_controls
from cs_heads.units import Head

HIDDEN = Path(__file__).parent / "hidden"
BUDGET, N_UNSEEN, K, BATCH = 4000, 60, 5, 16
LEAST_RIGHT, LEAST_ABOVE = 20, 0.1
ATLAS = ("atlas", "atlas-least")


class Judge:
    """Scores of a model as transformers runs it."""

    def __init__(self, folder: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def scores(self, task: cs.Task, heads: Sequence[Head] = ()) -> Float[np.ndarray, " example"]:
        """1 for each right answer, with some heads off: the likeliest choice, or a target that is all argmax."""
        rows = [(example, text) for example in task.examples for text in example.continuations]
        found = list[tuple[float, bool]]()
        with ExitStack() as stack, torch.no_grad():
            for layer, block in enumerate(self.model.model.layers):
                off = [head.head for head in heads if head.layer == layer]
                hook = self._off(off, block.self_attn.head_dim)
                stack.callback(block.self_attn.o_proj.register_forward_pre_hook(hook).remove)
            for start in range(0, len(rows), BATCH):
                found += self._run(rows[start : start + BATCH])
        said, right = iter(found), list[bool]()
        for example in task.examples:
            mine = [next(said) for _ in example.continuations]
            right.append(mine[0][1] if len(mine) == 1 else np.argmax([each[0] for each in mine]) == example.answer)
        return np.array(right, dtype=float)

    @staticmethod
    def _off(heads: list[int], width: int) -> Any:
        def hook(module: Any, arguments: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            z = arguments[0].clone()
            for head in heads:
                z[..., head * width : (head + 1) * width] = 0
            return (z,)

        return hook

    def _run(self, rows: list[Any]) -> Iterator[tuple[float, bool]]:
        """The log-probability of each text after its prompt, and whether all of its tokens are the argmax."""
        prompts = [self.tokenizer(example.prompt)["input_ids"] for example, _ in rows]
        both = [self.tokenizer(example.prompt + text)["input_ids"] for example, text in rows]
        texts = [ids[len(prompt) :] for prompt, ids in zip(prompts, both, strict=True)]
        whole = [torch.tensor([*prompt, *text]) for prompt, text in zip(prompts, texts, strict=True)]
        tokens = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in whole], batch_first=True)
        logits = self.model(tokens, attention_mask=mask, use_cache=False).logits
        for row, prompt, text in zip(logits, prompts, texts, strict=True):
            at = row[len(prompt) - 1 : len(prompt) + len(text) - 1].log_softmax(dim=-1)
            picked = at[torch.arange(len(text)), torch.tensor(text)]
            yield float(picked.sum()), bool((at.argmax(dim=-1) == torch.tensor(text)).all())


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record a (seed, skill, method) that is not there yet."""
    done = {(r["skill"], r["method"], r["seed"], r["budget"], r["model"]): r for r in records(options.out)}
    judge, model = Judge(options.model), cs.load_model(options.model)
    for seed in options.seeds:
        tasks = {file.stem: cs.load_task(str(file), seed=seed) for file in sorted(options.tasks.glob("*.jsonl"))}
        unseen = {skill: task.held_out.take(N_UNSEEN) for skill, task in tasks.items() if task.held_out is not None}
        intact = {skill: judge.scores(side) for skill, side in unseen.items()}
        chance = {
            skill: np.mean([1 / n if (n := len(e.continuations)) > 1 else 0 for e in unseen[skill].examples])
            for skill in unseen
        }
        able = [
            skill
            for skill, right in intact.items()
            if right.sum() >= LEAST_RIGHT and right.mean() - chance[skill] >= LEAST_ABOVE
        ]
        atlas: cs.Atlas | None = None
        for skill in able:
            for method in options.methods:
                key = skill, method, seed, options.budget, Path(options.model).name
                if key in done:
                    continue
                start, verdict = process_time(), dict[str, str]()
                if method == "least":
                    known = done.get((skill, "annealed+", *key[2:]))
                    if known is None:
                        raise SystemExit(f"--methods least needs annealed+ in --out: {skill}, seed {seed}")
                    proof = cs.confirm(model, tasks[skill], known["heads"], seed=seed, progress=False)
                    heads, spent = [Head(head.layer, head.index) for head in proof.heads], known["spent"] + proof.spent
                    verdict = {"verdict": proof.headline}
                elif method in ATLAS:
                    if atlas is None:
                        given: dict[str, Any] = {"k": K, "budget": options.budget * len(able), "n": N_UNSEEN}
                        atlas = cs.atlas(model, [tasks[name] for name in able], seed=seed, progress=False, **given)
                    proof, whole = atlas.proofs[skill], method != "atlas"
                    named = proof.heads if whole else (*proof.heads, *proof.passengers)
                    heads = [Head(head.layer, head.index) for head in named]
                    spent = round((atlas.spent if whole else atlas.provenance["search"]["spent"]) / len(able))
                    verdict = {"verdict": proof.headline} if whole else {}
                else:
                    heads, spent = _found(model, tasks[skill], method, seed, options)
                losses = {
                    other: float(
                        (intact[other] - judge.scores(unseen[other], heads)).mean()
                        / (intact[other].mean() - chance[other])
                    )
                    for other in able
                }
                done[key] = {
                    "skill": skill,
                    "method": method,
                    "seed": seed,
                    "budget": options.budget,
                    "model": Path(options.model).name,
                    "heads": [str(head) for head in heads],
                    "losses": losses,
                    "spent": spent,
                    **verdict,
                    "seconds": round(process_time() - start, 1),
                }
                yield done[key]


def _found(model: Any, task: cs.Task, method: str, seed: int, options: argparse.Namespace) -> tuple[list[Head], int]:
    """The heads that a method finds, and what it spent."""
    if method in RIVALS:
        found = ranked(
            method,
            model,
            task,
            options.budget,
            hooked=partial(cs.load_model, options.model, backend="hooked"),
            folder=options.eap_ig,
        )
        return [Head(head.layer, head.index) for head in found.top(K)], found.spent
    # Other methods have controls only where they are given them.
    beside = default_controls(task, Path(options.model).name, seed) if method[-1] == "+" else None
    given: dict[str, Any] = {} if method == "annealed+" else {"controls": beside}
    method, budget = method.removesuffix("+"), options.budget
    found = cs.find_heads(model, task, k=K, method=method, seed=seed, budget=budget, progress=False, **given)
    return [Head(head.layer, head.index) for head in found.top(K)], found.spent


def worst(record: dict[str, Any]) -> float:
    """The largest loss of another skill, from 0 to 1."""
    return max(min(max(loss, 0.0), 1.0) for skill, loss in record["losses"].items() if skill != record["skill"])


def tables(done: list[dict[str, Any]]) -> str:
    """Means by method and budget, then each skill of the first."""
    lines = [
        "| method | budget | skills | seeds | own | others | worst other | cost |",
        "|---|---|---|---|---|---|---|---|",
    ]
    kinds = list(dict.fromkeys((r["model"], r["method"], r["budget"]) for r in done))
    for kind in kinds:
        mine = [r for r in done if (r["model"], r["method"], r["budget"]) == kind]
        own, others = np.array([own_and_others(r) for r in mine]).mean(axis=0)
        counts = (len({r[name] for r in mine}) for name in ("skill", "seed"))
        means = (own, others, np.mean([worst(r) for r in mine]))
        cost = f"{np.mean([r['spent'] for r in mine]):,.0f}"
        lines.append(f"| {' | '.join(map(str, (*kind[1:], *counts, *(f'{each:.2f}' for each in means), cost)))} |")
    lines += [
        "",
        "| skill | own, by seed | others, by seed | loses most | heads of the first seed |",
        "|---|---|---|---|---|",
    ]
    first = [r for r in done if (r["model"], r["method"], r["budget"]) == kinds[0]]
    for skill in dict.fromkeys(r["skill"] for r in first):
        mine = [r for r in first if r["skill"] == skill]
        own_, others_ = (", ".join(f"{own_and_others(r)[side]:.2f}" for r in mine) for side in (0, 1))
        beside = {other: loss for other, loss in mine[0]["losses"].items() if other != skill}
        most = max(beside, key=lambda other: beside[other])
        lines.append(f"| {skill} | {own_} | {others_} | {most} {beside[most]:.2f} | {' '.join(mine[0]['heads'])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder of a Llama-like model")
    parser.add_argument("--tasks", type=Path, default=HIDDEN, help="a folder of task files")
    parser.add_argument("--out", type=Path, help="results, one JSON object a line")
    parser.add_argument("--table", type=Path, help="print the tables of these results, and run nothing")
    parser.add_argument("--methods", nargs="+", default=["annealed+"], help="with all controls where a + follows")
    parser.add_argument("--eap-ig", type=Path, default=Path("eap-ig"), help="folder with a copy of hannamw/EAP-IG")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget", type=int, default=BUDGET)
    options = parser.parse_args()
    if options.table:
        if not (done := records(options.table)):
            parser.error(f"--table must be a file with results, got {options.table}")
        print(tables(done))
        return
    if options.model is None or options.out is None:
        parser.error("give --model and --out, or --table")
    if not [*options.tasks.glob("*.jsonl")]:
        parser.error(f"--tasks must be a folder with .jsonl files, got {options.tasks}")
    for record in measure(options):
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        own, others = own_and_others(record)
        print(f"{record['seed']} {record['method']} {record['skill']}: {own:.2f}, {others:.2f}", flush=True)


if __name__ == "__main__":
    main()
