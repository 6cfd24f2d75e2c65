"""A dry run: the steps of a protocol on experiments that only count, and seconds from a short probe of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.analysis.universal import UniversalHeads
from cs_heads.experiment.baseline import BaselineTooLowError
from cs_heads.experiment.estimate import N_PROBED, Estimate, seconds_each
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.gating.descent import Plan
from cs_heads.methods.gating.result import HeadGates
from cs_heads.ranking import HeadRanking
from cs_heads.reproduce.localization import N_FAILING
from cs_heads.reproduce.reproduction import Reproduction, Step
from cs_heads.reproduce.run import done_steps
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task, finding_side
from cs_heads.units import Grid


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
    calls: SettingsArguments = {**repro.calls, "store": None, "progress": False}
    probes: dict[str, Experiment] = {}
    for name in used:
        side, first = repro.unseen(name).take(N_PROBED), next(iter(probes.values()), None)
        # On one engine, which finds out once how it runs fastest.
        probes[name] = Experiment(repro.model, side, **calls) if first is None else first.on(side)
    return Estimate(evaluations, seconds_each(probes, repro.seed), missing)
