"""Methods side by side: the same model, task and budget, judged on the same unseen examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from typing_extensions import Unpack

from cs_heads.analysis.columns import Column, controlled
from cs_heads.analysis.drops import measure_drops
from cs_heads.analysis.faithfulness import Faithfulness, check_shares, faithfulness
from cs_heads.analysis.losses import Specificity, TaskDrop
from cs_heads.analysis.overlap import rank_biased_overlap, spearman
from cs_heads.analysis.random_heads import orders_beside
from cs_heads.analysis.result import Result, leading
from cs_heads.analysis.sparsity import measure_sparsity, random_drops
from cs_heads.analysis.verdict import default_note
from cs_heads.arguments import check_integer, check_list, check_mapping, check_one_of, check_seed
from cs_heads.cluster import ModelLike
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import BaselineTooLowError, fitting_k
from cs_heads.experiment.controls import defaults_of
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.find import PreparedSearch, prepared_search
from cs_heads.methods.registry import method_named
from cs_heads.progress import expect, one_bar, step
from cs_heads.ranking import HeadRanking
from cs_heads.record import Proportion, Record, json_ready
from cs_heads.settings import SettingsArguments, check_method_options
from cs_heads.store.store import BrokenStoreError
from cs_heads.tasks import Task
from cs_heads.units import Grid, Unit

_MOST = 10
METHODS = ("annealed", "css", "csb", "one-shot", "greedy", "chg", "gradient")


@dataclass(frozen=True, eq=False)
class Compared(Record):
    """One method: its ranking, how long it took, and what its heads do to unseen examples.

    ``curve[i]`` is what its first i + 1 heads take; ``control_drops`` what the top heads take from each control.
    The ranking has a file of its own.
    """

    _written = ("heads", "seconds", "cost", "drops", "controls", "curve", "control_drops", "notes")

    ranking: HeadRanking
    seconds: float
    curve: tuple[TaskDrop, ...]
    control_drops: dict[str, TaskDrop]

    @property
    def heads(self) -> tuple[Unit, ...]:
        """The heads of the curve."""
        return tuple(self.ranking.top(len(self.curve)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Those of the ranking."""
        return self.ranking.notes

    @property
    def drops(self) -> Float[np.ndarray, " k"]:
        """drop@k for k = 1, 2, ..."""
        return np.array([drop.drop for drop in self.curve])

    @property
    def controls(self) -> dict[str, float]:
        """The drop of each control with the top heads off."""
        return {name: drop.drop for name, drop in self.control_drops.items()}

    @property
    def cost(self) -> dict[str, int | float]:
        """Example-evaluations, the forward and backward passes of one example among them, and seconds."""
        return {
            "spent": self.ranking.spent,
            "forwards": self.ranking.spent - self.ranking.backwards,
            "backwards": self.ranking.backwards,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result, Drawable, picture="comparison"):
    """What several methods say of one task, by the name of the method.

    Attributes:
        methods: Rankings and drops, by method.
        random_drops: Drops of random heads; column i has i + 1 heads off. Each set grows through the layers
            of the heads of one method, in turn, and has none of its heads.
        k: Heads of each method that controls and agreement are of.
        baseline: Score of the intact model on unseen examples.
        spent: Example-evaluations of this judgment alone.
        refused: Methods that did not run, and why.
        provenance: Model, task, controls and seed.
        notes: What a small grid made otherwise, which default controls do not count or are left out, and why
            faithfulness could not be measured.
        faithfulness: Of the rankings, where shares of units to keep were asked for.
        default_controls: Whether the controls are the default ones.
    """

    methods: dict[str, Compared]
    random_drops: Float[np.ndarray, "set k"]
    k: int
    baseline: Proportion
    refused: dict[str, str]
    faithfulness: Faithfulness | None = None
    default_controls: bool = False

    @property
    def random_drop(self) -> Float[np.ndarray, " k"]:
        """Mean drop of random heads: the line a method must beat."""
        return self.random_drops.mean(axis=0)

    def specificity(self, method: str) -> Specificity | None:
        """What a method's top heads take from the task and from each control that counts; None where none does.

        Args:
            method: One of ``methods``.

        Raises:
            ValueError: A method that was not compared.
        """
        check_one_of("method", method, self.methods)
        one = self.methods[method]
        return Specificity.of(one.curve[self.k - 1], one.control_drops.values())

    def leading(self) -> tuple[str, ...]:
        """The methods whose top heads take the most.

        The one with the largest drop first, then all whose drop lies within its 95 % interval.
        """
        drops = {name: one.curve[self.k - 1] for name, one in self.methods.items()}
        return leading({name: (drop.drop, drop.interval[0]) for name, drop in drops.items()})

    def most_specific(self) -> tuple[str, ...]:
        """The methods whose top heads take the most from the task beyond what its controls lose with them off.

        The one with the largest ``specificity(method).difference`` first, then all whose difference lies within its
        95 % interval. Methods without a control that can tell are left out.
        """
        found = {name: one.difference for name in self.methods if (one := self.specificity(name)) is not None}
        return leading({name: (difference.loss, difference.low) for name, difference in found.items()})

    def to_frame(self) -> pd.DataFrame:
        """One row per method: its top heads, cost, drop@1, @k (with its interval) and at the end, and its controls.

        Where there are controls, ``loss`` is the share of the score above chance that the task loses with the top heads
        off, ``control loss`` the mean of theirs; the drop of each control given has a column of its own. Where
        faithfulness was measured, ``cpr`` and ``cmd`` are the areas under and beside its curve.
        """
        most = self.random_drops.shape[1]
        at = sorted({1, min(self.k, most), most})
        rows = []
        for name, one in self.methods.items():
            low, high = one.curve[self.k - 1].interval
            row = {"method": name, "heads": " ".join(map(str, one.ranking.top(self.k))), **one.cost}
            row |= {**{f"drop@{k}": one.drops[k - 1] for k in at}, "low": low, "high": high}
            if one.control_drops:
                found = self.specificity(name)
                row["loss"] = np.nan if found is None else found.own.loss
                row["control loss"] = np.nan if found is None else found.mean.loss
            if not self.default_controls:
                row |= {f"control {task}": drop for task, drop in one.controls.items()}
            if self.faithfulness is not None:
                curve = self.faithfulness.curves[name]
                row |= {"cpr": curve.cpr, "cmd": curve.cmd}
            rows.append(row)
        return pd.DataFrame(rows)

    def agreement(self) -> pd.DataFrame:
        """One row per pair of methods: overlap of the top k, rank-biased overlap of the curve's heads, Spearman.

        Spearman is over heads with an importance other than zero in both; NaN where there is no order to compare.
        """
        columns = ["first", "second", f"overlap@{self.k}", "rank-biased overlap", "spearman"]
        rows = []
        for (first, one), (second, other) in combinations(self.methods.items(), 2):
            a, b, longest = one.ranking, other.ranking, self.random_drops.shape[1]
            biased = rank_biased_overlap(a.top(longest), b.top(longest))
            common = len({*a.top(self.k)} & {*b.top(self.k)}) / self.k
            rows.append((first, second, common, biased, spearman(a, b)))
        return pd.DataFrame(rows, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """The whole comparison but for the rankings' importances, JSON-ready."""
        return {**super().to_dict(), "agreement": json_ready(self.agreement().to_dict("records"))}

    def _remarks(self) -> tuple[str, ...]:
        refused = (f"{name} did not run: {reason}" for name, reason in self.refused.items())
        return (*refused, *self.notes)


@one_bar("compare")
def compare(
    model: ModelLike,
    task: Task,
    *,
    k: int | None = None,
    methods: Sequence[str] = METHODS,
    controls: Sequence[Task] | str | None = "auto",
    budget: int | None = None,
    seed: int = 0,
    max_heads: int | None = None,
    n: int = 100,
    n_random: int = 8,
    contrast: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    shares: Sequence[int | float] | None = None,
    **settings: Unpack[SettingsArguments],
) -> Comparison:
    """Find heads by several methods on the finding examples, and ablate them on unseen ones.

    Every method runs by ``find_heads``, as if it were alone; methods whose search depends on the number wanted are told
    ``max_heads``. The first 1, 2, ..., ``max_heads`` heads of each ranking are ablated, and as many of the random
    orders: each goes through the layers of one method's heads, the methods taking turns, and has none of these, nor of
    those that any method found shared. Judging takes at most ``n × (1 + max_heads × (methods + n_random))``
    example-evaluations of the task, ``n × (1 + methods)`` of each control given, and ``n // 2 × (1 + methods)`` of each
    default one: with seven methods and 14 default controls 5,600. What controls add to a search, each method says. A
    mask that several methods ask for is measured once where there is a ``store``, and counted for each.

    Args:
        model: A model, the name of one, or a ``Cluster``; methods that use the model itself run here all the
            same.
        task: The task, which holds out examples.
        k: Heads of each method that controls and agreement are measured of (None: 5, or what fits ``max_heads`` and a
            small grid, with a note).
        methods: Names of methods.
        controls: Other tasks, measured with the top ``k`` heads of each method off: ``"auto"`` the default ones of
            ``confirm``, None none. They also serve the search of methods that have controls by default (``annealed``),
            by examples they are not measured with.
        budget: Example-evaluations of each search (None: what each method takes by default).
        seed: Of every search, the random orders, and the examples of whole tasks.
        max_heads: Heads of each method that are ablated (None: 10, or what fits a small grid, with a note).
        n: Unseen examples at most.
        n_random: Random orders.
        contrast: Whether controls serve the search of every method that takes some; without, the others stand as in
            their papers.
        options: More options by the name of a method: ``{"chg": {"n_seeds": 4}, "annealed": {"budget": 4000}}``.
        shares: Of the units kept, all others ablated, on the same unseen examples: ``faithfulness`` of every ranking,
            beside ``n_random`` random orders, which takes at most ``n`` example-evaluations for each share, ranking and
            random order more (None: not measured; ``cs.analysis.SHARES``: those of MIB).
        settings: As of ``Experiment``.

    Returns:
        Rankings and drops. A method that refuses its budget or the value of an option is in ``refused`` with its
        reason, so that what the others measured is kept.

    Raises:
        ValueError: Unknown methods or options, a task without unseen examples, a control that shares a question with
            the task, or whose unseen examples share one with the finding side of another control; raised before the
            model runs. Also the first reason, where all methods refuse.
        BaselineTooLowError: The intact model cannot do the task.
    """
    methods, options = _checked(methods, options)
    check_seed(seed)
    check_integer("n_random", n_random, 1)
    shares = None if shares is None else check_shares(shares)
    with controlled(model, task, controls, options, n=n, seed=seed, settings=settings) as sides:
        judged, others = sides.own, sides.controls
        k, max_heads, notes = _fitting(k, max_heads, judged.grid)
        helping = controls
        if contrast and sides.defaults is not None:
            # The default controls, to a method that has none by itself, are those judged.
            skills = {skill.name: skill for skill in defaults_of(judged, task, seed)}
            helping = [skills[other.task.name] for other in others]

        def search(name: str) -> AbstractContextManager[PreparedSearch]:
            method = method_named(name)
            searching = helping if contrast and method.takes_controls else None
            # Found on the same model or workers, with the same store.
            more = {"budget": budget, "seed": seed, **judged.shared_settings(), **options.get(name, {})}
            more["controls"] = controls if method.default_controls else searching
            return prepared_search(judged.source, task, k=max_heads, method=name, **more)

        sizes = [each.n_examples for each in others]
        judging = most_of_judging(judged.n_examples, sizes, max_heads, len(methods), n_random)
        rankings, refused = _rankings(search, methods, judging)
        step("judging")
        tops = [ranking.top(max_heads) for ranking, _ in rankings.values()]
        shared = sorted({head for ranking, _ in rankings.values() for head in ranking.shared})
        random, drawn = orders_beside(judged.grid, tops, shared, n_random, seed)
        own, *beside = (Column(each.task.name, "control", (each,)) for each in (judged, *others))
        compared, taken = {}, dict[str, TaskDrop]()
        for name, (ranking, seconds) in rankings.items():
            curve = measure_sparsity([own], ranking.top(max_heads), seed).drops[own.name][1:]
            taken = measure_drops(beside, {name: ranking.top(k)}, {}, seed).drops[name] if beside else {}
            compared[name] = Compared(ranking, seconds, curve, taken)
        counted = [name for name, drop in taken.items() if not drop.too_low]
        kept, limits = _faithful(judged, compared, shares, n_random, seed)
        asked = {"budget": budget, "n_random": n_random, "contrast": contrast, "seed": seed, "shares": shares}
        return Comparison(
            methods=compared,
            random_drops=random_drops(own, random)[0][:, 1:],
            k=k,
            baseline=float(judged.baseline().mean()),
            spent=judged.spent + sum(other.spent for other in others),
            refused=refused,
            notes=(*notes, *sides.notes, *drawn, *default_note(sides.defaults or (), counted), *limits),
            faithfulness=kept,
            default_controls=sides.defaults is not None,
            provenance=judged.provenance() | {"controls": [other.task.name for other in others], **asked},
        )


def most_of_judging(n: int, controls: Sequence[int], max_heads: int, n_methods: int, n_random: int = 8) -> int:
    """The most example-evaluations that judging the heads of several methods takes.

    Args:
        n: Unseen examples of the task.
        controls: Examples of each control.
        max_heads: Heads of each method that are ablated.
        n_methods: Methods.
        n_random: Random orders.
    """
    return n * (1 + max_heads * (n_methods + n_random)) + sum(controls) * (1 + n_methods)


def _rankings(
    prepare: Callable[[str], AbstractContextManager[PreparedSearch]], methods: Sequence[str], judging: int
) -> tuple[dict[str, tuple[HeadRanking, float]], dict[str, str]]:
    """By the name of each method what it found and in how many seconds, or why it refused; all of them may not.

    Args:
        prepare: Gives the search of a method.
        methods: Names.
        judging: What is measured after the searches, to say what all take.
    """
    rankings: dict[str, tuple[HeadRanking, float]] = {}
    refused: dict[str, ValueError] = {}
    searches: dict[str, PreparedSearch] = {}
    with ExitStack() as opened:
        for name in methods:
            with _refusing(name, refused):
                searches[name] = opened.enter_context(prepare(name))
        expect(judging + sum(search.most for search in searches.values()))
        for name, search in searches.items():
            step(f"{methods.index(name) + 1}/{len(methods)}")
            start = perf_counter()
            with _refusing(name, refused), one_bar(name):
                rankings[name] = search.run(), perf_counter() - start
    if not rankings:
        raise next(iter(refused.values()))
    return rankings, {name: str(error) for name, error in refused.items()}


@contextmanager
def _refusing(name: str, refused: dict[str, ValueError]) -> Iterator[None]:
    """Keep why a method refuses its arguments; what concerns all methods is raised."""
    try:
        yield
    except (BaselineTooLowError, BrokenStoreError):
        raise
    except ValueError as error:
        refused[name] = error


def _faithful(
    judged: Experiment, compared: Mapping[str, Compared], shares: list[float] | None, n_random: int, seed: int
) -> tuple[Faithfulness | None, tuple[str, ...]]:
    """Faithfulness of every method where shares are given, and what is to be said of it, or why there is none."""
    if shares is None:
        return None, ()
    rankings = {name: one.ranking for name, one in compared.items()}
    try:
        found = faithfulness(None, judged, rankings, shares=shares, n_random=n_random, seed=seed)
    except BaselineTooLowError as error:
        # What the searches found is not lost.
        return None, (f"faithfulness cannot be measured: {error}",)
    return found, found.notes


def _checked(methods: Any, options: Any) -> tuple[list[str], Mapping[str, Mapping[str, Any]]]:
    """The methods, and options by the name of a method; others raise ``ValueError``."""
    methods = check_list("methods", methods, "different names")
    options = check_mapping("options", options or {}, "those of each method by its name")
    if not methods or len({*map(str, methods)}) < len(methods):
        raise ValueError(f"methods must be a list of different names, got {methods!r}")
    if foreign := [str(name) for name in options if name not in methods]:
        raise ValueError(f"options must be those of the methods compared, got some for {', '.join(foreign)}")
    for name in methods:
        has = method_named(name).options
        given = check_mapping(f"options[{name!r}]", options.get(name, {}), "values by the name of an option")
        check_method_options(name, has, [key for key in given if key != "budget"])
    return methods, options


def _fitting(k: int | None, max_heads: int | None, grid: Grid) -> tuple[int, int, tuple[str, ...]]:
    """``k`` and ``max_heads``, those by default as they fit the grid and each other, with notes."""
    wanted = 0 if k is None else check_integer("k", k, 1)
    max_heads, notes = fitting_k(max_heads, grid, max(_MOST, wanted), "max_heads")
    if k is None:
        fits, shorter = fitting_k(None, grid)
        return min(fits, max_heads), max_heads, (*notes, *shorter)
    return check_integer("k", k, 1, max_heads, "the heads of the drop curve (max_heads)"), max_heads, notes
