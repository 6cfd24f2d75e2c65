"""Fitting gates to a task, and to a task against another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from einops import repeat

from cs_heads.arguments import check_seed
from cs_heads.experiment.baseline import baseline_too_low, check_baseline
from cs_heads.experiment.controls import found_on
from cs_heads.experiment.cost import Cost
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.controls import controls_notes
from cs_heads.methods.gating.descent import FREE_RATES, MAX_NORM, SIGNED_RATES, Descent, Plan, objective_of
from cs_heads.methods.gating.result import HeadGates, range_over_seeds
from cs_heads.methods.ranking_method import RankingSteps, check_differentiable, ranking_method
from cs_heads.progress import expect, one_bar, step
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task


@one_bar("gates")
def fit_gates(
    experiment: Experiment,
    *,
    budget: int | None = None,
    seed: int = 0,
    n_seeds: int = 1,
    steps: int = 500,
    batch_size: int = 64,
    strength: float = 0.1,
    max_norm: float | None = MAX_NORM,
    start_inside: bool = False,
) -> HeadGates:
    """Fit a gate to every head by Adam on the logits of the gates, with the paper's schedule.

    From gates uniform in (0, 1), ``steps`` steps on the target's mean negative log-probability (nats per token) alone;
    from there two fits of ``steps`` steps with the penalty ``- λ · mean over heads of clip(logit gate, ±4)``, λ =
    ``strength`` (G⁺) and ``-strength`` (G⁻). Seed number i is ``seed + i``, with its own start and its own draws: it
    fits the same gates by itself, to rounding. All seeds, and both signs, share forward passes of ``batch_tokens``
    tokens.

    Costs the intact run and ``3 * n_seeds * steps * batch_size`` forward and as many backward passes of one example.
    With a store the fit is saved every few seconds, and the same call resumes it.

    Args:
        experiment: The task.
        budget: Example-evaluations in all; a smaller one shortens all phases alike, to 20 steps at least.
        seed: The first seed.
        n_seeds: Fits, each from its own random start; 1 or more.
        steps: Steps of Adam in each phase, 20 or more.
        batch_size: Examples of each step, drawn anew.
        strength: Weight λ of the penalty on the gates, above 0.
        max_norm: Norm at which the gradient of each fit is clipped (None: it is not).
        start_inside: Whether logits beyond ±4 are taken back to it before each phase; from outside the penalty cannot
            move a gate.

    Returns:
        The gates of each phase ``[seed, layer, head]``, 0 (shut) to 1 (open), with losses, trajectories and cost.

    Raises:
        ValueError: A wrong number, or a budget that does not cover 20 steps.
        BaselineTooLowError: The intact model cannot do the task.
    """
    plan = Plan(n_seeds, steps, batch_size, strength, max_norm, start_inside)
    fit = _fitted_beside(experiment, (), plan, budget=budget, seed=check_seed(seed))
    expect(next(fit))
    return next(fit)[0]


def _fitted(experiment: Experiment, plan: Plan, seed: int) -> HeadGates:
    """The gates of one task, whose intact run is done."""
    kept = experiment.kept_work("chg", {"plan": asdict(plan), "seed": seed})
    descend = Descent(experiment, objective_of(experiment), plan, seed, kept)
    step(f"of {experiment.task.name}, no penalty")
    free = descend(descend.start(), FREE_RATES, [0.0])
    step(f"of {experiment.task.name}, both signs")
    both = repeat(free.logits, "fit layer head -> (sign fit) layer head", sign=2)
    signed = descend(both, SIGNED_RATES, [plan.strength, -plan.strength])
    losses, trajectory = (
        np.concatenate(both).reshape(3, plan.n_seeds, *both[0].shape[1:])
        for both in ((free.losses, signed.losses), (free.trajectory, signed.trajectory))
    )
    # The last gates of each phase.
    first, plus, minus = trajectory[:, :, -1]
    return HeadGates(
        free=first,
        plus=plus,
        minus=minus,
        losses=losses,
        trajectory=trajectory,
        at=free.at,
        cost=plan.cost(experiment.n_examples),
        provenance=plan.provenance(experiment, seed),
        grid=experiment.grid,
        examples=found_on(experiment),
    )


@ranking_method("gates")
def causal_head_gating(
    experiment: Experiment,
    *,
    controls: Sequence[Experiment] = (),
    budget: int | None = None,
    seed: int = 0,
    n_seeds: int = 1,
    steps: int = 500,
    batch_size: int = 64,
    strength: float = 0.1,
    max_norm: float | None = MAX_NORM,
    start_inside: bool = False,
) -> RankingSteps:
    """The ranking of ``fit_gates``: facilitation less interference.

    With ``controls`` gates are fitted to each of them as to the task, from the same starts, and the ranking is
    ``HeadGates.ranking(controls)``. That costs as much for each control as for the task; a ``budget`` covers all of it,
    with as many steps in every fit. A control that the intact model cannot do is left out, and the notes say so.

    Args:
        experiment: The task.
        controls: Experiments on other tasks, which the heads should not serve.
        budget: Example-evaluations in all; a smaller one shortens all phases alike, to 20 steps at least.
        seed: The first seed.
        n_seeds: Fits, each from its own random start; 1 or more.
        steps: Steps of Adam in each phase, 20 or more.
        batch_size: Examples of each step, drawn anew.
        strength: Weight λ of the penalty on the gates, above 0.
        max_norm: Norm at which the gradient of each fit is clipped (None: it is not).
        start_inside: Whether logits beyond ±4 are taken back to it before each phase; from outside the penalty cannot
            move a gate.

    Returns:
        The ranking; of two seeds or more ``interval`` is the range over them. ``frequency`` is the share of seeds in
        which facilitation, or with ``controls`` the contrast, is above .5.

    Raises:
        ValueError: A wrong number, or a budget that does not cover 20 steps.
        BaselineTooLowError: The intact model cannot do the task, or none of the controls.
    """
    plan = Plan(n_seeds, steps, batch_size, strength, max_norm, start_inside)
    fit = _fitted_beside(experiment, controls, plan, budget=budget, seed=seed)
    yield next(fit)
    gates, rest = next(fit)
    yield gates.ranking(rest)


def _fitted_beside(
    experiment: Experiment, controls: Sequence[Experiment], plan: Plan, *, budget: int | None, seed: int
) -> Iterator[Any]:
    """What fits cost at most; then the gates of a task, with the notes and the cost of all, and those of its controls.

    A control that the model cannot do has none.
    """
    check_differentiable(experiment, controls)
    plan, notes, most = plan.within(budget, [side.n_examples for side in (experiment, *controls)])
    yield most
    notes = (*check_baseline(experiment), *notes)
    used, left_out, ran = [], {}, 0
    for other in controls:
        reason = baseline_too_low(other, other.baseline())
        if reason:
            left_out[other.task.name] = reason
            ran += other.n_examples
        else:
            used.append(other)
    if controls:
        notes = (*notes, *controls_notes(left_out, [other.task.name for other in used], required=True))
    gates, *rest = (_fitted(side, plan.on(side.n_examples), seed) for side in (experiment, *used))
    yield replace(gates, notes=notes, cost=gates.cost + Cost(forwards=ran)), rest


@ranking_method("contrastive gates")
def contrastive_gating(
    experiment: Experiment,
    *,
    forget: Task,
    budget: int | None = None,
    seed: int = 0,
    n_seeds: int = 1,
    steps: int = 500,
    batch_size: int = 64,
    strength: float = 0.1,
    max_norm: float | None = MAX_NORM,
    start_inside: bool = False,
) -> RankingSteps:
    """Rank heads that the task needs and ``forget`` does not: gates that retain one variant and forget the other.

    One fit of ``steps`` steps from gates uniform in (0, 1). It minimizes the mean over pairs of ``max(log P(forget) -
    log P(task), -5)`` with the penalty of ``fit_gates``, λ = ``-strength``; log-probabilities are means over the
    target's tokens. Importance is the mean gate over the seeds: heads whose gates stay open are those that the retained
    variant needs. Otherwise as ``fit_gates``; costs the intact run and ``2 * n_seeds * steps * batch_size`` forward and
    as many backward passes.

    Args:
        experiment: The task to retain.
        forget: The task to forget: example i is the pair of example i of the task, so both have as many, split alike.
        budget: Example-evaluations in all; a smaller one shortens the fit, to 20 steps at least.
        seed: The first seed.
        n_seeds: Fits, each from its own random start; 1 or more.
        steps: Steps of Adam, 20 or more.
        batch_size: Pairs of examples of each step, drawn anew.
        strength: Weight λ of the penalty on the gates, above 0.
        max_norm: Norm at which the gradient of each fit is clipped (None: it is not).
        start_inside: Whether starts beyond ±4 are taken back to it; from outside the penalty cannot move a gate.

    Returns:
        The ranking by gate, 0 (shut) to 1 (open); of two seeds or more ``interval`` is the range over them.
        ``frequency`` is the share of seeds whose gate is above .5.

    Raises:
        ValueError: A wrong number, tasks of different sizes, the confirming side of a split as ``forget``, or a budget
            that does not cover 20 steps.
        BaselineTooLowError: The intact model cannot do the task.
    """
    # One phase, each step on both tasks.
    plan = Plan(n_seeds, steps, batch_size, strength, max_norm, start_inside, phases=1, sides=2)
    task = experiment.task
    if len(forget) != len(task):
        raise ValueError(f"forget must be a task of {len(task)} examples, the pairs of those of {task.name!r}")
    other = experiment.on(forget)
    check_differentiable(experiment, [other], "forget")
    plan, notes, most = plan.on(experiment.n_examples).within(budget, [experiment.n_examples])
    yield most
    notes = (*check_baseline(experiment), *notes)
    kept = experiment.kept_work("contrastive", {"plan": asdict(plan), "seed": seed}, other)
    descend = Descent(experiment, objective_of(experiment, other), plan, seed, kept)
    shut = descend(descend.start(), FREE_RATES, [-strength])
    cost = plan.cost(experiment.n_examples)
    yield HeadRanking(
        method="contrastive",
        importance=shut.gates.mean(axis=0),
        grid=experiment.grid,
        spent=cost.spent,
        backwards=cost.backwards,
        interval=range_over_seeds(shut.gates),
        frequency=(shut.gates > 0.5).mean(axis=0),
        provenance={**plan.provenance(experiment, seed), "forget": other.provenance()["task"]},
        notes=notes,
        unit="gate",
    )
