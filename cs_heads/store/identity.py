"""What can change a number, and what cannot: every field of every call, in one table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypedDict

from cs_heads.lens import EncodedExample, describe, fingerprint, prepended, settings_of
from cs_heads.lens.model import HookedModel, ModelInfo, ModelSettings, hooked_points
from cs_heads.settings import Kind, Settings
from cs_heads.tasks import Task
from cs_heads.units import HeadGrid

MEASURE = 1
"""Raised by a release in which the same mask on the same example may give another number."""

# Of every call that runs a model.
_CALL: dict[str, Kind] = {"model": "identity", **Settings.kinds()}
# Of every method.
_SEARCH: dict[str, Kind] = {"experiment": "identity", "budget": "design", "seed": "design"}
# Of those that fit gates: seeds and steps, which a budget cuts, make other gates.
_GATING: dict[str, Kind] = dict.fromkeys(
    ("experiment", "n_seeds", "steps", "batch_size", "strength", "budget", "seed"), "identity"
)


def _designed(*names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, "design")


FIELDS: dict[str, dict[str, Kind]] = {
    "Experiment": {**_CALL, "task": "identity"},
    "Settings": Settings.kinds(),
    "find_heads": {
        **_CALL,
        "task": "identity",
        **_designed("method", "controls", "off", "k", "budget", "seed", "options"),
    },
    "confirm": {
        **_CALL,
        "task": "identity",
        **_designed("heads", "k", "exclude", "controls", "off", "n", "n_random", "seed"),
    },
    "compare": {
        **_CALL,
        "task": "identity",
        **_designed("methods", "budget", "k", "max_heads", "n", "n_random", "controls", "contrast", "options", "seed"),
    },
    "specificity": {
        **_CALL,
        "tasks": "identity",
        **_designed("heads", "k", "controls", "siblings", "suites", "n", "seed"),
    },
    "sparsity_curve": {
        **_CALL,
        "task": "identity",
        **_designed("heads", "siblings", "controls", "suites", "max_heads", "n", "n_random", "seed"),
    },
    "format_heads": {
        **_CALL,
        "letters": "identity",
        "full": "identity",
        **_designed("candidates", "controls", "k", "n", "seed"),
    },
    "failures": {
        **_CALL,
        **dict.fromkeys(("task", "max_new_tokens", "stop"), "identity"),
        **_designed("heads", "k", "n", "texts"),
    },
    "held_out_contrasts": {
        **_CALL,
        **dict.fromkeys(("formats", "steps", "batch_size", "seed"), "identity"),
        **_designed("held_out", "n"),
    },
    "swearing_prompts": {**_CALL, "task": "identity"},
    "toggle_curves": {"experiment": "identity", "gates": "identity", **_designed("max_heads", "n_points")},
    "fit_gates": _GATING,
    "causal_head_gating": {**_GATING, "controls": "design"},
    "contrastive_gating": {**_GATING, "forget": "identity"},
    "gradient_importance": {**_SEARCH, **_designed("signed", "controls")},
    "mediation": {**_SEARCH, "n_pairs": "design"},
    "indirect_effects": {**_CALL, "pairs": "identity", "average_source": "identity", "budget": "design"},
    "function_vector_effects": {**_CALL, "pairs": "identity", "budget": "design"},
    "screen_identity_rules": {**_CALL, **_designed("words", "n", "n_shots", "seed", "after", "budget")},
    "attribution_patching": {**_CALL, "pairs": "identity"},
    "attention": {
        **dict.fromkeys(("model", "prompts", "prepend_bos"), "identity"),
        **_designed("heads", "off"),
    },
    "generate": {
        "masks": "design",
        "examples": "design",
        "max_new_tokens": "identity",
        "stop": "identity",
    },
    "respond": {"masks": "design", "examples": "design", "response": "identity"},
    "load_model": {
        "name_or_path": "identity",
        "dtype": "identity",
        "backend": "identity",
        "revision": "identity",
        # Says how the model came about, which is in its weights.
        "unfolded": "runtime",
        "device": "runtime",
    },
    "Cluster": {
        "model": "identity",
        "workers": "runtime",
        "address": "runtime",
        "gpus_per_worker": "runtime",
        "threads": "runtime",
    },
    "Task": {
        "kind": "identity",
        "examples": "identity",
        "length_normalized": "identity",
        "scorer": "identity",
        "accuracy": "identity",
        "max_new_tokens": "identity",
        "stop": "identity",
        "chat": "identity",
        "too_long": "identity",
        "name": "runtime",
        "role": "design",
        "held_out": "design",
    },
    "Example": {
        **dict.fromkeys(("prompt", "prompts", "continuations", "answer", "reference", "positions"), "identity"),
        # Which side of a split an example is on.
        "asked": "design",
        "sequence": "design",
    },
}
"""Every field that a user sets, by the class or function that takes it and by what it does to one number.

*identity*: it may change the number of one mask on one example, so a result measured under one value never answers
under another: it is in ``study_of``, in ``scoring_of`` or in ``keys_of``, or, of what is kept beside results, in the
identity of its ``Progress``, or it names one of the numbers that a result holds. *design*: it says which masks and
examples are asked for, and needs no place of its own, as those are in the key themselves: a field that changes a number
in any other way is no design. *runtime*: the number is the same whatever its value, to rounding.
"""


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
        "ablation": str,
        "prepend_bos": bool | list[str],
        "measure": int,
    },
)
"""What all results of one store have in common."""


def refuse_hooks(model: HookedModel | ModelInfo, store: object) -> None:
    """Raise ``ValueError`` where there is a store, and hooks stand on the model: no key holds what they do."""
    hooked = hooked_points(model) if store is not None else ()
    if hooked:
        raise ValueError(
            f"store must be None while hooks stand on the model ({', '.join(hooked[:3])}): results under them are of "
            "another ablation; remove them, or measure without a store"
        )


def study_of(model: HookedModel | ModelInfo, ablation: str, prepend_bos: bool | None) -> Study:
    """What all results of one store have in common, JSON-ready; the model's part without its folder's place.

    In the order in which differences are reported: a model of another dtype has other weights, too. ``revision`` is
    None for a folder, and for a HookedTransformer, which does not keep it; those differ by ``weights``, bit by bit.
    """
    refuse_hooks(model, "store")
    described = describe(model)
    return {
        # A folder may lie elsewhere on another machine; the weights say whether it is the same model.
        "model": described["name"].rstrip("/").rsplit("/", 1)[-1],
        "revision": described["revision"],
        "class": described["class"],
        "grid": list(HeadGrid.from_model(model).shape),
        "dtype": described["dtype"],
        "weights": fingerprint(model),
        "settings": settings_of(model),
        "hook": "blocks.{layer}.attn.hook_z",
        "ablation": ablation,
        "prepend_bos": prepended(getattr(model, "tokenizer", None), prepend_bos),
        "measure": MEASURE,
    }


def scoring_of(task: Task, what: str, ablation: str, keys: Sequence[str]) -> dict[str, Any]:
    """How the examples of a task are measured, JSON-ready; ``what`` is ``"score"``, ``"logprob"`` or ``"text"``.

    A text does not depend on its scorer. What mean and resample ablation put in a head's place comes from all
    the task's examples: they are part of it, by their ``keys``.
    """
    return {
        "what": what,
        **(task.scoring if what == "score" else {}),
        **({} if ablation == "zero" else {"replacement": _hash([ablation, *keys])}),
    }


def keys_of(task: Task, encoded: Sequence[EncodedExample]) -> list[str]:
    """A hash for each example of everything in it: tokens, texts, answer and where it is read."""
    return [
        _hash([example.identity, tokens.prompt, tokens.continuations, *tokens.prompts])
        for example, tokens in zip(task.examples, encoded, strict=True)
    ]


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
