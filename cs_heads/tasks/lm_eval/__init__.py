"""Any task or group of lm-eval as ``lm-eval/<name>``: its prompts, filters and metrics, run by this engine under masks.

lm-eval is imported when a task is loaded and not before.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from cs_heads.tasks.example import hash_of
from cs_heads.tasks.family import Entry
from cs_heads.tasks.lm_eval import harness
from cs_heads.tasks.lm_eval.requests import kind_of_member, read
from cs_heads.tasks.local_data import NoFileError
from cs_heads.tasks.task import Task

NEEDS = "the extra lm-eval; data_files=, or the hub"

LEAVES_OUT = (
    "what is not one score an example by greedy decoding or log-probability: rolling probabilities "
    "(wikitext), metrics over all examples (F1, perplexity) or where lower is better (crows_pairs), sampled or "
    "repeated texts, images, sound, tasks written in Python (squadv2), programs but HumanEval and MBPP (mbpp_plus), "
    "groups that mix kinds of request (agieval) or define tasks of their own (flan_held_in)"
)
"""What is refused of lm-eval's tasks, each by one line when it is loaded."""


def entry(name: str) -> Entry:
    """The lm-eval task or group of this name, whether it exists or not: loading says. Programs go to the sandbox."""
    from cs_heads.tasks import programs  # which reads its files as tasks of lm-eval do

    if name in programs.FORMS:
        return programs.TASKS[name]
    return Entry(f"lm-eval's {name}", partial(load, name), NEEDS)


@wraps(read, assigned=("__annotations__",))
def whole(name: str, **options: Any) -> Task:
    """Every example of an lm-eval task or group, unsplit, in lm-eval's order; ``LEAVES_OUT`` says which are refused.

    Each example's ``reference`` names the task of a group that it is from. A group is made of those of its tasks that a
    folder or archive has files for, with a warning that names the others; each has worked examples of its own.

    Args:
        name: The task or group.
        options: Those of ``requests.read``.

    Raises:
        ValueError: The task cannot be loaded or measured.
    """
    members = harness.members(name)
    _check_alike(name, "kind", {member.name: kind_of_member(member) for member in members})
    parts, lacking = _parts(name, members, options)
    if not parts:
        raise ValueError(f"{lacking[0]}{f' (and so for all {len(members)} tasks of {name!r})' if lacking[1:] else ''}")
    if lacking:
        left_out = ", ".join(member.name for member in members if member.name not in parts)
        said = f"data_files have files for {len(parts)} of its {len(members)} tasks, of which it is made"
        warnings.warn(f"lm-eval group {name!r}: {said}; left out: {left_out}", stacklevel=3)
    first, scorers = next(iter(parts.values())), list[Any](part.scorer for part in parts.values())
    for what in ("max_new_tokens", "stop"):
        _check_alike(name, what, {member: getattr(part, what) for member, part in parts.items()})
    scorer: Any = replace(scorers[0], rules=tuple(rule for each in scorers for rule in each.rules))
    examples = tuple(example for part in parts.values() for example in part.examples)
    return replace(first, name=f"lm-eval/{name}", examples=examples, scorer=scorer)


@wraps(whole, assigned=("__annotations__",))
def load(name: str, n: int | None = None, seed: int = 0, **options: Any) -> Task:
    """``n`` finding examples of an lm-eval task or group, the others held out; options are those of ``whole``."""
    return whole(name, **options).split(n, seed)[0]


def _parts(
    name: str, members: list[harness.Member], options: dict[str, Any]
) -> tuple[dict[str, Task], list[NoFileError]]:
    """The tasks of a group, or the one task, by name; and what is said of those that a folder has no files for."""
    parts: dict[str, Task] = {}
    known: dict[str, str] = {}
    lacking = []
    for member in members:
        try:
            parts[member.name] = part = read(member, **options)
        except NoFileError as error:
            lacking.append(error)
            continue
        same = known.setdefault(hash_of([json.loads(one.reference)["doc"] for one in part.examples]), member.name)
        if same != member.name:
            raise ValueError(
                f"tasks {same!r} and {member.name!r} of lm-eval group {name!r} have the same rows: give a file for "
                f"each of the {len(members)} tasks by data_files=, or load one task, as lm-eval/{same}"
            )
    return parts, lacking


def _check_alike(name: str, what: str, values: dict[str, object]) -> None:
    first, *others = values
    for other in others:
        if values[other] != values[first]:
            why = f"{first!r} has {what} {values[first]!r}, {other!r} {values[other]!r}; load them one by one"
            raise ValueError(f"tasks of lm-eval group {name!r} are not measured alike: {why}")


# What stands for lm-eval's thousands of tasks in a list.
TASKS = {"<task>": Entry("any task or group of lm-eval", partial(load, "<task>"), NEEDS, LEAVES_OUT)}
