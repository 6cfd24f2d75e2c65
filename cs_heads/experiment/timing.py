"""The seconds of an example-evaluation, from one timed batch of masks on a few examples of a task, and its baseline."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from jaxtyping import Float

from cs_heads import designs
from cs_heads.experiment.experiment import Experiment

N_EXAMPLES = 8
"""Examples of a batch that is timed: as many as the default method measures under one mask."""
N_MASKS = 8
N_BASELINE = 20
"""Examples whose intact score is told."""


def timing_of(experiment: Experiment, seed: int = 0) -> tuple[Float[np.ndarray, " example"], float]:
    """The scores of the intact model on the first examples, and the seconds that one mask on one example takes.

    Args:
        experiment: The task; what is measured for this counts elsewhere, and reaches no store.
        seed: Draws the masks.
    """
    few = experiment.on(experiment.task.take(N_BASELINE))
    # The first forwards of an engine also pay for what they prepare.
    baseline = few.baseline()
    examples = np.tile(np.arange(min(N_EXAMPLES, few.n_examples)), (N_MASKS, 1))
    masks = designs.bernoulli(few.grid, N_MASKS, max(0.05, 1 / few.grid.size), seed)
    start, before = perf_counter(), few.ran
    few(masks, examples)
    return baseline, (perf_counter() - start) / max(few.ran - before, 1)
