"""Heads that several tasks need, and heads that serve the form of a question (Bair et al., arXiv 2603.03335)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cs_heads.plot.drawing import drawing
from cs_heads.reproduce import published
from cs_heads.reproduce.needs import N_FAILING, N_FAILURES
from cs_heads.reproduce.outputs import Output, measured
from cs_heads.reproduce.reproduction import Reproduction
from cs_heads.tasks import confirming_side

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.analysis.universal import UniversalHeads


def universal(study: Reproduction) -> list[Output]:
    """Every candidate alone on every task and the control, and how the failure looks."""
    from cs_heads.plot.shared_heads import plot_universal

    found = study.universal
    if found is None:
        return []
    assert study.control is not None
    about = f"share of each score above chance left with one head off; control: {study.label(study.control)}"
    return [Output("universal", about, found.to_frame(), drawing(plot_universal, found)), _failures(study, found)]


def _failures(study: Reproduction, found: UniversalHeads) -> Output:
    from cs_heads.analysis.failures import failures
    from cs_heads.plot.failures import plot_failures

    task = study.tasks[study.finding[study.first]]
    # What leaves least of the control: universal heads first, and the one nearest to it where there is none.
    order = [found.candidates[i] for i in found.left[:, -1].argsort(kind="stable")]
    shown = [head for head in order if head in found.heads][:N_FAILING] or order[:1]
    heads = {str(head): [head] for head in shown} | {study.first: study.top(study.first)}
    n = min(N_FAILURES, len(confirming_side(task)))
    modes = failures(study.model, task, heads, n=n, progress=study.progress)
    what = "universal heads" if found.heads else "the head nearest to a universal one"
    about = f"how {task.name} fails with {what} and with the {study.first} heads off"
    return Output("failures", about, modes.to_frame(), drawing(plot_failures, modes))


def overlap(study: Reproduction) -> list[Output]:
    """Heads that two tasks have in common."""
    from cs_heads.analysis.overlap import head_overlap
    from cs_heads.plot.shared_heads import plot_overlap

    if len(study.rankings) < 2:
        study.left_out["overlap"] = "needs heads of two tasks or more"
        return []
    found = head_overlap(study.rankings, k=study.settings.k, seed=study.seed)
    about = "heads that two tasks have in common, and what luck gives"
    return [Output("overlap", about, found.to_frame(), drawing(plot_overlap, found))]


def formats(study: Reproduction) -> list[Output]:
    """Sets and single heads on questions answered by a letter and in full."""
    from cs_heads.analysis.formats import measure_formats
    from cs_heads.plot.failures import plot_format_heads

    letters, full = study.in_form("letters"), study.in_form("full")
    sets = {heads: study.top(heads) for heads in study.rankings}
    singles = [
        study.rankings[heads].top(1)[0] for heads, name in study.finding.items() if heads in sets and name in letters
    ]
    if study.universal is not None:
        singles += study.universal.heads
    sets |= {str(head): [head] for head in dict.fromkeys(singles)}
    columns = [study.column(name, "letters") for name in letters] + [study.column(name, "full") for name in full]
    found = measure_formats(columns, sets, study.seed)
    frame = measured(study, found.to_frame().rename(columns={"found": "named"}))
    # Single heads of other models say nothing of this one's; sets go by what they were found on.
    known = {name: row for (model, name), row in published.KNOWLEDGE.items() if model == published.KNOWLEDGE_MODEL}
    frame["published baseline"] = [known["none"].get(task) if name in known else None for name, task in _keys(frame)]
    frame["published score"] = [known.get(name, {}).get(task) for name, task in _keys(frame)]
    about = f"questions answered by a letter and in full, by heads off; published: {published.CS_SOURCE}"
    return [
        Output("format", about, frame, drawing(plot_format_heads, found)),
        Output("format-published", f"the same in {published.CS_SOURCE} and smaller ones", _published_formats()),
    ]


def _keys(frame: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(frame["named"], frame["task"], strict=True))


def _published_formats() -> pd.DataFrame:
    """In the columns of ``format``: one row a (model, heads off, task)."""
    import pandas as pd

    intact = {model: scores for (model, heads), scores in published.KNOWLEDGE.items() if heads == "none"}
    return pd.DataFrame(
        {
            "model": model,
            "named": heads,
            "task": task,
            "published baseline": intact[model][task],
            "published score": score,
        }
        for (model, heads), scores in published.KNOWLEDGE.items()
        if heads != "none"
        for task, score in scores.items()
    )
