"""Methods side by side: the same model, task and budget, judged on the same unseen examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from jaxtyping import Bool
from typing_extensions import Unpack

from cs_heads.analysis.comparison import Compared, Comparison
from cs_heads.analysis.random_heads import drawn_notes, random_orders
from cs_heads.analysis.task_drop import TaskDrop, task_drop
from cs_heads.analysis.unseen import check_apart, default_sides
from cs_heads.analysis.verdict import default_note
from cs_heads.arguments import check_integer, check_list, check_mapping, check_seed
from cs_heads.experiment.baseline import BaselineTooLowError, baseline_too_low, check_size, fitting_k
from cs_heads.experiment.controls import defaults_of, experiments_on, left_out_note
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.find import find_heads
from cs_heads.methods.registry import Method, method_named
from cs_heads.ranking import HeadRanking
from cs_heads.settings import SettingsArguments
from cs_heads.store.store import BrokenStoreError
from cs_heads.tasks import Task, check_controls, confirming_side, control_side, finding_side
from cs_heads.tasks.controls import AUTO
from cs_heads.units import Head, HeadGrid

_MOST = 10
METHODS = ("annealed", "css", "csb", "one-shot", "greedy", "chg", "gradient")


def compare(
    model: Any,
    task: Task,
    *,
    methods: Sequence[str] = METHODS,
    budget: int | None = None,
    k: int | None = None,
    max_heads: int | None = None,
    n: int = 100,
    n_random: int = 8,
    controls: Sequence[Task] | str | None = "auto",
    contrast: bool = False,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    **settings: Unpack[SettingsArguments],
) -> Comparison:
    """Find heads by each of ``methods`` on the finding examples, and ablate them on up to ``n`` unseen ones.

    Every method runs by ``find_heads``, as if it were alone, with the same ``budget`` (None: what each takes by
    default) and ``seed``; ``options`` has more of a method's own, by its name, as in
    ``{"chg": {"n_seeds": 4}, "annealed": {"budget": 4000}}``. Each ranking's first 1, 2, ..., ``max_heads`` heads are
    ablated, and as many of ``n_random`` random orders, each through the layers of one method's heads and with none of
    these, nor of those any method found shared, as ``confirm`` draws them, the methods taking turns; methods whose
    search depends on the number wanted are told ``max_heads``, which is 10 by default; ``k`` is 5, or what fits that
    and a small grid, with a note. A mask that several methods ask for is measured once where
    there is a ``store``, and counted for each. ``model`` may be a ``Cluster``, and ``workers`` or ``address`` make one
    for this call; methods that start from the model itself run here all the same.

    ``controls`` are other tasks, measured with the top ``k`` of each method off: ``"auto"`` the default ones of
    ``confirm``, None none. All of them also serve the search of methods that have controls by default (``annealed``),
    by examples they are not measured with; with ``contrast`` that of every method that takes controls, while the others
    stand as in their papers without it. Judging takes at most ``n × (1 + max_heads × (methods + n_random))``
    example-evaluations of the task and ``n × (1 + methods)`` of each control given, ``n // 2 × (1 + methods)`` of each
    default one: with seven methods and 14 default controls 5,600. What controls add to a search, each method says.

    Unknown methods and options, a task without unseen examples, a control that shares a question with the task, and
    one whose unseen examples share any with the finding side of another control raise ``ValueError`` before the model
    runs. A method that refuses its budget or the
    value of an option stands in ``refused`` with its reason, so that what the others measured is kept; where all
    refuse, the first reason is raised. So is a baseline that is too low.
    """
    check_seed(seed)
    options = {} if options is None else check_mapping("options", options, "those of each method by its name")
    methods = check_list("methods", methods, "different names")
    _check(methods, options, n_random, k, max_heads)
    given = check_controls(controls, task)
    unseen = confirming_side(task)
    check_size(finding_side(task))
    check_size(unseen)
    sides = [unseen.take(n), *(control_side(control, n, seed) for control in given)]
    check_apart([task, *given], sides)
    with Experiment(model, sides[0], **settings) as judged:
        # Found on the same model or workers, with the same store.
        same = judged.shared_settings()
        grid = judged.grid
        k, max_heads, notes = _fitting(k, max_heads, grid.size)
        automatic = isinstance(controls, str)
        beside = default_sides(task, judged, n, seed) if automatic else sides[1:]
        others = experiments_on(judged, beside, chosen=not automatic)
        helping = _search_controls(controls, given, task, others, seed)

        rankings: dict[str, tuple[HeadRanking, float]] = {}
        refused: dict[str, ValueError] = {}
        for name in methods:
            more = {"budget": budget, "seed": seed, **same, **options.get(name, {})}
            more["controls"] = helping(method_named(name), contrast)
            start = perf_counter()
            try:
                found = find_heads(judged.source, task, k=max_heads, method=name, **more)
            except (BaselineTooLowError, BrokenStoreError):
                raise
            except ValueError as error:
                refused[name] = error
            else:
                rankings[name] = found, perf_counter() - start
        if not rankings:
            raise next(iter(refused.values()))
        tops = [ranking.top(max_heads) for ranking, _ in rankings.values()]
        shared = sorted({head for ranking, _ in rankings.values() for head in ranking.shared})
        random = _random(grid, tops, shared, n_random, seed)
        intact = judged.baseline()
        baseline, low = float(intact.mean()), [baseline_too_low(judged, intact)]
        compared = {
            name: Compared(
                ranking=ranking,
                seconds=seconds,
                curve=tuple(
                    task_drop(judged.task.name, judged.task.chance, [(intact, scores)], seed, low)
                    for scores in judged(_growing(grid, ranking.top(max_heads)))
                ),
                control_drops={other.task.name: _drop(other, ranking.top(k), seed) for other in others},
            )
            for name, (ranking, seconds) in rankings.items()
        }
        names = [side.name for side in beside]
        counted = [other.task.name for other in others if not baseline_too_low(other, other.baseline())]
        said = (*default_note(names, counted), *left_out_note(judged, task, seed)) if automatic else ()
        return Comparison(
            methods=compared,
            random_drops=np.stack([baseline - judged(_growing(grid, heads)).mean(axis=1) for heads in random]),
            k=k,
            baseline=baseline,
            spent=judged.spent + sum(other.spent for other in others),
            refused={name: str(error) for name, error in refused.items()},
            notes=(*notes, *_drawn_notes(grid, tops, shared, random), *said),
            provenance={
                **judged.provenance(),
                "budget": budget,
                "n_random": n_random,
                "controls": [other.task.name for other in others],
                "controls_from": AUTO if automatic else "given" if others else None,
                "contrast": contrast,
                "seed": seed,
            },
        )


def _check(
    methods: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    n_random: int,
    k: int | None,
    max_heads: int | None,
) -> None:
    if not methods or len({*map(str, methods)}) < len(methods):
        raise ValueError(f"methods must be a list of different names, got {methods!r}")
    foreign = [str(name) for name in options if name not in methods]
    if foreign:
        raise ValueError(f"options must be those of the methods compared, got some for {', '.join(foreign)}")
    for name, given in options.items():
        check_mapping(f"options[{name!r}]", given, "values by the name of an option")
    for name in methods:
        method_named(name).check(name, {key: v for key, v in options.get(name, {}).items() if key != "budget"})
    check_integer("n_random", n_random, 1)
    longest = None if max_heads is None else check_integer("max_heads", max_heads, 1)
    if k is not None:
        check_integer("k", k, 1, longest, "the heads of the drop curve (max_heads)" if longest else "")


def _fitting(k: int | None, max_heads: int | None, n_heads: int) -> tuple[int, int, tuple[str, ...]]:
    """``k`` and ``max_heads``, those by default as they fit the grid and each other, with notes."""
    max_heads, notes = fitting_k(max_heads, n_heads, max(_MOST, k or 0), "max_heads")
    if k is None:
        fits, shorter = fitting_k(None, n_heads)
        return min(fits, max_heads), max_heads, (*notes, *shorter)
    return check_integer("k", k, 1, max_heads, "the heads of the drop curve (max_heads)"), max_heads, notes


def _search_controls(
    controls: Sequence[Task] | str | None, given: Sequence[Task], task: Task, judged: Sequence[Experiment], seed: int
) -> Callable[[Method, bool], Sequence[Task] | str | None]:
    """What of the controls a method searches with; the default ones, to a method that has none, are those judged."""

    def helping(method: Method, contrast: bool) -> Sequence[Task] | str | None:
        if method.default_controls:
            return controls
        if not (contrast and method.takes_controls):
            return None
        if not isinstance(controls, str) or not judged:
            return given
        names = [other.task.name for other in judged]
        skills = defaults_of(judged[0], task, seed)
        return [skill for skill in skills if skill.name in names]

    return helping


def _growing(grid: HeadGrid, heads: Sequence[Head]) -> Bool[np.ndarray, "row layer head"]:
    """A mask with the first head off, one with the first two, and so on."""
    return np.stack([grid.mask(heads[: i + 1]) for i in range(len(heads))])


def _random(
    grid: HeadGrid, tops: Sequence[Sequence[Head]], shared: Sequence[Head], n_random: int, seed: int
) -> list[list[Head]]:
    """Random orders like the heads of each method, in turn."""
    rng = np.random.default_rng(seed)
    by_method = [
        random_orders(grid, top, shared, len(range(place, n_random, len(tops))), rng) for place, top in enumerate(tops)
    ]
    return [by_method[number % len(tops)][number // len(tops)] for number in range(n_random)]


def _drawn_notes(
    grid: HeadGrid, tops: Sequence[Sequence[Head]], shared: Sequence[Head], random: Sequence[Sequence[Head]]
) -> tuple[str, ...]:
    """What is to be said of the random orders like the heads of each method, once."""
    like = [[grid.mask(heads) for heads in random[place :: len(tops)]] for place in range(len(tops))]
    exclude = grid.mask(shared)
    said = [drawn_notes(grid.mask(top), exclude, sets) for top, sets in zip(tops, like, strict=True) if sets]
    return tuple(dict.fromkeys(note for notes in said for note in notes))


def _drop(experiment: Experiment, heads: Sequence[Head], seed: int) -> TaskDrop:
    ablated = experiment(experiment.grid.mask(heads)[None])[0]
    intact = experiment.baseline()
    low = [baseline_too_low(experiment, intact)]
    return task_drop(experiment.task.name, experiment.task.chance, [(intact, ablated)], seed, low)
