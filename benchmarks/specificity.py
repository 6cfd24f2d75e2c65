"""Heads of one skill, not of every skill: what heads found take from their own skill and from all others.

    python benchmarks/real_models.py --out models --models smollm2
    python benchmarks/specificity.py --model models/smollm2 --out smollm2.jsonl
    python benchmarks/specificity.py --table smollm2.jsonl

Each method finds five heads of each everyday skill, or other units (``--units kv neurons``, as many as ``K`` says),
which then go off on unseen examples of every skill that the model can do. A *loss* is the share of the score above
chance that is lost; in means it counts as 1 at most (a two-choice answer that turns into its opposite loses more) and
as 0 at least (what one skill gains makes up for no other's loss).
Methods named ``...+`` have all other skills as controls, those without stand as in their papers, with the same budget.
Methods named ``...nearly-wrong`` find on the quarter of all examples but the judge's that the intact model has right by
the smallest margin, 40 at least; the run that tells which is part of the cost, as one of all these examples.
Gating with thirteen controls needs ten times the budget: it is refused, and the table says so. Seconds are those of
processors, of search and proof. Results are appended to ``--out``; what is there already, of this model, dtype and
budget, is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import cs_heads as cs
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.losses import Loss, loss_of, task_drop
from cs_heads.methods.registry import method_named
from cs_heads.tasks import builtin_tasks
from cs_heads.units import UNITS, Unit, Units

FAMILY = "everyday/"
SKILLS = ("agreement", "closing", "code", "copying", "indirect_object", "kinds", "plural", "succession")
METHODS = (
    *("annealed+", "annealed", "css+", "css", "one-shot+", "one-shot", "gradient+", "gradient"),
    *("attribution+", "attribution", "chg+", "chg", "greedy"),
)
K: dict[Units, int] = {"heads": 5, "kv": 3, "attn": 2, "mlp": 2, "neurons": 20}
"""Units that are found."""
BUDGET = 5000
"""Example-evaluations to find heads with, controls included; gradients take a few hundred, whatever the budget."""
N_UNSEEN = 60
NEARLY_WRONG = " nearly-wrong"
"""Ends the name of a method that finds on such examples."""


class Judge:
    """What heads take from every skill that the model can do, on unseen examples."""

    def __init__(self, model: Any, tasks: dict[str, cs.Task], units: Units) -> None:
        unseen = {skill: task.held_out for skill, task in tasks.items()}
        self.experiments = {
            skill: cs.Experiment(model, side.take(N_UNSEEN), progress=False, units=units)
            for skill, side in unseen.items()
            if side is not None
        }

    def losses(self, heads: list[Unit]) -> dict[str, float]:
        """The loss of each skill with these heads off; skills that cannot tell have none."""
        return {skill: one.loss for skill, one in self.intervals(heads).items()}

    def intervals(self, heads: list[Unit]) -> dict[str, Loss]:
        """The same losses with their 95 % intervals."""
        losses = {}
        for skill, experiment in self.experiments.items():
            off = experiment(experiment.grid.mask(heads)[None])[0]
            drop = task_drop(skill, experiment.task.chance, [(experiment.baseline(), off)], 0)
            loss = loss_of(drop)
            if loss is not None and not drop.too_low:
                losses[skill] = loss
        return losses


def find(model: Any, tasks: dict[str, cs.Task], skill: str, method: str, **given: Any) -> cs.HeadRanking:
    """The ranking of a skill by a method, with all other skills as controls where its name ends in a plus."""
    task, cost = tasks[skill], 0
    if method.endswith(NEARLY_WRONG):
        method = method.removesuffix(NEARLY_WRONG)
        task, cost = nearly_wrong(model, task)
        given["budget"] -= cost
    name = method.removesuffix("+")
    controls = [task for other, task in tasks.items() if other != skill] if method.endswith("+") else None
    found = cs.find_heads(model, task, k=K[given["units"]], method=name, controls=controls, progress=False, **given)
    return replace(found, spent=found.spent + cost)


def nearly_wrong(model: Any, task: cs.Task) -> tuple[cs.Task, int]:
    """The examples that the intact model has right by the smallest margin, and how many were asked."""
    assert task.held_out is not None
    every = replace(task, role="whole", held_out=None, examples=(*task.examples, *task.held_out.examples[N_UNSEEN:]))
    experiment = cs.Experiment(model, every, progress=False)
    intact = experiment.grid.mask([])[None]
    margins = np.where(experiment.baseline() > 0, experiment.respond(intact, response="margin")[0], np.inf)
    n = max(40, int(np.isfinite(margins).sum()) // 4)
    kept = sorted(np.argsort(margins)[:n])
    examples = tuple(every.examples[i] for i in kept)
    return replace(task, examples=examples, held_out=task.held_out.take(N_UNSEEN)), len(every)


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record a (seed, skill, method) that is not there yet."""
    run = {"model": Path(options.model).name, "dtype": options.dtype, "budget": options.budget}
    done = {
        (r["skill"], r["method"], r.get("units", "heads"), r["seed"])
        for r in records(options.out)
        if run.items() <= r.items()
    }
    model = cs.load_model(options.model, dtype=options.dtype)
    exact = model if options.dtype == "float32" else cs.load_model(options.model, dtype="float32")
    names = [name.removeprefix(FAMILY) for name in builtin_tasks() if name.startswith(FAMILY)]
    for seed, units in product(options.seeds, options.units):
        wanted = [(s, m) for m in options.methods for s in options.skills if (s, m, units, seed) not in done]
        if not wanted:
            continue
        tasks = {name: cs.load_task(f"{FAMILY}{name}", seed=seed) for name in names}
        judge = Judge(exact, tasks, units)
        for skill, method in wanted:
            start = process_time()
            try:
                given = {"seed": seed, "budget": options.budget, "units": units}
                # What differentiates the model knows no other dtype than its own.
                if method_named(method.removesuffix(NEARLY_WRONG).removesuffix("+")).uses != "model":
                    given["compute_dtype"] = options.dtype
                ranking = find(model, tasks, skill, method, **given)
            except ValueError as error:
                named = {"skill": skill, "method": method, "units": units, "seed": seed}
                yield {**named, "refused": str(error), **run}
                continue
            seconds = process_time() - start
            heads = ranking.top(K[units])
            proof = (
                cs.confirm(
                    exact,
                    tasks[skill],
                    heads,
                    exclude=ranking.shared,
                    controls=[task for other, task in tasks.items() if other != skill],
                    n=N_UNSEEN,
                    progress=False,
                    units=units,
                )
                if options.confirm
                else None
            )
            both = process_time() - start
            losses = judge.losses(heads)
            yield {
                "skill": skill,
                "method": method,
                "units": units,
                "seed": seed,
                "heads": [str(head) for head in heads],
                "shared": [str(head) for head in ranking.shared],
                "losses": losses,
                "spent": ranking.spent,
                "seconds": round(seconds, 1),
                **({} if proof is None else {"seconds_of_both": round(both, 1), **proved(proof)}),
                **run,
            }


def proved(proof: Confirmation) -> dict[str, Any]:
    """What a proof says, in the words of its verdict."""
    return {
        "verdict": f"{proof.headline}{' (close)' if proof.close else ''}",
        "proved": [str(head) for head in proof.heads],
        "passengers": [str(head) for head in proof.passengers],
        "spent_on_proof": proof.spent,
    }


def records(path: Path) -> list[dict[str, Any]]:
    """What a file has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def own_and_others(record: dict[str, Any]) -> tuple[float, float]:
    """The own loss and the mean loss of the other skills, each between 0 and 1."""
    losses = {skill: min(max(loss, 0.0), 1.0) for skill, loss in record["losses"].items()}
    return losses[record["skill"]], float(np.mean([loss for skill, loss in losses.items() if skill != record["skill"]]))


def share(loss: float) -> str:
    """A loss as the docs write it."""
    return f"{loss:.2f}".replace("0.", ".", 1)


def tables(done: list[dict[str, Any]]) -> str:
    """Of each model, dtype, budget and kind of unit the means by method, then the first method skill by skill."""
    runs = [tuple(record.get(name) for name in ("model", "dtype", "budget", "units")) for record in done]
    return "\n\n".join(
        f"{model}, {dtype}, budget {budget}, {units or 'heads'}\n\n"
        + _tables([record for record, run in zip(done, runs, strict=True) if run == (model, dtype, budget, units)])
        for model, dtype, budget, units in dict.fromkeys(runs)
    )


def _tables(done: list[dict[str, Any]]) -> str:
    known = [record for record in done if "losses" in record and record["skill"] in record["losses"]]
    lines = [
        "| method | skills | seeds | own loss | others' mean loss | example-evaluations |",
        "|---|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(record["method"] for record in known):
        mine = [record for record in known if record["method"] == method]
        pairs = np.array([own_and_others(record) for record in mine])
        skills, seeds = len({r["skill"] for r in mine}), len({r["seed"] for r in mine})
        spent = int(np.mean([record["spent"] for record in mine]))
        lines.append(
            f"| `{method}` | {skills} | {seeds} | {pairs[:, 0].mean():.2f} | {pairs[:, 1].mean():.2f} | {spent:,} |"
        )
    for method in dict.fromkeys(record["method"] for record in done if "refused" in record):
        refused = [record["skill"] for record in done if record["method"] == method and "refused" in record]
        lines.append(f"| `{method}` | refused: {', '.join(dict.fromkeys(refused))} | | | | |")
    first = next((record["method"] for record in known), None)
    lines += [
        "",
        "| skill | own loss, by seed | others' mean loss | loses most | heads of the first seed | verdicts |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for skill in dict.fromkeys(record["skill"] for record in known):
        mine = [record for record in known if record["method"] == first and record["skill"] == skill]
        if not mine:
            continue
        by_seed = [own_and_others(record) for record in mine]
        others = {other: loss for other, loss in mine[0]["losses"].items() if other != skill}
        most = max(others, key=lambda other: others[other])
        own, rest = (", ".join(f"{pair[side]:.2f}" for pair in by_seed) for side in (0, 1))
        verdicts = ", ".join(r["verdict"].replace(FAMILY, "") for r in mine if "verdict" in r)
        lines.append(
            f"| {skill} | {own} | {rest} | {most} {others[most]:.2f} | {' '.join(mine[0]['heads'])} | {verdicts} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or name")
    parser.add_argument("--out", type=Path, help="results, one JSON object a line")
    parser.add_argument("--table", type=Path, nargs="+", help="print the tables of these results, and run nothing")
    parser.add_argument("--skills", nargs="+", default=list(SKILLS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--units", nargs="+", choices=UNITS, default=["heads"], help="kinds of unit to find")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--dtype", default="float32", help="to find in; losses and verdicts are measured in float32")
    parser.add_argument("--confirm", action="store_true", help="prove each set, for its verdict")
    options = parser.parse_args()
    if options.table:
        print(tables([record for path in options.table for record in records(path)]))
        return
    for record in measure(options):
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        known = record.get("losses", {})
        said = "own {:.2f}, others {:.2f}".format(*own_and_others(record)) if record["skill"] in known else "refused"
        print(
            record["seed"],
            record["method"],
            record["skill"],
            said,
            record.get("verdict"),
            record.get("seconds"),
            flush=True,
        )


if __name__ == "__main__":
    main()
