"""Heads that all tasks need (task-general, universal heads)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from cs_heads import designs
from cs_heads.analysis.losses import task_drop
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_integer, check_mapping, check_seed
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import baseline_too_low
from cs_heads.experiment.controls import check_ranked, unseen_parts
from cs_heads.experiment.protocol import ExperimentLike, check_is_experiment, measured, preparation_of
from cs_heads.progress import expect, one_bar, step
from cs_heads.units import HeadLike, Unit, as_heads

MAX_LEFT = 0.4
"""What the ablation of a universal head leaves of the control's score above chance, at most."""
MAX_LEFT_OF_TASK = 0.7
"""What it leaves of a task's, at most; more than of the control's, for it is compared on tasks it is known to harm."""


@dataclass(frozen=True, eq=False, repr=False)
class UniversalHeads(Result, Drawable, picture="universal"):
    """The candidates that break most tasks and the control, and what each leaves of every score.

    Attributes:
        heads: The universal heads.
        candidates: All that were tried, by layer and head.
        tasks: Names of the tasks; the last is ``"control"``.
        left: The score with the head off as a share of the intact score, both above the task's chance (NaN: the intact
            score is not above it).
        spent: Example-evaluations.
        interval: The 95 % interval of each (NaN where it is not known).
        provenance: That of each task, examples and seed.
        notes: How many examples were left out, since they repeat a question.
    """

    heads: tuple[Unit, ...]
    candidates: tuple[Unit, ...]
    tasks: tuple[str, ...]
    left: Float[np.ndarray, "head task"]
    interval: Float[np.ndarray, "head task 2"]

    def to_frame(self) -> pd.DataFrame:
        """One row per candidate: its name, whether it is universal, the share left of each task, and the intervals."""
        frame = pd.DataFrame(self.left, columns=self.tasks)
        frame.insert(0, "head", list(map(str, self.candidates)))
        frame.insert(1, "universal", [head in self.heads for head in self.candidates])
        for column, task in enumerate(self.tasks):
            frame[[f"{task} low", f"{task} high"]] = self.interval[:, column]
        return frame


@one_bar("universal heads")
def universal_heads(
    experiments: Mapping[str, ExperimentLike],
    heads: Iterable[HeadLike],
    control: ExperimentLike,
    *,
    seed: int = 0,
    n: int = 50,
) -> UniversalHeads:
    """Ablate each candidate alone on several tasks and a control; universal heads break the control and most tasks.

    The control is broken when at most .4 of its intact score above chance is left, a task when at most .7 is
    (``is_universal``). The experiments are those of the finding sides: which heads are put aside is
    part of finding them, and the unseen examples are kept for the proof. One example of each question counts. Costs the
    intact run of every task and the control, and ``n × heads`` example-evaluations for each.

    Args:
        experiments: An experiment by the name of each task, two or more.
        heads: The candidates, usually the top heads and the ``shared`` ones of each task's ranking (Bair et al.,
            arXiv 2603.03335, section 6.1).
        control: The experiment on the control.
        seed: Draws the examples.
        n: Examples of each experiment at most.

    Returns:
        The universal heads, and ``left`` ``[head, task]``: the share of the score above chance that each candidate
        leaves of each task and, last, of the control, with 95 % intervals.

    Raises:
        ValueError: Fewer than two tasks, no candidate, different grids, or a task or control whose baseline is too low
            to show what a head takes.
    """
    check_seed(seed)
    check_integer("n", n, 1)
    given = {**check_mapping("experiments", experiments, "an experiment by the name of each task"), "control": control}
    if len(experiments) < 2 or len(given) == len(experiments):
        named = ", ".join(experiments) or "none"
        raise ValueError(f"experiments must be two tasks or more, none of them named 'control', got {named}")
    for name, experiment in given.items():
        check_is_experiment(name, experiment)
    grid = control.grid
    if any(experiment.grid != grid for experiment in given.values()):
        raise ValueError("experiments must be of one grid, that of the control")
    candidates = tuple(sorted({grid.resolve(head) for head in as_heads("heads", heads)}))
    if not candidates:
        raise ValueError("heads must name one head or more")
    check_ranked("heads", heads, control)
    parts, notes = unseen_parts([*given.values()], ())
    every = dict(zip(given, parts, strict=True))
    spent = preparation_of(*parts) + sum(each.n_examples + min(each.n_examples, n) * len(candidates) for each in parts)
    expect(spent)
    step("intact")
    intact = {name: measured(experiment, designs.explicit(grid, [[]]))[0] for name, experiment in every.items()}
    for name, scores in intact.items():
        if reason := baseline_too_low(every[name], scores):
            raise ValueError(f"the baseline of task {name!r} is too low: {reason}")
    off = designs.explicit(grid, [[head] for head in candidates])
    left, bounds = [], []
    for column, (name, experiment) in enumerate(every.items()):
        step(f"on {name}")
        drawn = np.random.default_rng([seed, column]).permutation(experiment.n_examples)[:n]
        ablated = measured(experiment, off, np.tile(drawn, (len(off), 1)))
        before, chance = intact[name][drawn], experiment.chance
        drops = [task_drop(name, chance, [(before, scores)], seed, [None]) for scores in ablated]
        left.append([round(1 - drop.loss, 12) for drop in drops])
        bounds.append([(1 - drop.loss_interval[1], 1 - drop.loss_interval[0]) for drop in drops])
    shares = np.array(left).T
    return UniversalHeads(
        heads=tuple(
            head for head, share in zip(candidates, shares, strict=True) if is_universal(share[-1], share[:-1])
        ),
        candidates=candidates,
        tasks=tuple(every),
        left=shares,
        spent=spent,
        interval=np.array(bounds).swapaxes(0, 1),
        provenance={"tasks": {name: part.provenance() for name, part in every.items()}, "n_examples": n, "seed": seed},
        notes=notes,
    )


def is_universal(control_left: float, tasks_left: Iterable[float]) -> bool:
    """Whether a head serves everything: it breaks the control, and most of the tasks.

    Each number is the share of a score above chance that is left with the head off, alone; NaN, where a task can show
    nothing, counts as a task that is not broken.
    """
    broken = [left <= MAX_LEFT_OF_TASK for left in tasks_left]
    return bool(control_left <= MAX_LEFT and 2 * sum(broken) > len(broken))
