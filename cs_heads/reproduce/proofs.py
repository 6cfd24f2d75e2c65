"""Heads of a model proven on unseen examples, and beside those of other models (Bair et al., arXiv 2603.03335)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cs_heads.plot.drawing import drawing
from cs_heads.reproduce.outputs import Output, measured
from cs_heads.reproduce.reproduction import Reproduction, evaluations

if TYPE_CHECKING:
    from cs_heads.analysis.confirm import Confirmation


def prove(study: Reproduction) -> list[Output]:
    """Every set of heads beside random heads of the same layers."""
    import pandas as pd

    rows = []
    for heads in study.rankings:
        proof = _proof(study, heads)
        row: dict[str, Any] = {"heads": heads, "task": study.finding[heads], "ablated": " ".join(map(str, proof.heads))}
        kept = ("baseline", "score", "drop", "random_drop", "p", "verdict")
        rows.append(row | {name: proof.to_dict()[name] for name in kept})
    about = "the heads on unseen examples, beside random heads of the same layers"
    return [Output("proof", about, measured(study, pd.DataFrame(rows)))]


def _proof(study: Reproduction, heads: str) -> Confirmation:
    """Measured, or read from the store; ranking, proof and curve are kept as ``cs-heads find --out`` writes them."""
    from cs_heads.analysis.confirm import confirm
    from cs_heads.analysis.sparsity import measure_sparsity
    from cs_heads.report.findings import CURVE, RESULT

    name = study.finding[heads]
    proof = confirm(
        study.model,
        study.tasks[name],
        study.top(heads),
        exclude=study.rankings[heads].shared,
        controls=None,  # what the heads take from other tasks is a step of its own
        n=len(study.unseen(name)),
        seed=study.seed,
        progress=study.progress,
        store=study.store,
    )
    ranking, folder = study.rankings[heads], study.folder(heads)
    curve = measure_sparsity([study.column(name, "own")], ranking.top(study.settings.most), study.seed)
    result = {"task": name, "confirm": proof.to_dict(), "half": curve.heads_for(0.5)}
    folder.mkdir(parents=True, exist_ok=True)
    ranking.save(folder / "ranking.json")
    for file, record in ((RESULT, result), (CURVE, curve.to_dict())):
        (folder / file).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return proof


def scale(study: Reproduction) -> list[Output]:
    """This model's first heads beside those of the same name of other models.

    A model whose folder has none, or whose ranking cannot stand beside others, is left out with the reason.
    """
    from cs_heads.analysis.scale import scale_study
    from cs_heads.plot.scale import plot_depth_profiles, plot_scale

    _proof(study, study.first)
    folders = {study.name: study.folder(study.first)}
    folders |= {name: folder / "study" / study.first for name, folder in study.beside.items()}
    usable: dict[str, Path] = {}
    for name, folder in folders.items():
        try:
            scale_study({name: folder}, k=study.settings.most)
        except ValueError as error:
            study.left_out[f"scale of {name}"] = str(error)
            continue
        usable[name] = folder
    if not usable:
        return []
    found = scale_study(usable, k=study.settings.most)
    about = f"{study.first} heads of each model: how much rests on them, and at which depth"
    return [
        Output("scale", about, found.to_frame(), drawing(plot_scale, found)),
        Output("depth", "share of importance by depth", found.profiles(), drawing(plot_depth_profiles, found)),
    ]


def proof_cost(study: Reproduction) -> dict[str, int]:
    """The heads, none, eight random sets, and the curve of the first heads."""
    return evaluations(study, study.finding.values(), 10 + study.settings.most)


def scale_cost(study: Reproduction) -> dict[str, int]:
    """The proof of the first heads, should it not be there; another set may come first where tasks are left out."""
    return proof_cost(study)
