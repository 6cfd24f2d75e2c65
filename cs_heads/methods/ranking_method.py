"""What makes a method of a function: what every one is given is checked, its cost is known, its examples are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeAlias

from cs_heads.arguments import check_seed, in_line
from cs_heads.experiment.controls import found_on
from cs_heads.experiment.protocol import ExperimentLike, check_is_experiment
from cs_heads.progress import expect, one_bar
from cs_heads.ranking import HeadRanking

P = ParamSpec("P")
RankingSteps: TypeAlias = Iterator[int | HeadRanking]
"""A search in two steps. First it checks its arguments and says how many example-evaluations it takes at most, before
anything is run; then it gives its ranking."""

BOUNDS: dict[Callable[..., HeadRanking], Callable[..., int]] = {}
"""The most example-evaluations that a method takes, by its own arguments, which it checks."""


def ranking_method(bar: str) -> Callable[[Callable[P, RankingSteps]], Callable[P, HeadRanking]]:
    """What makes a method of a search, with a bar of this name.

    Its ranking carries the provenance of the experiment, and the examples of all that it was given: experiments, tasks
    and rankings.

    Args:
        bar: What runs, in a word or two.

    Returns:
        The decorator.
    """

    def mark(method: Callable[P, RankingSteps]) -> Callable[P, HeadRanking]:
        steps: Any = method

        def begun(*args: Any, **kwargs: Any) -> tuple[dict[str, Any], int, Any]:
            """The arguments, the most that the search takes with them, and the search to go on with."""
            try:
                given = signature(method).bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{method.__name__}(): {error}") from None
            given.apply_defaults()
            given.arguments["seed"] = check_seed(given.arguments["seed"])
            check_is_experiment("experiment", given.arguments["experiment"])
            check_experiments(given.arguments["experiment"], given.arguments.get("controls", ()))
            search = steps(*given.args, **given.kwargs)
            return given.arguments, next(search), search

        @wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> HeadRanking:
            with one_bar(bar, outermost=True):
                given, most, search = begun(*args, **kwargs)
                expect(most)
                ranking: HeadRanking = next(search)
            provenance = {**given["experiment"].provenance(), **ranking.provenance}
            return replace(ranking, provenance=provenance, examples=found_on(given))

        BOUNDS[run] = lambda *args, **kwargs: begun(*args, **kwargs)[1]
        return run

    return mark


def check_experiments(experiment: ExperimentLike, controls: Any) -> None:
    """Raise ``ValueError`` for controls that are no list of experiments with the heads of the task's."""
    if isinstance(controls, str) or not isinstance(controls, Sequence):
        raise ValueError(f"controls must be a list of experiments, got {controls!r}"[:300])
    for control in controls:
        if not isinstance(control, ExperimentLike):
            raise ValueError(f"controls must be experiments on other tasks, got {control!r}")
        if control.grid != experiment.grid:
            raise ValueError(f"controls must have the grid of the experiment, {experiment.grid}, got {control.grid}")


def check_differentiable(experiment: Any, controls: Any = (), name: str = "controls") -> None:
    """Raise ``ValueError`` unless experiments, with an answer to each example, have gradients in gates."""
    check_experiments(experiment, controls)
    for each in (experiment, *controls):
        if not hasattr(each, "gradients"):
            raise ValueError(f"experiment must be an Experiment on a model, which has gradients, got {in_line(each)}")
        _ = each.answers
    for control in controls:
        if control.task.role == "confirming":
            of = f"as {control.task.name!r} is"
            raise ValueError(f"{name} must not be the confirming side of a split, {of}: no search may see it")
