"""What a reproduction is going to cost: the bound of every step, and the time of its example-evaluations."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import pandas as pd

from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.timing import N_EXAMPLES, seconds_each
from cs_heads.reproduce.reproduction import Reproduction, Step
from cs_heads.reproduce.run import done_steps
from cs_heads.settings import SettingsArguments


def estimate(repro: Reproduction, steps: Iterable[Step]) -> pd.DataFrame:
    """The most example-evaluations of each step, and their seconds on this machine.

    What an earlier step measures is not counted again, and what is done not at all. Half of the evaluations of gates
    are backward passes, which are taken to last as long as forward ones.

    Args:
        repro: The model, the paper, its tasks and settings.
        steps: Rows of the table of steps, as ``steps_of`` gives them.

    Returns:
        One row a step: ``step``, ``example-evaluations``, ``seconds``, and in ``missing`` why it cannot be made.
    """
    paid: set[Hashable] = set()
    for step in done_steps(repro) if repro.store.is_file() else ():
        paid |= step.cost(repro).keys()
    seconds: dict[str, float] = {}
    calls: SettingsArguments = {**repro.calls, "store": None, "progress": False}
    rows = []
    for step in steps:
        lacking = step.lacking(repro)
        bill = {} if lacking else {key: each for key, each in step.cost(repro).items() if key not in paid}
        paid |= bill.keys()
        for name in {name for name, _ in bill.values()} - seconds.keys():
            with Experiment(repro.model, repro.unseen(name).take(N_EXAMPLES), **calls) as experiment:
                seconds[name] = seconds_each(experiment, repro.seed)
        n, lasting = sum(n for _, n in bill.values()), sum(n * seconds[name] for name, n in bill.values())
        rows.append((step.name, n, lasting, f"it needs {lacking}" if lacking else ""))
    return pd.DataFrame(rows, columns=["step", "example-evaluations", "seconds", "missing"])
