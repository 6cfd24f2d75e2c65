"""What a protocol costs, before it starts: example-evaluations counted, seconds from a short probe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from cs_heads import designs
from cs_heads.experiment.experiment import Experiment
from cs_heads.reproduce import gating, needs
from cs_heads.reproduce.reproduction import Part, Reproduction, Step, added
from cs_heads.reproduce.run import parts_made

if TYPE_CHECKING:
    import pandas as pd

_PARTS: dict[Part, Callable[[Reproduction], dict[str, int]]] = {
    "searched": needs.find_cost,
    "universal": needs.universal_cost,
    "gates": gating.fit_cost,
}
_EXAMPLES = 8
_MASKS = 8


@dataclass(frozen=True)
class Estimate:
    """The most example-evaluations of each step, by task, and the seconds that one took on this machine.

    What a step itself measures is counted as if the store held none of it.
    ``missing`` has the steps that cannot be made
    and what they need. Half of the evaluations of gates are backward passes, taken to last as long as forward ones.
    """

    evaluations: dict[str, dict[str, int]]
    seconds_each: dict[str, float]
    missing: dict[str, str]

    def seconds(self, step: str) -> float:
        """Seconds of one step."""
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
        """One row a step: example-evaluations, seconds, and what is missing for it."""
        import pandas as pd

        rows = [
            {"step": step, "example-evaluations": sum(by_task.values()), "seconds": self.seconds(step), "needs": ""}
            for step, by_task in self.evaluations.items()
        ]
        rows += [{"step": s, "example-evaluations": 0, "seconds": 0.0, "needs": n} for s, n in self.missing.items()]
        return pd.DataFrame(rows)


def estimate(study: Reproduction, steps: Iterable[Step]) -> Estimate:
    """Count what steps may cost, and time a few evaluations of each task: 128 of each at most, none of them kept.

    What a step starts from (the search, the trial for universal heads, the gates) is counted with the first step
    that needs it, unless a step that used it is done.
    """
    evaluations, missing = {}, {}
    paid = parts_made(study)
    for step in steps:
        lacks = step.needs(study)
        if lacks is not None:
            missing[step.name] = lacks
            continue
        parts = [_PARTS[part](study) for part in step.uses if part not in paid]
        paid |= set(step.uses)
        evaluations[step.name] = added(*parts, step.cost(study))
    used = dict.fromkeys(task for by_task in evaluations.values() for task in by_task)
    return Estimate(evaluations, {task: _seconds_each(study, task) for task in used}, missing)


def _seconds_each(study: Reproduction, name: str) -> float:
    """Of the second of two batches: the first also tries the engine's short cuts."""
    experiment = Experiment(study.model, study.unseen(name).take(_EXAMPLES), progress=False)
    density = max(0.05, 1 / study.grid.size)
    off = designs.bernoulli(experiment.grid, 2 * _MASKS, density, study.seed)
    experiment(off[:_MASKS])
    ran = experiment.ran
    start = perf_counter()
    experiment(off[_MASKS:])
    # Masks drawn twice are measured once.
    return (perf_counter() - start) / max(1, experiment.ran - ran)
