"""From words to a task: which words are asked about on which side, and the worked examples before a question."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cs_heads.arguments import check_integer, check_seed
from cs_heads.tasks.drawing import N_CONFIRMING, N_FINDING
from cs_heads.tasks.task import Task

W = TypeVar("W")

POOL = 10
"""Words that are kept for worked examples, whatever the number of shots, and never asked about."""

# So many draws about one word without a new question mean that there is hardly another.
_MAX_MISSES = 50

Record = Mapping[str, Any]


def asked_once(
    name: str,
    words: Sequence[W],
    line: Callable[[random.Random, W], tuple[str, str]],
    n: int | None,
    seed: int,
    *,
    shots: int,
) -> Task:
    """A completion task with one question a word, after worked examples.

    Args:
        name: The task's name.
        words: What is asked about.
        line: The question about a word and its answer, which together are a worked example.
        n: Finding examples; 100 by default, or half of the words where there are fewer than 200.
        seed: The same seed gives the same examples.
        shots: Worked examples, of ten words kept for them; the same come before each question.

    Raises:
        ValueError: ``shots`` are more than there are words for, or ``n`` leaves nothing to confirm.
    """
    check_seed(seed)
    check_integer("shots", shots, 0, POOL)
    rng = random.Random(f"{name}/{seed}")
    order = rng.sample(words, len(words))
    shown, asked = order[:POOL], order[POOL:]
    n = min(N_FINDING, len(asked) // 2) if n is None else n
    if n >= len(asked):
        raise ValueError(f"n must leave examples to confirm with: got n={n}, and task {name!r} has {len(asked)}")
    # Shots have a stream of their own: their number changes neither the questions nor their order.
    drawing = random.Random(f"{name}/{seed}/shots")
    # The same before every question: their tokens run once for all examples of a mask.
    worked = [" ".join(line(drawing, other)) for other in drawing.sample(shown, shots)]
    records: list[Record] = []
    for word in asked:
        question, answer = line(rng, word)
        records.append({"prompt": "\n".join([*worked, question]), "target": f" {answer}", "asked": question})
    return _task(name, records[:n], records[n:])


def drawn_about(
    name: str,
    words: Sequence[W],
    draw: Callable[[random.Random, W, Sequence[W]], Record],
    n: int | None,
    seed: int,
) -> Task:
    """A task with several questions a word: half of the words are asked about to find heads, the others to confirm.

    Args:
        name: The task's name.
        words: What is asked about.
        draw: A record about a word; the third argument are all words of its side.
        n: Finding examples, 100 by default; up to 400 others are held out.
        seed: The same seed gives the same examples.

    Raises:
        ValueError: There are not ``n`` different questions on the finding side.
    """
    check_seed(seed)
    n = N_FINDING if n is None else n
    rng = random.Random(f"{name}/{seed}")
    order = rng.sample(words, len(words))
    half = len(order) // 2
    finding = _different(rng, order[:half], draw, n)
    if len(finding) < n:
        raise ValueError(f"n={n} is more than task {name!r} has: about {len(finding)} different examples to find with")
    return _task(name, finding, _different(rng, order[half:], draw, N_CONFIRMING))


def _different(
    rng: random.Random, words: Sequence[W], draw: Callable[[random.Random, W, Sequence[W]], Record], n: int
) -> list[Record]:
    """Up to ``n`` different records, the words taken in turn."""
    records: dict[tuple[str, ...], Record] = {}
    left = list(words)
    while left and len(records) < n:
        for word in list(left):
            for _ in range(_MAX_MISSES):
                record = draw(rng, word, words)
                question = (record["prompt"], *sorted(record.get("choices", ())))
                if question not in records:
                    records[question] = record
                    break
            else:
                left.remove(word)
            if len(records) == n:
                break
    return list(records.values())


def choice(rng: random.Random, prompt: str, right: str, others: Sequence[str]) -> Record:
    """A choice record, its choices in random order."""
    choices = [right, *others]
    rng.shuffle(choices)
    return {"prompt": prompt, "choices": choices, "answer": choices.index(right)}


def _task(name: str, finding: Sequence[Record], unseen: Sequence[Record]) -> Task:
    sides = []
    for records in (finding, unseen):
        task = Task.from_records(records, name)
        examples = zip(task.examples, records, strict=True)
        sides.append(replace(task, examples=tuple(replace(e, asked=record.get("asked")) for e, record in examples)))
    return sides[0].with_holdout(sides[1])
