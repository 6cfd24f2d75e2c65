"""``--dry-run``: what a command costs, as the calls that it makes say themselves, and seconds from a short probe."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cs_heads.experiment.estimate import Estimate
    from cs_heads.experiment.experiment import Experiment
    from cs_heads.tasks import Task
    from cs_heads.units import Unit

Call = Callable[..., object]

# What passes are called among tasks, and the share of the masks of a comparison that are on the task itself.
_PASSES, _OWN_OF_COMPARE = "forward and backward passes", 0.75

DRY_RUN = "say what it would cost (example-evaluations, seconds, memory), from a few forwards, and stop"
WIDTH = 20
"""Columns of the name of a step."""


class Probe:
    """A few examples of a task and of those measured beside it, on the model of a command.

    Args:
        model: The model, or the cluster that holds it.
        task: The task.
        beside: Its controls as ``find_heads`` takes them, or the other skills of an atlas.
        seed: That of the command.
        settings: Those of the command; nothing is kept in a store.
    """

    def __init__(
        self, model: Any, task: Task, beside: Sequence[Task] | str | None, seed: int, settings: Mapping[str, Any]
    ) -> None:
        from cs_heads.experiment.controls import defaults_of, experiments_on
        from cs_heads.experiment.estimate import N_PROBED
        from cs_heads.experiment.experiment import Experiment
        from cs_heads.tasks import confirming_side, finding_side, search_control

        self.model, self.seed, self.settings = model, seed, {**settings, "store": None, "progress": False}
        self.n_unseen = min(100, len(confirming_side(task)))
        self.task = Experiment(model, finding_side(task).take(N_PROBED), **self.settings)
        others = defaults_of(self.task, task, seed) if isinstance(beside, str) else beside or ()
        sides = [search_control(other, seed).take(N_PROBED) for other in others]
        self.beside = experiments_on(self.task, sides, chosen=not isinstance(beside, str))

    def cost(self, call: Call, *arguments: Any, **options: Any) -> int:
        """What a call says that it costs at most."""
        from cs_heads.progress import cost_of

        return cost_of(partial(call, *arguments, **options, **self.settings)) or 0

    def some_heads(self, k: int | None, off: Sequence[str] = ()) -> list[Unit]:
        """As many heads as are found, in as many layers as there are."""
        from cs_heads.experiment.baseline import fitting_k

        grid = self.task.grid
        left = sorted(grid.units(~grid.mask(off)), key=lambda unit: (unit.index, unit.layer))
        return left[: fitting_k(k, grid, n_off=grid.size - len(left))[0]]

    def seconds(self, experiment: Experiment, how: str = "") -> dict[str, float]:
        """Seconds of an example-evaluation of each task on what an experiment runs on; ``how`` goes behind its name."""
        from cs_heads.experiment.estimate import seconds_each

        beside = self.beside if experiment is self.task else [experiment.on(other.task) for other in self.beside]
        measured = seconds_each({one.task.name: one for one in (experiment, *beside)}, self.seed)
        return {f"{name}{how}": seconds for name, seconds in measured.items()}

    def split(self, number: int, own: float, how: str = "") -> dict[str, int]:
        """Example-evaluations by task: a share of them on the task itself, the others on those beside it."""
        others = [other.task.name for other in self.beside] if own < 1 else []
        each = round((1 - own) * number / len(others)) if others else 0
        by_task = {self.task.task.name: number - each * len(others), **dict.fromkeys(others, each)}
        return {f"{name}{how}": n for name, n in by_task.items()}


def cost_of_find(
    probe: Probe, search: Call, judge: Call, options: argparse.Namespace, curve: Callable[[int], int] | None
) -> Estimate:
    """What ``find`` costs.

    Args:
        probe: Of the task and its controls.
        search: The call that finds heads, but for its settings.
        judge: The call that proves them, but for heads and settings.
        options: The arguments of the command.
        curve: Masks of the curve of a report, on a grid of so many heads; None where none is measured.
    """
    from cs_heads.experiment.estimate import Estimate, seconds_of_pass
    from cs_heads.methods.registry import METHODS

    method, spent, seconds = METHODS[options.method], probe.cost(search), probe.seconds(probe.task)
    if method.uses == "model":
        seconds[_PASSES] = seconds_of_pass(probe.task, options.seed)
        found = {_PASSES: spent}
    else:
        searching = probe.task.in_faster_dtype()
        how = "" if searching is probe.task else f" in {searching.compute_dtype}"
        if how:
            seconds |= probe.seconds(searching, how)
        # A row of the default method has as many examples of controls as of the task.
        serve = method.takes_controls and (method.default_controls or options.control)
        found = probe.split(spent, 0.5 if serve else 1.0, how)
    heads = probe.some_heads(options.k, options.off)
    proof, own = probe.cost(judge, heads), probe.cost(judge, heads, controls=None)
    evaluations = {"search": found, "proof": probe.split(proof, min(1.0, own / proof))}
    if curve is not None:
        evaluations["curve"] = probe.split(curve(probe.task.grid.size) * probe.n_unseen, 1.0)
    return Estimate(evaluations, seconds)


def cost_of_compare(probe: Probe, compare: Call, searches: Mapping[str, Call], options: argparse.Namespace) -> Estimate:
    """What ``compare`` costs.

    Args:
        probe: Of the task and its controls.
        compare: The call, but for its settings.
        searches: By the name of each method that uses the model itself the call that runs it, but for its settings.
        options: The arguments of the command.
    """
    from cs_heads.experiment.estimate import Estimate, seconds_of_pass

    passes, seconds = {}, probe.seconds(probe.task)
    for name, search in searches.items():
        # One that refuses its budget or the task is left out of the comparison.
        with suppress(ValueError):
            spent = probe.cost(search)
            seconds[_PASSES] = seconds.get(_PASSES) or seconds_of_pass(probe.task, options.seed)
            passes[name] = {_PASSES: spent}
    by_masks = probe.cost(compare) - sum(each[_PASSES] for each in passes.values())
    return Estimate({"masks": probe.split(by_masks, _OWN_OF_COMPARE), **passes}, seconds)


def cost_of_atlas(probe: Probe, atlas: Call) -> Estimate:
    """What ``atlas`` costs, every skill alike.

    Args:
        probe: Of its skills.
        atlas: The call, but for its settings.
    """
    from cs_heads.experiment.estimate import Estimate

    evaluations = {"search and proof": probe.split(probe.cost(atlas), 1 / (1 + len(probe.beside)))}
    return Estimate(evaluations, probe.seconds(probe.task))


def print_cost(options: argparse.Namespace, found: Estimate, model: Any) -> None:
    """Print what a command costs."""
    from cs_heads.cluster import Cluster
    from cs_heads.engine.plan import peak_memory
    from cs_heads.lens.model import device_of

    memory = where = None
    if not isinstance(model, Cluster):  # whose workers have memory of their own
        device = device_of(model)
        memory, where = peak_memory(device), "this machine" if device.type == "cpu" else device
    if options.json:
        steps = {step: sum(by_task.values()) for step, by_task in found.evaluations.items()}
        seconds = {step: round(found.seconds(step), 1) for step in steps}
        print(
            json.dumps({"evaluations": steps, "seconds": seconds, "memory_bytes": memory, "command": options.command})
        )
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
