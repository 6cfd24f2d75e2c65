"""Numbers that the papers report, with their sources; what could not be verified is left out.

Bair et al. (arXiv 2603.03335): what the plotting scripts of their public code (locuslab/llm-components) draw: figure 1
with the rows of the other capabilities, the curve over the number of heads, and the bars of hazardous knowledge.
Other numbers of their tables are not here. Nam et al. (arXiv 2505.13737): table 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cs_heads.files import read_json

CODE = "public plotting code of arXiv 2603.03335"
CS_SOURCE = f"figure 1 and {CODE}; Llama 3.1 8B Instruct"
HEADS_SOURCE = "heads of the README of the public code of arXiv 2603.03335"
CHG_SOURCE = "arXiv 2505.13737, table 2"

_READ: dict[str, Any] = read_json(Path(__file__).with_suffix(".json"), "published numbers")

INTACT: Mapping[str, float] = _READ["intact"]
"""Score with no head ablated, by task of figure 1."""
OFF: Mapping[str, Mapping[str, float]] = _READ["off"]
"""Score with the five heads of a capability ablated, by heads and task."""
CURVE: Mapping[str, list[float]] = _READ["curve"]
"""Score with the first 0, 1, ..., 10 math heads ablated; General and Code are means of suites."""
KNOWLEDGE: Mapping[str, Mapping[str, Mapping[str, float]]] = _READ["knowledge"]
"""By model and heads off the score on questions answered by a letter; General is of HellaSwag, BoolQ and ARC."""
HEADS: dict[str, Mapping[str, list[str]]] = _READ["heads"]
"""By model the heads of a capability that could be read: two that the public code's README turns off for GSM8K.

The lists of their appendix D could not be read here.
"""
GATED_MODELS = ("Llama 3.2 1B", "Llama 3.2 3B", "Llama 3.2 3B Instruct", "Llama 3.1 8B")
GATED = {(task, heads): shares for task, rows in _READ["gated"].items() for heads, shares in rows.items()}
"""Share of heads that facilitate (score .5 or more) in every seed and in any, by task; models as ``GATED_MODELS``."""


def knowledge_of(model: str) -> tuple[str, Mapping[str, Mapping[str, float]]]:
    """The model whose published bars stand beside a model's, and these: its own, or those of Llama 3.1 8B.

    Args:
        model: Name of the model at hand.
    """
    name = _known(model, KNOWLEDGE) or next(iter(KNOWLEDGE))
    return name, KNOWLEDGE[name]


def heads_of(model: str) -> Mapping[str, list[str]]:
    """Published heads of a model by capability; empty for another model.

    Args:
        model: Name of the model at hand.
    """
    name = _known(model, HEADS)
    return {} if name is None else HEADS[name]


def _known(model: str, names: Iterable[str]) -> str | None:
    return next((name for name in names if name.lower() in model.lower()), None)
