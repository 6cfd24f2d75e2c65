"""What heads are judged on: the unseen side of a task, and its controls, given or by default."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from cs_heads.arguments import check_integer
from cs_heads.experiment.baseline import MIN_CORRECT, check_size
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens.model import tokenizer_of
from cs_heads.store.store import BrokenStoreError
from cs_heads.tasks import Task, confirming_side, control_side, default_controls, overlapping_controls


def defaults_of(experiment: Experiment, task: Task, seed: int) -> tuple[Task, ...]:
    """The default controls of a task on the model of an experiment: none for one that reads no text."""
    if tokenizer_of(experiment.model) is None:
        return ()
    return default_controls(task, str(experiment.model.cfg.model_name), seed)


def left_out_note(experiment: Experiment, task: Task, seed: int) -> tuple[str, ...]:
    """A note where the default controls leave out skills that are the task under another name, or all: no tokenizer."""
    if tokenizer_of(experiment.model) is None:
        return (
            "no default controls: they are texts, and the model has no tokenizer. Heads of this task cannot be "
            "distinguished from task-general (universal) heads: give controls of your own (controls=[...]; --control)",
        )
    names = ", ".join(overlapping_controls(task, str(experiment.model.cfg.model_name), seed))
    return (f"no default controls, since they share examples or the skill with the task: {names}",) if names else ()


def experiments_on(experiment: Experiment, tasks: Sequence[Task], *, chosen: bool) -> list[Experiment]:
    """An experiment like another on each task. Of those that the caller has not ``chosen`` some may be left out.

    Left out, without a warning, are those whose texts the model's tokenizer or context does not take.
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


def unseen_side(task: Task, n: int) -> Task:
    """Up to ``n`` examples that heads were not found with; ``ValueError`` where they are too few, or ``n`` is."""
    check_integer("n", n, MIN_CORRECT)
    unseen = confirming_side(task)
    check_size(unseen)
    return unseen.take(n)


def judged_sides(task: Task, controls: Sequence[Task], n: int, seed: int) -> list[Task]:
    """Up to ``n`` unseen examples of a task and of each control, none of which another was searched with."""
    sides = [unseen_side(task, n), *(control_side(control, n, seed) for control in controls)]
    check_apart([task, *controls], sides)
    return sides


def control_experiments(
    experiment: Experiment, task: Task, given: Sequence[Task] | None, n: int, seed: int
) -> tuple[list[Experiment], list[str]]:
    """Experiments on the controls of a task, and the names of all controls, also of those that cannot be measured.

    Args:
        experiment: That of the task.
        task: The task, both sides.
        given: The sides of the controls that the caller chose; None: up to ``n // 2`` unseen examples of each default
            control, 20 at least.
        n: Examples of the task.
        seed: Splits the default controls.
    """
    sides = given
    if sides is None:
        size = max(n // 2, MIN_CORRECT)
        sides = [control_side(control, size, seed) for control in defaults_of(experiment, task, seed)]
    return experiments_on(experiment, sides, chosen=given is not None), [side.name for side in sides]


def check_apart(tasks: Sequence[Task], judged: Sequence[Task]) -> None:
    """Raise ``ValueError`` where the side of a task to judge with holds a question of the finding side of another.

    ``judged`` has the side of each of ``tasks``, in their order.
    """
    asked = [{example.question for example in side.examples} for side in judged]
    for place, task in enumerate(tasks):
        if task.role != "finding":
            continue
        searched = {example.question for example in task.examples}
        for other, side in enumerate(judged):
            shared = searched & asked[other]
            if shared and other != place:
                raise ValueError(
                    f"task {side.name!r} shares {len(shared)} examples with the finding side of {task.name!r}: heads "
                    "are judged on examples that none were found with"
                )
