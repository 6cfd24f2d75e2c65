"""What the steps of a paper share: the model, its tasks, one store, and the heads found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cs_heads.analysis.drops import Column, Role
from cs_heads.arguments import check_seed
from cs_heads.experiment.baseline import BaselineTooLowError, check_baseline, check_k
from cs_heads.experiment.experiment import Experiment
from cs_heads.lens import load_model
from cs_heads.methods.compressed_sensing import tune
from cs_heads.ranking import HeadRanking
from cs_heads.reproduce.outputs import Output
from cs_heads.reproduce.papers import Paper, Settings
from cs_heads.tasks import Task, confirming_side, finding_side
from cs_heads.units import Head, HeadGrid

if TYPE_CHECKING:
    from cs_heads.analysis.universal import UniversalHeads
    from cs_heads.methods.gating.result import HeadGates

STORE = "store.sqlite"
Part = Literal["searched", "universal", "gates"]
"""What a study makes once for all steps."""


def _nothing(_: Reproduction) -> None:
    """What a step needs that can always be made."""


def free(_: Reproduction) -> dict[str, int]:
    """The cost of a step that measures nothing."""
    return {}


@dataclass(frozen=True, eq=False)
class Step:
    """A part of a protocol: its outputs from a study, and the most example-evaluations it takes, by task.

    ``needs`` says in words what a study lacks for it (None: nothing). ``uses`` are the parts of a study it starts from,
    which the first step that uses them pays for. ``keeps`` is False for a step that is made anew every time.
    """

    name: str
    about: str
    run: Callable[[Reproduction], list[Output]]
    cost: Callable[[Reproduction], dict[str, int]]
    needs: Callable[[Reproduction], str | None] = _nothing
    uses: tuple[Part, ...] = ()
    keeps: bool = True


@dataclass(eq=False)
class Reproduction:
    """A model, the tasks of a paper by the paper's names, and settings; results go to ``store.sqlite`` in ``out``.

    Heads are found once and for all steps; what the store holds is not measured again. ``left_out`` collects, by
    name, why heads could not be found on a task. ``beside`` are folders of other models' results, by model.
    """

    model: Any
    paper: Paper
    tasks: dict[str, Task]
    settings: Settings
    out: Path
    seed: int = 0
    progress: bool | None = None
    beside: Mapping[str, Path] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        self.model = load_model(self.model)
        if self.name in self.beside:
            raise ValueError(f"beside must name other models than {self.name!r}, the one that is studied")
        # The curve goes to half of the heads at most, so that a small model has one.
        check_k(self.settings.k, self.grid.size)
        self.settings = replace(self.settings, most=min(self.settings.most, self.grid.size // 2))

    @property
    def store(self) -> Path:
        """The file in which everything measured is kept."""
        return self.out / STORE

    def folder(self, heads: str) -> Path:
        """Where ranking and proof of the heads of a name are kept."""
        return self.out / "study" / heads

    @property
    def grid(self) -> HeadGrid:
        """Layers × heads of the model."""
        return HeadGrid.from_model(self.model)

    @property
    def finding(self) -> dict[str, str]:
        """Heads by name → the task they are found on."""
        of = {name: self.paper.task(name).heads for name in self.tasks}
        return {heads: name for name, heads in of.items() if heads is not None}

    def unseen(self, name: str) -> Task:
        """The unseen examples of a task that are measured."""
        side = confirming_side(self.tasks[name])
        return side if self.settings.n_unseen is None else side.take(self.settings.n_unseen)

    def experiment(self, task: Task) -> Experiment:
        """An experiment on one side of a task whose results are kept."""
        return Experiment(self.model, task, store=self.store, progress=self.progress)

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.model.cfg.model_name)

    def label(self, name: str) -> str:
        """What a task is called in pictures: what is measured, with the paper's name where two are the same."""
        task = self.tasks[name].name
        shared = sum(other.name == task for other in self.tasks.values()) > 1
        return f"{task} ({name})" if shared and task != name else task

    def column(self, name: str, role: Role = "control") -> Column:
        """A task's unseen examples to ablate heads on, by its label."""
        return Column(self.label(name), role, (self.experiment(self.unseen(name)),))

    def members(self, suite: str) -> list[str]:
        """The tasks of one of the paper's means that are here."""
        return [name for name in self.tasks if self.paper.task(name).suite == suite]

    def is_whole(self, suite: str) -> bool:
        """Whether all of them are here."""
        return len(self.members(suite)) == sum(task.suite == suite for task in self.paper.tasks) > 0

    def suites(self) -> list[Column]:
        """The paper's means of several tasks, of those that are here."""
        names = dict.fromkeys(self.paper.task(name).suite for name in self.tasks)
        return [
            Column(suite, "suite", tuple(self.experiment(self.unseen(name)) for name in self.members(suite)))
            for suite in names
            if suite is not None
        ]

    def in_form(self, form: str) -> list[str]:
        """The tasks whose questions are answered in a form."""
        return [name for name in self.tasks if self.paper.task(name).form == form]

    @cached_property
    def searched(self) -> dict[str, HeadRanking]:
        """By the name of the heads, the ranking of the best design searched over.

        A task the model cannot do is left out; ``BaselineTooLowError`` is raised where that leaves nothing.
        """
        found, settings = {}, self.settings
        for heads, name in self.finding.items():
            experiment = self.experiment(finding_side(self.tasks[name]))
            try:
                check_baseline(experiment)
            except BaselineTooLowError as error:
                self.left_out[heads] = str(error)
                continue
            found[heads] = tune(
                experiment, k=settings.k, n_masks=settings.n_masks, densities=settings.densities, seed=self.seed
            )
        if not found:
            raise BaselineTooLowError("; ".join(self.left_out.values()))
        return found

    @cached_property
    def universal(self) -> UniversalHeads | None:
        """Heads that most tasks and a control need; None with fewer than two tasks to find heads on, or no control."""
        from cs_heads.analysis.universal import universal_heads

        control = self.control
        if len(self.searched) < 2 or control is None:
            return None
        experiments = {heads: self.experiment(finding_side(self.tasks[self.finding[heads]])) for heads in self.searched}
        candidates = {
            head
            for ranking in self.searched.values()
            for head in ranking.top(self.settings.most)
            if ranking.importance[head.layer, head.head] > 0
        }
        if not candidates:
            return None
        return universal_heads(
            experiments,
            candidates,
            self.experiment(finding_side(self.tasks[control])),
            n_examples=self.settings.n_universal,
            seed=self.seed,
        )

    @property
    def controls(self) -> list[str]:
        """The tasks that no heads are found on and that are no siblings of one."""
        roles = {name: self.paper.task(name) for name in self.tasks}
        return [name for name, task in roles.items() if task.heads is None and task.sibling is None]

    @cached_property
    def control(self) -> str | None:
        """The first of the controls that the model can do."""
        for name in self.controls:
            try:
                check_baseline(self.experiment(finding_side(self.tasks[name])))
            except BaselineTooLowError:
                continue
            return name
        return None

    @cached_property
    def gates(self) -> dict[str, HeadGates]:
        """Fitted gates by the name of the heads found on a task, of a control by its own; what has none is left out."""
        from cs_heads.methods.gating.fit import fit_gates

        names = self.finding | {name: name for name in self.controls}
        fitted, settings = {}, self.settings
        for label, name in names.items():
            try:
                fitted[label] = fit_gates(
                    self.experiment(finding_side(self.tasks[name])),
                    n_seeds=settings.n_seeds,
                    steps=settings.steps,
                    batch_size=settings.batch_size,
                    seed=self.seed,
                )
            except BaselineTooLowError as error:
                self.left_out[label] = str(error)
        if not fitted:
            raise BaselineTooLowError("; ".join(self.left_out.values()))
        return fitted

    @cached_property
    def rankings(self) -> dict[str, HeadRanking]:
        """The rankings with universal heads put last."""
        universal: Iterable[Head] = () if self.universal is None else self.universal.heads
        return {heads: replace(ranking, shared=tuple(universal)) for heads, ranking in self.searched.items()}

    @property
    def first(self) -> str:
        """The heads that the detailed figures are about: the paper's first, of those found."""
        return next(iter(self.rankings))

    def top(self, heads: str) -> list[Head]:
        """The first ``k`` heads of a name."""
        return self.rankings[heads].top(self.settings.k)


def evaluations(study: Reproduction, names: Iterable[str], masks: int) -> dict[str, int]:
    """``masks`` masks on the unseen examples of each task."""
    return {name: masks * len(study.unseen(name)) for name in names}


def added(*costs: Mapping[str, int]) -> dict[str, int]:
    """Costs by task, summed."""
    return {name: sum(cost.get(name, 0) for cost in costs) for name in dict.fromkeys(n for c in costs for n in c)}
