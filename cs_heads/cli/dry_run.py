"""``--dry-run``: what a command costs, as the calls that it makes say themselves, and seconds from how these begin."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cs_heads.experiment.estimate import Estimate
    from cs_heads.units import Grid, Units

Call = Callable[..., object]

DRY_RUN = "say what it would cost (example-evaluations, seconds, memory), from its first seconds, and stop"
WIDTH = 20
"""Columns of the name of a step."""

# Seconds of measuring masks, for all calls that are tried, and of gradients half as many where there are any; of those
# of the search and of the proof.
_SECONDS = 0.8
_OF_SEARCH, _OF_PROOF = 0.6, 0.4

# A large model on a CPU is tried with smaller forwards, of so many tokens times weights, or else one takes seconds.
_MOST_WORK, _LEAST_TOKENS = 2**35, 64


class Trial:
    """Begins the calls of a command on its model, keeping nothing, and says what they cost.

    Args:
        model: The model, or the cluster that holds it.
        settings: Those of the command.
    """

    def __init__(self, model: Any, settings: Mapping[str, Any]) -> None:
        from cs_heads.cluster import Cluster

        self.settings = {**settings, "store": None, "progress": False}
        self.grid = _grid(model, settings.get("units", "heads"))
        if not isinstance(model, Cluster) and settings.get("batch_tokens") is None:
            self.settings["batch_tokens"] = _tokens(model)

    def cost(self, call: Call, *arguments: Any, **options: Any) -> int:
        """What a call says that it costs at most."""
        from cs_heads.progress import cost_of

        return cost_of(partial(call, *arguments, **options, **self.settings)) or 0

    def begin(self, call: Call, most: float, *arguments: Any) -> tuple[int, float]:
        """What a call costs at most, and the seconds that it takes by how ``most`` seconds of it go."""
        from cs_heads.trial import tried

        return tried(partial(call, *arguments, **self.settings), most)

    def proof(self, judge: Call, most: float, k: int | None, off: Sequence[str] = ()) -> tuple[int, float]:
        """What the proof of as many heads as are found costs, in as many layers as there are."""
        from cs_heads.experiment.baseline import fitting_k

        grid = self.grid
        left = sorted(grid.units(~grid.mask(off)), key=lambda unit: (unit.index, unit.layer))
        heads = left[: fitting_k(k, grid, n_off=grid.size - len(left))[0]]
        return self.begin(judge, most, heads)


def cost_of_find(
    trial: Trial, search: Call, judge: Call, options: argparse.Namespace, curve: Callable[[int], int] | None
) -> Estimate:
    """What ``find`` costs.

    Args:
        trial: Of its model.
        search: The call that finds heads, but for its settings.
        judge: The call that proves them, but for heads and settings.
        options: The arguments of the command.
        curve: Example-evaluations of the curve of a report, on a grid of so many heads; None where none is measured.
    """
    steps = {
        "search": trial.begin(search, _OF_SEARCH * _SECONDS),
        "proof": trial.proof(judge, _OF_PROOF * _SECONDS, options.k, options.off),
    }
    if curve is not None:
        spent, seconds = steps["proof"]
        n = curve(trial.grid.size)
        steps["curve"] = n, seconds * n / spent
    return _estimate(steps)


def cost_of_compare(
    trial: Trial,
    compare: Call,
    searches: Mapping[str, Call],
    judge: Call,
    options: argparse.Namespace,
) -> Estimate:
    """What ``compare`` costs: all that is measured by masks in one step, each other method in one of its own.

    Args:
        trial: Of its model.
        compare: The call, but for its settings.
        searches: By the name of each method the call that runs it, but for its settings.
        judge: The call that proves heads, but for heads and settings.
        options: The arguments of the command.
    """
    from cs_heads.methods.registry import METHODS

    total, each, by_masks, steps = trial.cost(compare), _SECONDS / (1 + len(searches)), [], {}
    for name, search in searches.items():
        # One that refuses its budget or the task is left out of the comparison.
        with suppress(ValueError):
            began = trial.begin(search, each)
            if METHODS[name].uses == "masks":
                by_masks.append(began)
            else:
                steps[name] = began
    spent, seconds = trial.proof(judge, each, options.k)
    n = total - sum(n for n, _ in steps.values())
    judged = max(0, n - sum(n for n, _ in by_masks))
    return _estimate({"masks": (n, sum(each for _, each in by_masks) + seconds * judged / spent), **steps})


def cost_of_atlas(trial: Trial, atlas: Call) -> Estimate:
    """What ``atlas`` costs.

    Args:
        trial: Of its model.
        atlas: The call, but for its settings.
    """
    return _estimate({"search and proof": trial.begin(atlas, _SECONDS)})


def _estimate(steps: Mapping[str, tuple[int, float]]) -> Estimate:
    """Of the example-evaluations and the seconds of each step."""
    from cs_heads.experiment.estimate import Estimate

    return Estimate(
        {name: {name: n} for name, (n, _) in steps.items()}, {name: s / max(n, 1) for name, (n, s) in steps.items()}
    )


def _grid(model: Any, units: Units) -> Grid:
    from cs_heads.cluster import Cluster
    from cs_heads.units import Grid

    return Grid.from_model(model.model_or_info if isinstance(model, Cluster) else model, units)


def _tokens(model: Any) -> int | None:
    """Tokens of a forward that is tried; None leaves that to the engine, which watches the memory of a probe."""
    from cs_heads.lens.batches import default_tokens
    from cs_heads.lens.model import device_of
    from cs_heads.lens.timing import LARGE

    weights = sum(parameter.numel() for parameter in model.parameters())
    if device_of(model).type != "cpu":
        return None
    if weights < LARGE:
        return default_tokens(model, "scoring")
    return max(_LEAST_TOKENS, _MOST_WORK // weights)


def print_cost(options: argparse.Namespace, found: Estimate, model: Any) -> None:
    """Print what a command costs."""
    from cs_heads.cluster import Cluster
    from cs_heads.engine.plan import peak_memory
    from cs_heads.lens.model import device_of
    from cs_heads.record import json_text

    memory = where = None
    if not isinstance(model, Cluster):  # whose workers have memory of their own
        device = device_of(model)
        memory, where = peak_memory(device), "this machine" if device.type == "cpu" else device
    if options.json:
        steps = {step: sum(by_task.values()) for step, by_task in found.evaluations.items()}
        seconds = {step: round(found.seconds(step), 1) for step in steps}
        print(json_text({"evaluations": steps, "seconds": seconds, "memory_bytes": memory, "command": options.command}))
        return
    print_steps(found)
    if memory is not None:
        print(f"memory: about {memory / 2**30:.1f} GiB of {where}")


def print_steps(found: Estimate) -> None:
    """Print example-evaluations and time of each step, and of all."""
    steps = {step: (sum(each.values()), found.seconds(step)) for step, each in found.evaluations.items()}
    print(f"{'step':<{WIDTH}}{'example-evaluations':>20}{'time':>10}")
    for step, (spent, seconds) in {**steps, "at most": (found.total, found.total_seconds)}.items():
        print(f"{step:<{WIDTH}}{spent:>20,}{_lasting(seconds):>10}")
    for step, reason in found.missing.items():
        print(f"{step} cannot be made: {reason}")


def _lasting(seconds: float) -> str:
    """Seconds, minutes or hours, of two digits or so."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} s"
