"""The steps of Bair et al. (arXiv 2603.03335): heads found by compressed sensing, and what ablating them breaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cs_heads.reproduce import needs, published
from cs_heads.reproduce.study import Output, Step, Study, evaluations, free
from cs_heads.tasks import confirming_side
from cs_heads.views.drawing import drawing

if TYPE_CHECKING:
    import pandas as pd

    from cs_heads.analysis.drops import Column, TaskDrops
    from cs_heads.analysis.proof import Confirmation


def _find(study: Study) -> list[Output]:
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
            "search", "every number of masks and density, and the drop on the finding examples", pd.DataFrame(tried)
        ),
        Output("heads", "the heads found, universal ones put last", pd.DataFrame(found)),
    ]


def _universal(study: Study) -> list[Output]:
    from cs_heads.views.shared_heads import plot_universal

    found = study.universal
    if found is None:
        return []
    outputs = [
        Output(
            "universal",
            f"share of each score above chance left with one head off; control: {study.control}",
            found.to_frame(),
            drawing(plot_universal, found),
        )
    ]
    return outputs + (_failures(study) if found.heads else [])


def _failures(study: Study) -> list[Output]:
    from cs_heads.analysis.failures import choice_failures, text_failures
    from cs_heads.views.failures import plot_failures

    assert study.universal is not None
    task = study.tasks[study.finding[study.first]]
    heads = {str(head): [head] for head in study.universal.heads} | {study.first: study.top(study.first)}
    n = min(50, len(confirming_side(task)))
    judge = choice_failures if task.kind == "choice" else text_failures
    found = judge(study.model, task, heads, n=n, progress=study.progress)
    about = f"how {task.name} fails with universal heads and with the {study.first} heads off"
    return [Output("failures", about, found.to_frame(), drawing(plot_failures, found))]


def _drops(study: Study) -> list[Output]:
    from cs_heads.analysis.drops import measure_drops
    from cs_heads.views.task_drops import plot_drop_matrix, plot_radar, plot_specificity

    own = {study.finding[heads]: heads for heads in study.rankings}
    columns = [study.column(name, own=name in own) for name in study.tasks]
    sets = {heads: study.top(heads) for heads in study.rankings}
    found = measure_drops(columns, sets, {heads: study.finding[heads] for heads in sets}, study.seed)
    frame = _beside(_drop_frame(found), published.INTACT, published.OFF)
    first = measure_drops(
        columns, {study.first: sets[study.first]}, {study.first: study.finding[study.first]}, study.seed
    )
    frame.insert(2, "measured with", [study.tasks[name].name for name in frame["task"]])
    plot = plot_radar if len(columns) > 2 else plot_specificity  # two tasks go round no circle
    source = f"published: {published.CS_SOURCE}"
    one = frame[frame["heads"] == study.first]
    return [
        Output(
            "figure-1",
            f"every task, intact and with the {study.first} heads off; {source}",
            one,
            drawing(plot, first),
        ),
        Output("drops", f"every set of heads on every task; {source}", frame, drawing(plot_drop_matrix, found)),
    ]


def _drop_frame(found: TaskDrops) -> pd.DataFrame:
    frame = found.to_frame()
    kept = ["found", "task", "n_examples", "baseline", "score", "drop", "low", "high", "relative_drop", "too_low"]
    return frame[kept].rename(columns={"found": "heads"})


def _beside(frame: pd.DataFrame, intact: Mapping[str, float], off: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """With the published scores; those that are not known are left blank."""
    pairs = list(zip(frame["heads"], frame["task"], strict=True))
    known = [off.get(heads, {}).get(task) for heads, task in pairs]
    frame = frame.copy()
    frame["published baseline"] = [
        None if score is None else intact.get(task) for (_, task), score in zip(pairs, known, strict=True)
    ]
    frame["published score"] = known
    return frame


def _sparsity(study: Study) -> list[Output]:
    from cs_heads.analysis.sparsity import measure_sparsity
    from cs_heads.views.sparsity import plot_sparsity

    curve = measure_sparsity(_curve_columns(study), study.rankings[study.first].top(study.settings.most), study.seed)
    frame = curve.to_frame()
    # The published curve is that of the math heads.
    known = published.CURVE if study.first == "math" else {}
    frame["published score"] = [
        dict(enumerate(known.get(task, ()))).get(k) for task, k in zip(frame["task"], frame["k"], strict=True)
    ]
    about = f"score with the first 0 to {study.settings.most} {study.first} heads off; published: {published.CS_SOURCE}"
    return [Output("sparsity", about, frame, drawing(plot_sparsity, curve))]


def _curve_columns(study: Study) -> list[Column]:
    from cs_heads.analysis.drops import Column

    siblings = [
        Column(name, "sibling", (study.experiment(study.unseen(name)),)) for name in needs.siblings(study, study.first)
    ]
    return [study.column(study.finding[study.first], own=True), *siblings, *study.suites()]


def _generalisation(study: Study) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.drops import Column, measure_drops
    from cs_heads.views.task_drops import plot_specificity

    rows, picture = [], None
    for heads in study.rankings:
        siblings = [Column(n, "sibling", (study.experiment(study.unseen(n)),)) for n in needs.siblings(study, heads)]
        if siblings:
            columns = [study.column(study.finding[heads], own=True), *siblings]
            found = measure_drops(columns, {heads: study.top(heads)}, {heads: study.finding[heads]}, study.seed)
            rows.append(found.to_frame().rename(columns={"found": "named"}))
            picture = picture or drawing(plot_specificity, found)
    if not rows:
        return []
    about = "heads found on one task, ablated on another of the same capability"
    return [Output("generalisation", about, pd.concat(rows, ignore_index=True), picture)]


def _proof(study: Study) -> list[Output]:
    import pandas as pd

    from cs_heads.analysis.confirm import confirm

    rows = []
    for heads in study.rankings:
        task = study.tasks[study.finding[heads]]
        n = len(study.unseen(study.finding[heads]))
        proof = confirm(
            study.model, task, study.top(heads), n=n, seed=study.seed, progress=study.progress, store=study.store
        )
        _keep(study, heads, proof)
        row: dict[str, Any] = {"heads": heads, "task": study.finding[heads], "ablated": " ".join(map(str, proof.heads))}
        kept = ("baseline", "score", "drop", "random_drop", "p", "verdict")
        rows.append(row | {name: proof.to_dict()[name] for name in kept})
    return [Output("proof", "the heads on unseen examples, beside random heads of the same layers", pd.DataFrame(rows))]


def _keep(study: Study, heads: str, proof: Confirmation) -> None:
    """Ranking and proof as ``cs-heads find --out`` writes them, which is what a study of several models reads."""
    folder = study.folder(heads)
    folder.mkdir(parents=True, exist_ok=True)
    study.rankings[heads].save(folder / "ranking.json")
    text = json.dumps({"task": study.finding[heads], "confirm": proof.to_dict()}, indent=1)
    (folder / "result.json").write_text(text + "\n", encoding="utf-8")


def _scale(study: Study) -> list[Output]:
    from cs_heads.analysis.scale import scale_study
    from cs_heads.views.scale import plot_depth_profiles, plot_scale

    here = {str(study.model.cfg.model_name): study.folder(study.first)}
    there = {name: folder / "study" / study.first for name, folder in study.beside.items()}
    found = scale_study({**here, **there}, k=study.settings.most)
    about = f"{study.first} heads of each model: how much rests on them, and at which depth"
    return [
        Output("scale", about, found.to_frame(), drawing(plot_scale, found)),
        Output("depth", "share of importance by depth", found.profiles(), drawing(plot_depth_profiles, found)),
    ]


def _overlap(study: Study) -> list[Output]:
    from cs_heads.analysis.overlap import head_overlap
    from cs_heads.views.shared_heads import plot_overlap

    if len(study.rankings) < 2:
        return []
    found = head_overlap({heads: study.top(heads) for heads in study.rankings}, grid=study.grid, seed=study.seed)
    about = "heads that two tasks have in common, and what luck gives"
    return [Output("overlap", about, found.to_frame(), drawing(plot_overlap, found))]


def _methods(study: Study) -> list[Output]:
    from cs_heads.analysis.compare import compare
    from cs_heads.views.comparison import plot_drops

    settings, name = study.settings, study.finding[study.first]
    found = compare(
        study.model,
        study.tasks[name],
        methods=needs.METHODS,
        budget=settings.budget,
        k=settings.k,
        most=settings.most,
        n=len(study.unseen(name)),
        seed=study.seed,
        progress=study.progress,
        store=study.store,
    )
    about = f"{', '.join(needs.METHODS)} on {name}: heads, cost, and drops on unseen examples"
    # Seconds of a run that was resumed are those of the resumption.
    frame = found.to_frame().drop(columns="seconds", errors="ignore")
    return [Output("methods", about, frame, drawing(plot_drops, found))]


def _formats(study: Study) -> list[Output]:
    from cs_heads.analysis.formats import measure_formats
    from cs_heads.views.failures import plot_format_heads

    letters, full = study.in_form("letters"), study.in_form("full")
    sets = {heads: study.top(heads) for heads in study.rankings}
    singles = [
        study.rankings[heads].top(1)[0] for heads, name in study.finding.items() if heads in sets and name in letters
    ]
    if study.universal is not None:
        singles += study.universal.heads
    sets |= {str(head): [head] for head in dict.fromkeys(singles)}
    found = measure_formats(list(map(study.column, letters)), list(map(study.column, full)), sets, seed=study.seed)
    frame = found.to_frame().rename(columns={"found": "named"})
    return [
        Output(
            "format",
            "questions answered by a letter and in full, by heads off",
            frame,
            drawing(plot_format_heads, found),
        ),
        Output("format-published", f"the same in {published.CS_SOURCE} and smaller ones", _published_formats()),
    ]


def _published_formats() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {"model": model, "heads": heads, **scores} for (model, heads), scores in published.KNOWLEDGE.items()
    )


STEPS: tuple[Step, ...] = (
    Step("find", "search over designs; heads of every capability, universal ones put last", _find, needs.find_cost),
    Step(
        "universal",
        "heads that everything needs, and how the failure looks",
        _universal,
        needs.universal_cost,
        needs.has_universal,
    ),
    Step("drops", "every set of heads on every task", _drops, lambda s: evaluations(s, s.tasks, 1 + len(s.finding))),
    Step("proof", "random heads beside the heads found", _proof, lambda s: evaluations(s, s.finding.values(), 10)),
    Step("scale", "models side by side", _scale, free, keeps=False),
    Step("sparsity", "the score by number of heads off", _sparsity, needs.sparsity_cost),
    Step(
        "generalisation",
        "other tasks of the capability",
        _generalisation,
        needs.generalisation_cost,
        needs.has_siblings,
    ),
    Step("overlap", "heads in common", _overlap, free, needs.two_sets),
    Step("formats", "form of a question and knowledge", _formats, needs.formats_cost, needs.has_forms),
    Step("methods", "methods side by side", _methods, needs.methods_cost),
)
"""The protocol, in order."""
