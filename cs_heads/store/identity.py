"""What can change the number of one mask on one example: the study of a store, the scoring, the example."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypedDict

from typing_extensions import NotRequired

from cs_heads.lens import EncodedExample, describe, prepended, settings_of
from cs_heads.lens.model import HookedModel, ModelInfo, ModelSettings, without_place
from cs_heads.settings import Settings
from cs_heads.store.store import UNSAID
from cs_heads.tasks import Task
from cs_heads.units import Grid

MEASURE = 1
"""Raised by a release in which the same mask on the same example may give another number."""

Study = TypedDict(
    "Study",
    {
        "model": str,
        "revision": str | None,
        "class": str,
        "grid": list[int],
        "dtype": str,
        "weights": str,
        "settings": ModelSettings,
        "hook": str,
        "units": NotRequired[str],
        "positions": NotRequired[str],
        "ablation": str,
        "prepend_bos": bool | list[str],
        "measure": int,
    },
)
"""What all results of one store have in common."""


def study_of(model: HookedModel | ModelInfo, settings: Settings) -> Study:
    """What all results of one store have in common, JSON-ready; the model's part without its folder's place.

    In the order in which differences are reported: a model of another dtype has other weights, too. ``revision`` is
    None for a folder, and for a HookedTransformer, which does not keep it; those differ by ``weights``, bit by bit.

    Raises:
        ValueError: Hooks stand on the model, and no key holds what they do, or some of its weights are not in memory.
    """
    described = describe(model, anew=True)
    hooks, weights = described.get("hooks", []), described["weights"]
    if hooks:
        raise ValueError(
            f"store must be None while hooks stand on the model ({', '.join(hooks[:3])}): results under them are of "
            "another ablation; remove them, or measure without a store"
        )
    if weights is None:
        raise ValueError(
            f"store must be None for model {described['name']}, some of whose weights are not in memory: they cannot "
            "be distinguished from others"
        )
    study: Study = {
        # The weights say whether it is the same model.
        "model": without_place(described["name"]),
        "revision": described["revision"],
        "class": described["class"],
        "grid": list(Grid.from_model(model, settings.units).shape),
        "dtype": described["dtype"],
        "weights": weights,
        "settings": settings_of(model),
        "hook": "blocks.{layer}.attn.hook_z",
        "ablation": settings.ablation,
        "prepend_bos": prepended(getattr(model, "tokenizer", None), settings.prepend_bos),
        "measure": MEASURE,
    }
    if settings.units != UNSAID["units"]:
        study["units"] = settings.units
    if settings.positions != UNSAID["positions"]:
        study["positions"] = settings.positions
    return study


def scoring_identity(task: Task, what: str, ablation: str, keys: Sequence[str]) -> dict[str, Any]:
    """How the examples of a task are measured, JSON-ready; ``what`` is ``"score"``, ``"logprob"`` or ``"text"``.

    A text does not depend on its scorer. What mean and resample ablation put in a head's place comes from all
    the task's examples: they are part of it, by their ``keys``.
    """
    return {
        "what": what,
        **(task.scoring if what == "score" else {}),
        **({} if ablation == "zero" else {"replacement": _hash([ablation, *keys])}),
    }


def example_identities(task: Task, encoded: Sequence[EncodedExample]) -> list[str]:
    """A hash for each example of everything in it: tokens, texts, answer and where it is read."""
    return [
        _hash([example.identity, tokens.prompt, tokens.continuations, *tokens.prompts])
        for example, tokens in zip(task.examples, encoded, strict=True)
    ]


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
