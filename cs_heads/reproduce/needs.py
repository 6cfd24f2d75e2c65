"""What the steps of Bair et al. cost at most, and what they need: known before anything is measured."""

from __future__ import annotations

from cs_heads.reproduce.reproduction import Reproduction, added, evaluations
from cs_heads.tasks import confirming_side

METHODS = ("css", "csb", "greedy")
"""The methods that the paper holds against each other."""


N_FAILURES = 50
"""Examples on which it is seen how a task fails."""
N_FAILING = 3
"""The most universal heads that this is seen for."""


def siblings(study: Reproduction, heads: str) -> list[str]:
    """The other tasks of the capability of these heads."""
    return [name for name in study.tasks if study.paper.task(name).sibling == heads]


def n_candidates(study: Reproduction) -> int:
    """The most heads that are tried for universal ones."""
    return study.settings.most * len(study.finding)


def find_cost(study: Reproduction) -> dict[str, int]:
    """Every design on the finding examples, and its top heads."""
    settings = study.settings
    masks = 1 + sum(number + 1 for number in settings.n_masks) * len(settings.densities)
    return {name: masks * len(study.tasks[name]) for name in study.finding.values()}


def universal_cost(study: Reproduction) -> dict[str, int]:
    """Each candidate alone on each task and on one control: the first that the model can do, so each is asked."""
    if has_universal(study) is not None:
        return {}
    asked = {name: len(study.tasks[name]) for name in study.controls}
    names = study.finding.values()
    n = {name: min(study.settings.n_universal, len(study.tasks[name])) for name in (*names, *study.controls)}
    tried = {name: n_candidates(study) * n[name] + len(study.tasks[name]) for name in names}
    control = {study.controls[0]: n_candidates(study) * max(n[name] for name in study.controls)}
    return added(asked, tried, control)


def failures_cost(study: Reproduction) -> dict[str, int]:
    """Texts or choices of one task, intact, with its heads off and with each of the heads shown."""
    return dict.fromkeys(list(study.finding.values())[:1], _n_choices(study) * N_FAILURES * (2 + N_FAILING))


def _n_choices(study: Reproduction) -> int:
    """The most choices of an example of the tasks that heads are found on; 1 where there are none."""
    tasks = [confirming_side(study.tasks[name]) for name in study.finding.values()]
    return max(len(example.continuations) or 1 for task in tasks for example in task.examples)


def drops_cost(study: Reproduction) -> dict[str, int]:
    """Every set of heads, and none, on every task."""
    return evaluations(study, study.tasks, 1 + len(study.finding))


def sparsity_cost(study: Reproduction) -> dict[str, int]:
    """The nested sets on the first task, its siblings and the suites."""
    first = next(iter(study.finding))
    names = {study.finding[first], *siblings(study, first), *(n for n in study.tasks if study.paper.task(n).suite)}
    return evaluations(study, names, study.settings.most + 1)


def generalisation_cost(study: Reproduction) -> dict[str, int]:
    """One set on each task and its siblings."""
    named = [heads for heads in study.finding if siblings(study, heads)]
    return evaluations(study, [n for h in named for n in (study.finding[h], *siblings(study, h))], 2)


def methods_cost(study: Reproduction) -> dict[str, int]:
    """Each method's search, and its curve beside random ones."""
    settings, name = study.settings, next(iter(study.finding.values()))
    n = len(study.tasks[name])
    searched = 2 * 101 * n + settings.most * study.grid.size * n
    if settings.budget is not None:
        searched = min(searched, len(METHODS) * settings.budget)
    return {name: searched + (1 + (len(METHODS) + 8) * settings.most) * len(study.unseen(name))}


def formats_cost(study: Reproduction) -> dict[str, int]:
    """The sets and single heads on questions in both forms."""
    return evaluations(study, [*study.in_form("letters"), *study.in_form("full")], 1 + 2 * len(study.finding) + 3)


def two_sets(study: Reproduction) -> str | None:
    """Two sets of heads."""
    return None if len(study.finding) > 1 else "heads of two tasks or more"


def has_universal(study: Reproduction) -> str | None:
    """Two tasks and a control."""
    enough = len(study.finding) > 1 and study.controls
    return None if enough else "two tasks to find heads on and a third as control"


def has_siblings(study: Reproduction) -> str | None:
    """A sibling of some task."""
    return None if any(siblings(study, heads) for heads in study.finding) else "a second task of one capability"


def has_forms(study: Reproduction) -> str | None:
    """Tasks in both forms."""
    both = study.in_form("letters") and study.in_form("full")
    return None if both else "tasks answered by a letter and tasks answered in full"
