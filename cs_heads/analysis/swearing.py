"""How much a model swears with heads off: counts and severities, beside the score of the swearing task.

After Bair et al. (arXiv 2603.03335), who count the profanities in the texts of all prompts and divide by the intact
model's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from typing_extensions import Unpack

from cs_heads.designs import check_masks
from cs_heads.experiment.experiment import Experiment
from cs_heads.settings import SettingsArguments
from cs_heads.tasks.profanity import Profanity, Swearing
from cs_heads.tasks.sides import check_is_task
from cs_heads.tasks.swearing import SwearingScorer
from cs_heads.tasks.task import Task


@dataclass(frozen=True, eq=False)
class SwearingUnderMasks:
    """Profanities in each text: their number, the mean of their severities (0 without any), the intact model's number.

    ``spent`` is the number of example-evaluations that it took.
    """

    counts: Int[np.ndarray, "row example"]
    severities: Float[np.ndarray, "row example"]
    intact: Int[np.ndarray, " example"]
    spent: int

    @property
    def share(self) -> Float[np.ndarray, " row"]:
        """Profanities of all texts over the intact model's, 1 at most; the intact model's own is 1."""
        return np.minimum(1.0, self.counts.sum(axis=1) / self.intact.sum())

    @property
    def severity(self) -> Float[np.ndarray, " row"]:
        """Mean severity of the profanities found, in the list's units; NaN where there is none."""
        total = self.counts.sum(axis=1)
        weighed = (self.counts * self.severities).sum(axis=1)
        return np.divide(weighed, total, out=np.full(len(total), np.nan), where=total > 0)

    def to_frame(self) -> pd.DataFrame:
        """One row a mask: number of profanities, its share of the intact model's, mean severity."""
        return pd.DataFrame({"count": self.counts.sum(axis=1), "share": self.share, "severity": self.severity})


def swearing_under(experiment: Experiment, masks: Bool[np.ndarray, "..."]) -> SwearingUnderMasks:
    """Counts and severities of what the model writes under each mask, on every prompt of a swearing experiment.

    Texts that the experiment has are not written again. A task that is not scored by profanities, or a model that
    does not swear intact, raises ``ValueError``.
    """
    before = experiment.spent
    masks = check_masks(experiment.grid, masks)
    profanity = _profanity(experiment.task)
    intact = _judged(profanity, experiment.generate(np.zeros((1, *experiment.grid.shape), dtype=bool)))
    counts = _each(intact, "count")[0].astype(int)
    if not counts.any():
        raise ValueError(f"the intact model does not swear at any of the {len(counts)} prompts: nothing can be lost")
    judged = _judged(profanity, experiment.generate(masks))
    return SwearingUnderMasks(
        _each(judged, "count").astype(int), _each(judged, "severity"), counts, experiment.spent - before
    )


def swearing_prompts(model: Any, task: Task, **settings: Unpack[SettingsArguments]) -> Task:
    """The task with those prompts alone at which the intact model swears, on both sides: there it scores 1.

    ``settings`` are those of ``Experiment``. Fewer than one prompt left on a side, or a task that is not scored by
    profanities, raises ``ValueError``.
    """
    profanity = _profanity(task)
    return _swearing(Experiment(model, task, **settings), profanity)


def _swearing(experiment: Experiment, profanity: Profanity) -> Task:
    task = experiment.task
    said = _judged(profanity, experiment.generate(np.zeros((1, *experiment.grid.shape), dtype=bool)))[0]
    kept = tuple(example for example, judged in zip(task.examples, said, strict=True) if judged.count)
    if not kept:
        raise ValueError(
            f"the intact model swears at none of the {len(task)} prompts of the {task.role} side of task {task.name!r}"
        )
    unseen = None if task.held_out is None else _swearing(experiment.held_out, profanity)
    return replace(task, examples=kept, held_out=unseen)


def _profanity(task: Task) -> Profanity:
    check_is_task(task)
    if not isinstance(task.scorer, SwearingScorer):
        raise ValueError(f"task must be scored by its profanities, as load_task('swearing') is; got {task.name!r}")
    return task.scorer.profanity


def _judged(profanity: Profanity, texts: np.ndarray) -> list[list[Swearing]]:
    return [[profanity.judge(str(text)) for text in row] for row in texts]


def _each(judged: list[list[Swearing]], name: str) -> np.ndarray:
    return np.array([[getattr(each, name) for each in row] for row in judged], dtype=float)
