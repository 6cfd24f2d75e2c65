"""Whether a model does a task well enough to show what a head does, and the sizes a search needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import bdtrc, stdtr

from cs_heads.arguments import check_integer
from cs_heads.experiment.heads_off import WithHeadsOff, on_model
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.ranking import DEFAULT_K
from cs_heads.tasks.responses import RESPONSES
from cs_heads.tasks.scorer import ExactMatch
from cs_heads.tasks.splits import MIN_CORRECT
from cs_heads.text import shown
from cs_heads.units import Grid

if TYPE_CHECKING:
    from cs_heads.experiment.experiment import Experiment

FEW_CORRECT = 60
"""Examples answered right below which a ranking is weak."""

N_SHUFFLES = 39
"""Exchanges of answers that a mean of continuous scores is compared with: of 39 it may be beaten by one."""

CANNOT = "use a model that can do the task, or ask for it otherwise, as after worked examples"
"""What to do where the intact model does not do a task."""


class BaselineTooLowError(ValueError):
    """The baseline is too low: the intact model cannot do the task well enough to show what a head does."""


def check_k(k: Any, grid: Grid, name: str = "k", n_off: int = 0) -> int:
    """``k`` as an ``int``; raises ``ValueError``, under ``name``, unless it leaves as many heads to compare with."""
    n, word = grid.size - n_off, grid.word
    why = f"half of the {n} {word}s of the grid, so that as many random {word}s are left to compare with"
    return check_integer(name, k, 1, n // 2, why)


def fitting_k(
    k: Any, grid: Grid, default: int = DEFAULT_K, name: str = "k", *, n_off: int = 0, beside: bool = True
) -> tuple[int, tuple[str, ...]]:
    """``k`` as ``check_k`` takes it, and a note where a small grid changes the default.

    Args:
        k: The number of heads; None is the default, or half of a grid that is too small for it.
        grid: Heads, or other units, that there are.
        default: The default.
        name: Of the argument, for errors and notes.
        n_off: Heads of the grid that are off already.
        beside: Whether random heads are needed beside the ``k``; else these may be all heads of the grid.

    >>> from cs_heads.units import Grid
    >>> fitting_k(None, Grid(2, 2))
    (2, ('k is 2, half of the 4 heads of the grid, and not 5 as by default',))
    >>> fitting_k(4, Grid(2, 2), beside=False)
    (4, ())
    """
    n = grid.size - n_off
    if k is not None and not beside:
        return check_integer(name, k, 1, n, f"the {grid.word}s of the grid"), ()
    if k is not None or n < 2:
        return check_k(default if k is None else k, grid, name, n_off), ()
    fits = min(default, n // 2)
    note = f"{name} is {fits}, half of the {n} {grid.word}s of the grid, and not {default} as by default"
    return fits, (note,) if fits < default else ()


def check_baseline(experiment: Experiment | WithHeadsOff, least: int = MIN_CORRECT) -> tuple[str, ...]:
    """A note where the intact model answers few examples right; raises ``BaselineTooLowError`` where too few."""
    scores = experiment.baseline()
    reason = baseline_too_low(experiment, scores, least=least)
    if reason:
        raise BaselineTooLowError(f"task {experiment.name!r}: {reason}; {remedy(experiment)}")
    return () if is_continuous(scores, experiment) else few_correct(round(float(scores.sum())), experiment)


def remedy(experiment: ExperimentLike) -> str:
    """What to do where the baseline is too low; it shows how to write answers that follow a prompt without a space."""
    if experiment.off.any():
        return "take fewer heads off"
    task = experiment.task
    if task is not None and isinstance(task.scorer, ExactMatch):
        return f"{CANNOT}; or end what is written behind the answer: stop= (--stop), or fewer max_new_tokens"
    if task is None or task.over_token_ids or task.kind == "generation" or task.chat != "off":
        return CANNOT
    prompt, answer = shown(task.examples[0].prompt), shown(task.examples[0].target)
    if prompt[-1:].isspace() or answer[:1].isspace():
        return CANNOT
    return f"{CANNOT}; or, if a space belongs between prompt and answer, write answers as {' ' + answer!r}"


def few_correct(n_correct: int, experiment: ExperimentLike) -> tuple[str, ...]:
    """A note where few examples are answered right, else none."""
    note = f"{_model(experiment)} answers only {n_correct} examples right: {FEW_CORRECT} or more rank heads better"
    return (note,) if n_correct < FEW_CORRECT else ()


def is_continuous(scores: Float[np.ndarray, " example"], experiment: ExperimentLike | None) -> bool:
    """Whether scores are numbers on a scale of their own and no right answers: some lie between 0 and 1.

    Those of a ``graded`` task always are, though the intact model may have full marks throughout. Of choices that tie
    each has a share of the point, so scores of a task without a scorer are right answers, but for shares of tokens.
    """
    task = None if experiment is None else experiment.task
    if task is not None and task.accuracy != "token" and (task.scorer is None or task.graded):
        return task.graded
    return bool(((scores > 0) & (scores < 1)).any())


def baseline_too_low(
    experiment: ExperimentLike | None,
    scores: Float[np.ndarray, " example"],
    chance: float | None = None,
    least: int = MIN_CORRECT,
) -> str | None:
    """Why scores of the intact model are too low to find heads with, or None.

    They are too low at chance, or with fewer than ``least`` right answers. Continuous scores are not counted: where all
    examples were asked, their mean must beat all but a twentieth of the means with the answers exchanged
    (``shuffled_means``), where there are any; else, by a t-test, chance.

    Args:
        experiment: What was asked; None where only the scores are known.
        scores: Of each example, with no further head off.
        chance: The score of guessing (None: that of the experiment).
        least: Right answers at least.
    """
    if chance is None:
        chance = 0.0 if experiment is None else experiment.chance
    who, n, mean = _model(experiment), len(scores), float(scores.mean())
    if is_continuous(scores, experiment):
        shuffled = None if experiment is None or n != experiment.n_examples else shuffled_means(experiment)
        said = f"{who} has a mean score of {mean:.3f} on {n} examples, no better than"
        if shuffled is not None:
            p = (1 + int((shuffled >= mean - 1e-9).sum())) / (1 + len(shuffled))
            return f"{said} with answers exchanged between examples ({shuffled.mean():.3f})" if p > 0.05 else None
        return None if _above(scores, chance) else f"{said} chance ({chance:.3f})"
    correct = round(float(scores.sum()))
    if correct < least:
        return f"{who} answers {correct} of {n} examples right, fewer than {least}"
    if chance > 0 and bdtrc(correct - 1, n, chance) > 0.05:
        return f"{who} scores {mean:.3f} on {n} examples, no better than chance ({chance:.3f})"
    return None


def shuffled_means(experiment: ExperimentLike) -> Float[np.ndarray, " shuffle"] | None:
    """Mean scores of the intact model's texts, each judged by the answer of another example, drawn anew each time.

    This runs no model. None where that tells nothing: what is scored is no text, or the scorer does not read answers.
    """
    made = on_model(experiment)
    if made is None or not made.writes:
        return None
    said, rng = made.observe(experiment.off[None]), np.random.default_rng(0)

    def scored(of: Int[np.ndarray, " text"]) -> Float[np.ndarray, " text"]:
        intact = None if said.intact is None else said.intact[:, of]
        return RESPONSES["score"](made.task, replace(said, examples=of[None], intact=intact))[0]

    order = np.arange(made.n_examples)
    own, exchanged = scored(order), np.array([scored(rng.permutation(order)) for _ in range(N_SHUFFLES)])
    return None if np.abs(exchanged - own).max() < 1e-9 else exchanged.mean(axis=1)


def _model(experiment: ExperimentLike | None) -> str:
    """The model in words, with the heads that an experiment is without under every mask."""
    off = [] if experiment is None else [*map(str, experiment.grid.units(experiment.off))]
    return f"the model with {', '.join(off)} off" if off else "the intact model"


def _above(scores: Float[np.ndarray, " example"], level: float) -> bool:
    """Whether a mean is clearly above a level, by a one-sided t-test; where nothing varies it is as it is."""
    gain, n = float(scores.mean()) - level, len(scores)
    error = float(scores.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return gain > 0 and (error < 1e-12 or bool(stdtr(n - 1, -gain / error) <= 0.05))
