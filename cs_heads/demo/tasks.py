"""The demo model's skills as built-in tasks, ``demo/<skill>``."""

from __future__ import annotations

from functools import partial

from cs_heads.demo.skills import SKILLS, records
from cs_heads.tasks.catalogue import Entry
from cs_heads.tasks.task import Task

N_FINDING = 100
N_CONFIRMING = 400


def catalogue() -> dict[str, Entry]:
    """The skills by name."""
    return {skill: Entry(f"a skill of the demo model: {skill}", partial(load, skill)) for skill in SKILLS}


def load(skill: str, n: int | None = None, seed: int = 0) -> Task:
    """``n`` finding examples of a skill (default 100), with 400 confirming ones held out.

    The model was trained on prompts of neither side, and the sides share none, whatever the seeds.
    More examples than the skill has raise ``ValueError``.
    """
    finding = Task.from_records(records(skill, "find", N_FINDING if n is None else n, seed), name=f"demo/{skill}")
    return finding.holding_out(Task.from_records(records(skill, "confirm", N_CONFIRMING, seed), name=finding.name))
