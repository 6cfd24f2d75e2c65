"""Other tasks beside a task, under the same masks, and the contrast of both.

The **contrast** is the loss of the task minus the mean loss of its controls under the same mask: what a mask does to
every task alike (universal heads, groups of redundant heads, a model that breaks) cancels in it, without anybody naming
those heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.experiment.protocol import ExperimentLike, measured, preparation_of
from cs_heads.experiment.shared_forwards import Call, measure_together
from cs_heads.methods.losses import Masks, Places, TaskLoss, able
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

Examples = Int[np.ndarray, " k"]


class Controls:
    """Other tasks, measured under a task's masks: examples in turn from all, and their losses.

    There may be none. ``left_out`` are those that the intact model cannot do, with the reason. ``sides`` are their
    places: those in the form of the task are a side of their own, since among all others what they lose would hardly
    show (``draw``).
    """

    def __init__(
        self, tasks: Sequence[TaskLoss], rng: np.random.Generator, left_out: Mapping[str, str] | None = None
    ) -> None:
        self.tasks, self.left_out = list(tasks), dict(left_out or {})
        # The examples of all are numbered through.
        self._starts = np.cumsum([0, *(task.n_examples for task in tasks)])
        matched = np.array([task.matched for task in tasks], dtype=bool)
        self.sides = [np.flatnonzero(side) for side in (~matched, matched) if side.any()]
        self._turns = [BalancedDraws(side, rng) for side in self.sides]
        self._draws = [BalancedDraws(np.arange(task.n_examples), rng) for task in tasks]

    @classmethod
    def able(cls, experiments: Sequence[ExperimentLike], seed: int) -> Controls:
        """Those that the intact model can do; it runs on some examples of each (``cost`` says how many in all).

        Examples that it answers right are used. Beside controls in the form of the task, what all lose is the
        probability of their answers, where they have one: it tells from fewer examples what turns wrong in harder tasks
        of that form.
        """
        # Draws of their own: what controls draw changes no draw of the task.
        rng = np.random.default_rng([seed, 1])
        sizes = zip(experiments, _asked(experiments), strict=True)
        chosen = [np.sort(rng.permutation(experiment.n_examples)[:n]) for experiment, n in sizes]
        tasks, reasons = able(experiments, chosen, least=LEAST_RIGHT)
        of_form = any(task.matched for task in tasks.values())
        used = [task.by_probability() if of_form else task for task in tasks.values()]
        return cls(used, rng, {experiments[place].name: why for place, why in reasons.items()})

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

    def draw(self, n_rows: int, per_row: int) -> Places:
        """Different examples for each row, four of one control, half of them in the form of the task if there are any.

        The controls of a side take turns, those drawn least first.
        """
        drawn, none = np.zeros((n_rows, per_row), dtype=int), np.zeros(0, dtype=int)
        for row in drawn if self.tasks and per_row else ():
            times = np.zeros(len(self.tasks), dtype=int)
            for controls, size in zip(self._turns, self._sizes(per_row), strict=True):
                # None twice before all have had one.
                n, of_all = -(-size // TOGETHER), len(controls.pool)
                turns = [controls.draw(min(n - done, of_all)) for done in range(0, n, of_all)]
                each = np.repeat(np.concatenate([none, *turns]), TOGETHER)[:size]
                times += np.bincount(each, minlength=len(self.tasks))
            row[:] = self._drawn(times.tolist())
        return drawn

    def _sizes(self, per_row: int) -> list[int]:
        """How many of a row's examples each side gives: no more than it has."""
        if len(self.sides) == 1:
            return [per_row]
        rest, form = (len(side) * min(self.tasks[place].n_examples for place in side) for side in self.sides)
        of_form = max(min(per_row // 2, form), per_row - rest)
        return [per_row - of_form, of_form]

    def _drawn(self, times: Sequence[int]) -> Examples:
        """So many examples of each control."""
        each = [start + draws.draw(n) for start, draws, n in zip(self._starts, self._draws, times, strict=False) if n]
        return np.concatenate([np.zeros(0, dtype=int), *each])

    def sample(self, n: int) -> Examples:
        """``n`` different examples, from the controls in turn while they have any, and one of each at least."""
        sizes = np.array([task.n_examples for task in self.tasks])
        times = np.zeros_like(sizes)
        for _ in range(min(max(n, len(sizes)), self.n_examples)):
            times[np.argmin(np.where(times < sizes, times, self.n_examples))] += 1
        return self._drawn(times.tolist())

    def examples_of(self, drawn: Examples) -> list[tuple[Any, Int[np.ndarray, " n"]]]:
        """The experiment of every control, with those of these examples that are its own, as it numbers them."""
        own = [drawn[self.of(drawn) == place] - self._starts[place] for place in range(len(self.tasks))]
        return [(task.experiment, np.sort(task.examples[some])) for task, some in zip(self.tasks, own, strict=True)]

    @staticmethod
    def most(experiments: Sequence[ExperimentLike], n: int) -> int:
        """Examples in a ``sample(n)``, at most: that is known before the intact model runs."""
        return min(max(n, len(experiments)), sum(_asked(experiments)))

    def __call__(self, masks: Masks, drawn: Places) -> Float[np.ndarray, "row k"]:
        """The loss of each row's examples with the row's heads off."""
        losses = np.full(drawn.shape, np.nan)
        for task, row, column, places in self._parts(drawn):
            losses[row, column] = task(masks[row[:, 0]], places)
        return losses

    def asked(self, masks: Masks, drawn: Places) -> list[Call]:
        """What the losses of each row's examples are made of, for ``measure_together``."""
        return [task.asked(masks[row[:, 0]], places) for task, row, _, places in self._parts(drawn)]

    def _parts(self, drawn: Places) -> Iterator[tuple[TaskLoss, Places, Places, Places]]:
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
        self, experiment: ExperimentLike, controls: Sequence[ExperimentLike], examples: Examples, seed: int
    ) -> None:
        self.experiment, self.examples = experiment, examples
        self.task = TaskLoss.of(experiment, all_from=0.0) if controls else None
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

    def __call__(self, masks: Masks) -> Float[np.ndarray, "row example"]:
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
        mean = contrasted(*self._sides(scores))[0]
        return mean if self.task is None else np.round(mean, 12) + 0.0

    def interval(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, "row 2"] | None:
        """Its 95 % normal interval; none where there is a single example of the task or of a control."""
        return contrasted(*self._sides(scores))[1]

    def _sides(self, scores: Float[np.ndarray, "row example"]) -> tuple[np.ndarray, list[np.ndarray]]:
        """The scores of the task, and those of each control, by example."""
        own, others = np.split(scores, [len(self.examples)], axis=1)
        of = self.controls.of(self.drawn)
        return own.T, [others[:, of == task].T for task in range(len(self.controls.tasks))]


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
