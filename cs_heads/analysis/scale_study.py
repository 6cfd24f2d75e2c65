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
from cs_heads.analysis.intervals import UNKNOWN, Interval
from cs_heads.analysis.result import Result
from cs_heads.analysis.sparsity import SparsityCurve
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

    Attributes:
        name: Of the model.
        study: What was found on it.
        weights: The importance of each head that counts, where it is above zero.
    """

    name: str
    study: Study = field(repr=False)
    weights: Float[np.ndarray, "layer head"] = field(repr=False)

    @property
    def localized(self) -> bool:
        """Whether the top heads do more harm than random ones: the verdict is localized, specific or shared."""
        return self.study.proof is not None and self.study.proof.localized

    @property
    def localization(self) -> float:
        """The share of the score above chance that is lost with the top heads off, less what random heads take of it.

        As in every difference each counts from 0 to 1.

        It is 1 where everything rests on the top heads and 0 where they are like any others; NaN where there is no
        proof, or the baseline is too low.
        """
        proof = self.study.proof
        if proof is None or np.isnan(proof.result.loss):
            return np.nan
        lost, by_random = proof.result.loss, proof.random.drop / proof.result.above_chance
        return min(max(lost, 0.0), 1.0) - min(max(by_random, 0.0), 1.0)

    @property
    def interval(self) -> Interval:
        """The 95 % interval of ``localization``; NaN where it is not known.

        It is over the examples (``TaskDrop.loss_interval``) and over the random sets (Student's, for their mean;
        squared and added).
        """
        index, proof = self.localization, self.study.proof
        if proof is None or np.isnan(index):
            return UNKNOWN
        sets, apart = np.array(proof.random.drops) / proof.result.above_chance, 0.0
        if len(sets) > 1:
            apart = float(student.ppf(0.975, len(sets) - 1) * sets.std(ddof=1) / np.sqrt(len(sets)))
        below, beyond = (float(np.hypot(proof.result.loss - bound, apart)) for bound in proof.result.loss_interval)
        return index - below, index + beyond

    @property
    def half(self) -> int | None:
        """The number of heads that take half of the score above chance; None where it is not known."""
        return None if self.study.curve is None else self.study.curve.heads_for(0.5)

    @property
    def effective(self) -> float:
        """The number of heads that would share the positive importance evenly: (Σ importance)² / Σ importance²."""
        return float(self.weights.sum() ** 2 / (self.weights**2).sum())

    @property
    def profile(self) -> Float[np.ndarray, " layer"]:
        """The share of the positive importance in each layer."""
        return self.weights.sum(axis=1) / self.weights.sum()

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
        rows = []
        for m in self.models:
            ranking, proof, size = m.study.ranking, m.study.proof, m.study.ranking.grid.size
            rows.append(
                {
                    "model": m.name,
                    "task": ranking.provenance.get("task", {}).get("name"),
                    "method": ranking.method,
                    "layers": ranking.grid.n_layers,
                    "heads": size,
                    "ablated": None if proof is None else len(proof.heads),
                    "baseline": None if proof is None else proof.result.baseline,
                    **dict(zip(("localization", "low", "high"), (m.localization, *m.interval), strict=True)),
                    "verdict": None if proof is None else proof.verdict,
                    "heads for half": m.half,
                    "share for half": None if m.half is None else m.half / size,
                    "effective heads": m.effective,
                    "mean depth": m.mean_depth,
                    "depth spread": m.spread,
                }
            )
        return pd.DataFrame(rows)

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
    return ScaleStudy(models, k, provenance={m.name: m.study.ranking.provenance for m in models})


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
    ranking = study.ranking
    weights = np.where(ranking.grid.mask(ranking.shared), 0.0, np.maximum(ranking.importance, 0.0))
    if k is not None:
        check_integer("k", k, 1, ranking.grid.size, f"the heads of {name!r}")
        weights = np.where(ranking.grid.mask(ranking.top(k)), weights, 0.0)
    if not weights.any():
        raise ValueError(f"study {name!r} has no head of positive importance that is not shared")
    return ModelScale(name, study, weights)
