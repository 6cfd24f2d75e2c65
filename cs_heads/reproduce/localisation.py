"""The steps of Bair et al. (arXiv 2603.03335): heads found by compressed sensing, and what ablating them breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cs_heads import plot
from cs_heads.plot.style import drawing
from cs_heads.reproduce import needs, proofs, published, shared_heads
from cs_heads.reproduce.outputs import Output, measured, titled
from cs_heads.reproduce.reproduction import Part, Reproduction, Step, free

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.analysis.drops import Column, TaskDrops


def _find(study: Reproduction) -> list[Output]:
    import pandas as pd

    tried, found = [], []
    for heads, ranking in study.rankings.items():
        design = ranking.provenance["design"]
        for each in ranking.provenance["tuning"]:
            chosen = each["n_masks"] == design["n_masks"] and each["density"] == design["density"]
            tried.append({"heads": heads, "task": study.finding[heads], **each, "chosen": chosen})
        rows = ranking.to_frame().head(study.settings.most)
        found += [{"heads": heads, "task": study.finding[heads], **row} for row in rows.to_dict("records")]
    return [
        Output(
            "search",
            "every number of masks and density, and the drop on the finding examples",
            measured(study, pd.DataFrame(tried)),
        ),
        Output("heads", "the heads found, universal ones put last", measured(study, pd.DataFrame(found))),
    ]


def _drops(study: Reproduction) -> list[Output]:
    from cs_heads.analysis.drops import measure_drops

    own = {study.finding[heads] for heads in study.rankings}
    columns = {name: study.column(name, "own" if name in own else "control") for name in study.tasks}
    sets = {heads: study.top(heads) for heads in study.rankings}
    belongs = {heads: study.label(study.finding[heads]) for heads in sets}
    found = measure_drops(list(columns.values()), sets, belongs, study.seed)
    frame = _drop_frame(study, found)
    # The paper's first figure has no questions of hazardous knowledge.
    shown = [column for name, column in columns.items() if name in published.INTACT or study.paper.name != "cs"]
    first = measure_drops(shown, {study.first: sets[study.first]}, {study.first: belongs[study.first]}, study.seed)
    draw = plot.radar if len(shown) > 2 else plot.specificity  # two tasks go round no circle
    source = f"published: {published.CS_SOURCE}"
    return [
        Output(
            "figure-1",
            f"every task, intact and with the {study.first} heads off; {source}",
            _drop_frame(study, first),
            drawing(draw, first),
        ),
        Output("drops", f"every set of heads on every task; {source}", frame, drawing(plot.drop_matrix, found)),
    ]


def _drop_frame(study: Reproduction, found: TaskDrops) -> pd.DataFrame:
    """By the paper's names, with the published scores; those that are not known are left blank."""
    frame = found.to_frame()
    kept = ["found", "task", "n_examples", "baseline", "score", "drop", "low", "high", "relative_drop", "too_low"]
    frame = measured(study, frame[kept].rename(columns={"found": "heads"}))
    pairs = list(zip(frame["heads"], frame["task"], strict=True))
    known = [published.OFF.get(heads, {}).get(task) for heads, task in pairs]
    frame["published baseline"] = [
        None if score is None else published.INTACT.get(task) for (_, task), score in zip(pairs, known, strict=True)
    ]
    frame["published score"] = known
    return frame


def _sparsity(study: Reproduction) -> list[Output]:
    from cs_heads.analysis.sparsity import measure_sparsity

    curve = measure_sparsity(_curve_columns(study), study.rankings[study.first].top(study.settings.most), study.seed)
    frame = measured(study, curve.to_frame())
    # The published curve is that of the math heads, and its means are over whole suites.
    known = {
        task: scores
        for task, scores in published.CURVE.items()
        if study.first == "math" and (task in study.tasks or study.is_whole(task))
    }
    frame["published score"] = [
        dict(enumerate(known.get(task, ()))).get(k) for task, k in zip(frame["task"], frame["k"], strict=True)
    ]
    about = f"score with the first 0 to {study.settings.most} {study.first} heads off; published: {published.CS_SOURCE}"
    return [Output("sparsity", about, frame, drawing(plot.sparsity, curve))]


def _curve_columns(study: Reproduction) -> list[Column]:
    siblings = [study.column(name, "sibling") for name in needs.siblings(study, study.first)]
    return [study.column(study.finding[study.first], "own"), *siblings, *study.suites()]


def _generalisation(study: Reproduction) -> list[Output]:
    from cs_heads.analysis.drops import measure_drops

    outputs = []
    about = "heads found on one task, ablated on another of the same capability"
    for heads in study.rankings:
        siblings = [study.column(name, "sibling") for name in needs.siblings(study, heads)]
        if siblings:
            name = study.finding[heads]
            columns = [study.column(name, "own"), *siblings]
            found = measure_drops(columns, {heads: study.top(heads)}, {heads: study.label(name)}, study.seed)
            draw = titled(f"{heads} heads off", plot.specificity)
            outputs.append(
                Output(
                    f"generalisation-{heads}",
                    f"{about}: {heads}; published: {published.CS_SOURCE}",
                    _drop_frame(study, found),
                    drawing(draw, found),
                )
            )
    return outputs


def _methods(study: Reproduction) -> list[Output]:
    from cs_heads.analysis.compare import compare

    settings, name = study.settings, study.finding[study.first]
    found = compare(
        study.model,
        study.tasks[name],
        methods=needs.METHODS,
        budget=settings.budget,
        k=settings.k,
        most=settings.most,
        n=len(study.unseen(name)),
        controls=None,
        seed=study.seed,
        progress=study.progress,
        store=study.store,
    )
    about = f"{', '.join(needs.METHODS)} on {study.label(name)}: heads, cost, and drops on unseen examples"
    # Seconds of a run that was resumed are those of the resumption.
    frame = found.to_frame().drop(columns="seconds", errors="ignore")
    return [Output("methods", about, frame, drawing(plot.drops, found))]


_RANKED: tuple[Part, ...] = ("searched", "universal")

STEPS: tuple[Step, ...] = (
    Step("find", "search over designs; heads of every capability, universal ones put last", _find, free, uses=_RANKED),
    Step(
        "universal",
        "heads that everything needs, and how the failure looks",
        shared_heads.universal,
        needs.failures_cost,
        needs.has_universal,
        _RANKED,
    ),
    Step("drops", "every set of heads on every task", _drops, needs.drops_cost, uses=_RANKED),
    Step("proof", "random heads beside the heads found", proofs.prove, proofs.proof_cost, uses=_RANKED),
    Step("scale", "models side by side", proofs.scale, proofs.scale_cost, uses=_RANKED, keeps=False),
    Step("sparsity", "the score by number of heads off", _sparsity, needs.sparsity_cost, uses=_RANKED),
    Step(
        "generalisation",
        "other tasks of the capability",
        _generalisation,
        needs.generalisation_cost,
        needs.has_siblings,
        _RANKED,
    ),
    Step("overlap", "heads in common", shared_heads.overlap, free, needs.two_sets, _RANKED),
    Step(
        "formats",
        "form of a question and knowledge",
        shared_heads.formats,
        needs.formats_cost,
        needs.has_forms,
        _RANKED,
    ),
    Step("methods", "methods side by side", _methods, needs.methods_cost, uses=_RANKED),
)
"""The protocol, in order."""
