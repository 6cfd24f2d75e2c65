"""The demo model's skills as built-in tasks, ``demo/<skill>``."""

from __future__ import annotations

from functools import partial

from cs_heads.arguments import check_seed
from cs_heads.demo.skills import SKILLS, about, records
from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.task import Task

N_FINDING = 100
N_CONFIRMING = 400
N_WRITTEN = 4


def catalogue() -> dict[str, Entry]:
    """The skills by name."""
    return {skill: Entry(f"demo model: {about(skill)}", partial(load, skill)) for skill in SKILLS}


def load(skill: str, n: int | None = None, seed: int = 0, *, generate: bool = False) -> Task:
    """``n`` finding examples of a skill (default 100), with 400 confirming ones held out.

    The model was trained on prompts of neither side, and the sides share none, whatever the seeds. With ``generate``
    the model writes, and its first word must be the answer; agreement, a choice, refuses it.
    More examples than the skill has raise ``ValueError``.
    """
    check_seed(seed)
    finding = Task.from_records(records(skill, "find", N_FINDING if n is None else n, seed), name=f"demo/{skill}")
    task = finding.holding_out(Task.from_records(records(skill, "confirm", N_CONFIRMING, seed), name=finding.name))
    # Answers are single words, and the model was not taught to stop after one.
    return task.generated(N_WRITTEN, stop=[" "]) if generate else task
