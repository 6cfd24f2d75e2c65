"""The same study on several models: how far a capability is localized, and at which depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import t as student

from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.result import Result
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.analysis.verdict import is_localized
from cs_heads.arguments import check_integer, check_mapping, check_path
from cs_heads.drawable import Drawable
from cs_heads.files import read_json
from cs_heads.lens import check_weights
from cs_heads.ranking import HeadRanking
from cs_heads.record import json_ready, read_as


@dataclass(frozen=True, eq=False)
class Study:
    """A ranking, its proof on unseen examples, and the curve of its first heads, as far as they were made.

    Attributes:
        ranking: The heads of one model.
        proof: What ``confirm`` says of them (None: not made).
        curve: What ``sparsity_curve`` says of them (None: not made).
    """

    ranking: HeadRanking
    proof: Confirmation | None = None
    curve: SparsityCurve | None = None


@dataclass(frozen=True, eq=False)
class ModelScale:
    """One model: where its heads lie, and how much rests on them.

    ``localization`` is the share of the score above chance that is lost with the top heads off, less what random heads
    of the same layers take of it: 1 where everything rests on the top heads and 0 where they are like any others.
    ``interval`` is its 95 % interval, over the examples (``TaskDrop.loss_interval``) and over the random sets
    (Student's, for their mean; squared and added). Both are None where the baseline is too low. ``half`` is the number
    of heads that take half of the score above chance. ``effective`` is the number of heads that would share the
    positive importance evenly: (Σ importance)² / Σ importance². ``profile`` is the share of that importance in each
    layer.
    """

    name: str
    ranking: HeadRanking = field(repr=False)
    n_ablated: int | None
    baseline: float | None
    localization: float | None
    interval: tuple[float, float] | None
    verdict: str | None
    half: int | None
    effective: float
    profile: Float[np.ndarray, " layer"]

    @property
    def localized(self) -> bool:
        """Whether the top heads do more harm than random ones: the verdict is localized, specific or shared."""
        return is_localized(self.verdict)

    @property
    def depths(self) -> Float[np.ndarray, " layer"]:
        """The middle of each layer as a share of the model's depth, in (0, 1)."""
        return (np.arange(len(self.profile)) + 0.5) / len(self.profile)

    @property
    def mean_depth(self) -> float:
        """Where the importance lies on average; 0 is the first layer, 1 the last."""
        return float(self.profile @ self.depths)

    @property
    def spread(self) -> float:
        """The standard deviation of that depth."""
        return float(np.sqrt(self.profile @ (self.depths - self.mean_depth) ** 2))

    def shares(self, bins: int) -> Float[np.ndarray, " bin"]:
        """The profile in ``bins`` parts of equal depth, so that models of different depth can be compared.

        A layer that lies across the border of two parts is divided.
        """
        edges, layers = np.linspace(0, 1, bins + 1), np.linspace(0, 1, len(self.profile) + 1)
        reached = np.interp(edges, layers, np.concatenate([[0.0], np.cumsum(self.profile)]))
        shares: Float[np.ndarray, " bin"] = np.diff(reached)
        return shares


@dataclass(frozen=True, eq=False, repr=False)
class ScaleStudy(Result, Drawable, picture="scale_study"):
    """The same study on several models, in order.

    Attributes:
        models: What is found on each.
        k: Top heads of each ranking that make its profile (None: all); shared heads never count.
        provenance: What each model's ranking says of its origin, by the model's name.
        spent, notes: Of every result; nothing is measured.
    """

    models: tuple[ModelScale, ...]
    k: int | None = None

    def to_frame(self) -> pd.DataFrame:
        """One row per model: its grid, the localization index with its interval, heads for half of the score, depth."""
        return pd.DataFrame(
            {
                "model": m.name,
                "task": m.ranking.provenance.get("task", {}).get("name"),
                "method": m.ranking.method,
                "layers": m.ranking.grid.n_layers,
                "heads": m.ranking.grid.size,
                "ablated": m.n_ablated,
                "baseline": m.baseline,
                "localization": m.localization,
                "low": None if m.interval is None else m.interval[0],
                "high": None if m.interval is None else m.interval[1],
                "verdict": m.verdict,
                "heads for half": m.half,
                "share for half": None if m.half is None else m.half / m.ranking.grid.size,
                "effective heads": m.effective,
                "mean depth": m.mean_depth,
                "depth spread": m.spread,
            }
            for m in self.models
        )

    def profiles(self) -> pd.DataFrame:
        """One row per (model, layer): the share of importance there, by the depth of the layer."""
        return pd.DataFrame(
            {"model": m.name, "depth": depth, "share": share}
            for m in self.models
            for depth, share in zip(m.depths, m.profile, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """The whole result, JSON-ready."""
        rows = json_ready(self.to_frame().to_dict("records"))
        models = [{**row, "profile": m.profile.tolist()} for row, m in zip(rows, self.models, strict=True)]
        return {"k": self.k, "models": models, "provenance": self.provenance}


def scale_study(studies: Mapping[str, Study | HeadRanking | str | Path], *, k: int | None = None) -> ScaleStudy:
    """Put models side by side: how far a capability is localized in each, and at which depth. Nothing is measured.

    Args:
        studies: By the name of each model a ``Study``, a ranking alone, or the folder that ``cs-heads find --out``
            wrote (``ranking.json``, ``result.json``, ``curve.json``).
        k: Heads of each ranking that profile and effective heads are of, where the rest is noise (None: all); shared
            heads never count.

    Returns:
        The models in the given order: ``to_frame()`` has one row a model with its localization index and depth,
        ``profiles()`` the share of importance by depth.

    Raises:
        ValueError: No study, a folder without a ranking, or a ranking without a head of positive importance.
    """
    if not check_mapping("studies", studies, "a Study, a ranking or a folder by the name of each model"):
        raise ValueError("studies must hold one study or more")
    models = tuple(_model(name, _read(study), k) for name, study in studies.items())
    return ScaleStudy(models, k, provenance={m.name: m.ranking.provenance for m in models})


def _read(study: Study | HeadRanking | str | Path) -> Study:
    if isinstance(study, Study | HeadRanking):
        study = study if isinstance(study, Study) else Study(study)
        for part in (study.proof, study.curve):
            if part is not None:
                check_weights("parts of a study", *(each.provenance.get("model") for each in (study.ranking, part)))
        return study
    folder = check_path("study", study)
    if not (folder / "ranking.json").is_file():
        raise ValueError(f"folder {str(folder)!r} holds no ranking.json, which cs-heads find --out writes")
    result, curve = (
        read_json(path, "path") if (path := folder / name).is_file() else None for name in ("result.json", "curve.json")
    )
    proof = result.get("confirm") if isinstance(result, dict) else result
    return Study(
        HeadRanking.load(folder / "ranking.json"),
        read_as(f"confirm of {str(folder / 'result.json')!r}", proof, Confirmation | None),
        read_as(f"path {str(folder / 'curve.json')!r}", curve, SparsityCurve | None),
    )


def _model(name: str, study: Study, k: int | None) -> ModelScale:
    ranking, proof, curve = study.ranking, study.proof, study.curve
    weights = np.where(ranking.grid.mask(ranking.shared), 0.0, np.maximum(ranking.importance, 0.0))
    if k is not None:
        check_integer("k", k, 1, ranking.grid.size, f"the heads of {name!r}")
        weights = np.where(ranking.grid.mask(ranking.top(k)), weights, 0.0)
    if not weights.any():
        raise ValueError(f"study {name!r} has no head of positive importance that is not shared")
    localization, interval = (None, None) if proof is None else _localization(proof)
    return ModelScale(
        name=name,
        ranking=ranking,
        n_ablated=None if proof is None else len(proof.heads),
        baseline=None if proof is None else proof.result.baseline,
        localization=localization,
        interval=interval,
        verdict=None if proof is None else proof.verdict,
        half=None if curve is None else curve.heads_for(0.5),
        effective=float(weights.sum() ** 2 / (weights**2).sum()),
        profile=weights.sum(axis=1) / weights.sum(),
    )


def _localization(proof: Confirmation) -> tuple[float | None, tuple[float, float] | None]:
    """The index and its interval; None where no loss is known, or no interval of it."""
    lost, bounds = proof.result.loss, proof.result.loss_interval
    if np.isnan(lost):
        return None, None
    above = proof.result.baseline - proof.result.chance
    sets = np.array(proof.random_drops) / above
    index = float(lost - proof.random_drop / above)
    if np.isnan(bounds).any():
        return index, None
    apart = float(student.ppf(0.975, len(sets) - 1) * sets.std(ddof=1) / np.sqrt(len(sets))) if len(sets) > 1 else 0.0
    below, beyond = (float(np.hypot(lost - bound, apart)) for bound in bounds)
    return index, (index - below, index + beyond)
