"""The steps of Bair et al. (arXiv 2603.03335): heads found by compressed sensing, and what ablating them breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from cs_heads import plot
from cs_heads.analysis.columns import Column
from cs_heads.analysis.confirm import Confirmation, confirm
from cs_heads.analysis.drops import measure_drops
from cs_heads.analysis.failures import failures
from cs_heads.analysis.formats import measure_formats
from cs_heads.analysis.overlap import head_overlap
from cs_heads.analysis.scale_study import scale_study
from cs_heads.analysis.sparsity import measure_sparsity
from cs_heads.analysis.universal import UniversalHeads
from cs_heads.methods.compressed_sensing import tune
from cs_heads.methods.greedy import greedy
from cs_heads.ranking import HeadRanking
from cs_heads.record import write_json
from cs_heads.report.findings import CURVE, RESULT
from cs_heads.reproduce import costs, published
from cs_heads.reproduce.costs import METHODS, N_FAILING, N_FAILURES
from cs_heads.reproduce.reproduction import Output, Reproduction, Step, add_step
from cs_heads.tasks import confirming_side, finding_side
from cs_heads.tasks.splits import MIN_CORRECT
from cs_heads.units import Unit

STEPS: list[Step] = []
"""The protocol, in order."""

_step = partial(add_step, STEPS)
_PUBLISHED = f"published: {published.CS_SOURCE}"
N_RANDOM = 10_000
"""Random sets of heads that clustering is compared with."""


@_step(cost=costs.rankings)
def _find(repro: Reproduction) -> list[Output]:
    """Search over designs; heads of every capability, universal ones last."""
    tried, found = [], []
    for heads, ranking in repro.rankings.items():
        named = {"heads": heads, "task": repro.finding[heads]}
        design = ranking.provenance["design"]
        for each in ranking.provenance["tuning"]:
            chosen = each["n_masks"] == design["n_masks"] and each["density"] == design["density"]
            tried.append({**named, **each, "chosen": chosen})
        found += [{**named, **row} for row in ranking.to_frame().head(repro.settings.max_heads).to_dict("records")]
    for heads, reason in repro.left_out.items():
        if heads in repro.finding:
            found.append({"heads": heads, "task": repro.finding[heads], "left out": reason})
    about = "every number of masks and density, and the drop on the finding examples"
    return [
        Output("search", about, repro.table(pd.DataFrame(tried))),
        Output("heads", "the heads found, universal ones last", repro.table(pd.DataFrame(found))),
    ]


_UNTRIED = "it needs two capabilities whose heads were found, and a control that the model can do"


@_step(cost=costs.universal, needs=("two tasks with heads and a control", lambda r: len(r.finding) > 1 and r.controls))
def _universal(repro: Reproduction) -> list[Output]:
    """Heads that every task needs, and how it fails."""
    found = repro.universal
    if found is None:
        repro.left_out["universal"] = _UNTRIED
        return []
    assert repro.control is not None
    about = f"share of each score above chance left with one head off; control: {repro.label(repro.control)}"
    failed = [_failures(repro, found, heads) for heads in repro.rankings]
    return [Output("universal", about, found.to_frame(), found.plot), *failed]


def _failures(repro: Reproduction, found: UniversalHeads, name: str) -> Output:
    task = repro.tasks[repro.finding[name]]
    # By what is left of the control: universal heads first, or the head nearest to one where there is none.
    order = [found.candidates[i] for i in found.left[:, -1].argsort(kind="stable")]
    shown = [head for head in order if head in found.heads][:N_FAILING] or order[:1]
    heads = {str(head): [head] for head in shown} | {name: repro.top(name)}
    n = min(N_FAILURES, len(confirming_side(task)))
    modes = failures(repro.model, task, heads, n=n, **repro.calls)
    what = "universal heads" if found.heads else "the head nearest to a universal one"
    about = f"how {task.name} fails with {what} and with the {name} heads off"
    return Output("failures" if name == repro.first else f"failures-{name}", about, modes.to_frame(), modes.plot)


@_step(cost=costs.everywhere, needs=("two tasks with heads and a control", lambda r: len(r.finding) > 1 and r.controls))
def _everywhere(repro: Reproduction) -> list[Output]:
    """Each universal head on every task."""
    if repro.universal is None or not repro.universal.heads:
        repro.left_out["everywhere"] = _UNTRIED if repro.universal is None else "no head is universal"
        return []
    sets = {str(head): [head] for head in repro.universal.heads}
    columns = [repro.column(name) for name in repro.tasks]
    return [_measured_drops(repro, "everywhere", "one universal head off, on every task", columns, sets)]


@_step(cost=costs.drops)
def _drops(repro: Reproduction) -> list[Output]:
    """Every set of heads on every task."""
    own = {repro.finding[heads] for heads in repro.rankings}
    columns = {name: repro.column(name, "own" if name in own else "control") for name in repro.tasks}
    # The paper's first figure has no questions of hazardous knowledge.
    shown = [column for name, column in columns.items() if name in published.INTACT or repro.paper.name != "cs"]
    draw = plot.radar if len(shown) > 2 else plot.specificity  # a radar needs three axes
    about = f"every task, intact and with the {repro.first} heads off; {_PUBLISHED}"
    every = f"every set of heads on every task; {_PUBLISHED}"
    sets = {heads: repro.top(heads) for heads in repro.rankings}
    first = {repro.first: sets[repro.first]}
    drops = _measured_drops(repro, "drops", every, [*columns.values(), *repro.suites()], sets)
    if repro.settings.n_unseen is None:
        drops = replace(drops, frame=_with_whole(repro, drops.frame, sets))
    return [_measured_drops(repro, "figure-1", about, shown, first, draw=draw), drops]


def _with_whole(repro: Reproduction, frame: pd.DataFrame, sets: Mapping[str, Sequence[Unit]]) -> pd.DataFrame:
    """The table with the scores on whole sets, which the paper measures, the finding examples among them."""
    masks = np.stack([repro.grid.mask(heads) for heads in ([], *sets.values())])
    whole: dict[str, np.ndarray] = {}
    for name in repro.tasks:
        sides = [repro.experiment(name, finding=finding)(masks) for finding in (False, True)]
        whole[name] = np.concatenate(sides, axis=1).mean(axis=1)
    for suite in repro.suites():
        whole[suite.name] = np.mean([whole[name] for name in repro.having(suite=suite.name)], axis=0)
    rows = list(zip(frame["heads"], frame["task"], strict=True))
    place = {heads: row for row, heads in enumerate(sets, start=1)}
    return frame.assign(
        **{"whole baseline": [whole[task][0] for _, task in rows]},
        **{"whole score": [whole[task][place[heads]] for heads, task in rows]},
    )


def _measured_drops(
    repro: Reproduction,
    name: str,
    about: str,
    columns: Sequence[Column],
    sets: Mapping[str, Sequence[Unit]],
    *,
    draw: Callable[..., Any] | None = None,
    title: str | None = None,
) -> Output:
    """Sets of heads on tasks, with the published scores by the paper's names; unknown ones are left blank."""
    own = {heads: repro.label(repro.finding[heads]) for heads in sets if heads in repro.finding}
    found = measure_drops(columns, sets, own, repro.seed)
    kept = ["found", "task", "n_examples", "baseline", "score", "drop", "low", "high", "loss", "too_low"]
    frame = repro.table(found.to_frame()[kept].rename(columns={"found": "heads"}))
    pairs = list(zip(frame["heads"], frame["task"], strict=True))
    known = {heads: published.OFF.get(heads, {}) for heads in sets}
    frame["published baseline"] = [published.INTACT[task] if task in known[heads] else None for heads, task in pairs]
    frame["published score"] = [known[heads].get(task) for heads, task in pairs]
    return Output(name, about, frame, partial(draw or plot.drop_matrix, found), title)


@_step(cost=costs.proof)
def _proof(repro: Reproduction) -> list[Output]:
    """Random heads beside the heads found."""
    rows = []
    for heads in repro.rankings:
        if len(repro.unseen(repro.finding[heads])) < MIN_CORRECT:
            repro.left_out[f"proof of {heads}"] = f"fewer than {MIN_CORRECT} unseen examples"
            continue
        proof = _proven(repro, heads)
        row: dict[str, Any] = {"heads": heads, "task": repro.finding[heads], "ablated": " ".join(map(str, proof.heads))}
        row |= {"baseline": proof.result.baseline, "score": proof.result.score, "drop": proof.drop}
        rows.append(row | {"random_drop": proof.random.drop, "p": proof.p, "verdict": proof.verdict})
    if not rows:
        return []
    about = "the heads on unseen examples, beside random heads of the same layers"
    outputs = [Output("proof", about, repro.table(pd.DataFrame(rows)))]
    of = {row["heads"]: repro.rankings[row["heads"]] for row in rows}
    # Where all heads that matter are universal there is none to say a depth of.
    own = [heads for heads, ranking in of.items() if (ranking.importance[~repro.grid.mask(ranking.shared)] > 0).any()]
    if own:
        found = scale_study({heads: repro.folder(heads) for heads in own}, k=repro.settings.max_heads)
        frame = found.to_frame().rename(columns={"model": "found"})
        about = "how much depends on the heads, and at which depth they lie"
        outputs.append(Output("scale", about, frame, found.plot if frame["low"].notna().any() else None))
    return outputs


def _proven(repro: Reproduction, heads: str) -> Confirmation:
    """The heads on unseen examples, in a folder as of ``find --out``; the step "drops" measures other tasks."""
    name, ranking = repro.finding[heads], repro.rankings[heads]
    proof = confirm(None, repro.experiment(name), ranking, k=repro.settings.k, seed=repro.seed, least=False)
    curve = measure_sparsity([repro.column(name, "own")], ranking.top(repro.settings.max_heads), repro.seed)
    folder = repro.folder(heads)
    folder.mkdir(parents=True, exist_ok=True)
    ranking.save(folder / "ranking.json")
    write_json(folder / RESULT, {"task": name, "confirm": proof.to_dict(), "half": curve.heads_for(0.5)})
    write_json(folder / CURVE, curve.to_dict())
    return proof


@_step(cost=costs.sparsity)
def _sparsity(repro: Reproduction) -> list[Output]:
    """The score by number of heads off."""
    first, max_heads = repro.first, repro.settings.max_heads
    siblings = [repro.column(name, "sibling") for name in repro.siblings(first)]
    columns = [repro.column(repro.finding[first], "own"), *siblings, *repro.suites()]
    curve = measure_sparsity(columns, repro.rankings[first].top(max_heads), repro.seed)
    frame = repro.table(curve.to_frame())
    # The published curve is that of the math heads, and its means are over whole suites.
    parts = {suite: [task.name for task in repro.paper.tasks if task.suite == suite] for suite in published.CURVE}
    known = {
        task: dict(enumerate(scores))
        for task, scores in published.CURVE.items()
        if first == "math" and {*(parts[task] or [task])} <= repro.tasks.keys()
    }
    frame["published score"] = [known.get(task, {}).get(k) for task, k in zip(frame["task"], frame["k"], strict=True)]
    about = f"score with the first 0 to {max_heads} {first} heads off; {_PUBLISHED}"
    return [Output("sparsity", about, frame, curve.plot)]


@_step(
    cost=costs.generalization,
    needs=("a second task of one capability", lambda r: any(map(r.siblings, r.finding))),
)
def _generalization(repro: Reproduction) -> list[Output]:
    """Other tasks of the capability."""
    outputs = []
    for heads in repro.rankings:
        siblings = [repro.column(name, "sibling") for name in repro.siblings(heads)]
        if siblings:
            columns = [repro.column(repro.finding[heads], "own"), *siblings]
            about = f"heads found on one task, ablated on another of the same capability: {heads}; {_PUBLISHED}"
            name, title = f"generalization-{heads}", f"{heads} heads off"
            sets = {heads: repro.top(heads)}
            outputs.append(_measured_drops(repro, name, about, columns, sets, draw=plot.specificity, title=title))
    return outputs


@_step(cost=costs.rankings, needs=("heads of two tasks or more", lambda r: len(r.finding) > 1))
def _overlap(repro: Reproduction) -> list[Output]:
    """Heads in common."""
    if len(repro.rankings) < 2:
        repro.left_out["overlap"] = "needs heads of two tasks or more"
        return []
    found = head_overlap(repro.rankings, k=repro.settings.k, seed=repro.seed)
    about = "heads that two tasks have in common, and how many are expected by chance"
    outputs = [Output("overlap", about, found.to_frame(), found.plot)]
    per_layer = next(iter(repro.rankings.values())).provenance.get("model", {}).get("key_value_heads")
    if per_layer and per_layer < repro.grid.n_units:
        shared = dict.fromkeys(repro.rankings, repro.grid.n_units // per_layer)
        rows = [{"heads": heads, **_clustering(repro, repro.top(heads), size)} for heads, size in shared.items()]
        about = "key-value groups that the heads of one task lie in, fewer than by chance where they cluster"
        outputs.append(Output("groups", about, pd.DataFrame(rows)))
    return outputs


def _clustering(repro: Reproduction, heads: Sequence[Unit], size: int) -> dict[str, Any]:
    """In how many groups of ``size`` heads of a layer some heads lie, and random heads of the grid."""

    def n_groups(places: np.ndarray) -> int:
        return len(np.unique(places // size))  # a layer holds whole groups, so that a flat index tells them

    rng, n = np.random.default_rng(repro.seed), repro.grid.size
    own = n_groups(np.flatnonzero(repro.grid.mask(heads)))
    random = np.array([n_groups(rng.choice(n, len(heads), replace=False)) for _ in range(N_RANDOM)])
    p = (1 + int((random <= own).sum())) / (1 + N_RANDOM)
    return {"n": len(heads), "groups": own, "expected": float(random.mean()), "p": p}


@_step(cost=costs.rankings, needs=("a model with published heads", lambda r: published.heads_of(r.name)))
def _published(repro: Reproduction) -> list[Output]:
    """Heads found beside published ones."""
    rows = []
    for heads, known in published.heads_of(repro.name).items():
        if heads not in repro.rankings:
            continue
        top = repro.top(heads)
        [pair] = head_overlap({"found": top, "published": known}, grid=repro.grid, seed=repro.seed).pairs
        row = {"heads": heads, "found": len(top), "published": len(known), "in common": pair.heads}
        row |= {"expected by chance": pair.expected_heads, "p": pair.p_heads}
        common = [str(head) for head in top if str(head) in known]
        rows.append(row | {"which": " ".join(common), "published heads": " ".join(known)})
    about = f"heads found that are published, and how many chance would give; {published.HEADS_SOURCE}"
    return [Output("published", about, pd.DataFrame(rows))] if rows else []


@_step(
    cost=costs.formats,
    needs=(
        "tasks answered by a letter and tasks answered in full",
        lambda r: r.having(form="letters") and r.having(form="full"),
    ),
)
def _formats(repro: Reproduction) -> list[Output]:
    """Form of a question and knowledge."""
    letters, full = repro.having(form="letters"), repro.having(form="full")
    sets = {heads: repro.top(heads) for heads in repro.rankings}
    singles = [repro.rankings[heads].top(1)[0] for heads in sets if repro.finding[heads] in letters]
    if repro.universal is not None:
        singles += repro.universal.heads
    sets |= {str(head): [head] for head in dict.fromkeys(singles)}
    columns = [repro.column(name, "letters") for name in letters] + [repro.column(name, "full") for name in full]
    found = measure_formats(columns, sets, repro.seed)
    frame = repro.table(found.to_frame().rename(columns={"found": "named"}))
    of, known = published.knowledge_of(repro.name)
    pairs = list(zip(frame["named"], frame["task"], strict=True))
    frame["published baseline"] = [known["none"].get(task) if name in known else None for name, task in pairs]
    frame["published score"] = [known.get(name, {}).get(task) for name, task in pairs]
    about = f"questions answered by a letter and in full, by heads off; published: {published.CODE}, {of}"
    return [Output("format", about, frame, found.plot)]


@_step(cost=costs.methods, needs=("heads of a capability", costs.compared))
def _methods(repro: Reproduction) -> list[Output]:
    """Methods side by side, on each capability and on general tasks."""
    general, rows = repro.having(suite=costs.GENERAL), []
    for heads, name in costs.compared(repro).items():
        if heads not in repro.searched:
            continue
        own, intact = repro.label(name), repro.searched[heads].provenance["intact"]
        columns = [repro.column(name, "own")]
        if general:
            columns.append(Column(costs.GENERAL, "suite", tuple(map(repro.experiment, general))))
        found = _by_every_method(repro, heads)
        k = repro.settings.k
        drops = measure_drops(columns, {method: each.top(k) for method, each in found.items()}, {}, repro.seed).drops
        for method, each in found.items():
            scores = drops[method]
            row = {"heads": heads, "task": own, "method": method, "intact": scores[own].baseline}
            row |= {"Task": scores[own].score, "Gen": scores[costs.GENERAL].score if general else None}
            n_finding = len(finding_side(repro.tasks[name]))
            row |= {"#Evals": round(each.spent / n_finding), "example-evaluations": each.spent}
            rows.append(row | {"finding score": intact, "found": " ".join(map(str, each.top(k)))})
    about = f"{', '.join(METHODS)}: score with the first heads of each off, mean of {costs.GENERAL}, evaluations"
    return [Output("methods", about, repro.table(pd.DataFrame(rows)))]


def _by_every_method(repro: Reproduction, heads: str) -> dict[str, HeadRanking]:
    """The ranking of each method; CSS and CSB with the best of their designs, greedy search with a head a round."""
    settings = repro.settings
    experiment = repro.experiment(repro.finding[heads], finding=True)
    sizes: dict[str, Any] = {"k": settings.k, "seed": repro.seed}
    designs: dict[str, Any] = {"n_masks": settings.n_masks, "densities": settings.densities}
    return {
        "css": repro.searched[heads],
        "csb": tune(experiment, design="bernoulli", **sizes, **designs),
        "one-shot": greedy(experiment, one_shot=True, budget=settings.budget, **sizes),
        "greedy": greedy(experiment, budget=settings.budget, **sizes),
    }
