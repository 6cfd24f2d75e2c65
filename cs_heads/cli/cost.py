"""``--dry-run``: the most example-evaluations of each step, and their seconds by one timed batch of masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cs_heads.cli.loading import N_UNSEEN
from cs_heads.cli.printing import print_json
from cs_heads.text import duration

if TYPE_CHECKING:
    from cs_heads.cli.flags import Run
    from cs_heads.experiment.experiment import Experiment
    from cs_heads.tasks import Task

WIDTH = 20  # columns of the name of a step


def judged_with(experiment: Experiment, task: Task, controls: Sequence[Task] | str | None, seed: int) -> list[int]:
    """Examples at most of each control that judges heads, and of its kin: fewer of the default ones than of others."""
    from cs_heads.experiment.controls import defaults_of, kin_of
    from cs_heads.tasks import control_side

    if isinstance(controls, str):
        return [N_UNSEEN // 2] * len((*defaults_of(experiment, task, seed), *kin_of(experiment, task, seed)))
    return [len(control_side(control, n=N_UNSEEN, seed=seed)) for control in controls or ()]


def print_cost(options: Run, steps: Mapping[str, int], experiment: Experiment) -> None:
    """Print what the steps of a command cost; ``experiment`` is on the task whose example-evaluations are timed."""
    from cs_heads.cluster import Cluster
    from cs_heads.engine.plan import peak_memory
    from cs_heads.experiment.baseline import is_continuous, remedy
    from cs_heads.experiment.timing import timing_of
    from cs_heads.lens.model import device_of
    from cs_heads.tasks.splits import MIN_CORRECT

    few, each = timing_of(experiment, options.seed)
    baseline = float(few.mean())
    seconds = {step: n * each for step, n in steps.items()}
    memory = where = None
    model: Any = experiment.source
    if not isinstance(model, Cluster):  # whose workers have memory of their own
        device = device_of(model)
        memory, where = peak_memory(device), "this machine" if device.type == "cpu" else device
    if options.json:
        lasting = {step: round(value, 1) for step, value in seconds.items()}
        cost = {"baseline": baseline, "evaluations": dict(steps), "seconds": lasting, "memory_bytes": memory}
        print_json({**cost, "command": options.command})
        return
    print(f"baseline {baseline:.3f} on {len(few)} examples of {experiment.name} (chance {experiment.chance:.3f})")
    right = round(baseline * experiment.n_examples)
    if right < MIN_CORRECT and not is_continuous(few, experiment):
        rate = f"at this rate {right} of {experiment.n_examples} examples are right, and {MIN_CORRECT} are needed"
        print(f"note: {rate}: {remedy(experiment)}")
    print()
    print_steps(steps, seconds)
    if memory is not None:
        print(f"memory: about {memory / 2**30:.1f} GiB of {where}")


def print_steps(steps: Mapping[str, int], seconds: Mapping[str, float]) -> None:
    """Print example-evaluations and time of each step, and of all."""
    print(f"{'step':<{WIDTH}}{'example-evaluations':>20}{'time':>10}")
    for step, n in steps.items():
        print(f"{step:<{WIDTH}}{n:>20,}{duration(seconds[step]):>10}")
    print(f"{'at most':<{WIDTH}}{sum(steps.values()):>20,}{duration(sum(seconds.values())):>10}")
