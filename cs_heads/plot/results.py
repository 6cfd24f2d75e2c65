"""The one picture of each kind of result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cs_heads.analysis.attention import HeadAttention
from cs_heads.analysis.comparison import Comparison
from cs_heads.analysis.contrast import HeldOutContrasts
from cs_heads.analysis.drops import TaskDrops
from cs_heads.analysis.failures import FailureModes
from cs_heads.analysis.formats import FormatHeads
from cs_heads.analysis.gating import GroupTest
from cs_heads.analysis.overlap import Overlap
from cs_heads.analysis.proof import Confirmation
from cs_heads.analysis.scale import ScaleStudy
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.analysis.taxonomy import Taxonomy
from cs_heads.analysis.universal import UniversalHeads
from cs_heads.arguments import in_line
from cs_heads.methods.gating.result import HeadGates
from cs_heads.plot import attention_patterns, bars, curves, gates, maps, squares
from cs_heads.ranking import HeadRanking

PICTURES: dict[type, Callable[..., Any]] = {
    HeadRanking: maps.heads,
    HeadGates: maps.roles,
    HeadAttention: attention_patterns.last_token,
    Comparison: curves.comparison,
    Confirmation: bars.confirmation,
    SparsityCurve: curves.sparsity,
    ScaleStudy: curves.scale,
    TaskDrops: bars.specificity,
    FailureModes: bars.failures,
    HeldOutContrasts: bars.contrasts,
    FormatHeads: squares.format_heads,
    Overlap: squares.overlap,
    UniversalHeads: squares.universal,
    Taxonomy: gates.taxonomy,
    GroupTest: gates.group,
}


def show(result: Any, **options: Any) -> Any:
    """Draw the picture that a kind of result is usually drawn by; ``result.plot()`` is the same.

    Args:
        result: a ranking, a comparison, a confirmation, a curve, or another result of the library.
        options: those of its drawing function, such as ``k`` for a ranking (``cs.plot.heads``).

    Returns:
        What that function returns: axes, several axes, or a figure.

    Raises:
        ValueError: for anything that has no picture.
    """
    draw = PICTURES.get(type(result))
    if draw is None:
        kinds = ", ".join(kind.__name__ for kind in PICTURES)
        raise ValueError(f"result must be one of {kinds}, got {in_line(result)}")
    return draw(result, **options)
