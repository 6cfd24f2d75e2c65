"""A dry run: the steps of a protocol on experiments that only count, and seconds from a short probe of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped

from cs_heads import designs
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.analysis.universal import UniversalHeads
from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import EncodedExample
from cs_heads.methods.gating.descent import Plan
from cs_heads.methods.gating.result import HeadGates
from cs_heads.ranking import HeadRanking
from cs_heads.reproduce.localization import N_FAILING
from cs_heads.reproduce.reproduction import Reproduction, Step
from cs_heads.reproduce.run import done_steps
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task, finding_side
from cs_heads.units import Grid

# Examples and masks of a probe at most, and seconds for the probes of all tasks, about.
_EXAMPLES = 8
_MASKS = 32
_SECONDS = 4.0


class Counting:
    """An experiment without a model: every example is right under every mask, and each (mask, examples) counts once.

    The example-evaluations asked for are added to those of ``name`` in ``counted``.
    """

    def __init__(self, task: Task, grid: Grid, counted: Counter[str], name: str) -> None:
        self.grid, self.n_examples, self.chance, self.name = grid, len(task), task.chance, name
        self._counted = counted
        self._asked: set[tuple[bytes, bytes]] = set()

    def __call__(
        self, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"] | None = None
    ) -> Float[np.ndarray, "row k"]:
        """Scores of 1 under masks or gates, for each row's examples (None: all)."""
        k = self.n_examples if examples is None else examples.shape[1]
        of = [b""] * len(masks) if examples is None else [row.tobytes() for row in examples]
        new = {(mask.tobytes(), each) for mask, each in zip(masks, of, strict=True)} - self._asked
        self._counted[self.name] += len(new) * k
        self._asked |= new
        return np.ones((len(masks), k))

    logprob = __call__

    def baseline(self) -> Float[np.ndarray, " example"]:
        """Scores with no head ablated."""
        return self(np.zeros((1, *self.grid.shape), dtype=bool))[0]


@dataclass(eq=False)
class DryRun(Reproduction):
    """A reproduction whose experiments only count, and in which the steps find as much as they can.

    Heads differ from task to task, so that no two sets of heads are one mask; every control is asked whether the model
    can do it; a head of each of three rankings is universal. Gates are made up, and cost what their fits would.
    """

    counted: Counter[str] = field(default_factory=Counter)
    _experiments: dict[tuple[str, bool], Counting] = field(default_factory=dict)

    def experiment(self, name: str, *, finding: bool = False) -> Any:
        """What counts for one side of a task, the same at every call as a store would have it."""
        task = finding_side(self.tasks[name]) if finding else self.unseen(name)
        return self._experiments.setdefault((name, finding), Counting(task, self.grid, self.counted, name))

    def record(self, heads: str, proof: Confirmation, curve: SparsityCurve) -> None:
        """Nothing: a dry run writes no files."""

    @cached_property
    def searched(self) -> dict[str, HeadRanking]:
        """The search as it is, with other heads found on every task: as many as are candidates for universal ones."""
        size, many = self.grid.size, self.settings.max_heads
        rankings = {}
        for place, (heads, ranking) in enumerate(super().searched.items()):
            # Where every example is right, all settings find the same heads; in a real search each may find others.
            name = self.finding[heads]
            self.counted[name] += len(ranking.provenance["tuning"]) * len(self.tasks[name])
            importance = np.zeros(size)
            start = place * many + place * many // size
            # In as many layers as there are, so that random sets of the same layers differ, too.
            across = np.arange(size).reshape(self.grid.shape).T.ravel()
            importance[across[np.arange(start, start + many) % size]] = np.arange(many, 0, -1)
            rankings[heads] = replace(ranking, importance=importance.reshape(self.grid.shape))
        return rankings

    @cached_property
    def control(self) -> str | None:
        """The control with most examples, after all were asked."""
        for name in self.controls:
            self.experiment(name, finding=True).baseline()
        return max(self.controls, key=lambda name: len(self.tasks[name]), default=None)

    @cached_property
    def universal(self) -> UniversalHeads | None:
        """Every candidate tried, and the last one of each of the first rankings found universal."""
        found, many = super().universal, self.settings.max_heads
        last = [ranking.top(many)[-1] for ranking in self.searched.values()]
        return None if found is None else replace(found, heads=tuple(last[:N_FAILING]))

    @cached_property
    def gates(self) -> dict[str, HeadGates]:
        """Of every fit, at random, so that no two points of a curve over them are one set of gates."""
        settings, rng = self.settings, np.random.default_rng(self.seed)
        plan = Plan(settings.n_seeds, settings.steps, settings.batch_size, strength=1.0)
        made = {}
        for heads, name in (self.finding | {name: name for name in self.controls}).items():
            n = len(finding_side(self.tasks[name]))
            cost = plan.on(n).cost(n, phases=3, sides=1)
            self.counted[name] += cost.spent
            phases = rng.random((3, settings.n_seeds, *self.grid.shape))
            free, plus, minus = phases
            losses, at = np.zeros((*phases.shape[:2], 1)), np.zeros(1, dtype=int)
            made[heads] = HeadGates(free, plus, minus, losses, trajectory=phases[:, :, None], at=at, cost=cost)
        return made

    def cost_of(self, step: Step) -> dict[str, int]:
        """Example-evaluations by task that a step adds to those of the steps before, what it starts from included."""
        before = Counter(self.counted)
        for part in step.uses:
            getattr(self, part)
        if step.cost is None:
            step.run(self)
        else:
            self.counted.update(step.cost(self))
        return dict(self.counted - before)


@dataclass(frozen=True)
class Estimate:
    """The most example-evaluations of each step, by task, and the seconds that one takes on this machine.

    What an earlier step measures is not counted again; what is done and in the store is not counted at all. Half of the
    evaluations of gates are backward passes, taken to last as long as forward ones.

    Attributes:
        evaluations: by step, then by task.
        seconds_each: by task the seconds of one example-evaluation.
        missing: steps that cannot be made, and why.
    """

    evaluations: dict[str, dict[str, int]]
    seconds_each: dict[str, float]
    missing: dict[str, str]

    def seconds(self, step: str) -> float:
        """Seconds of one step.

        Args:
            step: Name of the step, one of ``evaluations``.
        """
        return float(sum(number * self.seconds_each[task] for task, number in self.evaluations[step].items()))

    @property
    def total(self) -> int:
        """Example-evaluations of all steps."""
        return sum(sum(by_task.values()) for by_task in self.evaluations.values())

    @property
    def total_seconds(self) -> float:
        """Seconds of all steps."""
        return float(sum(map(self.seconds, self.evaluations)))

    def to_frame(self) -> pd.DataFrame:
        """One row a step: example-evaluations, seconds, and why it cannot be made, where it cannot."""
        rows = [(step, sum(each.values()), self.seconds(step), "") for step, each in self.evaluations.items()]
        rows += [(step, 0, 0.0, reason) for step, reason in self.missing.items()]
        return pd.DataFrame(rows, columns=["step", "example-evaluations", "seconds", "missing"])


def estimate(repro: Reproduction, steps: Iterable[Step]) -> Estimate:
    """Count what steps cost at most, and time evaluations of each task for some seconds in all, none of them kept.

    What a step starts from (the search, the trial for universal heads, the gates) is counted with the first step that
    needs it.

    Args:
        repro: the model, the paper, its tasks and settings.
        steps: rows of the table of steps, as ``steps_of`` gives them.

    Returns:
        Example-evaluations and seconds by step.
    """
    given = {each.name: getattr(repro, each.name) for each in fields(repro)}
    dry = DryRun(**{**given, "left_out": {}})
    evaluations: dict[str, dict[str, int]] = {}
    missing: dict[str, str] = {}
    for step in done_steps(repro) if repro.store.is_file() else ():
        dry.cost_of(step)
    for step in steps:
        lacking = step.lacking(repro)
        if lacking:
            missing[step.name] = f"it needs {lacking}"
            continue
        try:
            evaluations[step.name] = dry.cost_of(step)
        except BaselineTooLowError as error:
            missing[step.name] = str(error)
    used = dict.fromkeys(task for by_task in evaluations.values() for task in by_task)
    return Estimate(evaluations, _seconds_each(repro, used), missing)


def _seconds_each(repro: Reproduction, names: Iterable[str]) -> dict[str, float]:
    """Seconds of one example-evaluation of each task, by ever more masks on it while the time for that lasts.

    A task that the time does not suffice for takes, by token, what others of its kind do.
    """
    calls: SettingsArguments = {**repro.calls, "store": None, "progress": False}
    made: dict[str, Experiment] = {}
    for name in names:
        side, first = repro.unseen(name).take(_EXAMPLES), next(iter(made.values()), None)
        # On one engine, which finds out once how it runs fastest.
        made[name] = Experiment(repro.model, side, **calls) if first is None else first.on(side)
    tokens = {name: np.mean([_tokens(each) for each in one.encoded]) for name, one in made.items()}
    measured: dict[str, float] = {}
    until = perf_counter() + _SECONDS
    for name, one in made.items():
        if perf_counter() < until or not any(_writes(made[each]) == _writes(one) for each in measured):
            measured[name] = _measured(one, repro.seed, _SECONDS / len(made))
    alike = {
        writes: np.mean([seconds / tokens[each] for each, seconds in measured.items() if _writes(made[each]) == writes])
        for writes in set(map(_writes, made.values()))
    }
    return {name: measured.get(name, float(alike[_writes(one)] * tokens[name])) for name, one in made.items()}


def _measured(experiment: Experiment, seed: int, most: float) -> float:
    """Seconds of an example-evaluation in the largest of ever larger batches, until these take ``most`` seconds."""
    off = designs.bernoulli(experiment.grid, 2 * _MASKS, max(0.05, 1 / experiment.grid.size), seed)
    # Not timed: what the first forward of an engine prepares.
    experiment(off[:1])
    seconds, begun, n, each = 0.0, 1, 2, 0.0
    while begun < len(off) and seconds < most:
        ran, start = experiment.ran, perf_counter()
        experiment(off[begun : begun + n])
        taken = perf_counter() - start
        # Masks drawn twice are measured once.
        each = taken / (experiment.ran - ran) if experiment.ran > ran else each
        seconds, begun, n = seconds + taken, begun + n, 2 * n
    return each


def _tokens(example: EncodedExample) -> int:
    return len(example.prompt) + sum(map(len, example.continuations))


def _writes(experiment: Experiment) -> bool:
    """Whether the model writes what is scored, which takes longer by token."""
    return experiment.task.kind == "generation"
