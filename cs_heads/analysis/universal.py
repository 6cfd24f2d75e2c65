"""Heads that no task does without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from cs_heads import masks
from cs_heads.heads import Head, HeadLike
from cs_heads.measure.baseline import MAX_LEFT, chance_of
from cs_heads.measure.protocol import ExperimentLike


@dataclass(frozen=True, eq=False)
class UniversalHeads:
    """The candidates that break most tasks and the control, and what each leaves of every score.

    ``left`` is the score with the head off as a share of the intact score, both above the task's chance; the
    control's is in the last column.
    """

    heads: tuple[Head, ...]
    candidates: tuple[Head, ...]
    tasks: tuple[str, ...]
    left: Float[np.ndarray, "head task"]
    spent: int

    def to_frame(self) -> pd.DataFrame:
        """One row a candidate: its name, whether it is universal, and the share left of each task."""
        frame = pd.DataFrame(self.left, columns=list(self.tasks))
        frame.insert(0, "head", [str(head) for head in self.candidates])
        frame.insert(1, "universal", [head in self.heads for head in self.candidates])
        return frame


def universal_heads(
    experiments: Mapping[str, ExperimentLike],
    candidates: Iterable[HeadLike],
    control: ExperimentLike,
    *,
    n_examples: int = 50,
    seed: int = 0,
) -> UniversalHeads:
    """Ablate each candidate alone on several tasks and a control; universal breaks the control and most tasks.

    A task is broken when at most .4 of its intact score above chance is left. Candidates are usually the top heads
    and the ``universal`` ones of each task's ranking (Bair et al., arXiv 2603.03335, section 6.1). Costs ``n_examples
    × (1 + candidates)`` example-evaluations for each task and the control, on examples drawn with ``seed``. Fewer
    than two tasks, no candidate, different grids, or a task whose intact score is at chance raise ``ValueError``.
    """
    if len(experiments) < 2:
        raise ValueError(f"experiments must be two tasks or more beside the control, got {len(experiments)}")
    if n_examples < 1:
        raise ValueError(f"n_examples must be 1 or more, got {n_examples}")
    grid = control.grid
    if any(experiment.grid != grid for experiment in experiments.values()):
        raise ValueError("experiments must be of one grid, that of the control")
    heads = tuple(sorted({grid.resolve(head) for head in candidates}))
    if not heads:
        raise ValueError("candidates must name one head or more")
    off = masks.explicit(grid, [[], *([head] for head in heads)])
    left, spent = np.zeros((len(heads), len(experiments) + 1)), 0
    for column, (name, experiment) in enumerate((*experiments.items(), ("control", control))):
        drawn = np.random.default_rng([seed, column]).permutation(experiment.n_examples)[:n_examples]
        scores = experiment(off, np.tile(drawn, (len(off), 1))).mean(axis=1)
        spent += len(off) * len(drawn)
        chance = chance_of(experiment)
        if scores[0] <= chance:
            raise ValueError(
                f"task {name!r} has an intact score of {scores[0]:.3g}, chance or less: no head can break it"
            )
        left[:, column] = (scores[1:] - chance) / (scores[0] - chance)
    broken = left <= MAX_LEFT
    universal = broken[:, -1] & (broken[:, :-1].mean(axis=1) > 0.5)
    return UniversalHeads(
        heads=tuple(head for head, is_universal in zip(heads, universal, strict=True) if is_universal),
        candidates=heads,
        tasks=(*experiments, "control"),
        left=left,
        spent=spent,
    )
