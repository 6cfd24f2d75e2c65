"""The benchmarks of the two papers by their own names, ``gsm8k``, ``mmlu``, ..., with the papers' protocol.

Bair et al. (arXiv 2603.03335) run lm-eval's tasks with lm-eval's own worked examples and without a chat template;
a text of GSM8K is judged by its last number (filter ``flexible-extract``), HellaSwag and ARC by ``acc_norm``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, wraps
from typing import Any

from cs_heads.tasks import commonsense, lm_eval, openmath, programs
from cs_heads.tasks.family import Entry
from cs_heads.tasks.task import Task

PROTOCOL: dict[str, tuple[str, dict[str, str]]] = {
    "gsm8k": ("school mathematics, worked out step by step", {"filter": "flexible-extract"}),
    "arithmetic": ("sums in words, of ten kinds", {}),
    "hellaswag": ("which sentence goes on", {"metric": "acc_norm"}),
    "boolq": ("yes-no questions on a passage", {}),
    "arc_challenge": ("school science, the hard questions", {"metric": "acc_norm"}),
    "mmlu": ("knowledge, 57 subjects", {}),
    "wmdp_bio": ("hazardous knowledge: biology", {}),
    "wmdp_chem": ("hazardous knowledge: chemistry", {}),
    "wmdp_cyber": ("hazardous knowledge: computer security", {}),
    "blimp": ("grammar: all 67 sets of minimal pairs", {}),
}
"""Names → one line about them, and what the papers set otherwise than lm-eval."""

_ONE_SET = "blimp_<set>"


def entry(name: str) -> Entry | None:
    """The benchmark of this name, or None; that of every set of BLiMP, too."""
    return replace(TASKS[_ONE_SET], load=partial(load, name)) if name.startswith("blimp_") else TASKS.get(name)


@wraps(lm_eval.whole, assigned=("__annotations__",))
def load(name: str, n: int | None = None, seed: int = 0, **options: Any) -> Task:
    """``n`` finding examples of a benchmark, its others held out; options of lm-eval's tasks, None: the paper's."""
    given = {option: value for option, value in options.items() if value is not None}
    task = lm_eval.whole(name, **{**PROTOCOL.get(name, ("", {}))[1], **given})
    return replace(task, name=name).split(n, seed)[0]


_ABOUT = {name: about for name, (about, _) in PROTOCOL.items()} | {_ONE_SET: "grammar: one set of minimal pairs"}
TASKS = {name: Entry(about, partial(load, name), lm_eval.NEEDS) for name, about in _ABOUT.items()}
TASKS |= programs.TASKS | openmath.TASKS | commonsense.TASKS
