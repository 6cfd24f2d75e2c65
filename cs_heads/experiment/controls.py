"""Experiments on the controls of a task, where they are one's own and where nobody chose them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from cs_heads.experiment.experiment import Experiment
from cs_heads.lens.model import tokenizer_of
from cs_heads.store.store import BrokenStoreError
from cs_heads.tasks import Task, default_controls, overlapping_controls


def defaults_of(experiment: Experiment, task: Task, seed: int) -> tuple[Task, ...]:
    """The default controls of a task on the model of an experiment: none for one that reads no text."""
    if tokenizer_of(experiment.model) is None:
        return ()
    return default_controls(task, str(experiment.model.cfg.model_name), seed)


def left_out_note(experiment: Experiment, task: Task, seed: int) -> tuple[str, ...]:
    """A note where the default controls leave out skills that are the task under another name, or all: no tokenizer."""
    if tokenizer_of(experiment.model) is None:
        return (
            "no default controls: they are texts, and the model has no tokenizer. Heads of this task cannot be told "
            "from heads that every task needs (task-general): give controls of your own (controls=[...]; --control)",
        )
    names = ", ".join(overlapping_controls(task, str(experiment.model.cfg.model_name), seed))
    return (f"no default controls, since they share examples or the skill with the task: {names}",) if names else ()


def experiments_on(experiment: Experiment, tasks: Sequence[Task], *, chosen: bool) -> list[Experiment]:
    """An experiment like another on each task. Of those that nobody has ``chosen`` some may be left out, in silence.

    Left out are those whose texts the model's tokenizer or context does not take.
    """
    if chosen:
        return [experiment.on(task) for task in tasks]
    made = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in tasks:
            try:
                made.append(experiment.on(task))
            except BrokenStoreError:
                raise
            except ValueError:
                continue
    return made
