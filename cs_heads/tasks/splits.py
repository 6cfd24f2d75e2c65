"""Which examples of a task may find heads, which confirm them, and which stand as a control."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cs_heads.arguments import check_list, check_seed, in_line
from cs_heads.tasks.example import groups_of, questions_of
from cs_heads.tasks.task import Task

MIN_CORRECT = 20
"""Examples the intact model must answer right."""


def finding_side(task: Task) -> Task:
    """The examples heads are found with.

    Args:
        task: The finding side of a task.

    Raises:
        ValueError: A task that was not split, or the confirming side of one.
    """
    check_is_task(task)
    if task.role == "confirming":
        raise ValueError(f"task {task.name!r} is the confirming side of a split; find heads on the finding side")
    return _split(task)


def confirming_side(task: Task) -> Task:
    """The unseen examples of a finding or confirming task.

    Args:
        task: The task, or either side of it.

    Raises:
        ValueError: A task that was not split, or has no unseen examples.
    """
    check_is_task(task)
    if task.role == "confirming":
        return task
    unseen = _split(task).held_out
    if unseen is None:
        raise ValueError(f"task {task.name!r} has no held-out examples to confirm with")
    return unseen


def distinct(
    task: Task, seen: Collection[str] = (), tokens: Sequence[Collection[str]] | None = None
) -> tuple[Task, tuple[str, ...]]:
    """One example of each question, the first, of those that are not ``seen``: what counts as evidence.

    Args:
        task: A task, whole or one of its sides.
        seen: Hashes of the questions of other examples (``HeadRanking.examples``).
        tokens: Hashes of the tokens of each example, by which it is known too.

    Returns:
        The task with these examples, and notes that say how many others were left out, if any.

    Raises:
        ValueError: No example is left.

    >>> asked = [{"prompt": "One, two,", "target": " three"}, {"prompt": "One, two, ", "target": "three"}]
    >>> task, notes = distinct(Task.from_records(asked, "counting"))
    >>> len(task), notes
    (1, ("task 'counting' asks 1 different question in 2 examples: one example of each counts",))
    """
    kept, known, n_seen, hidden = [], set[str](), 0, {*seen}
    each = zip(task.examples, questions_of(task.examples), task.known, tokens or [()] * len(task), strict=True)
    for example, keys, others, read in each:
        if not hidden.isdisjoint({*others, *read}):
            n_seen += 1
        elif known.isdisjoint({*keys, *read}):
            kept.append(example)
        known.update(keys, read)
    n, word = len(task), {"whole": "", "finding": "finding ", "confirming": "unseen "}[task.role]
    notes = []
    if n_seen:
        notes.append(f"{n_seen} of {n} {word}examples of task {task.name!r} are left out: heads were found on them")
    if n_seen + len(kept) < n:
        questions = f"{len(kept)} different question{'' if len(kept) == 1 else 's'}"
        notes.append(f"task {task.name!r} asks {questions} in {n - n_seen} examples: one example of each counts")
    if not kept:
        raise ValueError(f"task {task.name!r} has no examples to judge on: {notes[0]}")
    return (replace(task, examples=tuple(kept)) if notes else task), tuple(notes)


def check_size(task: Task, left_out: Sequence[str] = ()) -> None:
    """Raise ``ValueError`` where a side of a task asks too few questions to say anything.

    Args:
        task: The side.
        left_out: What was said of examples that are no part of it any more.
    """
    side, repeated = distinct(task)
    if len(side) < MIN_CORRECT:
        why = "".join(f" ({note})" for note in (*left_out, *repeated))
        needed = f"{MIN_CORRECT} or more are needed on each side, {2 * MIN_CORRECT} in all"
        hint = f"{needed}: add examples, or choose another n"
        raise ValueError(f"task {task.name!r} has {len(side)} {task.role} example{'s' * (len(side) != 1)}{why}; {hint}")


def control_side(task: Task, n: int, seed: int) -> Task:
    """Up to ``n`` examples of a control to judge with: the unseen ones, or of a whole task some drawn with ``seed``.

    They are one of each question. Of a whole task they come from the half that ``search_control`` leaves with the same
    seed.

    Args:
        task: The control, split or whole.
        n: Examples at most.
        seed: Draws the examples of a whole task.

    Returns:
        A task of up to ``n`` examples: a confirming side, or of a whole task one of role ``"whole"``.

    Raises:
        ValueError: A finding side without held-out examples, a whole task of one question, or what is no task.
    """
    check_seed(seed)
    check_is_task(task)
    return unseen_control(task, n, seed, ())[0]


def unseen_control(task: Task, n: int, seed: int, seen: Collection[str]) -> tuple[Task, tuple[str, ...]]:
    """``control_side`` without what is ``seen``, and notes on what was left out (``distinct``)."""
    if task.role != "whole":
        side, notes = distinct(confirming_side(task), seen)
        return side.take(n), notes
    half, notes = distinct(_halves(task, seed)[1], seen)
    order = np.random.default_rng(seed).permutation(len(half))[:n]
    return replace(half, examples=tuple(half.examples[index] for index in sorted(order))), notes


def search_control(task: Task, seed: int) -> Task:
    """The examples of a control that a search may use, one of each question: the finding side, or half of a whole task.

    ``control_side`` draws from the other half with the same ``seed``.

    Args:
        task: The control, split or whole.
        seed: Halves a whole task.

    Returns:
        A task that shares no question with ``control_side`` of the same seed.

    Raises:
        ValueError: A confirming side, whose examples are kept for the proof, a whole task of one question, or what is
            no task.
    """
    check_seed(seed)
    check_is_task(task)
    return distinct(_halves(task, seed)[0] if task.role == "whole" else finding_side(task))[0]


def _halves(task: Task, seed: int) -> tuple[Task, Task]:
    """A whole task's halves, to search and to judge with."""
    if len(groups_of(task.examples)) < 2:
        why = f"some to search and some to judge with; all of its {len(task)} examples are of one question or sequence"
        raise ValueError(f"control {task.name!r} must ask two questions or more, {why}")
    searched, judged = (replace(half, role="whole", held_out=None) for half in task.split(len(task) // 2, seed))
    return searched, judged


def _split(task: Task) -> Task:
    """The task itself; one that was not split raises ``ValueError``."""
    if task.role == "whole":
        raise ValueError(
            f"task {task.name!r} is not split into examples to find heads with and unseen ones to confirm them: "
            "give task.split(seed=0)[0], which keeps the unseen ones"
        )
    return task


def check_apart(tasks: Sequence[Task], judged: Sequence[Task]) -> None:
    """Raise ``ValueError`` where the side of a task to judge with holds a question of the finding side of another.

    ``judged`` has the side of each of ``tasks``, in their order.
    """
    asked = [{key for keys in _asked(side) for key in keys} for side in judged]
    for place, task in enumerate(tasks):
        if task.role != "finding":
            continue
        for other, side in enumerate(judged):
            shared = sum(not asked[other].isdisjoint(keys) for keys in _asked(task))
            if shared and other != place:
                raise ValueError(
                    f"task {side.name!r} shares {shared} examples with the finding side of {task.name!r}: heads "
                    "are judged on examples that none were found with"
                )


def _asked(task: Task) -> Sequence[Collection[str]]:
    """What each example asks: of two tasks the same prompt may ask different things, and their targets tell which."""
    return task.known if task.over_token_ids else [(example.text,) for example in task.examples]


def check_tasks(name: str, tasks: Any) -> list[Task]:
    """The tasks as a list; one task, or what is no list of tasks, raises ``ValueError``."""
    if isinstance(tasks, Task):
        raise ValueError(f"{name} must be a list of tasks, got one task")
    listed: list[Task] = check_list(name, tasks, "tasks")
    for task in listed:
        check_is_task(task)
    return listed


def check_is_task(task: object) -> None:
    """Raise ``ValueError`` for what is no task, such as its name."""
    if not isinstance(task, Task):
        raise ValueError(f"task must be a cs_heads.Task (see load_task and Task.from_records), got {in_line(task)}")
