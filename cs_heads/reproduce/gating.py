"""The steps of Nam et al. (arXiv 2505.13737): gates on all heads, their kinds, and the evidence for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from cs_heads import plot
from cs_heads.analysis.contrasts import held_out_contrasts
from cs_heads.analysis.gating import (
    score_distribution,
    score_of_heads,
    seed_agreement,
    taxonomy,
    toggle_curves,
)
from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.methods.gating.result import PHASES, SCORES, HeadGates
from cs_heads.methods.mediation import Mediation, indirect_effects, task_pairs
from cs_heads.reproduce import costs, published
from cs_heads.reproduce.papers import RULE_SHOTS
from cs_heads.reproduce.reproduction import NONE_LEFT, Output, Reproduction, Step, add_step
from cs_heads.tasks import Task, finding_side, function_vectors
from cs_heads.tasks.induction import vocabulary_of
from cs_heads.tasks.pairs import STAGES, identity_rules
from cs_heads.units import Unit

_WORDS = "function_vectors/"

SIGMAS = 3.0
"""Standard deviations over heads from which an indirect effect counts, as in figure 4a."""

STEPS: list[Step] = []
"""The protocol, in order."""

_step = partial(add_step, STEPS)


def _capabilities(repro: Reproduction) -> dict[str, HeadGates]:
    """Gates of the tasks of table 2; the word-to-word tasks are for figures 4 and 5."""
    found = {name: gates for name, gates in repro.gates.items() if name in repro.finding}
    if not found:
        raise BaselineTooLowError(NONE_LEFT)
    return found


def _of_each(
    repro: Reproduction,
    number: str,
    about: str,
    make: Callable[[str, HeadGates], tuple[pd.DataFrame, Callable[[], Any] | None]],
) -> list[Output]:
    """A table or figure of each task, named by the heads and the task they were found on."""
    outputs = []
    for name, gates in _capabilities(repro).items():
        title, (frame, draw) = f"{name}: {repro.label(repro.finding[name])}", make(name, gates)
        outputs.append(Output(f"{number}-{name.replace(' ', '-')}", f"{title}: {about}", frame, draw, title))
    return outputs


@_step(cost=costs.gates)
def _kinds(repro: Reproduction) -> list[Output]:
    """Gates of every head: facilitating, irrelevant or interfering."""
    about = "facilitation, irrelevance and interference of every head"
    return [
        *_of_each(repro, "table-1", about, lambda _, gates: (gates.to_frame(), None)),
        *_of_each(repro, "figure-3b", "facilitation and interference in every seed and in any", _maps),
        *_of_each(repro, "figure-1c", "both gates of every head", lambda _, gates: _plane(gates)),
        *_of_each(repro, "figure-1b", "gate paths of the first head by each score", lambda _, gates: _paths(gates)),
    ]


def _maps(_: str, gates: HeadGates) -> tuple[pd.DataFrame, Callable[[], Any]]:
    return gates.to_frame(), partial(plot.gate_maps, gates)


def _plane(gates: HeadGates) -> tuple[pd.DataFrame, Callable[[], Any]]:
    """Both gates of every head, mean over seeds."""
    frame = gates.to_frame()[["head", "layer", "index", "kind", "facilitation", "interference"]]
    both = {"plus": 1 - frame["interference"], "minus": frame["facilitation"]}
    frame = frame.drop(columns=["facilitation", "interference"]).assign(**both)
    return frame, partial(plot.gate_plane, gates)


def _paths(gates: HeadGates) -> tuple[pd.DataFrame, Callable[[], Any]]:
    """The gates of the first head by each score that is not the first by a score before it."""
    chosen: dict[str, Unit] = {}
    for score in SCORES:
        order = np.argsort(-gates.score(score).mean(axis=0).ravel(), kind="stable")
        heads = (gates.ranking().grid.unit(int(index)) for index in order)
        chosen[score] = next(head for head in heads if head not in chosen.values())
    frame = pd.DataFrame(
        {"by": score, "head": str(head), "phase": phase, "step": step, "gate": gate}
        for score, head in chosen.items()
        for phase, paths in zip(PHASES, gates.trajectory[:, 0, :, head.layer, head.index].tolist(), strict=True)
        for step, gate in zip(gates.at.tolist(), paths, strict=True)
    )
    return frame, partial(plot.trajectories, gates, heads=list(chosen.values()))


@_step(cost=costs.gates)
def _shares(repro: Reproduction) -> list[Output]:
    """How many heads are of each kind."""
    frame = _with_suites(repro, taxonomy(_capabilities(repro)))
    own = {heads: repro.paper.task(repro.finding[heads]) for heads in _capabilities(repro)}
    members = {
        fit: [task.name for heads, task in own.items() if fit in (heads, task.suite)] for fit in frame["fit"].unique()
    }
    sources = {fit: ", ".join(repro.tasks[name].name for name in some) for fit, some in members.items()}
    frame.insert(1, "measured with", frame["fit"].map(sources))
    # The mean of some parts of a suite has no published one like it.
    parts = {fit: max(1, sum(task.suite == fit for task in repro.paper.tasks)) for fit in members}
    for column, model in enumerate(published.GATED_MODELS):
        keys = zip(frame["fit"], frame["heads"], strict=True)
        known = [published.GATED.get(key) if len(members[key[0]]) == parts[key[0]] else None for key in keys]
        frame[f"facilitation, published {model}"] = [None if row is None else row[column] for row in known]
    about = f"share of heads of each kind, in every seed and in any; published: {published.CHG_SOURCE}"
    return [Output("table-2", about, frame, partial(plot.taxonomy, frame))]


def _with_suites(repro: Reproduction, frame: pd.DataFrame) -> pd.DataFrame:
    """The table with a row for each suite of several tasks: the mean over those that are there."""
    suites = {heads: repro.paper.task(name).suite for heads, name in repro.finding.items()}
    rows = [frame]
    for suite in dict.fromkeys(suite for suite in suites.values() if suite is not None):
        members = frame[frame["fit"].map(suites) == suite]
        shares = [*SCORES, "active"]
        if len(members):
            mean = members.groupby(["model", "seeds", "heads"], sort=False, dropna=False)[shares].mean().reset_index()
            rows.append(mean.assign(fit=suite)[list(frame)])
    return pd.concat(rows, ignore_index=True)


@_step(cost=costs.toggles)
def _toggles(repro: Reproduction) -> list[Output]:
    """Heads turned off and on in the order of each score."""

    def curves(name: str, gates: HeadGates) -> tuple[pd.DataFrame, Callable[[], Any]]:
        sizes = {"max_heads": repro.n_toggled, "n_points": repro.settings.n_points}
        found = toggle_curves(repro.experiment(repro.finding[name]), gates, **sizes)
        return pd.concat([one.to_frame() for one in found], ignore_index=True), partial(plot.toggle_curves, found)

    about = "log-probability with the first heads off minus that with them on, all others at G+"
    return _of_each(repro, "figure-2", about, curves)


@_step(cost=costs.gates)
def _distribution(repro: Reproduction) -> list[Output]:
    """Distribution of the scores."""

    def reached(_: str, gates: HeadGates) -> tuple[pd.DataFrame, Callable[[], Any]]:
        return score_distribution(gates).reset_index(), partial(plot.score_ecdf, gates)

    return _of_each(repro, "figure-3a", "cumulative share of heads by score", reached)


@_step(cost=costs.gates, needs=("two seeds or more", lambda r: r.settings.n_seeds > 1))
def _seeds(repro: Reproduction) -> list[Output]:
    """Agreement between seeds."""
    frames = [seed_agreement(gates).assign(task=name) for name, gates in _capabilities(repro).items()]
    return [Output("seeds", "agreement between two seeds (section 4.2)", pd.concat(frames, ignore_index=True))]


@_step(cost=costs.mediating, needs=("a word-to-word task", lambda r: r.controls))
def _mediating(repro: Reproduction) -> list[Output]:
    """Heads that mediate, and their facilitation."""
    about = "facilitation of heads that mediate against that of all others (largest over seeds; Welch, one-sided)"
    outputs, rows = [], []
    for name in [name for name in repro.controls if name in repro.gates and not repro.paper.task(name).rules]:
        tested, made = _tested(repro, name, name, _mediation(repro, name), about)
        rows += tested
        outputs += made
    if not rows:
        return []
    return [Output("figure-4", about, repro.table(pd.DataFrame(rows))), *outputs]


def _tested(
    repro: Reproduction, name: str, what: str, found: Mediation, about: str
) -> tuple[list[dict[str, Any]], list[Output]]:
    """A row by each criterion on the heads that mediate and their facilitation, and the figure of the paper's."""
    gates, effects = repro.gates[name], found.average
    label = what if what != name else repro.label(name)
    sigmas = (effects - effects.mean()) / effects.std()
    rows = []
    for criterion, chosen in ((f"{SIGMAS:g} sigmas", sigmas >= SIGMAS), ("significant", found.significant())):
        row: dict[str, Any] = {"task": name, "pairs": len(found.effects), "mediate": criterion}
        rows.append(row | {"mediating": int(chosen.sum())} | dict.fromkeys(("inside", "outside", "t", "p")))
        if 2 <= chosen.sum() <= chosen.size - 2:
            test = score_of_heads(gates, repro.grid.units(chosen), over="any")
            rows[-1] |= {"inside": test.inside, "outside": test.outside, "t": test.t, "p": test.p}
        else:
            reason = f"{chosen.sum()} of {chosen.size} heads mediate, and a test needs two or more on either side"
            repro.left_out[f"test of {what}, {criterion}"] = reason
    frame = gates.to_frame()
    for column, values in (("effect", effects), ("sigmas", sigmas), ("significant", found.significant())):
        frame[column] = values.ravel()[frame["index"]]
    file = f"figure-4-{what.rpartition('/')[2].replace(' ', '-')}"
    return rows, [Output(file, f"{label}: {about}", frame, partial(plot.mediating, frame, SIGMAS), label)]


@_step(cost=costs.rules, needs=("the identity rules of the library", lambda r: r.having(rules=True)))
def _rules(repro: Reproduction) -> list[Output]:
    """Heads of each stage of the identity rules, and their facilitation."""
    (name,) = repro.having(rules=True)
    if name not in repro.gates or repro.tasks[name].name != name:
        repro.left_out["rules"] = "pairs are made of the library's own words, to which gates must have been fitted"
        return []
    about = "facilitation of heads that mediate a stage of ABA and ABB rules against that of all others"
    outputs, rows = [], []
    words = vocabulary_of(None, least=2 * RULE_SHOTS + 2)
    for stage in STAGES:
        pairs = identity_rules(words, stage, repro.settings.n_pairs, n_shots=RULE_SHOTS, seed=repro.seed)
        tested, made = _tested(repro, name, stage, indirect_effects(repro.model, pairs, **repro.calls), about)
        rows += [{"stage": stage, **row} for row in tested]
        outputs += made
    return [Output("figure-4b", about, repro.table(pd.DataFrame(rows))), *outputs]


def _mediation(repro: Reproduction, name: str) -> Mediation:
    """Effects on pairs of the words that the gates were fitted to; of other tasks on two of their prompts."""
    task, n = finding_side(repro.tasks[name]), repro.settings.n_pairs
    if name.startswith(_WORDS) and function_vectors.n_shots(task) > 1:
        pairs = function_vectors.pairs_of(task, n, repro.seed)
        return indirect_effects(repro.model, pairs, average_source=True, **repro.calls)
    return indirect_effects(repro.model, task_pairs(repro.model, task, n, repro.seed), **repro.calls)


@_step(
    cost=lambda r: costs.contrasts(r, _word_tasks(r)),
    needs=("two word-to-word tasks by worked examples", lambda r: len(_word_tasks(r)) > 1),
)
def _contrasts(repro: Reproduction) -> list[Output]:
    """One format kept, the other forgotten."""
    settings, names = repro.settings, _word_tasks(repro)
    shots = {name.removeprefix(_WORDS): repro.tasks[name] for name in names}
    found = held_out_contrasts(
        repro.model,
        {"shots": shots, "instruction": {name: instructed(task, name) for name, task in shots.items()}},
        n=min(len(repro.unseen(name)) for name in names),
        steps=settings.steps,
        batch_size=settings.batch_size,
        seed=repro.seed,
        **repro.calls,
    )
    about = "a word task that gates were not fitted to, in the format they retain and in the other"
    return [Output("figure-5", about, found.to_frame(), found.plot)]


def _word_tasks(repro: Reproduction) -> list[str]:
    """The paper's word tasks that are asked by worked examples; the other format is made from these."""
    return [name for name, task in repro.tasks.items() if name.startswith(_WORDS) and function_vectors.n_shots(task)]


def instructed(task: Task, name: str) -> Task:
    """The same words asked for by an instruction and one worked example in place of all of them.

    Args:
        task: a word-to-word task by worked examples.
        name: its name among the instructions, as ``"antonym"``.

    Returns:
        The task with its held-out side, both by instruction.
    """
    examples = tuple(function_vectors.instructed(example, name) for example in task.examples)
    held_out = None if task.held_out is None else instructed(task.held_out, name)
    return replace(task, examples=examples, held_out=held_out)
