"""What is to come: example-evaluations that calls say they cost, and seconds from a short probe of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import pandas as pd

from cs_heads import designs
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import EncodedExample

N_PROBED = 8
"""Examples of a task in a probe: as many as the default method measures under one mask."""

# Masks of the batches of a probe; seconds for those of all tasks, about; tasks that share these.
_BATCHES = (2, 4, 8, 16, 16, 16)
_MASKS = 1 + sum(_BATCHES)
_SECONDS = 2.0
_TIMED = 3


@dataclass(frozen=True)
class Estimate:
    """The most example-evaluations of each step, by task, and the seconds that one takes on this machine.

    What an earlier step measures is not counted again; what is done and in the store of a reproduction is not counted
    at all. Half of the evaluations of gates are backward passes, which a reproduction takes to last as long as forward
    ones.

    Attributes:
        evaluations: by step, then by task.
        seconds_each: by task the seconds of one example-evaluation.
        missing: steps that cannot be made, and why.
    """

    evaluations: dict[str, dict[str, int]]
    seconds_each: dict[str, float]
    missing: dict[str, str] = field(default_factory=dict)

    def seconds(self, step: str) -> float:
        """Seconds of one step.

        Args:
            step: Name of the step, one of ``evaluations``.
        """
        return float(sum(number * self.seconds_each[task] for task, number in self.evaluations[step].items()))

    @property
    def total(self) -> int:
        """Example-evaluations of all steps."""
        return sum(sum(by_task.values()) for by_task in self.evaluations.values())

    @property
    def total_seconds(self) -> float:
        """Seconds of all steps."""
        return float(sum(map(self.seconds, self.evaluations)))

    def to_frame(self) -> pd.DataFrame:
        """One row a step: example-evaluations, seconds, and why it cannot be made, where it cannot."""
        rows = [(step, sum(each.values()), self.seconds(step), "") for step, each in self.evaluations.items()]
        rows += [(step, 0, 0.0, reason) for step, reason in self.missing.items()]
        return pd.DataFrame(rows, columns=["step", "example-evaluations", "seconds", "missing"])


def seconds_each(probes: Mapping[str, Experiment], seed: int) -> dict[str, float]:
    """Seconds of one example-evaluation of each task, by ever more masks on it while the time for that lasts.

    A task that the time does not suffice for takes, by token, what others of its kind do.

    Args:
        probes: By the name of each task an experiment on a few of its examples, best on one engine; what is measured
            counts in these alone.
        seed: Draws the masks.
    """
    tokens = {name: np.mean([_tokens(each) for each in one.encoded]) for name, one in probes.items()}
    measured: dict[str, float] = {}
    until = perf_counter() + _SECONDS
    for name, one in probes.items():
        if perf_counter() < until or not any(_writes(probes[each]) == _writes(one) for each in measured):
            measured[name] = _of_masks(one, seed, _SECONDS / min(len(probes), _TIMED))
    alike = {
        writes: np.mean(
            [seconds / tokens[each] for each, seconds in measured.items() if _writes(probes[each]) == writes]
        )
        for writes in set(map(_writes, probes.values()))
    }
    return {name: measured.get(name, float(alike[_writes(one)] * tokens[name])) for name, one in probes.items()}


def _of_masks(experiment: Experiment, seed: int, most: float) -> float:
    """Seconds of an example-evaluation in the fastest of ever larger batches of masks, until these take ``most``."""
    off = designs.bernoulli(experiment.grid, _MASKS, max(0.05, 1 / experiment.grid.size), seed)
    # Not timed: what the first forward of an engine prepares.
    experiment(off[:1])
    seconds, begun, each = 0.0, 1, float("inf")
    # The first of each size also pays for memory that is touched for the first time.
    for n in _BATCHES:
        if seconds >= most:
            break
        start, before = perf_counter(), experiment.ran
        experiment(off[begun : begun + n])
        # Masks drawn twice are measured once.
        taken, ran = perf_counter() - start, experiment.ran - before
        each = min(each, taken / ran) if ran else each
        seconds, begun = seconds + taken, begun + n
    return each


def _tokens(example: EncodedExample) -> int:
    return len(example.prompt) + sum(map(len, example.continuations))


def _writes(experiment: Experiment) -> bool:
    """Whether the model writes what is scored, which takes longer by token."""
    return experiment.task.kind == "generation"
