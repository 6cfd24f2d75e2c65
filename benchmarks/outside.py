"""Methods from outside, by their own code, beside the library's: what five heads take from their skill and from others.

    python benchmarks/real_models.py --out models --models smollm2
    pip install "transformer-lens==3.9.0" nam-causal-head-gating spectralexplain
    git clone https://github.com/hannamw/EAP-IG eap-ig
    python benchmarks/outside.py --model models/smollm2 --eap-ig eap-ig --out outside.jsonl
    python benchmarks/outside.py --table outside.jsonl --csv outside.csv
    python benchmarks/outside.py --short outside.csv
    python benchmarks/outside.py --skills indirect_object code --model models/smollm2 --out outside_skills.jsonl
    python benchmarks/outside.py --across outside.csv outside_skills.csv

In an environment of its own, with TransformerLens 3.9, for EAP-IG runs on ``HookedTransformer`` alone. All methods have
the same finding examples, as the same tokens, and are judged as in ``specificity.py``: five heads off on 60 unseen
examples of every everyday skill. Everything runs in float32.

- ``eap-ig`` and ``proxyspex``: as ``truth/rivals.py`` has them.
- ``chg-reference``: causal head gating (nam-causal-head-gating, ``CHGAnalyzer``) with one mask, and its steps cut to
  the budget; its own defaults cost 960,000 example-evaluations. Heads in the order of the gates under the penalty that
  pushes them shut, the paper's facilitation. These are the package's ``negative`` stage: its texts say that
  ``positive`` pushes gates to 0, its loss does the opposite.
- ``annealed`` and ``annealed+`` screen all heads by masks, ``annealed-gradients+`` by gradients.
- ``css-tuned`` is compressed sensing with the best of four densities, a hundred masks each, whatever the budget.
- any other name is a method of the library, with the same budget (``+``: with the other skills as controls). ``chg``,
  the library's causal head gating, has batches as small as the reference's, for the budget covers no larger ones.

A backward pass counts as one example-evaluation more. CPU seconds are those of the process, all threads, for finding
alone. What is found is appended to ``--out`` at once, and again with its losses; what is there already, of this model
and limit, is not run again. The table has what has been judged.

``--budget`` is the limit in example-evaluations. With ``--seconds-of`` and records of the same budget it is the CPU
seconds that ``annealed+`` took there instead:

    python benchmarks/outside.py --model models/smollm2 --eap-ig eap-ig --seconds-of outside.jsonl --out seconds.jsonl

What a method had there is multiplied by the seconds of ``annealed+`` over its own: what it spent, or its finding
examples where the cost follows from them alone (``BY_EXAMPLES``; as many as the skill has, none of them among the
unseen). Of several files the last that has a method and ``annealed+`` counts. So what was found with ``--seconds-of``
corrects a method whose seconds did not follow.

With ``--cost-of`` and records, methods of ``BY_EXAMPLES`` get as many finding examples as ``--budget`` pays, by what
they spent there, or as many as the skill has.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from specificity import FAMILY, N_UNSEEN, Judge, K, find, records, share
from truth.rivals import BATCH, Scored, eap_ig, proxyspex

import cs_heads as cs
from cs_heads.analysis.losses import Loss, weighted_sum
from cs_heads.experiment.cost import BudgetTooSmallError, Cost
from cs_heads.methods.registry import method_named
from cs_heads.tasks import builtin_tasks
from cs_heads.tasks.family import N_FINDING
from cs_heads.units import Head, Unit

OUTSIDE = ("eap-ig", "proxyspex", "chg-reference", "css-tuned")
TUNED = (100,)
"""Masks of each density that ``css-tuned`` tries."""
METHODS = (*OUTSIDE, "annealed+", "annealed")
SKILLS = ("agreement", "plural")
BUDGET = 5_000
"""Half of what ``specificity.py`` gives each method; EAP-IG takes what its steps cost."""
SCALE = "annealed+"
"""Its seconds are what each method gets with ``--seconds-of``."""
SCREENED = "annealed-gradients+"
"""The same, with all heads screened by gradients."""
BY_EXAMPLES = ("eap-ig", "gradient", "attribution", "gradient+", "attribution+")
"""Methods that cost what their finding examples cost, whatever the budget."""


@dataclass(frozen=True)
class Found:
    """Five heads, what they cost, and what else is worth keeping."""

    heads: list[Unit]
    cost: Cost
    said: Mapping[str, Any]


@dataclass(frozen=True)
class Limit:
    """What a method may take, in the words of a record.

    Attributes:
        model: The model's name.
        budget: Example-evaluations; None: what its examples cost.
        examples: Examples to find with; None: those of the task.
        limit: ``"seconds"`` where both were chosen for the seconds that they take, ``"cost"`` where examples were, for
            what they cost.
    """

    model: str
    budget: int | None = None
    examples: int | None = None
    limit: str | None = None

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Whether a record was made under this limit."""
        return all(record.get(name) == value for name, value in asdict(self).items())


def chg_reference(experiment: cs.Experiment, seed: int, budget: int, folder: str) -> Found:
    """The heads whose gates the reference code of causal head gating keeps open."""
    from causal_head_gating import CHGAnalyzer
    from causal_head_gating.data.datasets import MaskedSequenceDataset
    from transformers import AutoModelForCausalLM

    # It casts to bfloat16 on a CPU by itself.
    torch.set_autocast_dtype("cpu", torch.float32)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = [
        (each.prompt, each.continuations[example.answer])
        for each, example in zip(experiment.encoded, experiment.task.examples, strict=True)
    ]
    pad = int(model.config.eos_token_id)
    width = 1 + max(len(prompt) + len(target) for prompt, target in answers)
    tokens = torch.full((len(answers), width), pad)
    asked = torch.zeros((len(answers), width), dtype=torch.bool)
    for row, (prompt, target) in enumerate(answers):
        end = len(prompt) + len(target)
        tokens[row, :end] = torch.tensor([*prompt, *target])
        asked[row, len(prompt) : end] = True
    steps = budget // (2 * 3 * BATCH)
    with torch.enable_grad():
        found = CHGAnalyzer(model, experiment.model.tokenizer, device="cpu").fit_dataset(
            MaskedSequenceDataset(pad, input_ids=tokens, loss_masks=asked),
            num_masks=1,
            num_updates=steps,
            num_reg_updates=steps,
            batch_size=BATCH,
            verbose=False,
        )
    last = {stage: masks[-1].mean(dim=0).numpy() for stage, masks in found.masks.items()}
    # The last batch of a round is smaller.
    sizes = [len(answers[first : first + BATCH]) for first in range(0, len(answers), BATCH)]
    rows = sum(sizes[step % len(sizes)] for step in range(3 * steps))
    return Found(
        _top(experiment, last["negative"]),
        Cost(forwards=rows, backwards=rows),
        {
            "steps": steps,
            "mean_gate": {stage: round(float(gates.mean()), 3) for stage, gates in last.items()},
            "by_positive": _names(experiment, last["positive"]),
        },
    )


def limits_of(options: argparse.Namespace) -> dict[tuple[str, str], Limit]:
    """What each method may take for each skill."""
    model = Path(options.model).name
    plain = Limit(model, options.budget)
    chosen, option = (in_cost, "--cost-of") if options.cost_of else (in_seconds, "--seconds-of")
    paths = options.cost_of or options.seconds_of or ()
    files = [[r for r in records(path) if r["model"] == model and "losses" in r] for path in paths]
    limits = {}
    for skill, method in product(options.skills, options.methods):
        known = [chosen([r for r in some if r["skill"] == skill], method, plain) for some in files]
        found = [limit for limit in known if limit is not None]
        if files and not found:
            wanted = method if options.cost_of else f"{method} or no {SCALE}"
            raise ValueError(f"{option} has no {wanted} of {skill} with a budget of {plain.budget}")
        limits[skill, method] = found[-1] if files else plain
    return limits


def in_cost(done: list[dict[str, Any]], method: str, plain: Limit) -> Limit | None:
    """What a method gets to cost the budget, by records of one skill; None: it is missing."""
    if method not in BY_EXAMPLES:
        return plain
    mine = [r for r in done if plain.holds(r) and r["method"] == method]
    if not mine or plain.budget is None:
        return None
    examples = int(plain.budget / _mean(mine, "spent") * _examples(mine))
    return replace(plain, budget=None, examples=examples, limit="cost")


def in_seconds(done: list[dict[str, Any]], method: str, plain: Limit) -> Limit | None:
    """What a method gets to take the seconds of ``SCALE``, by records of one skill; None: one of both is missing."""
    known = [r for r in done if plain.holds(r) or r.get("limit") == "seconds"]
    mine, scale = ([r for r in known if r["method"] == name] for name in (method, SCALE))
    if not mine or not scale:
        return None
    limit = replace(plain, limit="seconds")
    if method == SCALE:
        return limit
    ratio = _mean(scale, "cpu_seconds") / _mean(mine, "cpu_seconds")
    if method in BY_EXAMPLES:
        return replace(limit, budget=None, examples=round(ratio * _examples(mine)))
    # Greedy search stops early: its seconds are those of what it spent, not of its budget.
    return replace(limit, budget=round(ratio * _mean(mine, "budget" if method in OUTSIDE else "spent")))


def _mean(done: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([record[name] for record in done]))


def _examples(done: list[dict[str, Any]]) -> float:
    return float(np.mean([record.get("found_on", N_FINDING) for record in done]))


def with_examples(task: cs.Task, n: int, seed: int) -> cs.Task:
    """The task with so many examples to find with, or all there are, none of them among those that judge it."""
    assert task.held_out is not None
    if n <= len(task):
        return task.take(n)
    unseen = task.held_out.take(N_UNSEEN)
    if task.examples[0].asked is None:
        # It asks about other words than unseen examples do, however many examples it has.
        examples = cs.load_task(task.name, n=n, seed=seed).examples
    else:
        # One question a word: none is left but those held out.
        examples = (*task.examples, *task.held_out.examples[N_UNSEEN:])[:n]
    return replace(task, examples=examples, held_out=unseen)


def _found(experiment: cs.Experiment, scored: Scored) -> Found:
    others = {name: _names(experiment, scores) for name, scores in scored.others.items()}
    return Found(_top(experiment, scored.scores), scored.cost, {**scored.said, **others})


def _top(experiment: cs.Experiment, scores: np.ndarray) -> list[Unit]:
    ranking = cs.HeadRanking(method="outside", importance=scores.astype(float), grid=experiment.grid, spent=0)
    return ranking.top(K["heads"])


def _names(experiment: cs.Experiment, scores: np.ndarray) -> list[str]:
    return [str(head) for head in _top(experiment, scores)]


def find_outside(
    options: argparse.Namespace,
    model: Any,
    tasks: dict[str, cs.Task],
    skill: str,
    *,
    method: str,
    seed: int,
    budget: int | None,
) -> Found:
    """Five heads of a skill, by a method from outside or of the library."""
    if method not in OUTSIDE:
        given = {"seed": seed, "budget": budget, "units": "heads"}
        if method == SCREENED:
            method, given["screen"] = SCALE, "gradients"
        # What differentiates the model knows no other dtype than its own.
        if method_named(method.removesuffix("+")).uses != "model":
            given["compute_dtype"] = "float32"
        if method == "chg":
            given["batch_size"] = BATCH
        ranking = find(model, tasks, skill, method, **given)
        cost = Cost(ranking.spent - ranking.backwards, ranking.backwards)
        return Found(ranking.top(K["heads"]), cost, {"shared": [str(head) for head in ranking.shared]})
    if method == "eap-ig":
        hooked = cs.load_model(options.model, dtype="float32", backend="hooked")
        experiment = cs.Experiment(hooked, tasks[skill], progress=False)
        return _found(experiment, eap_ig(experiment, hooked, seed, options.eap_ig))
    assert budget is not None
    experiment = cs.Experiment(model, tasks[skill], progress=False)
    if method == "css-tuned":
        ranking = cs.methods.tune(experiment, k=K["heads"], seed=seed, n_masks=TUNED)
        return Found(ranking.top(K["heads"]), Cost(ranking.spent), {"design": ranking.provenance["design"]})
    if method == "proxyspex":
        return _found(experiment, proxyspex(experiment, seed, budget))
    return chg_reference(experiment, seed, budget, options.model)


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What each method finds that is not there yet, all of a seed, then the same again with its losses."""
    limits = limits_of(options)
    known = {
        (r["skill"], r["method"], r["seed"]): r
        for r in records(options.out)
        if (limit := limits.get((r["skill"], r["method"]))) and limit.holds(r)
    }
    model = cs.load_model(options.model, dtype="float32")
    names = [name.removeprefix(FAMILY) for name in builtin_tasks() if name.startswith(FAMILY)]
    for seed in options.seeds:
        wanted = [(s, m, seed) for s in options.skills for m in options.methods]
        wanted = [key for key in wanted if "losses" not in known.get(key, {})]
        tasks = {name: cs.load_task(f"{FAMILY}{name}", seed=seed) for name in names} if wanted else {}
        for skill, method, _ in (key for key in wanted if key not in known):
            if method == "eap-ig" and options.eap_ig is None:
                print("eap-ig is left out: give its folder with --eap-ig", flush=True)
                continue
            limit = limits[skill, method]
            side = tasks[skill] if limit.examples is None else with_examples(tasks[skill], limit.examples, seed)
            start = process_time()
            try:
                found = find_outside(
                    options, model, tasks | {skill: side}, skill, method=method, seed=seed, budget=limit.budget
                )
            except BudgetTooSmallError as error:
                print(f"{method} is left out: {error}", flush=True)
                continue
            known[skill, method, seed] = record = {
                "skill": skill,
                "method": method,
                "seed": seed,
                "heads": [str(head) for head in found.heads],
                "spent": found.cost.spent,
                "cost": asdict(found.cost),
                "cpu_seconds": round(process_time() - start, 1),
                "said": dict(found.said),
                "found_on": len(side),
                **{name: value for name, value in asdict(limit).items() if value is not None},
            }
            yield record
        judge = Judge(model, tasks, "heads")
        for key in (key for key in wanted if key in known):
            losses = judge.intervals([Head.parse(head) for head in known[key]["heads"]])
            yield {**known[key], "losses": {name: [one.loss, one.low, one.high] for name, one in losses.items()}}


def row_of(record: dict[str, Any]) -> dict[str, Any]:
    """A record as a row of the table: losses count as 1 at most and 0 at least, as in ``specificity.py``."""
    losses = {
        skill: Loss(*(min(max(bound, 0.0), 1.0) for bound in bounds)) for skill, bounds in record["losses"].items()
    }
    own = losses.pop(record["skill"])
    others = weighted_sum(list(losses.values()), [1 / len(losses)] * len(losses))
    row = {"skill": record["skill"], "method": record["method"], "seed": record["seed"]}
    for name, loss in (("own", own), ("others", others), ("difference", weighted_sum([own, others], [1.0, -1.0]))):
        row |= {name: round(loss.loss, 3), f"{name}_low": round(loss.low, 3), f"{name}_high": round(loss.high, 3)}
    row |= {"example_evaluations": record["spent"], **record["cost"], "cpu_seconds": record["cpu_seconds"]}
    row["heads"] = " ".join(record["heads"])
    return row | ({"found_on": record["found_on"]} if record.get("limit") else {})


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, as ``--csv`` writes it."""
    with path.open(encoding="utf-8") as file:
        told = csv.DictReader(file)
        return [
            {name: text if name in {"skill", "method", "heads"} else float(text) for name, text in row.items()}
            for row in told
        ]


def table(rows: list[dict[str, Any]]) -> str:
    """One line a skill and method: means over seeds, intervals of unseen examples, and what each seed came to."""
    header = "| skill | method | own loss | others' mean loss | difference | of each seed | cost (backward) | CPU s |"
    # Examples to find with, where methods differ in them.
    header += " found on |" if any("found_on" in row for row in rows) else ""
    lines = [header, "|" + "---|" * (header.count("|") - 1)]
    rows = sorted(rows, key=lambda row: row["skill"])
    for skill, method in dict.fromkeys((row["skill"], row["method"]) for row in rows):
        mine = [row for row in rows if (row["skill"], row["method"]) == (skill, method)]
        told = []
        for name in ("own", "others", "difference"):
            each = [Loss(row[name], row[f"{name}_low"], row[f"{name}_high"]) for row in mine]
            mean = weighted_sum(each, [1 / len(each)] * len(each))
            told.append(f"{mean.loss:.2f} ({mean.low:.2f} to {mean.high:.2f})")
        seeds = ", ".join(f"{row['difference']:.2f}" for row in mine)
        costs = (np.mean([row[name] for row in mine]) for name in ("example_evaluations", "backwards", "cpu_seconds"))
        cost, backwards, seconds = costs
        told += [seeds, f"{cost:,.0f} ({backwards:,.0f})", f"{seconds:.0f}"]
        told += [f"{row['found_on']:,.0f}" for row in mine[:1] if "found_on" in row]
        lines.append(f"| {skill} | `{method}` | {' | '.join(told)} |")
    return "\n".join(lines)


LOSSES = ("own", "others", "difference")
COSTS = ("example_evaluations", "cpu_seconds")
README = {
    SCREENED: "this library, told to spare the other skills",
    "attribution+": "attribution patching, told the same",
    "css": "compressed sensing (Bair et al.), 49 random groups of heads off, not tuned",
    "attribution": "attribution patching",
}
"""Methods of the README's table and picture, in its words."""


def complete(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By method its rows of the seeds that each skill was measured with; of methods that have all skills."""
    skills = {row["skill"] for row in rows}
    seeds = set.intersection(*({row["seed"] for row in rows if row["skill"] == skill} for skill in skills))
    by_method = {
        method: [row for row in rows if row["method"] == method and row["seed"] in seeds]
        for method in dict.fromkeys(row["method"] for row in rows)
    }
    whole = set(product(skills, seeds))
    return {name: mine for name, mine in by_method.items() if {(row["skill"], row["seed"]) for row in mine} == whole}


def rounded(losses: Iterable[float]) -> str:
    """The mean; what rounds to minus zero is written as zero."""
    return share(float(np.mean([*losses]).round(2) + 0.0))


def short_table(rows: list[dict[str, Any]]) -> str:
    """The README's: mean losses over all skills and seeds, and the cost."""
    lines = [f"| method | {' | '.join(LOSSES)} | cost |", "|---|---|---|---|---|"]
    known = complete(rows)
    for method, name in README.items():
        losses = [rounded(row[loss] for row in known[method]) for loss in LOSSES]
        cost = f"{np.mean([row['example_evaluations'] for row in known[method]]):,.0f}"
        lines.append(f"| {' | '.join([name, *losses, cost])} |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The README's picture: what five heads take of their own skill and of others, by method."""
    from matplotlib.figure import Figure

    known = complete(rows)
    means = {name: {loss: np.mean([row[loss] for row in known[name]]) for loss in LOSSES} for name in README}
    order = sorted(means, key=lambda name: means[name]["difference"])
    # As wide as a phone, whose pixels are about as large as points are here.
    figure = Figure(figsize=(4.9, 2.9), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(order):
        own, others = means[name]["own"], means[name]["others"]
        axes.plot([others, own], [place, place], color="0.75", linewidth=5, solid_capstyle="butt", zorder=1)
        axes.annotate(
            share(float(others)), (others, place), (-7, 0), textcoords="offset points", ha="right", va="center"
        )
        axes.annotate(share(float(own)), (own, place), (7, 0), textcoords="offset points", ha="left", va="center")
        bold = "bold" if place == len(order) - 1 else "normal"
        method = README[name].partition(", 49")[0]
        axes.annotate(method, (0, place), (0, 8), textcoords="offset points", ha="left", va="bottom", fontweight=bold)
    places = range(len(order))
    for loss, color, marker in (("others", "#c44e52", "s"), ("own", "#2a6f97", "o")):
        label = {"own": "the skill they were found for", "others": "other skills, on average"}[loss]
        axes.scatter([means[name][loss] for name in order], places, 42, color, marker=marker, label=label, zorder=2)
    axes.set(xlim=(0, 1), ylim=(-0.4, len(order) - 0.3), yticks=[], xlabel="share lost with the five heads off")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, handletextpad=0, columnspacing=1)
    figure.savefig(path, dpi=200)


def across_table(rows: list[dict[str, Any]]) -> str:
    """One line a method: what its heads take of each skill less of the others, and means over all skills, and by seed.

    Only seeds that each skill was measured with count, and methods that have all skills.
    """
    skills, known = sorted({row["skill"] for row in rows}), complete(rows)
    heads = ["method", *skills, *(f"mean {name}" for name in LOSSES), "of each seed", "cost", "CPU s"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for method, mine in known.items():
        each = [rounded(row["difference"] for row in mine if row["skill"] == skill) for skill in skills]
        losses = [rounded(row[name] for row in mine) for name in LOSSES]
        seeds = sorted({row["seed"] for row in mine})
        by_seed = ", ".join(rounded(row["difference"] for row in mine if row["seed"] == seed) for seed in seeds)
        costs = [f"{np.mean([row[name] for row in mine]):,.0f}" for name in COSTS]
        lines.append(f"| {' | '.join([f'`{method}`', *each, *losses, by_seed, *costs])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a Hugging Face model")
    parser.add_argument("--eap-ig", type=Path, help="folder with a copy of hannamw/EAP-IG")
    parser.add_argument("--out", type=Path, help="results, one JSON object a line")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of these results, and run nothing")
    parser.add_argument("--csv", type=Path, help="with --table: write its rows here, too")
    parser.add_argument("--short", action="store_true", help="with --across: print the README's table instead")
    parser.add_argument("--picture", type=Path, help="with --across: draw the README's picture here")
    parser.add_argument("--across", type=Path, nargs="+", help="print one table of all skills of such rows")
    parser.add_argument("--skills", nargs="+", default=list(SKILLS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--budget", type=int, default=BUDGET)
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument(
        "--seconds-of", type=Path, nargs="+", help="records: each method gets the CPU seconds of annealed+ there"
    )
    limits.add_argument(
        "--cost-of", type=Path, nargs="+", help="records: methods get as many examples as the budget pays, by these"
    )
    options = parser.parse_args()
    if options.across:
        rows = [row for path in options.across for row in rows_of(path)]
        print(short_table(rows) if options.short else across_table(rows))
        if options.picture:
            draw(rows, options.picture)
        return
    if options.table:
        judged = [record for path in options.table for record in records(path) if "losses" in record]
        rows = [row_of(record) for record in judged]
        if options.csv:
            with options.csv.open("w", encoding="utf-8", newline="") as file:
                names = dict.fromkeys(name for row in rows for name in row)
                writer = csv.DictWriter(file, [*names], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        print(table(rows))
        return
    for record in measure(options):
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        row = row_of(record) if "losses" in record else record
        said = (
            row[name] for name in ("seed", "skill", "method", "cpu_seconds", "heads", "own", "others") if name in row
        )
        print(*said, flush=True)


if __name__ == "__main__":
    main()
