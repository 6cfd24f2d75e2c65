"""What can change what a model says under one mask on one example: the study of a store, the settings, the example."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from cs_heads.lens import EncodedExample, describe, prepended, settings_of
from cs_heads.lens.model import HookedModel, ModelInfo, without_place
from cs_heads.settings import Settings
from cs_heads.units import Grid

MEASURE = 1
"""Raised by a release in which the same mask on the same example may give another number."""


def study_of(model: HookedModel | ModelInfo, settings: Settings) -> dict[str, Any]:
    """What all results of one store have in common, JSON-ready; the model's part without its folder's place.

    In the order in which differences are reported: a model of another dtype has other weights, too. ``revision`` is
    None for a folder, and for a HookedTransformer, which does not keep it; those differ by ``weights``, bit by bit.

    Raises:
        ValueError: Hooks stand on the model, and no key holds what they do, or some of its weights are not in memory.
    """
    described = describe(model, anew=True)
    hooks, weights = described.get("hooks", []), described["weights"]
    if hooks:
        stand = f"hooks stand on the model ({', '.join(hooks[:3])})"
        raise ValueError(f"store must be None while {stand}: under them a mask is another ablation; remove them")
    if weights is None:
        where = f"model {described['name']}, some of whose weights are not in memory"
        raise ValueError(f"store must be None for {where}: they cannot be distinguished from others")
    return {
        "units": settings.units,
        "positions": settings.positions,
        # The weights say whether it is the same model.
        "model": without_place(described["name"]),
        "revision": described["revision"],
        "class": described["class"],
        "grid": list(Grid.from_model(model, settings.units).shape),
        "dtype": described["dtype"],
        "weights": weights,
        "settings": settings_of(model),
        "ablation": settings.ablation,
        "prepend_bos": prepended(getattr(model, "tokenizer", None), settings.prepend_bos),
        "measure": MEASURE,
    }


def example_identities(encoded: Sequence[EncodedExample]) -> list[str]:
    """A hash for each example of what the model is asked: its tokens, and where they are read."""
    return [_hash([tokens.prompt, tokens.continuations, tokens.positions, *tokens.prompts]) for tokens in encoded]


def replacement_of(ablation: str, examples: Sequence[str], answers: Sequence[int]) -> dict[str, str]:
    """What an ablated head becomes, JSON-ready: all but zero is of all the task's examples and right answers."""
    # Raised where a replacement is another: 2 counts places from the end of each choice's own prompt.
    return {} if ablation == "zero" else {"replacement": _hash([2, ablation, *zip(examples, answers, strict=True)])}


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
