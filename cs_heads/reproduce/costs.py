"""What the steps of a protocol cost at most: each thing measured has a key, and what two steps share counts once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

from cs_heads.analysis.gating import most_of_toggles
from cs_heads.analysis.least_set import most_of_proof
from cs_heads.methods.compressed_sensing import bound_of_tuning
from cs_heads.methods.gating.descent import Plan
from cs_heads.reproduce.reproduction import Reproduction
from cs_heads.tasks import finding_side
from cs_heads.tasks.pairs import STAGES

Bill: TypeAlias = dict[Hashable, tuple[str, int]]
"""By what is measured, the paper's name of its task and example-evaluations."""

METHODS = ("css", "csb", "one-shot", "greedy")
"""The methods that the paper compares."""
GENERAL = "General"
"""The suite whose mean says what other tasks keep."""
N_FAILURES = 50
"""Examples on which failures are classified."""
N_FAILING = 3
"""Universal heads whose failures are classified, the most harmful first."""


def rankings(repro: Reproduction) -> Bill:
    """The search on every task, and candidates for universal heads tried on all of them and a control."""
    settings, n_finding = repro.settings, {name: len(finding_side(task)) for name, task in repro.tasks.items()}
    bill: Bill = {
        ("search", heads): (name, bound_of_tuning(n_finding[name], settings.n_masks, settings.densities))
        for heads, name in repro.finding.items()
    }
    if len(repro.finding) < 2 or not repro.controls:
        return bill
    control = max(repro.controls, key=lambda name: n_finding[name])
    bill |= {("intact", name): (name, n_finding[name]) for name in repro.controls}
    return bill | {
        ("candidates", name): (name, _n_candidates(repro) * min(n_finding[name], settings.n_universal))
        for name in (*repro.finding.values(), control)
    }


def universal(repro: Reproduction) -> Bill:
    """Texts or choices of one task, intact, with its heads off and with each of the heads shown."""
    each = N_FAILURES * (2 + N_FAILING)
    return rankings(repro) | {("failures", heads): (name, each) for heads, name in repro.finding.items()}


def everywhere(repro: Reproduction) -> Bill:
    """Candidates for universal heads, each on every task."""
    return rankings(repro) | _off(repro, _singles(_n_candidates(repro)), repro.tasks)


def drops(repro: Reproduction) -> Bill:
    """Every set of heads on every task, where all unseen examples are measured on the finding examples, too."""
    bill = rankings(repro) | _off(repro, repro.finding, repro.tasks)
    if repro.settings.n_unseen is not None:
        return bill
    sets = ("intact", *repro.finding)
    return bill | {
        ("whole", heads, name): (name, len(finding_side(task))) for name, task in repro.tasks.items() for heads in sets
    }


def proof(repro: Reproduction) -> Bill:
    """The heads of every name, random ones, and the curve over their number."""
    settings, bill = repro.settings, rankings(repro)
    for heads, name in repro.finding.items():
        n_unseen = len(repro.unseen(name))
        random = most_of_proof(settings.k, n_unseen, [], least=False) - 2 * n_unseen
        bill |= {**_curve(repro, heads, [name]), ("random", heads): (name, random)}
    return bill


def sparsity(repro: Reproduction) -> Bill:
    """The curve of the first heads on their task, its siblings and all suites."""
    suites, bill = [name for name in repro.tasks if repro.paper.task(name).suite is not None], rankings(repro)
    for heads, own in [*repro.finding.items()][:1]:
        bill |= _curve(repro, heads, [own, *repro.siblings(heads), *suites])
    return bill


def generalization(repro: Reproduction) -> Bill:
    """The heads of every name on their task and its siblings."""
    bill = rankings(repro)
    for heads, own in repro.finding.items():
        bill |= _off(repro, [heads], [own, *repro.siblings(heads)])
    return bill


def formats(repro: Reproduction) -> Bill:
    """All sets of heads and single heads on questions of two forms."""
    names = [*repro.having(form="letters"), *repro.having(form="full")]
    singles = _singles(len(repro.finding) + _n_candidates(repro))
    return rankings(repro) | _off(repro, [*repro.finding, *singles], names)


def methods(repro: Reproduction) -> Bill:
    """The searches of the other methods, and the heads of all on their task and the general ones."""
    settings, bill = repro.settings, rankings(repro)
    for heads, name in compared(repro).items():
        n = len(finding_side(repro.tasks[name]))
        # Greedy search begins with the sweep that is all of one-shot.
        swept = n * (1 + settings.k * repro.grid.size)
        bill["sweeps", heads] = name, swept if settings.budget is None else min(swept, 2 * settings.budget)
        bill["csb", heads] = name, bound_of_tuning(n, settings.n_masks, settings.densities)
        others = [name, *repro.having(suite=GENERAL)]
        bill |= _off(repro, [heads, *((heads, method) for method in METHODS)], others)
    return bill


def compared(repro: Reproduction) -> dict[str, str]:
    """The heads that methods are compared on, with their task: capabilities, each once, and no knowledge."""
    of = {heads: repro.paper.task(name) for heads, name in repro.finding.items()}
    return {heads: task.name for heads, task in of.items() if task.form is None and task.sibling not in of}


def gates(repro: Reproduction) -> Bill:
    """The gates of every task."""
    bill = Bill()
    for name in (*repro.finding.values(), *repro.controls):
        plan, n = _plan(repro, n_seeds=repro.n_seeds(name)), len(finding_side(repro.tasks[name]))
        bill["gates", name] = name, plan.on(n).cost(n).spent
    return bill


def toggles(repro: Reproduction) -> Bill:
    """Heads off and on in the order of each score."""
    settings = repro.settings
    each = most_of_toggles(repro.n_toggled, settings.n_seeds, settings.n_points)
    names = repro.finding.values()
    return gates(repro) | {("toggles", name): (name, each * len(repro.unseen(name))) for name in names}


def mediating(repro: Reproduction) -> Bill:
    """Every head of every pair, and both of its prompts."""
    each = repro.settings.n_pairs * (repro.grid.size + 2)
    words = [name for name in repro.controls if name not in repro.having(rules=True)]
    return gates(repro) | {("effects", name): (name, each) for name in words}


def rules(repro: Reproduction) -> Bill:
    """Every head of every pair of each stage, and both of its prompts."""
    each = repro.settings.n_pairs * (repro.grid.size + 2)
    effects = {("effects", name, stage): (name, each) for name in repro.having(rules=True) for stage in STAGES}
    return gates(repro) | effects


def contrasts(repro: Reproduction, names: Iterable[str]) -> Bill:
    """Two fits to all of the word tasks but one, and six scores of that one."""
    names = [*names]
    n = sum(len(finding_side(repro.tasks[name])) for name in names)
    each = 2 * _plan(repro, phases=1, sides=2).on(n).cost(n).spent
    return {("contrasts", name): (name, each + 6 * len(repro.unseen(name))) for name in names}


def _plan(repro: Reproduction, **more: Any) -> Plan:
    return Plan(steps=repro.settings.steps, batch_size=repro.settings.batch_size, **more)


def _n_candidates(repro: Reproduction) -> int:
    return min(repro.grid.size, repro.settings.max_heads * len(repro.finding))


def _singles(n: int) -> list[tuple[str, int]]:
    return [("single", place) for place in range(n)]


def _off(repro: Reproduction, sets: Iterable[Hashable], names: Iterable[str]) -> Bill:
    """Tasks with no head off, and with each set of heads off."""
    chosen = ("intact", *sets)
    return {("off", heads, name): (name, len(repro.unseen(name))) for name in names for heads in chosen}


def _curve(repro: Reproduction, heads: str, names: Iterable[str]) -> Bill:
    """Tasks with the first heads of a name off; how many are proved counts as those of the name."""
    k, most = repro.settings.k, repro.settings.max_heads
    return _off(repro, [heads, *((heads, n) for n in range(1, most + 1) if n != k)], names)
