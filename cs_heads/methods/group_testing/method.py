"""Group testing as a method: from experiments to a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cs_heads.arguments import check_seed, check_share
from cs_heads.experiment.baseline import (
    BaselineTooLowError,
    chance_of,
    few_correct,
    is_continuous,
)
from cs_heads.experiment.cost import Cost, Purse, check_budget
from cs_heads.experiment.protocol import (
    ExperimentLike,
    check_is_experiment,
    name_of,
    provenance_of,
)
from cs_heads.methods.controls import (
    Contrast,
    Controls,
    TaskLoss,
    check_experiments,
    controls_notes,
    intact_scores,
    too_near,
)
from cs_heads.methods.group_testing.search import BISECTION, ON_CONTROLS, STEPS, WAVE, Group, Search, Side
from cs_heads.ranking import HeadRanking

# Example-evaluations for masks by default: about what it takes to have a given pair off some six times, and on a small
# grid no more than so many for each of its pairs.
_MASKS, _A_PAIR = 32_000, 12
# Points that order heads of which nothing was found, and pass no measured difference.
_TIE = 1e-6


def group_testing(
    experiment: ExperimentLike,
    controls: Sequence[ExperimentLike] = (),
    budget: int | None = None,
    seed: int = 0,
    *,
    target: float = 0.5,
) -> HeadRanking:
    """Find heads, and pairs of heads that are redundant, by what breaks a task and not its controls.

    Random masks, so dense that the task keeps about ``target`` of its score above chance, run on three examples of
    those that the intact model gets right, and on more while they seem to break the task. Of those that do, one head or
    pair is sought that explains it, on the task, or on the controls where these break too. What is found is tried alone
    on the task and the controls, and at the end once more on up to 48 examples of each, whose figures are reported.
    Use it to sense again (``off=`` the heads found), or in place of ``annealed`` where backups are suspected: it finds
    what no single head shows, at several times the cost, and misses small effects (less than about .3 of the score).

    Groups that take clearly more from the task than from its controls (one-sided 5 %, Bonferroni over all groups tried)
    are ``chosen`` and ``claims``, the clearest first; a pair stands together. The importance of their heads is what the
    task loses with the *group* off, in points of score; ``provenance["groups"]`` has the groups with their losses, the
    controls' and what each head of a pair takes alone. ``shared`` are heads, alone or in a pair, that the controls lose
    as well. Of all other heads nothing is known: their importance is 0, but for millionths that order them by what
    masks with them lost.

    Args:
        experiment: The task.
        controls: Experiments on other tasks. Without any, heads of every task are found as well.
        budget: Example-evaluations in all; by default 32,000, or 12 for each pair of a small grid, and what runs before
            the first mask. A pair is off in one of some 300 masks (density .06), so fewer find fewer.
        seed: Of all draws.
        target: Share of the score above chance that random masks leave, in 0..1.

    Raises:
        ValueError: A wrong argument, before anything is measured.
        BaselineTooLowError: The intact model has fewer than 20 right answers, or is no better than chance.
    """
    check_seed(seed)
    check_is_experiment("experiment", experiment)
    grid = experiment.grid
    check_experiments(experiment, controls)
    check_share("target", target)
    before = Contrast.cost(experiment, controls)
    least = before + 2 * (WAVE * (STEPS[0] + ON_CONTROLS) + BISECTION)
    pairs = grid.size * (grid.size - 1) // 2
    budget = max(least, before + min(_MASKS, _A_PAIR * pairs)) if budget is None else budget
    check_budget(budget, least, "two waves of masks and two bisections, after the intact run")
    purse = Purse(int(budget))
    purse.pay(before)
    rng = np.random.default_rng(seed)
    intact, right = intact_scores(experiment)
    used, chance = np.flatnonzero(right), chance_of(experiment)
    task = TaskLoss(name_of(experiment), experiment, used, intact[used], chance)
    reason = too_near(task.above_guess, "score")
    if reason:
        raise BaselineTooLowError(f"the intact model: {reason}")
    known = Controls(controls, np.random.default_rng([seed, 1])) if controls else None
    sides = [Side(task, len(used), chance, grid.size / 8, purse, rng)]
    if known is not None and known.tasks:
        # A guessed answer keeps all or nothing after the clip, whatever else it would have lost.
        floor = float(np.mean([control.guess for control in known.tasks]))
        sides.append(Side(known, known.n_examples, floor, grid.size / 8, purse, rng))
    allowed = np.flatnonzero(~np.ravel(getattr(experiment, "off", np.zeros(grid.size, dtype=bool))))
    search = Search(grid, allowed, sides, purse, target, rng)
    search.run()
    design = {"budget": int(budget), "seed": seed, "target": target}
    n_right = None if is_continuous(intact, experiment) else int(right.sum())
    return _ranking(search, experiment, known, design, n_right)


def _ranking(
    search: Search, experiment: ExperimentLike, known: Controls | None, design: dict[str, Any], n_right: int | None
) -> HeadRanking:
    grid, level = search.grid, search.sides[0].losses
    assert isinstance(level, TaskLoss)
    importance, of_controls = _TIE * search.of_masks(), np.zeros(grid.size)
    pairs = [group for group in search.shared if len(group.heads) == 2]
    for group in [*(group for group in search.shared if group not in pairs), *reversed(search.groups)]:
        importance[list(group.heads)] = group.task * level.above_guess
        of_controls[list(group.heads)] = group.controls
    chosen = list(dict.fromkeys(head for group in search.groups for head in group.heads))
    shared = sorted({head for group in search.shared for head in group.heads} - {*chosen})
    notes = [*(() if n_right is None else few_correct(n_right, experiment)), *controls_notes(known)]
    notes.append(
        f"group testing found {len(search.groups)} groups of heads, {len(chosen)} heads in all; "
        "it says nothing of the others (importance 0, but for what orders them)"
    )
    notes += [
        f"{_named(search, group)} are redundant: together they take {group.task:.2f} of the task, alone "
        f"{' and '.join(f'{alone:.2f}' for alone in search.alone[group.heads])}"
        for group in search.groups
        if len(group.heads) == 2
    ]
    notes += [
        f"{_named(search, group)} are shared: together they take {group.task:.2f} of the task and "
        f"{group.controls:.2f} of its controls"
        for group in pairs
    ]
    return HeadRanking(
        method="group-testing",
        importance=importance.reshape(grid.shape),
        spent=search.purse.spent,
        claims=tuple(grid.head(head) for head in chosen),
        shared=tuple(grid.head(head) for head in shared),
        chosen=tuple(grid.head(head) for head in chosen),
        control_importance=of_controls.reshape(grid.shape) if len(search.sides) > 1 else None,
        off=tuple(grid.head(int(head)) for head in np.setdiff1d(np.arange(grid.size), search.allowed)),
        provenance={
            **provenance_of(experiment),
            "design": design,
            "controls": [] if known is None else known.names,
            "controls_left_out": {} if known is None else known.left_out,
            "groups": [_told(search, group) for group in search.groups],
            "shared": {_named(search, group): _both_sides(group) for group in search.shared if group not in pairs},
            "shared_pairs": [_told(search, group) for group in pairs],
            "n_right": n_right,
            "n_masks": len(search.lost),
            "n_bisected": search.n_bisected,
            "n_tried": search.n_tried,
            "cost": Cost(forwards=search.purse.spent).to_dict(),
        },
        notes=tuple(notes),
    )


def _named(search: Search, group: Group) -> str:
    return " and ".join(str(search.grid.head(head)) for head in group.heads)


def _both_sides(group: Group) -> dict[str, Any]:
    """What a head takes alone, as ``HeadRanking.shared_effects`` has it."""
    sides = (("task", group.task, group.task_error), ("controls", group.controls, group.controls_error))
    return {
        name: figure
        for side, loss, error in sides
        for name, figure in ((side, loss), (f"{side}_interval", [loss - 1.96 * error, loss + 1.96 * error]))
    }


def _told(search: Search, group: Group) -> dict[str, Any]:
    """A group, JSON-ready."""
    figures = {"task": group.task, "task_error": group.task_error}
    if len(search.sides) > 1:
        figures |= {"controls": group.controls, "controls_error": group.controls_error}
    alone = {"alone": search.alone[group.heads]} if group.heads in search.alone else {}
    return {"heads": [str(search.grid.head(head)) for head in group.heads], **figures, "z": group.z, **alone}
