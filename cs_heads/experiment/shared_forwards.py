"""What several experiments are about to be asked, measured in forwards that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from einops import repeat
from jaxtyping import Int, Shaped

from cs_heads.designs import check_masks, with_off
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.experiment.plan import Part, run
from cs_heads.experiment.protocol import ExperimentLike


@dataclass(frozen=True, eq=False)
class Call:
    """A call of an experiment.

    Attributes:
        experiment: The experiment.
        masks: ``[row, layer, head]``.
        examples: Each row's own example indices ``[row, k]``; None: all of them in every row.
    """

    experiment: ExperimentLike
    masks: Shaped[np.ndarray, "row layer head"]
    examples: Int[np.ndarray, "row k"] | None = None


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
    calls: dict[tuple[int, np.dtype], list[Call]] = {}
    for each in map(_on_model, asked):
        if isinstance(each.experiment, Experiment) and not each.experiment.writes:
            calls.setdefault((id(each.experiment), each.masks.dtype), []).append(each)
    engines: dict[int, list[Part]] = {}
    begun: set[int] = set()
    for several in calls.values():
        one, experiment = _joined(several), several[0].experiment
        # What it is asked for masks and for gates may be the same: the second is left to be asked.
        if isinstance(experiment, Experiment) and id(experiment) not in begun:
            begun.add(id(experiment))
            part = experiment.part(one.masks, one.examples)
            engines.setdefault(id(part.observed.engine), []).append(part)
    for group in engines.values():
        run(group)


def _on_model(asked: Call) -> Call:
    """What an experiment without some heads asks of the one with them."""
    while isinstance(asked.experiment, WithHeadsOff):
        inner, off = asked.experiment.experiment, asked.experiment.off
        asked = replace(asked, experiment=inner, masks=with_off(check_masks(inner.grid, asked.masks), off))
    return asked


def _joined(several: Sequence[Call]) -> Call:
    """One call for several of one experiment, in pairs of masks and examples."""
    if len(several) == 1:
        return several[0]
    masks, examples = [], []
    for each in several:
        n, every = len(each.masks), np.arange(each.experiment.n_examples)
        drawn = np.broadcast_to(every, (n, len(every))) if each.examples is None else each.examples
        masks.append(repeat(each.masks, "mask layer unit -> (mask example) layer unit", example=drawn.shape[1]))
        examples.append(drawn.reshape(-1, 1))
    return replace(several[0], masks=np.concatenate(masks), examples=np.concatenate(examples))
