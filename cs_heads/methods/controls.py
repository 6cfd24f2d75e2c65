"""What masks take from a task beyond what they take from its controls, on one scale.

A **loss** is the share of the score above chance that is lost. The **contrast** is the loss of the task minus the mean
loss of its controls under the same mask: what a mask does to every task alike (universal heads, groups of heads that
stand in for each other, a model that breaks) cancels in it, without anybody naming those heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logit

from cs_heads.arguments import in_line
from cs_heads.experiment.baseline import BaselineTooLowError, as_answers, baseline_too_low
from cs_heads.experiment.protocol import ExperimentLike, chance_of, measured, name_of, preparation_of, responding
from cs_heads.ranking import normal_interval

N_ASKED = 240
"""Examples of all controls together on which the intact model is asked, at most."""
LEAST_ASKED, MOST_ASKED = 30, 100
"""The same of one control, however many there are."""
LEAST_RIGHT = 8
"""Of these answered right, below which a control is left out."""
CLEAR, SHARED, LARGE = 4.0, 0.5, 0.4
"""How clear an effect on both sides must be, and how large that on the controls beside the task's, for heads to be
shared; and from where on rows with them off say nothing of other heads."""
EXACT = 1e-6
"""Standard error of what does not vary at all, which keeps z finite."""
NO_CONTROLS = "no controls: heads of this task cannot be told from heads that every task needs (task-general)"
"""What a search says that had none."""
PLENTY = 4
"""Masks a head from which on least squares need no help from most heads doing nothing."""
TOGETHER = 4
"""Examples of one control a row: under one mask, what they begin with alike is run once."""


@dataclass(frozen=True, eq=False)
class TaskLoss:
    """The losses of one task, on some of its examples.

    ``examples`` are these (of a control, some that the intact model answers right), ``intact`` their response on the
    intact model, ``guess`` is that of guessing. The response is the score, or a continuous one (``responding``).
    """

    name: str
    experiment: ExperimentLike
    examples: Int[np.ndarray, " example"]
    intact: Float[np.ndarray, " example"]
    guess: float
    response: str = "score"

    @property
    def above_guess(self) -> float:
        """The mean intact response above guessing, which is a loss of 1."""
        return float(self.intact.mean()) - self.guess

    def __call__(
        self, masks: Bool[np.ndarray, "row layer head"], places: Int[np.ndarray, "row k"]
    ) -> Float[np.ndarray, "row k"]:
        """The loss of each row's examples, by their places in ``examples``, with the row's heads off."""
        answers = responding(self.experiment, self.response)(masks, self.examples[places])
        return np.asarray((self.intact[places] - answers) / self.above_guess)


@dataclass(frozen=True)
class BothEffects:
    """What heads take from the task and from its controls, as losses, each with a standard error.

    A 95 % interval reaches ``reach`` of these to both sides.
    """

    task: float
    task_error: float
    controls: float = 0.0
    controls_error: float = 0.0
    reach: float = 1.96

    @property
    def z(self) -> float:
        """By how many standard errors the task loses more than its controls."""
        return (self.task - self.controls) / max(float(np.hypot(self.task_error, self.controls_error)), EXACT)

    @property
    def are_shared(self) -> bool:
        """Whether the heads surely take something from both, and from the controls more than half of the task's."""
        clear = self.task > CLEAR * self.task_error > 0 and self.controls > CLEAR * self.controls_error > 0
        return clear and self.controls > SHARED * self.task

    @property
    def are_large(self) -> bool:
        """Whether they take so much that rows in which they are off say nothing of other heads."""
        return min(self.task, self.controls) > LARGE

    def to_dict(self) -> dict[str, Any]:
        """Both losses with their 95 % intervals, as ``HeadRanking.shared_effects`` has them."""
        sides = (("task", self.task, self.task_error), ("controls", self.controls, self.controls_error))
        intervals = {
            f"{name}_interval": [loss - self.reach * error, loss + self.reach * error] for name, loss, error in sides
        }
        return {"task": self.task, "controls": self.controls, **intervals}


def guess_of(chance: float, response: str) -> float:
    """The response of guessing: the score of it, that as a probability, or its log-odds.

    Where nothing is guessed right, one token of 50,000 is.

    >>> guess_of(0.5, "margin"), guess_of(0.25, "score")
    (0.0, 0.25)
    """
    return float(logit(chance or 1 / 50_000)) if response == "margin" else chance


def too_near(above_guess: float, response: str) -> str | None:
    """Why a response of the intact model is too near to guessing for a share of it to be lost, or None."""
    if above_guess > (0.1 if response == "margin" else 0.01):
        return None
    return f"its mean {response} is {above_guess:+.3f} above guessing: use another response"


def intact_scores(
    experiment: ExperimentLike, chance: float | None = None
) -> tuple[Float[np.ndarray, " example"], Float[np.ndarray, " example"]]:
    """Scores of the intact model, which runs, and how far each is right; raises ``BaselineTooLowError`` if too few are.

    ``chance`` is by default that of the experiment.
    """
    scores = measured(experiment, np.zeros((1, *experiment.grid.shape), dtype=bool), None)[0]
    right = as_answers(scores, experiment)
    reason = baseline_too_low(experiment, right, chance)
    if reason:
        raise BaselineTooLowError(reason)
    return scores, right


class Controls:
    """Other tasks, measured under a task's masks: examples in turn from all, and their losses.

    Making one runs the intact model on some examples of each (``cost`` says how many in all). Those it answers right
    are used; a control it cannot do is ``left_out``, with the reason.
    """

    def __init__(
        self, experiments: Sequence[ExperimentLike], rng: np.random.Generator, response: str = "score"
    ) -> None:
        self.tasks: list[TaskLoss] = []
        self.left_out: dict[str, str] = {}
        for experiment, n in zip(experiments, _asked(experiments), strict=True):
            asked = np.sort(rng.permutation(experiment.n_examples)[:n])
            nothing_off = np.zeros((1, *experiment.grid.shape), dtype=bool)
            scores = measured(experiment, nothing_off, asked[None])[0]
            correct = as_answers(scores, experiment)
            name, chance = name_of(experiment), chance_of(experiment)
            reason = baseline_too_low(experiment, correct, least=LEAST_RIGHT)
            if not reason:
                # Continuous responses come from the run that the scores came from.
                answers = (
                    scores if response == "score" else responding(experiment, response)(nothing_off, asked[None])[0]
                )
                # Of continuous scores an example that has none has nothing to lose.
                used = correct > 0
                task = TaskLoss(name, experiment, asked[used], answers[used], guess_of(chance, response), response)
                reason = too_near(task.above_guess, response)
            if reason:
                self.left_out[name] = reason
            else:
                self.tasks.append(task)
        self._starts = np.cumsum([0, *(len(task.examples) for task in self.tasks)])
        self._turns = BalancedDraws(np.arange(len(self.tasks)), rng)
        self._draws = [BalancedDraws(np.arange(len(task.examples)), rng) for task in self.tasks]

    @staticmethod
    def cost(experiments: Sequence[ExperimentLike]) -> int:
        """Example-evaluations of the intact runs."""
        return sum(_asked(experiments))

    @property
    def names(self) -> list[str]:
        """The controls that are used."""
        return [task.name for task in self.tasks]

    @property
    def n_examples(self) -> int:
        """Examples of all controls, which are numbered through."""
        return int(self._starts[-1])

    def of(self, drawn: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Which control each of these examples belongs to, by its place in ``tasks``."""
        return np.searchsorted(self._starts, drawn, side="right") - 1

    def draw(self, n_rows: int, per_row: int) -> Int[np.ndarray, "row k"]:
        """Different examples for each row, four of one control, of the controls in turn, those drawn least first."""
        drawn = np.zeros((n_rows, per_row), dtype=int)
        for row in drawn:
            turns = self._taking_turns(-(-per_row // TOGETHER))
            times = np.bincount(np.repeat(turns, TOGETHER)[:per_row], minlength=len(self.tasks))
            row[:] = np.concatenate(
                [self._starts[task] + self._draws[task].draw(n) for task, n in enumerate(times.tolist()) if n]
            )
        return drawn

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
        return np.concatenate([self._starts[task] + self._draws[task].draw(n) for task, n in enumerate(times)])

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
        losses, of = np.full(drawn.shape, np.nan), self.of(drawn)
        for place, task in enumerate(self.tasks):
            mine = of == place
            times = mine.sum(axis=1)
            for n in np.unique(times[times > 0]).tolist():
                rows = np.flatnonzero(times == n)
                chosen = mine[rows]
                examples = drawn[rows][chosen].reshape(len(rows), n) - self._starts[place]
                some = np.full(chosen.shape, np.nan)
                some[chosen] = task(masks[rows], examples).ravel()
                losses[rows] = np.where(chosen, some, losses[rows])
        return losses


def controls_notes(known: Controls | None, *, required: bool = False) -> tuple[str, ...]:
    """A note on controls: that there are none, or that the intact model cannot do some.

    Args:
        known: The controls of a search; None for a search without any.
        required: Whether the search means nothing without a control that the model can do.

    Raises:
        BaselineTooLowError: It can do none, and one is ``required``.
    """
    return (NO_CONTROLS,) if known is None else left_out_notes(known.left_out, known.names, required=required)


def left_out_notes(left_out: Mapping[str, str], used: Sequence[str], *, required: bool = True) -> tuple[str, ...]:
    """A note on the controls that the intact model cannot do.

    Args:
        left_out: These controls, and why.
        used: The other ones.
        required: Whether a search without any control means nothing.

    Raises:
        BaselineTooLowError: None is used, and one is ``required``.
    """
    reasons = "; ".join(f"{name!r}: {reason}" for name, reason in left_out.items())
    if required and not used:
        raise BaselineTooLowError(f"controls: the model can do none of them ({reasons}); use others, or none")
    if not used:
        return (f"no control can be used, so heads of this task cannot be told from task-general heads: {reasons}",)
    return tuple(f"control {name!r} is left out: {reason}" for name, reason in left_out.items())


def _asked(experiments: Sequence[ExperimentLike]) -> list[int]:
    each = int(np.clip(N_ASKED // max(len(experiments), 1), LEAST_ASKED, MOST_ASKED))
    return [min(each, experiment.n_examples) for experiment in experiments]


class Scores:
    """The scores of a task, on the same examples under every mask (None: all of them)."""

    unit = "points of score"
    notes: tuple[str, ...] = ()

    def __init__(self, experiment: ExperimentLike, examples: Int[np.ndarray, " n"] | None = None) -> None:
        self.experiment, self.examples = experiment, examples
        self.a_mask = experiment.n_examples if examples is None else len(examples)
        self.provenance: dict[str, Any] = {}

    def __call__(self, masks: Bool[np.ndarray, "row layer head"]) -> Float[np.ndarray, "row example"]:
        """The score of every example with a row's heads off."""
        examples = None if self.examples is None else np.tile(self.examples, (len(masks), 1))
        return measured(self.experiment, masks, examples)

    def intact(self) -> Float[np.ndarray, " example"]:
        """The scores of the intact model, which runs for them as under any mask."""
        return self(np.zeros((1, *self.experiment.grid.shape), dtype=bool))[0]

    def mean(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, " row"]:
        """The mean over examples of scores, or of what was lost of them."""
        return np.asarray(scores.mean(axis=1))

    def interval(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, "row 2"] | None:
        """Its 95 % normal interval; none for a single example."""
        return normal_interval(scores.T) if self.a_mask > 1 else None


class Contrast:
    """What masks leave of a task less what they leave of its controls, on the same examples under every mask.

    As ``Scores``, but a score is minus the loss, 0 on the intact model, and the mean is that of the task less the mean
    over the controls of theirs.

    Making one runs the intact model on all examples of the task, whose mean score is a loss of 1, and on some of each
    control (``cost`` says how many in all). A task that it cannot do, or controls of which it can do none, raise
    ``BaselineTooLowError``. ``examples`` are those of the task under every mask; the controls give as many in all.
    """

    unit = "share of the score above chance, less that of the controls"

    def __init__(
        self, experiment: ExperimentLike, controls: Sequence[ExperimentLike], examples: Int[np.ndarray, " n"], seed: int
    ) -> None:
        intact, _ = intact_scores(experiment)
        chance = chance_of(experiment)
        self.task = TaskLoss(name_of(experiment), experiment, np.arange(experiment.n_examples), intact, chance)
        # Of their own: what controls draw changes no draw of the method.
        self.controls = Controls(controls, np.random.default_rng([seed, 1]))
        self.notes = controls_notes(self.controls, required=True)
        self.examples, self.drawn = examples, self.controls.sample(len(examples))
        self._of = self.controls.of(self.drawn)
        self.a_mask = len(self.examples) + len(self.drawn)
        self.provenance = {"controls": self.controls.names, "control_examples_a_mask": len(self.drawn)}

    @staticmethod
    def cost(experiment: ExperimentLike, controls: Sequence[ExperimentLike]) -> int:
        """Example-evaluations of the intact runs, and of what the ablation runs before."""
        return preparation_of(experiment, *controls) + experiment.n_examples + Controls.cost(controls)

    def __call__(self, masks: Bool[np.ndarray, "row layer head"]) -> Float[np.ndarray, "row example"]:
        """Minus the loss of every example with a row's heads off: those of the task, then those of the controls."""
        own, others = (np.tile(examples, (len(masks), 1)) for examples in (self.examples, self.drawn))
        return 0.0 - np.concatenate([self.task(masks, own), self.controls(masks, others)], axis=1)

    def intact(self) -> Float[np.ndarray, " example"]:
        """Nothing is lost on the intact model, which has run."""
        return np.zeros(self.a_mask)

    def mean(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, " row"]:
        """The mean over the task's examples less the mean over controls of theirs, of scores or what was lost of them.

        Rounded so that what ties or cancels does so exactly, in whatever order it is summed.
        """
        return np.round(contrasted(*self._sides(scores))[0], 12) + 0.0

    def interval(self, scores: Float[np.ndarray, "row example"]) -> Float[np.ndarray, "row 2"] | None:
        """Its 95 % normal interval; none where there is a single example of the task or of a control."""
        return contrasted(*self._sides(scores))[1]

    def _sides(
        self, scores: Float[np.ndarray, "row example"]
    ) -> tuple[Float[np.ndarray, "n row"], list[Float[np.ndarray, "_ row"]]]:
        own, others = scores[:, : len(self.examples)], scores[:, len(self.examples) :]
        return own.T, [others[:, self._of == task].T for task in range(len(self.controls.tasks))]


def contrasted(
    task: Float[np.ndarray, "_ *heads"], controls: Sequence[Float[np.ndarray, "_ *heads"]]
) -> tuple[Float[np.ndarray, "*heads"], Float[np.ndarray, "*heads 2"] | None]:
    """The mean over a task's examples, less the mean over controls of theirs.

    With the 95 % normal interval over examples; none where there is a single one of the task or of a control.
    """
    sides = [(1.0, task), *((-1 / len(controls), each) for each in controls)]
    mean = np.sum([weight * each.mean(axis=0) for weight, each in sides], axis=0)
    if min(len(each) for _, each in sides) < 2:
        return mean, None
    error = np.sqrt(sum(weight**2 * each.var(axis=0, ddof=1) / len(each) for weight, each in sides))
    return mean, np.stack([mean - 1.96 * error, mean + 1.96 * error], axis=-1)


def check_experiments(experiment: ExperimentLike, controls: Any) -> None:
    """Raise ``ValueError`` for controls that are no list of experiments with the heads of the task's."""
    if isinstance(controls, str) or not isinstance(controls, Sequence):
        raise ValueError(f"controls must be a list of experiments, got {controls!r}"[:300])
    for control in controls:
        if not isinstance(control, ExperimentLike):
            raise ValueError(f"controls must be experiments on other tasks, got {control!r}")
        if control.grid != experiment.grid:
            raise ValueError(f"controls must have the grid of the experiment, {experiment.grid}, got {control.grid}")


def check_differentiable(experiment: Any, controls: Any = ()) -> None:
    """Raise ``ValueError`` unless experiments, with an answer to each example, have gradients in gates."""
    check_experiments(experiment, controls)
    for each in (experiment, *controls):
        if not hasattr(each, "gradients"):
            raise ValueError(f"experiment must be an Experiment on a model, which has gradients, got {in_line(each)}")
        _ = each.answers
    for control in controls:
        if control.task.role == "confirming":
            name = control.task.name
            raise ValueError(
                f"controls must not be the confirming side of a split, as {name!r} is: no search may see it"
            )


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
