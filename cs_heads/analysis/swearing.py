"""How much a model swears with heads off: counts and severities, beside the score of the swearing task.

After Bair et al. (arXiv 2603.03335), who count the profanities in the texts of all prompts and divide by the intact
model's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from typing_extensions import Unpack

from cs_heads.analysis.result import Result
from cs_heads.cluster import ModelLike
from cs_heads.designs import check_masks
from cs_heads.experiment.experiment import Experiment
from cs_heads.progress import one_bar
from cs_heads.settings import SettingsArguments
from cs_heads.tasks.splits import check_is_task
from cs_heads.tasks.swearing import Profanity, SwearingScorer
from cs_heads.tasks.task import Task


@dataclass(frozen=True, eq=False, repr=False)
class SwearingUnderMasks(Result):
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
        """One row per mask: number of profanities, its share of the intact model's, mean severity."""
        return pd.DataFrame({"count": self.counts.sum(axis=1), "share": self.share, "severity": self.severity})


def swearing_under(experiment: Experiment, masks: Bool[np.ndarray, "..."]) -> SwearingUnderMasks:
    """Counts and severities of what the model writes under each mask, on every prompt of a swearing experiment.

    Texts that the experiment has are not written again.

    Args:
        experiment: On a task that is scored by profanities.
        masks: ``[row, layer, head]``, True = ablated.

    Returns:
        ``counts`` and ``severities`` ``[row, example]``, the ``intact`` counts ``[example]``, and what these cost.

    Raises:
        ValueError: A task that is not scored by profanities, or a model that does not swear intact.
    """
    before = experiment.spent
    intact, _ = _profanities(experiment, experiment.grid.mask([])[None])
    if not intact.any():
        raise ValueError(f"the intact model does not swear at any of the {intact.size} prompts: nothing can be lost")
    counts, severities = _profanities(experiment, check_masks(experiment.grid, masks))
    return SwearingUnderMasks(counts, severities, intact[0], experiment.spent - before)


@one_bar("prompts that make it swear")
def swearing_prompts(model: ModelLike, task: Task, **settings: Unpack[SettingsArguments]) -> Task:
    """The task with those prompts alone at which the intact model swears, on both sides: there it scores 1.

    Args:
        model: A model, the name of one, or a ``Cluster``.
        task: A task that is scored by profanities.
        settings: As of ``Experiment``.

    Returns:
        A task of the same name; its ``held_out``, where there is one, has such prompts alone, too.

    Raises:
        ValueError: A task that is not scored by profanities, or of which no prompt is left on a side.
    """
    _profanity(task)
    with Experiment(model, task, **settings) as experiment:
        return _swearing(experiment)


def _swearing(experiment: Experiment) -> Task:
    task, (intact, _) = experiment.task, _profanities(experiment, experiment.grid.mask([])[None])
    kept = tuple(example for example, count in zip(task.examples, intact[0], strict=True) if count)
    if not kept:
        raise ValueError(
            f"the intact model swears at none of the {len(task)} prompts of the {task.role} side of task {task.name!r}"
        )
    unseen = None if task.held_out is None else _swearing(experiment.held_out)
    return replace(task, examples=kept, held_out=unseen)


def _profanity(task: Task) -> Profanity:
    check_is_task(task)
    if not isinstance(task.scorer, SwearingScorer):
        raise ValueError(f"task must be scored by its profanities, as load_task('swearing') is; got {task.name!r}")
    return task.scorer.profanity


def _profanities(
    experiment: Experiment, masks: Bool[np.ndarray, "row layer head"]
) -> tuple[Int[np.ndarray, "row example"], Float[np.ndarray, "row example"]]:
    """Number and mean severity of the profanities in each text."""
    profanity = _profanity(experiment.task)
    judged = [[profanity.judge(str(text)) for text in row] for row in experiment.generate(masks)]
    counts, severities = np.array([[(each.count, each.severity) for each in row] for row in judged]).transpose(2, 0, 1)
    return counts.astype(int), severities.astype(float)
