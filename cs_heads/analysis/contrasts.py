"""Contrastive gates on a task they were not fitted to, as in Nam et al. (arXiv 2505.13737, figure 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from typing_extensions import Unpack

from cs_heads.analysis.intervals import Interval, mean_interval
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_list, check_mapping, check_seed
from cs_heads.cluster import ModelLike, local_model
from cs_heads.drawable import Drawable
from cs_heads.experiment.controls import unseen_side
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.gating.fit import contrastive_gating
from cs_heads.progress import one_bar, step
from cs_heads.record import Record
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task, confirming_side, finding_side
from cs_heads.tasks.splits import check_apart, check_is_task


@dataclass(frozen=True)
class HeldOutScore(Record):
    """The score of one held-out task in one format, intact and under gates that retain one of two formats.

    ``interval`` is the 95 % interval of the score (``mean_interval``).
    """

    _written = ("held_out", "retained", "measured", "kept", "baseline", "score", "interval")

    held_out: str
    retained: str
    measured: str
    baseline: float
    score: float
    interval: Interval

    @property
    def kept(self) -> bool:
        """Whether the format measured is the one that the gates retain."""
        return self.retained == self.measured


@dataclass(frozen=True, eq=False, repr=False)
class HeldOutContrasts(Result, Drawable, picture="contrasts"):
    """What contrastive gates do to tasks they were not fitted to, in both formats and both directions.

    Attributes:
        scores: One of each held-out task, retained format and measured format.
        gates: By (held-out task, retained format) the gates fitted to all other tasks, 0 (shut) to 1 (open).
        spent: Example-evaluations of fits and scores.
        provenance: Model, formats, steps and seed.
        notes: How many unseen examples were left out, since they repeat a question.
    """

    scores: tuple[HeldOutScore, ...]
    gates: dict[tuple[str, str], Float[np.ndarray, "layer head"]]

    def to_frame(self) -> pd.DataFrame:
        """One row per (held-out task, retained format, measured format): baseline, and the score with its interval."""
        return pd.DataFrame(score.to_dict() for score in self.scores)


@one_bar("contrasts")
def held_out_contrasts(
    model: ModelLike,
    formats: Mapping[str, Mapping[str, Task]],
    *,
    seed: int = 0,
    held_out: Iterable[str] | None = None,
    n: int = 100,
    steps: int = 500,
    batch_size: int = 64,
    **settings: Unpack[SettingsArguments],
) -> HeldOutContrasts:
    """Fit gates that retain one format and forget the other on all tasks but one, and measure that one in both.

    Every task of ``held_out`` is left out in turn, in both directions; its unseen examples are scored under the soft
    gates. Costs two contrastive fits per task (see ``methods.contrastive_gating``) and ``n`` example-evaluations for
    each of its six scores. A ``store`` keeps every fit, and the same call resumes from there.

    Args:
        model: A model, the name of one, or a ``Cluster``.
        formats: Two formats by name, each with the same tasks by the same names, whose finding examples pair up (the
            same problem at the same place): in-context learning and instructions, say.
        seed: Of the fits.
        held_out: Names of tasks (None: all).
        n: Unseen examples of a task at most.
        steps: Steps of a fit.
        batch_size: Pairs of examples in a step.
        settings: As of ``Experiment``.

    Returns:
        One score for each task left out, format retained and format measured, with its baseline and interval, and the
        gates ``[layer, head]`` of each fit.

    Raises:
        ValueError: Other than two formats of the same two tasks or more, of one kind, split into as many finding
            examples as their pairs. Raised before the model runs.
    """
    check_seed(seed)
    names = _check_formats(formats)
    left_out = names if held_out is None else check_list("held_out", held_out, "names of tasks")
    if not left_out or not {*left_out} <= {*names}:
        got = ", ".join(str(name) for name in left_out if name not in names) or "none"
        raise ValueError(f"held_out must be tasks among {', '.join(names)}, got {got}")
    scores, gates, spent = [], {}, 0
    first, second = formats
    sides = {kind: [unseen_side(tasks[name], n) for name in left_out] for kind, tasks in formats.items()}
    with Experiment(local_model(model), sides[first][0][0], **settings) as begun:
        for place, name in enumerate(left_out):
            unseen = {kind: begun.on(each[place][0]) for kind, each in sides.items()}
            for retained, forgotten in ((first, second), (second, first)):
                step(f"without {name}, {retained} retained")
                ranking = contrastive_gating(
                    begun.on(_joined(formats[retained], name, retained)),
                    forget=_joined(formats[forgotten], name, forgotten),
                    steps=steps,
                    batch_size=batch_size,
                    seed=seed,
                )
                fitted = gates[name, retained] = ranking.importance  # one seed: the mean gate is the gate
                spent += ranking.spent
                for measured, experiment in unseen.items():
                    [gated], intact = experiment(fitted[None]), float(experiment.baseline().mean())
                    told = name, retained, measured, intact, float(gated.mean()), mean_interval(gated)
                    scores.append(HeldOutScore(*told))
                    spent += experiment.n_examples
            spent += sum(experiment.n_examples for experiment in unseen.values())
        return HeldOutContrasts(
            scores=tuple(scores),
            gates=gates,
            spent=spent,
            provenance={**unseen[first].provenance(), "formats": list(formats), "steps": steps, "seed": seed},
            notes=tuple(note for each in sides.values() for _, notes in each for note in notes),
        )


def _check_formats(formats: Mapping[str, Mapping[str, Task]]) -> list[str]:
    for name, tasks in check_mapping("formats", formats, "tasks by name, by the name of each format").items():
        for task in check_mapping(f"formats[{name!r}]", tasks, "tasks by name").values():
            check_is_task(task)
    if len(formats) != 2:
        raise ValueError(f"formats must be two, got {len(formats)}")
    first, second = formats.values()
    if list(first) != list(second) or len(first) < 2:
        raise ValueError(f"formats must have the same two tasks or more, got {list(first)} and {list(second)}")
    if len({task.kind for tasks in formats.values() for task in tasks.values()}) > 1:
        raise ValueError("formats must all be tasks of one kind")
    for name in first:
        n, others = (len(finding_side(tasks[name])) for tasks in formats.values())
        if n != others:
            raise ValueError(f"task {name!r} must have as many finding examples in both formats, got {n} and {others}")
    for tasks in formats.values():
        check_apart([*tasks.values()], [confirming_side(task) for task in tasks.values()])
    return list(first)


def _joined(tasks: Mapping[str, Task], without: str, name: str) -> Task:
    """The finding examples of all tasks but one."""
    kept = [finding_side(task) for other, task in tasks.items() if other != without]
    examples = tuple(example for task in kept for example in task.examples)
    return replace(kept[0], name=f"{name} without {without}", examples=examples, held_out=None)
