"""Models of packed weights: of which kinds heads are gated rightly, and what scales such weights."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from torch import Tensor

_TRIED = {"bitsandbytes 4-bit": ("bitsandbytes", "accelerate"), "gptq": ("gptqmodel", "optimum")}
"""Kinds whose modules take z as it is, and each row by itself, with the packages that transformers reads them with.

``tests/lens/test_quantized.py`` runs bitsandbytes; of GPTQ a module that keeps its weights as gptqmodel's do. gptqmodel
itself was tried by hand: it must be built from source.
"""


def quantization_of(inside: Any) -> str | None:
    """How the weights of a Hugging Face model are packed, such as ``"bitsandbytes 4-bit"``; None where they are not."""
    return _kind(getattr(getattr(inside, "config", None), "quantization_config", None))


def _kind(found: Any) -> str | None:
    """Of a configuration of quantization, as an object or as JSON."""
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


def why_not_readable(config: Mapping[str, Any], backend: str) -> str | None:
    """Why packed weights are not even read; None where they are, or may be, or no weights are packed.

    Args:
        config: The configuration of a Hugging Face folder, as JSON.
        backend: Which model is wanted.
    """
    kind = _kind(config.get("quantization_config"))
    if kind not in _TRIED:
        return None
    if backend == "hooked":
        return f"its weights are quantized by {kind}, which a HookedTransformer does not read: load it as a bridge"
    absent = [name for name in _TRIED[kind] if find_spec(name) is None]
    if absent:
        return f"its weights are quantized by {kind}: install {' and '.join(absent)}"
    return None


def scales_of(weight: Tensor) -> dict[str, Tensor]:
    """What packed weights are scaled by where that is no parameter or buffer of its own, by name."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        return {}
    return {name: value for name, value in state.as_dict(packed=True).items() if isinstance(value, Tensor)}
