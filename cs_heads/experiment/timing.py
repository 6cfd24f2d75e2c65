"""The seconds of an example-evaluation, from one timed batch of masks on a few examples of a task, and its baseline."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from jaxtyping import Float

from cs_heads import designs
from cs_heads.experiment.experiment import Experiment

N_EXAMPLES = 8
"""Examples of a batch that is timed: as many as the default method measures under one mask."""
N_MASKS = 16
N_BASELINE = 20
"""Examples whose intact score is told."""


def seconds_each(experiment: Experiment, seed: int = 0) -> float:
    """The seconds that one mask on one example takes: a batch of masks is timed, and another before it is not.

    Args:
        experiment: The task; what is measured for this counts elsewhere, and reaches no store.
        seed: Draws the masks.
    """
    few = experiment.on(experiment.task.take(N_EXAMPLES))
    density = max(0.05, 1 / few.grid.size)
    # The first forwards of an engine also pay for what they prepare.
    few(designs.bernoulli(few.grid, 2, density, seed))
    start, before = perf_counter(), few.ran
    few(designs.bernoulli(few.grid, N_MASKS, density, seed + 1))
    return (perf_counter() - start) / max(few.ran - before, 1)


def few_baseline(experiment: Experiment) -> Float[np.ndarray, " example"]:
    """The scores of the intact model on the first examples.

    Args:
        experiment: The task; what is measured for this counts elsewhere, and reaches no store.
    """
    return experiment.on(experiment.task.take(N_BASELINE)).baseline()
