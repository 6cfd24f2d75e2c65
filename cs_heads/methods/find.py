"""From a model and a task to a ranking, by any method that starts from an experiment."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.measure.baseline import MIN_CORRECT, BaselineTooLowError, few_correct, too_low
from cs_heads.methods.annealed import annealed
from cs_heads.methods.compressed_sensing import compressed_sensing
from cs_heads.ranking import HeadRanking
from cs_heads.tasks import Task, finding_side, search_control

if TYPE_CHECKING:
    from cs_heads.measure.experiment import Experiment

METHODS: dict[str, Callable[..., HeadRanking]] = {
    "annealed": annealed,
    "css": partial(compressed_sensing, design="stratified"),
    "csb": partial(compressed_sensing, design="bernoulli"),
}
"""Methods by name: each takes an experiment, ``seed=`` and options of its own."""


def find_heads(
    model: Any,
    task: Task,
    *,
    k: int = 5,
    method: str = "annealed",
    control: Task | None = None,
    seed: int = 0,
    progress: bool | None = None,
    batch_tokens: int | None = None,
    prepend_bos: bool | None = None,
    **options: Any,
) -> HeadRanking:
    """Rank the heads of ``model`` by how much ``task`` rests on them.

    Measures on the finding side of a task that is split (``load_task``, ``Task.split``), so that
    ``confirm`` has unseen examples. ``options`` go to the method, as in
    ``find_heads(model, task, budget=5000)``. ``k`` is the number of heads you mean to use. ``control`` is
    another task, by which the annealed method tells universal heads from those of the task; of a task
    that is split its finding side is used. ``progress``, ``batch_tokens`` and ``prepend_bos`` are those of
    ``Experiment``.

    The intact model runs before any mask: where it does not beat chance, or answers fewer than 20 examples
    right, ``BaselineTooLowError`` is raised and no mask is spent. An unknown method, a
    wrong option, or a ``k`` that leaves no random heads to compare with, raises before the model runs.
    """
    from cs_heads.measure.experiment import Experiment

    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    known = _options(METHODS[method])
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"method {method!r} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    if control is not None and not takes_control(method):
        raise ValueError(f"method {method!r} takes no control task; give it to confirm")
    side = finding_side(task)
    check_size(side)
    settings: dict[str, Any] = {"progress": progress, "batch_tokens": batch_tokens, "prepend_bos": prepend_bos}
    experiment = Experiment(model, side, **settings)
    check_k(k, experiment.grid.size)
    others = [] if control is None else [Experiment(experiment.model, search_control(control), **settings)]
    if side.held_out is not None:
        # Read now, so that what cannot be confirmed is refused before the search and not after it.
        check_size(side.held_out)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Experiment(experiment.model, side.held_out, prepend_bos=prepend_bos)
    checked = _BaselineFirst(experiment)
    if "k" in inspect.signature(METHODS[method]).parameters:
        options["k"] = k
    if others:
        options["control"] = others[0]
    ranking = METHODS[method](checked, seed=seed, **options)
    return replace(
        ranking,
        spent=experiment.spent + sum(other.spent for other in others),
        provenance={**ranking.provenance, "baseline": float(experiment.baseline().mean()), "k": k, "seed": seed},
        notes=tuple(dict.fromkeys((*checked.notes, *ranking.notes))),
    )


def takes_control(method: str) -> bool:
    """Whether a method of ``METHODS`` can use a control task."""
    return "control" in inspect.signature(METHODS[method]).parameters


def _options(method: Callable[..., HeadRanking]) -> list[str]:
    """What a user may set of a method by its name: its keywords, but for those fixed by the name or given to all."""
    fixed = (*getattr(method, "keywords", {}), "seed", "k", "control")
    return [name for name in list(inspect.signature(method).parameters)[1:] if name not in fixed]


class _BaselineFirst:
    """An experiment whose intact run comes before its first mask, and after the method has read its arguments."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.grid, self.n_examples, self.provenance = experiment.grid, experiment.n_examples, experiment.provenance
        self.notes: tuple[str, ...] = ()
        self._checked = False

    def __call__(
        self, masks: Bool[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        if not self._checked:
            self.notes = check_baseline(self.experiment)
            self._checked = True
        return self.experiment(masks, examples)


def check_size(task: Task) -> None:
    """Raise ``ValueError`` where a side of a task is too small to say anything."""
    if len(task) < MIN_CORRECT:
        raise ValueError(
            f"task {task.name!r} has {len(task)} {task.role} examples; {MIN_CORRECT} or more are needed on each side: "
            "add examples"
        )


def check_k(k: int, n_heads: int) -> None:
    """Raise ``ValueError`` unless ``k`` heads leave as many others to compare them with."""
    if k != int(k) or not 1 <= k <= n_heads // 2:
        raise ValueError(
            f"k must be in 1..{n_heads // 2}, half of the {n_heads} heads of the grid, so that as many random "
            f"heads are left to compare with; got {k}"
        )


def check_baseline(experiment: Experiment) -> tuple[str, ...]:
    """A note where the intact model answers few examples right; raises ``BaselineTooLowError`` where too few."""
    scores = experiment.baseline()
    reason = too_low(scores, experiment.task.chance)
    if reason:
        raise BaselineTooLowError(f"task {experiment.task.name!r}: {reason}; use a model that can do the task")
    return few_correct(int(scores.sum()))
