"""How good a whole ranking and its intervals are, where the heads are known."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from sklearn.metrics import roc_auc_score

import cs_heads as cs
from cs_heads.units import Head

from .gating import right
from .suite import TrueModel

N_FRESH, FRESH = 500, 1_000_000
"""Prompts that say what a head takes alone, and the seed that draws them, which is that of no model."""


def auc(found: cs.HeadRanking, known: Collection[Head], decoys: Collection[Head]) -> float:
    """The share of pairs of a known head and a decoy in which the known one stands first; ties count half.

    Chosen heads stand first, then those named as shared, which tie, then the others by z, else by importance; heads
    that were off throughout are last. NaN without known heads.
    """
    if not known:
        return float("nan")
    merit = found.importance if found.z is None else found.z
    standing: dict[Head, tuple[int, float]] = {}
    for head in [*known, *decoys]:
        standing[head] = (0, 0.0) if head in found.off else (1, float(merit[head.layer, head.index]))
    standing |= {head: (2, 0.0) for head in found.shared if head in standing}
    standing |= {head: (3, -float(i)) for i, head in enumerate(found.chosen) if head in standing}
    places = {each: place for place, each in enumerate(sorted(set(standing.values())))}
    return float(roc_auc_score([head in known for head in standing], [places[standing[head]] for head in standing]))


def coverage(made: TrueModel, found: cs.HeadRanking) -> dict[str, int]:
    """How many intervals of known heads and of others there are, and how many hold what the head takes alone.

    That is measured by hand on fresh prompts for known heads; others take nothing. Only of rankings in score lost.
    """
    counts = dict.fromkeys(("intervals", "held", "other_intervals", "other_held"), 0)
    if found.interval is None or found.unit != "score lost":
        return counts
    for layer, index in np.argwhere(np.isfinite(found.interval[..., 0])):
        head, (low, high) = Head(int(layer), int(index)), found.interval[layer, index]
        known = head in made.known
        loss = 1 - right(made, 0, [head], N_FRESH, FRESH).mean() if known else 0.0
        side = "" if known else "other_"
        counts[f"{side}intervals"] += 1
        counts[f"{side}held"] += low - 1e-9 <= loss <= high + 1e-9
    return counts
