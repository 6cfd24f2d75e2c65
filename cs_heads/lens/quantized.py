"""Models of packed weights: of which kinds heads are gated rightly, and what scales such weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_TRIED = ("bitsandbytes 4-bit", "gptq")
"""Kinds whose modules take z as it is, and each row by itself.

``tests/lens/test_quantized.py`` runs bitsandbytes; of GPTQ a module that keeps its weights as gptqmodel's do. gptqmodel
itself was tried by hand: it must be built from source.
"""


def quantization_of(inside: Any) -> str | None:
    """How the weights of a Hugging Face model are packed, such as ``"bitsandbytes 4-bit"``; None where they are not."""
    found = getattr(getattr(inside, "config", None), "quantization_config", None)
    if not found:
        return None
    said = found if isinstance(found, Mapping) else vars(found)
    method = said.get("quant_method", "a method that its configuration does not name as quant_method")
    method = str(getattr(method, "value", method))
    if method != "bitsandbytes":
        return method
    # The configuration keeps these behind properties.
    eight = said.get("load_in_8bit", said.get("_load_in_8bit", False))
    return f"{method} {8 if eight else 4}-bit"


def why_not_ablatable(model: Any) -> str | None:
    """Why heads of a model with such weights are not gated; None where they are, or no weights are packed."""
    if getattr(model.cfg, "load_in_4bit", False):
        return "its weights are quantized by HookedTransformer itself, under which hook_z has not been tried"
    kind = quantization_of(getattr(model, "original_model", None))
    if kind is None or kind in _TRIED:
        return None
    if kind == "bitsandbytes 8-bit":
        return f"its weights are quantized by {kind}, which makes a row's numbers depend on those that share its batch"
    return f"its weights are quantized by {kind}, under which hook_z has not been tried"


def scales_of(weight: Tensor) -> dict[str, Tensor]:
    """What packed weights are scaled by where that is no parameter or buffer of its own, by name."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        return {}
    return {name: value for name, value in state.as_dict(packed=True).items() if isinstance(value, Tensor)}
