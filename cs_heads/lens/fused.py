"""Attention through PyTorch's fused kernel on a bridge, ``hook_z`` still firing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

from cs_heads.lens.model import HookedModel, backend_of, replaced_forwards


@contextmanager
def fused_attention(model: HookedModel) -> Iterator[None]:
    """Run the attention layers of a bridge as Hugging Face runs them, with ``scaled_dot_product_attention``.

    The bridge computes attention pattern by pattern, so that hooks can see it: memory is then
    quadratic in length. Inside the ``with`` block each attention layer hands over to the Hugging Face
    module it wraps, whose output projection is still the bridge's, where ``hook_z`` fires. Everything
    is put back at the end, also after an exception. Ask ``why_not_fused`` first.
    """
    from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge

    attentions = [block.attn for block in model.blocks]
    # TransformerLens's own forward of an attention layer that Hugging Face computes.
    forwards = [(attention, MethodType(AttentionBridge.forward, attention)) for attention in attentions]
    with ExitStack() as stack:
        for config in _configs(model):
            stack.callback(setattr, config, "_attn_implementation", config._attn_implementation)
            config._attn_implementation = "sdpa"
        for attention in attentions:
            name, modules = _output_projection(attention), attention.original_component._modules
            stack.callback(modules.__setitem__, name, modules[name])
            modules[name] = attention.o
        stack.enter_context(replaced_forwards(forwards))
        yield


def why_not_fused(model: HookedModel) -> str | None:
    """Why ``fused_attention`` does not apply; None where it does: a supported bridge without hooks inside attention.

    The numbers are compared apart from this (``abilities``).
    """
    inside = getattr(model, "original_model", None)
    if backend_of(model) != "bridge":
        return "the model is no bridge"
    if not getattr(inside, "_supports_sdpa", False):
        return f"{type(inside).__name__} has no fused attention"
    return next(filter(None, map(_why_not, model.blocks)), None)


def _why_not(block: Any) -> str | None:
    attention: Any = getattr(block, "attn", None)
    inner: Any = getattr(attention, "original_component", None)
    if inner is None or getattr(attention, "o", None) is None or _output_projection(attention) is None:
        return "the heads of some layer are not where hook_z could fire"
    # Too small, in half precision, to be seen by a comparison of numbers.
    if getattr(inner, "attn_logit_softcapping", None) is not None or getattr(inner, "sinks", None) is not None:
        return "the fused kernel has no soft caps and no sinks"
    config = attention.config
    if any(getattr(config, name, False) for name in ("use_attn_result", "use_split_qkv_input", "use_attn_in")):
        return "the bridge splits attention by head"
    return "a hook listens inside attention" if _listened_to(attention) else None


def _output_projection(attention: Any) -> str | None:
    """Under which name the wrapped module has its output projection: as the bridge's component, or bare."""
    wanted = (attention.o, attention.o.original_component)
    modules = attention.original_component._modules.items()
    return next((name for name, module in modules if any(module is each for each in wanted)), None)


def _listened_to(attention: Any) -> bool:
    """Whether a hook waits for what the fused kernel does not compute or another module would."""
    heard = {module for part in (attention.o, attention.hook_in, attention.hook_out) for module in part.modules()}
    others = (module for module in attention.modules() if module not in heard)
    return any(getattr(other, "fwd_hooks", None) or getattr(other, "bwd_hooks", None) for other in others)


def _configs(model: Any) -> list[Any]:
    """The configurations that say how attention is computed: of the model and of its layers."""
    modules: list[Any] = [model.original_model, *(block.attn.original_component for block in model.blocks)]
    return list({id(module.config): module.config for module in modules if hasattr(module, "config")}.values())
