"""Tasks whose examples are drawn at random: distinct ones, some to find heads with and others to confirm."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cs_heads.arguments import check_integer, check_seed
from cs_heads.tasks.task import Task

N_FINDING = 100
N_CONFIRMING = 400
# So many draws in a row without a new example mean that there is hardly another.
_MAX_MISSES = 2000


def drawn(
    name: str,
    draw: Callable[[random.Random], Mapping[str, Any]],
    n: int | None,
    seed: int,
    n_confirming: int = N_CONFIRMING,
) -> Task:
    """The finding side of ``n`` (default 100) records that ``draw`` makes, ``n_confirming`` others held out.

    No two have the same question. Where ``draw`` has not so many, ``ValueError`` says how many there are.
    """
    check_seed(seed)
    n = N_FINDING if n is None else n
    rng = random.Random(f"{name}/{seed}")
    records: dict[tuple[str, ...], Mapping[str, Any]] = {}
    misses = 0
    while len(records) < n + n_confirming:
        record = draw(rng)
        question = (record["prompt"], *sorted(record.get("choices", ())))
        misses = misses + 1 if question in records else 0
        if misses > _MAX_MISSES:
            raise ValueError(
                f"n={n} is more than task {name!r} has: about {len(records)} different examples, "
                f"{n_confirming} of them kept to confirm"
            )
        records.setdefault(question, record)
    made = list(records.values())
    return Task.from_records(made[:n], name).with_holdout(Task.from_records(made[n:], name))


def first_to_find(task: Task, n_first: int, n: int | None, seed: int) -> Task:
    """The finding side of ``n`` examples, drawn from the first ``n_first`` of a whole task and then from its others.

    The remaining ones are held out; ``n`` None takes all of the first, as a protocol that has two lists does.
    """
    check_seed(seed)
    n = n_first if n is None else n
    if not 1 <= n < len(task):
        raise ValueError(f"n must leave examples on both sides: got n={n} with {len(task)} in task {task.name!r}")
    rng = random.Random(f"{task.name}/{seed}")
    lists = task.examples[:n_first], task.examples[n_first:]
    order = [example for examples in lists for example in rng.sample(examples, len(examples))]
    return replace(task, examples=tuple(order[:n])).with_holdout(replace(task, examples=tuple(order[n:])))


def with_distractors(
    rng: random.Random, prompt: str, right: str, words: Sequence[str], choices: int | None
) -> dict[str, Any]:
    """A record of ``choices`` continuations, the right one and others of ``words``; None: a completion.

    ``words`` differ from each other, and the right one may be among them. Continuations get their leading space
    here. Too few words raise ``ValueError``.
    """
    if choices is None:
        return {"prompt": prompt, "target": f" {right}"}
    most = len(words) + (right not in words)
    check_integer("choices", choices, 2, most)
    others = [word for word in rng.sample(words, min(choices, len(words))) if word != right]
    drawn_choices = [right, *others[: choices - 1]]
    rng.shuffle(drawn_choices)
    return {"prompt": prompt, "choices": [f" {c}" for c in drawn_choices], "answer": drawn_choices.index(right)}


def goes_with_format(name: str, value: object, format: str, wanted: str) -> None:
    """Raise ``ValueError`` where an argument is given that another format of the task would not read."""
    if value is not None and format != wanted:
        raise ValueError(f"{name} goes with format={wanted!r}; got {name}={value!r} and format={format!r}")


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise ``ValueError`` where an argument is none of the words allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
