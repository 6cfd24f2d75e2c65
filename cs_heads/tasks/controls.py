"""The controls of a search and of its proof: the tasks given, or by default everyday skills that come with the library.

A control is another task, which tells heads of this task from heads that every task needs. Skills that share a form
share heads: choose controls that differ from the task in what matters, and read which of them lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from cs_heads.tasks.load import load_task, names_of
from cs_heads.tasks.sides import check_is_task
from cs_heads.tasks.task import Task

AUTO = "auto"
"""What stands for the default controls."""
MIN_DEFAULTS = 3
"""Default controls that the model can do below which they do not speak for other tasks."""


def default_controls(task: Task, model_name: str, seed: int = 0) -> tuple[Task, ...]:
    """The skills ``everyday/*``, of the demo model its own skills ``demo/*``, each split with ``seed``.

    Left out are the task itself, by its name, and whatever shares a question with a side of it.

    >>> task = load_task("demo/capitals", n=20)
    >>> [control.name for control in default_controls(task, "demo")][:3]
    ['demo/word_problems', 'demo/code', 'demo/rhyme']
    >>> len(default_controls(task, "gpt2"))
    15
    """
    own = _questions(task)
    family = "demo" if model_name == "demo" else "everyday"
    return tuple(skill for skill in _skills(family, seed) if skill.name != task.name and not own & _questions(skill))


def check_controls(controls: Sequence[Task] | str | None) -> Sequence[Task]:
    """The tasks given, none for ``"auto"`` and None; what is neither, or has a name twice, raises ``ValueError``."""
    if controls is None or (isinstance(controls, str) and controls == AUTO):
        return ()
    if isinstance(controls, Task):
        raise ValueError("controls must be a list of tasks, got one task")
    if isinstance(controls, str):
        raise ValueError(f"controls must be a list of tasks, {AUTO!r} or None, got {controls!r}"[:300])
    for control in controls:
        check_is_task(control)
    names = [control.name for control in controls]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"controls must have different names, got two or more of {', '.join(map(repr, twice))}")
    return controls


@lru_cache(maxsize=4)
def _skills(family: str, seed: int) -> tuple[Task, ...]:
    """Kept, since a search and its proof ask for the same: drawing those of the demo model takes over half a second."""
    return tuple(load_task(name, seed=seed) for name in names_of(family))


def _questions(task: Task) -> set[str]:
    """What either side of a task asks."""
    sides = [task] if task.held_out is None else [task, task.held_out]
    return {example.question for side in sides for example in side.examples}
