"""The prompts at which a model swears, as Bair et al. (arXiv 2603.03335) choose those of their swearing task."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import Unpack

from cs_heads.cluster import ModelLike
from cs_heads.experiment.experiment import Experiment
from cs_heads.progress import one_bar
from cs_heads.settings import SettingsArguments
from cs_heads.tasks.splits import check_is_task
from cs_heads.tasks.swearing import SwearingScorer
from cs_heads.tasks.task import Task


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
    check_is_task(task)
    if not isinstance(task.scorer, SwearingScorer):
        raise ValueError(f"task must be scored by its profanities, as load_task('swearing') is; got {task.name!r}")
    with Experiment(model, task, **settings) as experiment:
        return _swearing(experiment)


def _swearing(experiment: Experiment) -> Task:
    task = experiment.task
    # Some profanity in a text scores 1.
    kept = tuple(example for example, score in zip(task.examples, experiment.baseline(), strict=True) if score > 0)
    if not kept:
        raise ValueError(
            f"the intact model swears at none of the {len(task)} prompts of the {task.role} side of task {task.name!r}"
        )
    unseen = None if task.held_out is None else _swearing(experiment.held_out)
    return replace(task, examples=kept, held_out=unseen)
