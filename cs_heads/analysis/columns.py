"""What heads are ablated on: unseen examples of tasks, or experiments in their place, each in its role."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from cs_heads.arguments import check_integer, check_list, check_mapping
from cs_heads.cluster import ModelLike
from cs_heads.experiment.controls import (
    defaults_of,
    experiments_on,
    found_on,
    kin_of,
    left_out_note,
    unseen_parts,
    unseen_side,
    unseen_tokens,
)
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.protocol import ExperimentLike, check_is_experiment
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task, check_controls, without_kin
from cs_heads.tasks.data_files import check_different
from cs_heads.tasks.splits import MIN_CORRECT, check_apart, check_is_task, check_size, unseen_control

Role = Literal["own", "sibling", "control", "suite", "letters", "full"]

Judged = Task | ExperimentLike
"""What heads are judged on: a task with a model, or, where ``model`` is None, an experiment, which has its own."""


@dataclass(frozen=True, eq=False)
class Column:
    """One task to ablate heads on, or a suite of several.

    Attributes:
        name: Of the task or suite.
        role: What it is to the heads.
        parts: One task or experiment, or those of a suite, whose score is their mean.
        notes: On examples that are no part of it.
    """

    name: str
    role: Role
    parts: tuple[Any, ...]
    notes: tuple[str, ...] = ()


def in_role(role: Role, tasks: Any, name: str | None = None) -> list[Column]:
    """Tasks or experiments under their own names; one that is no list raises ``ValueError``, as ``name``."""
    return [Column(task.name, role, (task,)) for task in check_list(name or f"{role}s", tasks, "tasks")]


def with_others(own: list[Column], siblings: Any, controls: Any, suites: Any) -> list[Column]:
    """The tasks of heads, their siblings and controls, and suites under their names, of which none may be empty."""
    given = {} if suites is None else check_mapping("suites", suites, "a list of tasks by the name of each suite")
    for name, tasks in given.items():
        if not check_list(f"suite {name!r}", tasks, "tasks"):
            raise ValueError(f"suite {name!r} must be a list of one task or more")
    beside = [Column(name, "suite", tuple(tasks)) for name, tasks in given.items()]
    return [*own, *in_role("sibling", siblings), *in_role("control", controls or ()), *beside]


@contextmanager
def unseen_columns(
    model: ModelLike | None, asked: Sequence[Column], found: Any, *, n: int, seed: int, settings: SettingsArguments
) -> Iterator[list[Column]]:
    """Experiments on unseen examples, checked before the model runs; workers end with the block.

    Of tasks these are the side that heads were not found with. Experiments, where ``model`` is None, have their own
    examples and settings. Either way one example of each question counts, and none that a ranking was found on.

    Args:
        model: A model, the name of one, or a ``Cluster``; None where experiments are given.
        asked: Columns of tasks, or of experiments.
        found: The heads: what rankings among them were found on is left out.
        n: Examples of every task at most.
        seed: Draws the examples of whole tasks.
        settings: As of ``Experiment``.

    Raises:
        ValueError: What ``specificity`` refuses: a side that is judged may not share a question with the finding side
            of another task.
    """
    check_integer("n", n, MIN_CORRECT)
    given: list[Any] = [task for column in asked for task in column.parts]
    if model is None:
        _check_own(given, settings)
        yield without_seen(asked, found)
        return
    for task in given:
        check_is_task(task)
    seen = found_on(found)
    judged = [
        unseen_side(task, n, seen) if column.role == "own" else unseen_control(task, n, seed, seen)
        for column in asked
        for task in column.parts
    ]
    for side, notes in judged:
        check_size(side, notes)
    check_apart(given, [side for side, _ in judged])
    with Experiment(model, judged[0][0], **settings) as first:
        made = [first, *(first.on(side) for side, _ in judged[1:])]
        read = [unseen_tokens([one], task, seen) for one, task in zip(made, given, strict=True)]
        parts = iter([(part, (*notes, *more)) for ([part], more), (_, notes) in zip(read, judged, strict=True)])
        several = [[next(parts) for _ in column.parts] for column in asked]
        yield [
            replace(column, parts=tuple(part for part, _ in of), notes=tuple(note for _, said in of for note in said))
            for column, of in zip(asked, several, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Controlled:
    """A task and its controls, each on unseen examples, to judge heads on.

    Attributes:
        own: On the task.
        controls: On each control.
        kin: On tasks that ask for the same in other words.
        defaults: Names of the default controls, also of those that cannot be measured (None: the caller chose).
        notes: On examples and controls that are left out.
    """

    own: Any
    controls: Sequence[Any]
    kin: Sequence[Any] = ()
    defaults: list[str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def experiments(self) -> list[Any]:
        """All, that on the task first."""
        return [self.own, *self.controls, *self.kin]


@contextmanager
def controlled(
    model: ModelLike | None,
    task: Any,
    controls: Any,
    found: Any,
    *,
    n: int,
    seed: int,
    settings: SettingsArguments,
    with_kin: bool = False,
) -> Iterator[Controlled]:
    """Experiments on the unseen side of a task and of its controls; workers end with the block.

    Args:
        model: A model, the name of one, or a ``Cluster``; None where experiments are given.
        task: The task, both sides.
        controls: As of ``confirm``.
        found: The heads: what rankings among them were found on is left out.
        n: Examples of every task at most.
        seed: Draws the examples of whole tasks.
        settings: As of ``Experiment``.
        with_kin: Whether kin are measured beside.
    """
    check_integer("n", n, MIN_CORRECT)
    seen, automatic = found_on(found), isinstance(controls, str)
    if model is None:
        given = () if controls is None or controls == "auto" else check_list("controls", controls, "experiments")
        experiments = [task, *given]
        _check_own(experiments, settings)
        (only, *rest), notes = unseen_parts(experiments, seen)
        yield Controlled(only, rest, notes=notes)
        return
    given, kin = without_kin(check_controls(controls, task), task)
    judged = [unseen_side(task, n, seen), *(unseen_control(control, n, seed, seen) for control in given)]
    # Fewer of those that come with the library than of the others.
    sides, names, of_each = [side for side, _ in judged], None, max(n // 2, MIN_CORRECT) if automatic else n
    check_apart([task, *given], sides)
    left_out = [note for _, notes in judged for note in notes]
    with Experiment(model, sides[0], **settings) as made:
        # Read before anything runs, so that a control that cannot be measured is refused at once.
        if automatic:
            defaults = defaults_of(made, task, seed)
            names = [control.name for control in defaults]
            beside, fewer = _unseen_sides(defaults, of_each, seed, seen)
            sides, left_out = [*sides, *beside], [*left_out, *fewer]
        others = experiments_on(made, sides[1:], chosen=not automatic)
        (own, *others), same = unseen_tokens([made, *others], task, seen)
        kin, of_kin = [*kin_of(own, task, seed)] if automatic else kin, None
        if with_kin:
            known = {*seen, *found_on(task, task.held_out)}
            unseen = [side for side in _unseen_sides(kin, of_each, seed, known)[0] if len(side) >= MIN_CORRECT]
            of_kin = experiments_on(own, unseen, chosen=False)
        notes = (*left_out, *same, *left_out_note(own, kin, automatic, of_kin))
        yield Controlled(own, others, of_kin or [], names, notes)


def _unseen_sides(tasks: Sequence[Task], n: int, seed: int, seen: Collection[str]) -> tuple[list[Task], list[str]]:
    """Up to ``n`` unseen examples of each task, and notes: also on tasks that have too few."""
    sides: list[Task] = []
    notes: list[str] = []
    for task in tasks:
        try:
            side, left_out = unseen_control(task, n, seed, seen)
        except ValueError as error:
            notes.append(str(error))
        else:
            sides.append(side)
            notes += left_out
    return sides, notes


def _check_own(experiments: Sequence[Any], settings: SettingsArguments) -> None:
    """Raise ``ValueError`` unless what is given with no model are experiments, and no settings beside."""
    for experiment in experiments:
        check_is_experiment("task", experiment)
    if settings:
        raise ValueError(f"{next(iter(settings))} must not be given where model is None: an experiment has its own")


def without_seen(columns: Sequence[Column], found: Any) -> list[Column]:
    """The columns with one example of each question, of those that none of the rankings ``found`` was found on."""
    seen = found_on(found)
    unseen = [unseen_parts(column.parts, seen) for column in columns]
    return [
        replace(column, parts=tuple(parts), notes=(*column.notes, *notes))
        for column, (parts, notes) in zip(columns, unseen, strict=True)
    ]


def check_columns(columns: Sequence[Column]) -> None:
    """Raise ``ValueError`` unless columns are of different names, on one grid."""
    check_different("tasks", [column.name for column in columns])
    if len({part.grid for column in columns for part in column.parts}) > 1:
        raise ValueError("tasks must all be measured on one grid")
