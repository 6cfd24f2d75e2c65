"""Other tasks beside a task, under the same masks, and the contrast of both.

The **contrast** is the loss of the task minus the mean loss of its controls under the same mask: what a mask does to
every task alike (universal heads, groups of redundant heads, a model that breaks) cancels in it, without anybody naming
those heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.experiment.protocol import ExperimentLike, measured, preparation_of
from cs_heads.experiment.shared_forwards import Call, measure_together
from cs_heads.methods.losses import TaskLoss
from cs_heads.ranking import normal_interval
from cs_heads.tasks.controls import NO_CONTROLS

N_ASKED = 240
"""Examples of all controls together on which the intact model is asked, at most."""
LEAST_ASKED, MOST_ASKED = 30, 100
"""The same of one control, however many there are."""
LEAST_RIGHT = 8
"""Of these answered right, below which a control is left out."""
TOGETHER = 4
"""Examples of one control a row: under one mask, what they begin with alike is run once."""

Places = Int[np.ndarray, "row k"]


class Controls:
    """Other tasks, measured under a task's masks: examples in turn from all, and their losses.

    There may be none. ``left_out`` are those that the intact model cannot do, with the reason.
    """

    def __init__(
        self, tasks: Sequence[TaskLoss], rng: np.random.Generator, left_out: Mapping[str, str] | None = None
    ) -> None:
        self.tasks, self.left_out = list(tasks), dict(left_out or {})
        # The examples of all are numbered through.
        self._starts = np.cumsum([0, *(task.n_examples for task in tasks)])
        self._turns = BalancedDraws(np.arange(len(tasks)), rng)
        self._draws = [BalancedDraws(np.arange(task.n_examples), rng) for task in tasks]

    @classmethod
    def able(cls, experiments: Sequence[ExperimentLike], seed: int, response: str = "score") -> Controls:
        """Those that the intact model can do; it runs on some examples of each (``cost`` says how many in all).

        Examples that it answers right are used.
        """
        # Draws of their own: what controls draw changes no draw of the task.
        rng = np.random.default_rng([seed, 1])
        chosen = [
            np.sort(rng.permutation(experiment.n_examples)[:n])
            for experiment, n in zip(experiments, _asked(experiments), strict=True)
        ]
        measure_together(
            [
                Call(experiment, np.zeros((1, *experiment.grid.shape), dtype=bool), asked[None])
                for experiment, asked in zip(experiments, chosen, strict=True)
            ]
        )
        tasks, left_out = [], {}
        for experiment, asked in zip(experiments, chosen, strict=True):
            try:
                tasks.append(TaskLoss.of(experiment, response, asked=asked, least=LEAST_RIGHT))
            except BaselineTooLowError as error:
                left_out[experiment.name] = str(error)
        return cls(tasks, rng, left_out)

    @staticmethod
    def cost(experiments: Sequence[ExperimentLike]) -> int:
        """Example-evaluations of the intact runs."""
        return sum(_asked(experiments))

    @property
    def names(self) -> list[str]:
        """The controls that are used."""
        return [task.experiment.name for task in self.tasks]

    @property
    def n_examples(self) -> int:
        """Examples of all controls, which are numbered through."""
        return int(self._starts[-1])

    @property
    def guess(self) -> float:
        """The score of guessing, on average over the controls."""
        return float(np.mean([task.guess for task in self.tasks]))

    def of(self, drawn: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Which control each of these examples belongs to, by its place in ``tasks``."""
        return np.searchsorted(self._starts, drawn, side="right") - 1

    def draw(self, n_rows: int, per_row: int) -> Int[np.ndarray, "row k"]:
        """Different examples for each row, four of one control, of the controls in turn, those drawn least first."""
        drawn = np.zeros((n_rows, per_row), dtype=int)
        for row in drawn if self.tasks and per_row else ():
            turns = self._taking_turns(-(-per_row // TOGETHER))
            times = np.bincount(np.repeat(turns, TOGETHER)[:per_row], minlength=len(self.tasks))
            row[:] = self._drawn(times.tolist())
        return drawn

    def _drawn(self, times: Sequence[int]) -> Int[np.ndarray, " k"]:
        """So many examples of each control."""
        each = [start + draws.draw(n) for start, draws, n in zip(self._starts, self._draws, times, strict=False) if n]
        return np.concatenate([np.zeros(0, dtype=int), *each])

    def _taking_turns(self, n: int) -> Int[np.ndarray, " n"]:
        """Controls in turn, none twice before all have had one."""
        drawn = [self._turns.draw(min(n - done, len(self.tasks))) for done in range(0, n, len(self.tasks))]
        return np.concatenate(drawn)

    def sample(self, n: int) -> Int[np.ndarray, " k"]:
        """``n`` different examples, from the controls in turn while they have any, and one of each at least."""
        sizes = [len(task.examples) for task in self.tasks]
        times = [0] * len(sizes)
        for _ in range(min(max(n, len(sizes)), self.n_examples)):
            open_tasks = [task for task, size in enumerate(sizes) if times[task] < size]
            times[min(open_tasks, key=lambda task: times[task])] += 1
        return self._drawn(times)

    def examples_of(self, drawn: Int[np.ndarray, " k"]) -> list[tuple[Any, Int[np.ndarray, " n"]]]:
        """The experiment of every control, with those of these examples that are its own, as it numbers them."""
        of = self.of(drawn)
        return [
            (task.experiment, np.sort(task.examples[drawn[of == place] - self._starts[place]]))
            for place, task in enumerate(self.tasks)
        ]

    @staticmethod
    def most(experiments: Sequence[ExperimentLike], n: int) -> int:
        """Examples in a ``sample(n)``, at most: that is known before the intact model runs."""
        return min(max(n, len(experiments)), sum(_asked(experiments)))

    def __call__(
        self, masks: Bool[np.ndarray, "row layer head"], drawn: Int[np.ndarray, "row k"]
    ) -> Float[np.ndarray, "row k"]:
        """The loss of each row's examples with the row's heads off."""
        losses = np.full(drawn.shape, np.nan)
        for task, row, column, places in self._parts(drawn):
            losses[row, column] = task(masks[row[:, 0]], places)
        return losses

    def asked(self, masks: Bool[np.ndarray, "row layer head"], drawn: Int[np.ndarray, "row k"]) -> list[Call]:
        """What the losses of each row's examples are made of, for ``measure_together``."""
        return [task.asked(masks[row[:, 0]], places) for task, row, _, places in self._parts(drawn)]

    def _parts(self, drawn: Int[np.ndarray, "row k"]) -> Iterator[tuple[TaskLoss, Places, Places, Places]]:
        """By control, and number of its examples in a row: the rows, and their places there and in its ``examples``."""
        of = self.of(drawn)
        for place, task in enumerate(self.tasks):
            mine = of == place
            times = mine.sum(axis=1)
            # Rows in which it has as many examples are measured together.
            for n in np.unique(times[times > 0]).tolist():
                row, column = (part.reshape(-1, n) for part in np.nonzero(mine & (times == n)[:, None]))
                yield task, row, column, drawn[row, column] - self._starts[place]


def controls_notes(left_out: Mapping[str, str], used: Sequence[str], *, required: bool = False) -> tuple[str, ...]:
    """A note on controls: that there are none, or that the intact model cannot do some.

    Args:
        left_out: Those that it cannot do, and why.
        used: The other ones.
        required: Whether the search means nothing without a control that the model can do.

    Raises:
        BaselineTooLowError: The model can do none, and one is ``required``.
    """
    if not left_out and not used:
        return (NO_CONTROLS,)
    reasons = "; ".join(f"{name!r}: {reason}" for name, reason in left_out.items())
    if required and not used:
        raise BaselineTooLowError(f"controls: the model can do none of them ({reasons}); use others, or none")
    if not used:
        why = "so heads of this task cannot be distinguished from task-general (universal) heads"
        return (f"no control can be used, {why}: {reasons}",)
    return tuple(f"control {name!r} is left out: {reason}" for name, reason in left_out.items())


def _asked(experiments: Sequence[ExperimentLike]) -> list[int]:
    each = int(np.clip(N_ASKED // max(len(experiments), 1), LEAST_ASKED, MOST_ASKED))
    return [min(each, experiment.n_examples) for experiment in experiments]


class Contrast:
    """What masks leave of a task, on the same examples under every mask; with controls, less what they leave of these.

    Without controls it is the scores of the task. With them a score is minus the loss, 0 on the intact model, and the
    mean is that of the task less the mean over the controls of theirs. Making one then runs the intact model on all
    examples of the task, whose mean score is a loss of 1, and on some of each control (``cost`` says how many in all);
    the controls give as many examples in all as there are ``examples`` of the task.

    Raises:
        BaselineTooLowError: The intact model cannot do the task, or none of the controls.
    """

    def __init__(
        self, experiment: ExperimentLike, controls: Sequence[ExperimentLike], examples: Int[np.ndarray, " n"], seed: int
    ) -> None:
        self.experiment, self.examples = experiment, examples
        self.task = TaskLoss.of(experiment, every=True) if controls else None
        self.controls = Controls.able(controls, seed)
        self.drawn = self.controls.sample(len(examples))
        self.a_mask = len(examples) + len(self.drawn)
        self.unit, self.notes, self.provenance = "score lost", tuple[str, ...](), dict[str, Any]()
        if controls:
            self.unit = "share of the score above chance, less that of the controls"
            self.notes = controls_notes(self.controls.left_out, self.controls.names, required=True)
            self.provenance = {"controls": self.controls.names, "control_examples_a_mask": len(self.drawn)}

    @staticmethod
    def cost(experiment: ExperimentLike, controls: Sequence[ExperimentLike]) -> int:
        """Example-evaluations of the intact runs, and of what the ablation runs before."""
        return preparation_of(experiment, *controls) + experiment.n_examples + Controls.cost(controls)

    def __call__(self, masks: Bool[np.ndarray, "row layer head"]) -> Float[np.ndarray, "row example"]:
        """What is left of every example with a row's heads off: those of the task, then those of the controls."""
        own = np.tile(self.examples, (len(masks), 1))
        if self.task is None:
            return measured(self.experiment, masks, own)
        drawn = np.tile(self.drawn, (len(masks), 1))
        measure_together([self.task.asked(masks, own), *self.controls.asked(masks, drawn)])
        others = self.controls(masks, drawn)
        return 0.0 - np.concatenate([self.task(masks, own), others], axis=1)

    def intact(self) -> Float[np.ndarray, " example"]:
        """What is left on the intact model, which runs for it only without controls: with them nothing is lost."""
        if self.task is None:
            return self(np.zeros((1, *self.experiment.grid.shape), dtype=bool))[0]
        return np.zeros(self.a_mask)

    def mean(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, " row"]:
        """The mean over the task's examples less the mean over controls of theirs, of scores or what was lost of them.

        With controls rounded so that what ties or cancels does so exactly, in whatever order it is summed.
        """
        mean = self._contrasted(scores)[0]
        return mean if self.task is None else np.round(mean, 12) + 0.0

    def interval(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, "row 2"] | None:
        """Its 95 % normal interval; none where there is a single example of the task or of a control."""
        return self._contrasted(scores)[1]

    def _contrasted(
        self, scores: Float[np.ndarray, "row example"]
    ) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "row 2"] | None]:
        own, others = scores[:, : len(self.examples)].T, scores[:, len(self.examples) :]
        of = self.controls.of(self.drawn)
        return contrasted(own, [others[:, of == task].T for task in range(len(self.controls.tasks))])


def contrasted(
    task: Float[np.ndarray, "_ *heads"], controls: Sequence[Float[np.ndarray, "_ *heads"]]
) -> tuple[Float[np.ndarray, "*heads"], Float[np.ndarray, "*heads 2"] | None]:
    """The mean over a task's examples, less the mean over controls, if there are any, of theirs.

    With the 95 % normal interval over examples; none where there is a single one of the task or of a control.
    """
    if not controls:
        return task.mean(axis=0), normal_interval(task) if len(task) > 1 else None
    sides = [(1.0, task), *((-1 / len(controls), each) for each in controls)]
    mean = np.sum([weight * each.mean(axis=0) for weight, each in sides], axis=0)
    if min(len(each) for _, each in sides) < 2:
        return mean, None
    error = np.sqrt(sum(weight**2 * each.var(axis=0, ddof=1) / len(each) for weight, each in sides))
    return mean, np.stack([mean - 1.96 * error, mean + 1.96 * error], axis=-1)


class BalancedDraws:
    """Draws groups of heads from a pool, those drawn least often so far first, ties at random."""

    def __init__(self, pool: Int[np.ndarray, " head"], rng: np.random.Generator) -> None:
        self.pool = pool
        self._rng = rng
        self._waiting = np.zeros(0, dtype=int)

    def draw(self, n: int) -> Int[np.ndarray, " n"]:
        """``n`` different heads of the pool."""
        chosen, self._waiting = self._waiting[:n], self._waiting[n:]
        if len(chosen) < n:
            # All of the pool have been drawn equally often now: a new order, in which those just chosen wait.
            order = self._rng.permutation(self.pool)
            late = np.isin(order, chosen)
            order = np.concatenate([order[~late], order[late]])
            more = n - len(chosen)
            chosen, self._waiting = np.concatenate([chosen, order[:more]]), order[more:]
        return chosen
