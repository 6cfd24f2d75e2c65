"""What the steps of a paper share: the model, its tasks, one store, the heads found, and the outputs of a step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from cs_heads.analysis.columns import Column, Role
from cs_heads.analysis.universal import UniversalHeads, universal_heads
from cs_heads.arguments import check_seed
from cs_heads.cluster import local_model
from cs_heads.experiment.baseline import BaselineTooLowError, check_baseline, check_k
from cs_heads.experiment.experiment import Experiment
from cs_heads.files import write_csv
from cs_heads.methods.compressed_sensing import tune
from cs_heads.methods.gating.fit import fit_gates
from cs_heads.methods.gating.result import HeadGates
from cs_heads.plot.style import draw_to, figure_of
from cs_heads.ranking import HeadRanking
from cs_heads.reproduce.papers import SETTINGS, Paper, PaperSettings
from cs_heads.settings import Settings, SettingsArguments
from cs_heads.tasks import Task, confirming_side, finding_side
from cs_heads.tasks.splits import MIN_CORRECT
from cs_heads.tasks.task import with_fields
from cs_heads.units import Grid, Unit

T = TypeVar("T")

NONE_LEFT = "no task is left, for the reasons given of each"
STORE = "store.sqlite"


@dataclass(frozen=True, eq=False)
class Output:
    """A table or figure: file name without extension, one line on what it shows, the table, and how it is drawn.

    ``draw`` draws the figure, under ``title`` where there is one (``draw`` None: a table only).
    """

    name: str
    about: str
    frame: pd.DataFrame
    draw: Callable[[], Any] | None = None
    title: str | None = None

    def write(self, folder: Path) -> list[str]:
        """Write the table as CSV and Markdown and the figure as PNG and SVG; returns the names of the files."""
        files = [f"{self.name}.{ending}" for ending in ("csv", "md", "png", "svg")]
        write_csv(folder / files[0], self.frame, index=False)
        known = self.frame.astype(object).where(self.frame.notna(), "")
        table = known.to_markdown(index=False, floatfmt=".3f")
        (folder / files[1]).write_text(f"{self.about}\n\n{table}\n", encoding="utf-8")
        if self.draw is None:
            return files[:2]
        draw_to(folder / self.name, _titled, self.draw, self.title)
        return files


def listed(name: str, about: str, files: Sequence[str]) -> str:
    """An output as a line of a page.

    Args:
        name: Its name.
        about: What it shows.
        files: Those that were written.
    """
    figure = f", [figure]({name}.svg)" if f"{name}.svg" in files else ""
    return f"- **{name}**: {about} ([table]({name}.md), [CSV]({name}.csv){figure})"


def _titled(draw: Callable[[], Any], title: str | None) -> Any:
    """Draw, with the title over the whole figure."""
    figure = figure_of(draw())
    if title is not None:
        figure.suptitle(title, fontsize="medium")
    return figure


Run = Callable[["Reproduction"], list[Output]]


@dataclass(frozen=True, eq=False)
class Step:
    """One row of a protocol's table: a step, the outputs it makes, what it needs and what it costs.

    ``cost`` gives, by what is measured, the task and the most example-evaluations (``costs.py``).
    ``needs`` is what a reproduction must have for the step, in words (empty: nothing), and whether it does.
    """

    name: str
    about: str
    run: Run
    cost: Callable[[Reproduction], dict[Hashable, tuple[str, int]]]
    needs: tuple[str, Callable[[Reproduction], Any]] = ("", lambda _: True)

    def lacking(self, repro: Reproduction) -> str | None:
        """What a reproduction lacks for the step, in words; None where it lacks nothing."""
        words, met = self.needs
        return None if met(repro) else words


def add_step(steps: list[Step], **options: Any) -> Callable[[Run], Run]:
    """Add a function to a protocol as its next step: it has the name of the function, and its docstring says what for.

    Args:
        steps: the protocol.
        options: fields of ``Step``.
    """

    def add(run: Run) -> Run:
        about = (run.__doc__ or "").partition("\n")[0].rstrip(".")
        steps.append(Step(run.__name__.strip("_"), about[:1].lower() + about[1:], run, **options))
        return run

    return add


@dataclass(eq=False)
class Reproduction:
    """A paper's protocol on a model; measurements are kept in ``store.sqlite`` in the folder ``out``.

    Heads are found once for all steps, and what is in the store is not measured again.

    Args:
        model: a TransformerLens model, or a name that ``load_model`` takes.
        paper: the paper.
        tasks: the tasks by the paper's names, as ``load_tasks`` gives them.
        settings: how much is measured; the curve over the number of heads ends at half of the model's heads.
        out: the folder of tables, figures and the store.
        seed: seeds masks, fits and tests.
        measuring: settings of every call that runs the model, of ``prepend_bos``, ``dtype``, ``batch_tokens`` and
            ``progress``; heads are zeroed, and the store is that of ``out``.
        left_out: why heads could not be found on a task, by name; steps add to it.

    Raises:
        ValueError: for a seed, a setting or a number of heads that is not allowed.
    """

    model: Any
    paper: Paper
    tasks: dict[str, Task]
    settings: PaperSettings
    out: Path
    seed: int = 0
    measuring: SettingsArguments = field(default_factory=SettingsArguments)
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        self.model = local_model(self.model, Settings.of(self.measuring, SETTINGS))
        most = self.settings.max_new_tokens
        for name, task in self.tasks.items():
            if most is not None and task.max_new_tokens is not None:
                self.tasks = {**self.tasks, name: with_fields(task, max_new_tokens=min(most, task.max_new_tokens))}
        # The curve goes to half of the heads at most, so that a small model has one.
        check_k(self.settings.k, self.grid)
        self.settings = replace(self.settings, max_heads=min(self.settings.max_heads, self.grid.size // 2))

    @property
    def store(self) -> Path:
        """The file that keeps every measurement."""
        return self.out / STORE

    def folder(self, heads: str) -> Path:
        """The folder with the ranking and the proof of the heads of a name.

        Args:
            heads: Name of the heads, a key of ``finding``.
        """
        return self.out / "study" / heads

    @property
    def calls(self) -> SettingsArguments:
        """The settings of every call that runs the model; its dtype is its own by now."""
        return {**self.measuring, "dtype": None, "store": self.store}

    @property
    def grid(self) -> Grid:
        """Layers × heads of the model."""
        return Grid.from_model(self.model)

    @property
    def finding(self) -> dict[str, str]:
        """Heads by name → the task they are found on."""
        of = {name: self.paper.task(name).heads for name in self.tasks}
        return {heads: name for name, heads in of.items() if heads is not None}

    def unseen(self, name: str) -> Task:
        """The unseen examples of a task that are measured.

        Args:
            name: The paper's name of the task.

        Raises:
            ValueError: The task has no unseen examples.
        """
        side = confirming_side(self.tasks[name])
        return side if self.settings.n_unseen is None else side.take(self.settings.n_unseen)

    def experiment(self, name: str, *, finding: bool = False) -> Experiment:
        """An experiment on the unseen examples of a task, or on its finding examples; the store keeps its results.

        Args:
            name: the paper's name of the task.
            finding: whether on its finding examples.

        Returns:
            An experiment with the model and the settings of the reproduction.
        """
        task = finding_side(self.tasks[name]) if finding else self.unseen(name)
        return Experiment(self.model, task, **self.calls)

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.model.cfg.model_name)

    def label(self, name: str) -> str:
        """A task's name in figures: that of the task measured, with the paper's name where two tasks share it.

        Args:
            name: The paper's name of the task.
        """
        task = self.tasks[name].name
        shared = sum(other.name == task for other in self.tasks.values()) > 1
        return f"{task} ({name})" if shared and task != name else task

    def column(self, name: str, role: Role = "control") -> Column:
        """The unseen examples of a task, to ablate heads on.

        Args:
            name: the paper's name of the task.
            role: what it is to the heads.

        Returns:
            A column by the name that reports show, with one experiment.
        """
        return Column(self.label(name), role, (self.experiment(name),))

    @property
    def n_toggled(self) -> int:
        """Heads toggled at most: half of a small grid."""
        return min(self.settings.n_toggled, max(1, self.grid.size // 2))

    def having(self, **roles: Any) -> list[str]:
        """The tasks that are loaded with these roles in the paper, as ``having(suite="Code")``.

        Args:
            **roles: By the name of a field of ``PaperTask`` the value it must have.
        """
        of = {name: self.paper.task(name) for name in self.tasks}
        return [name for name, task in of.items() if all(getattr(task, key) == role for key, role in roles.items())]

    def siblings(self, heads: str) -> list[str]:
        """The other tasks of the capability of some heads: theirs in the paper, and that of which they are a sibling.

        Args:
            heads: Name of the heads, a key of ``finding``.
        """
        of = self.paper.task(self.finding[heads]).sibling
        return [*self.having(sibling=heads), *([self.finding[of]] if of in self.finding else [])]

    def suites(self) -> list[Column]:
        """The paper's suites (means over several tasks), each over its tasks that are loaded."""
        names = dict.fromkeys(self.paper.task(name).suite for name in self.tasks)
        return [
            Column(suite, "suite", tuple(map(self.experiment, self.having(suite=suite))))
            for suite in names
            if suite is not None
        ]

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A table with the paper's names of tasks in place of labels, and the task that each was measured with.

        Args:
            frame: One row a task, its label in the column ``task``.
        """
        names = {self.label(name): name for name in self.tasks}
        frame = frame.assign(task=[names.get(task, task) for task in frame["task"]])
        members = {name: self.having(suite=name) or [name] for name in frame["task"]}
        sources = {name: ", ".join(self.tasks[member].name for member in some) for name, some in members.items()}
        frame.insert(list(frame).index("task") + 1, "measured with", [sources[name] for name in frame["task"]])
        return frame

    def _of_each(self, names: Mapping[str, str], make: Callable[[str], T]) -> dict[str, T]:
        """What is made of each task that the model can do; ``BaselineTooLowError`` where it can do none."""
        made = {}
        for label, name in names.items():
            try:
                made[label] = make(name)
            except BaselineTooLowError as error:
                self.left_out[label] = str(error)
        if not made:
            raise BaselineTooLowError(NONE_LEFT)
        return made

    @cached_property
    def searched(self) -> dict[str, HeadRanking]:
        """By the name of the heads, the ranking of the best design searched over.

        A task the model cannot do is left out.

        Raises:
            BaselineTooLowError: The model can do no task.
        """
        settings = self.settings

        def search(name: str) -> HeadRanking:
            experiment = self.experiment(name, finding=True)
            # The paper's prompts of swearing are six.
            n = experiment.n_examples
            check_baseline(experiment, MIN_CORRECT if n >= MIN_CORRECT else n // 2)
            return tune(
                experiment, k=settings.k, n_masks=settings.n_masks, densities=settings.densities, seed=self.seed
            )

        return self._of_each(self.finding, search)

    @cached_property
    def universal(self) -> UniversalHeads | None:
        """Heads that most tasks and a control need; None with fewer than two capabilities, or no control."""
        control = self.control
        if control is None:
            return None
        # A capability that heads were found on twice counts once.
        once = [heads for heads in self.searched if self.paper.task(self.finding[heads]).sibling not in self.searched]
        if len(once) < 2:
            return None
        experiments = {heads: self.experiment(self.finding[heads], finding=True) for heads in once}
        candidates = {
            head
            for ranking in self.searched.values()
            for head in ranking.top(self.settings.max_heads)
            if ranking.importance[head.layer, head.index] > 0
        }
        if not candidates:
            return None
        return universal_heads(
            experiments,
            candidates,
            self.experiment(control, finding=True),
            n=self.settings.n_universal,
            seed=self.seed,
        )

    @property
    def controls(self) -> list[str]:
        """The tasks that no heads are found on and that are no siblings of such a task."""
        roles = {name: self.paper.task(name) for name in self.tasks}
        return [name for name, task in roles.items() if task.heads is None and task.sibling is None]

    @cached_property
    def control(self) -> str | None:
        """The first of the controls that the model can do."""
        for name in self.controls:
            try:
                check_baseline(self.experiment(name, finding=True))
            except BaselineTooLowError:
                continue
            return name
        return None

    def n_seeds(self, name: str) -> int:
        """How many seeds of gates are fitted to a task.

        Args:
            name: The paper's name of the task.
        """
        return self.settings.n_rule_seeds if self.paper.task(name).rules else self.settings.n_seeds

    @cached_property
    def gates(self) -> dict[str, HeadGates]:
        """Gates by the name of the heads found on a task, of a control by its own; as ``searched`` leaves tasks out."""
        settings = self.settings

        def fit(name: str) -> HeadGates:
            return fit_gates(
                self.experiment(name, finding=True),
                n_seeds=self.n_seeds(name),
                steps=settings.steps,
                batch_size=settings.batch_size,
                seed=self.seed,
            )

        return self._of_each(self.finding | {name: name for name in self.controls}, fit)

    @cached_property
    def rankings(self) -> dict[str, HeadRanking]:
        """The rankings with universal heads put last."""
        universal: Iterable[Unit] = () if self.universal is None else self.universal.heads
        return {heads: replace(ranking, shared=tuple(universal)) for heads, ranking in self.searched.items()}

    @property
    def first(self) -> str:
        """The heads of the detailed figures: the paper's first, of those found."""
        return next(iter(self.rankings))

    def top(self, heads: str) -> list[Unit]:
        """The first ``k`` heads of a name.

        Args:
            heads: Name of the heads, a key of ``rankings``.
        """
        return self.rankings[heads].top(self.settings.k)
