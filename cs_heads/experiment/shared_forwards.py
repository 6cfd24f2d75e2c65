"""What several experiments are about to be asked, measured in forwards that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.experiment.plan import Part, run
from cs_heads.experiment.protocol import Examples, ExperimentLike, Rows


@dataclass(frozen=True, eq=False)
class Call:
    """A call of an experiment.

    Attributes:
        experiment: The experiment.
        masks: ``[row, layer, head]``.
        examples: Each row's own example indices ``[row, k]``; None: all of them in every row.
    """

    experiment: ExperimentLike
    masks: Rows
    examples: Examples = None


def measure_together(asked: Sequence[Call]) -> None:
    """Measure what experiments are about to be asked, so that the calls themselves find it known.

    Experiments ``on`` several tasks share their engine where heads become zero: their rows fill forwards together,
    where each by itself would run many small ones. Experiments of other kinds, and tasks for which the model writes
    texts, are left to be asked. What is counted as spent is the same.

    >>> from cs_heads.simulate import planted_world
    >>> world = planted_world("one_head", seed=0)
    >>> measure_together([Call(world.task, world.grid.mask([])[None])])  # has no engine: nothing is done
    >>> world.task.spent
    0
    """
    calls: dict[int, tuple[Experiment, list[Any]]] = {}
    for each in asked:
        experiment, masks = each.experiment, each.masks
        if isinstance(experiment, WithHeadsOff):
            masks, experiment = experiment.all_off(masks), experiment.experiment
        if isinstance(experiment, Experiment) and not experiment.writes:
            calls.setdefault(id(experiment), (experiment, []))[1].append((masks, each.examples))
    engines: dict[int, list[Part]] = {}
    for experiment, several in calls.values():
        part = experiment.part(several)
        engines.setdefault(id(part.observed.engine), []).append(part)
    for group in engines.values():
        run(group)
