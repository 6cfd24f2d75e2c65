"""Numbers that the papers report, with their sources; what could not be verified is left out.

Bair et al. (arXiv 2603.03335): what the plotting scripts of their public code (locuslab/llm-components) draw: figure 1
with the rows of the other capabilities, the curve over the number of heads, and the bars of hazardous knowledge.
Other numbers of their tables are not here. Nam et al. (arXiv 2505.13737): table 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cs_heads.reproduce.papers import CS

CODE = "public plotting code of arXiv 2603.03335"
CS_SOURCE = f"figure 1 and {CODE}; Llama 3.1 8B Instruct"
HEADS_SOURCE = "heads of the README of the public code of arXiv 2603.03335"
CHG_SOURCE = "arXiv 2505.13737, table 2"

# The tasks of figure 1.
_TASKS = tuple(task.name for task in CS.tasks[:10])


def _row(tasks: tuple[str, ...], *values: float) -> dict[str, float]:
    return dict(zip(tasks, values, strict=True))


INTACT = _row(_TASKS, 0.7847, 0.8530, 0.5840, 0.6829, 0.7931, 0.8413, 0.5520, 0.6800, 1.0, 0.6549)
"""Score with no head ablated, by task."""

OFF: Mapping[str, Mapping[str, float]] = {
    "math": _row(_TASKS, 0.3010, 0.2088, 0.5440, 0.5793, 0.7794, 0.8269, 0.5529, 0.6639, 0.8177, 0.6372),
    "code": _row(_TASKS, 0.7331, 0.9050, 0.4240, 0.5000, 0.7789, 0.8303, 0.5154, 0.6624, 0.8281, 0.6637),
    "swear": _row(_TASKS, 0.7559, 0.8608, 0.5840, 0.6951, 0.7868, 0.8425, 0.5478, 0.6733, 0.1458, 0.6549),
    "rhyme": _row(_TASKS, 0.6937, 0.8648, 0.5320, 0.5488, 0.7616, 0.8278, 0.5094, 0.6540, 0.8333, 0.3097),
}
"""Score with the five heads of a capability ablated, by heads and task."""

CURVE: Mapping[str, tuple[float, ...]] = {
    "gsm8k": (0.7847, 0.5042, 0.4784, 0.4466, 0.3889, 0.301, 0.3063, 0.3093, 0.2002, 0.1865, 0.1569),
    "arithmetic": (0.853, 0.2844, 0.2618, 0.2769, 0.2063, 0.2088, 0.2104, 0.2007, 0.215, 0.2172, 0.2082),
    "General": (0.7166, 0.7168, 0.7159, 0.7126, 0.7120, 0.7058, 0.7043, 0.7046, 0.6921, 0.6923, 0.6896),
    "Code": (0.6335, 0.6202, 0.6223, 0.6253, 0.6172, 0.5617, 0.5576, 0.5647, 0.5617, 0.5648, 0.5527),
}
"""Score with the first 0, 1, ..., 10 math heads ablated; General and Code are means of suites."""

_KNOWLEDGE = ("wmdp_bio", "wmdp_chem", "wmdp_cyber", "mmlu", "General")
KNOWLEDGE: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "Llama-3.1-8B": {
        "none": _row(_KNOWLEDGE, 0.7251, 0.5319, 0.4585, 0.6800, 0.7288),
        "bio": _row(_KNOWLEDGE, 0.7196, 0.5441, 0.4509, 0.6579, 0.7223),
        "chem": _row(_KNOWLEDGE, 0.7109, 0.5000, 0.4459, 0.6600, 0.7276),
        "cyber": _row(_KNOWLEDGE, 0.7235, 0.5196, 0.4328, 0.6616, 0.7226),
    },
    "Llama-3.2-3B": {
        "none": _row(_KNOWLEDGE, 0.6449, 0.4510, 0.4071, 0.6038, 0.6509),
        "L0H14": _row(_KNOWLEDGE, 0.2341, 0.2475, 0.2557, 0.2371, 0.6294),
        "L0H16": _row(_KNOWLEDGE, 0.2435, 0.2623, 0.2557, 0.2451, 0.6465),
    },
    "Llama-3.2-1B": {
        "none": _row(_KNOWLEDGE, 0.5648, 0.4363, 0.3644, 0.4588, 0.5611),
        "L0H22": _row(_KNOWLEDGE, 0.2600, 0.2598, 0.2235, 0.2455, 0.5564),
    },
}
"""By model and heads off the score on questions answered by a letter; General is of HellaSwag, BoolQ and ARC."""

HEADS: Mapping[str, Mapping[str, tuple[str, ...]]] = {"Llama-3.1-8B": {"math": ("L16H21", "L15H13")}}
"""By model the heads of a capability that could be read: two that the public code's README turns off for GSM8K.

The lists of their appendix D could not be read here.
"""


def knowledge_of(model: str) -> tuple[str, Mapping[str, Mapping[str, float]]]:
    """The model whose published bars stand beside a model's, and these: its own, or those of Llama 3.1 8B.

    Args:
        model: Name of the model at hand.
    """
    name = _known(model, KNOWLEDGE) or next(iter(KNOWLEDGE))
    return name, KNOWLEDGE[name]


def heads_of(model: str) -> Mapping[str, tuple[str, ...]]:
    """Published heads of a model by capability; empty for another model.

    Args:
        model: Name of the model at hand.
    """
    name = _known(model, HEADS)
    return {} if name is None else HEADS[name]


def _known(model: str, names: Iterable[str]) -> str | None:
    return next((name for name in names if name.lower() in model.lower()), None)


GATED_MODELS = ("Llama 3.2 1B", "Llama 3.2 3B", "Llama 3.2 3B Instruct", "Llama 3.1 8B")
GATED: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("syntax", "always"): (0.012, 0.015, 0.007, 0.014),
    ("syntax", "any"): (0.721, 0.679, 0.728, 0.685),
    ("common sense", "always"): (0.039, 0.045, 0.030, 0.187),
    ("common sense", "any"): (0.566, 0.754, 0.682, 0.603),
    ("math", "always"): (0.383, 0.246, 0.183, 0.253),
    ("math", "any"): (0.811, 0.751, 0.744, 0.750),
}
"""Share of heads that facilitate (score .5 or more) in every seed and in any, by task; models as ``GATED_MODELS``."""
