"""One forward of a model: which rows, with which heads, going on from where, and which logits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.cache import Extension, HookedCache, bridge_cache
from cs_heads.lens.fused import fused_attention
from cs_heads.lens.gates import gated
from cs_heads.lens.model import backend_of
from cs_heads.lens.resume import Resumed, resumed


def logits_at(
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch pos"],
    *,
    row: Int[Tensor, " n"],
    position: Int[Tensor, " n"],
    gates: Float[Tensor, "batch layer head"] | None = None,
    replacement: Mapping[int, Tensor] | None = None,
    extension: Extension | None = None,
    start: Resumed | None = None,
    fused: bool = False,
) -> Float[Tensor, "n vocab"]:
    """Logits at the given (row, position) pairs alone, from one forward under per-row gates.

    The residual stream is gathered there before it meets the unembedding, so memory does not grow with
    vocabulary × sequence. ``extension`` lets the rows go on from stored keys and values, ``start`` lets
    the forward begin at a later layer, ``fused`` runs attention through the fused kernel. A model that
    does not unembed what is gathered raises ``ValueError``.
    """

    def gather(unembed: Any, residual: tuple[Float[Tensor, "batch pos d_model"]]) -> Float[Tensor, "1 n d_model"]:
        return residual[0][row.to(residual[0].device), position.to(residual[0].device)][None]

    arguments: dict[str, Any] = {"attention_mask": attention_mask}
    if backend_of(model) == "bridge":
        arguments["use_cache"] = False
        if extension is not None:
            # A bridge wants the mask of old and new tokens, HookedTransformer that of the new.
            cache = bridge_cache(extension, model.cfg.n_layers)
            arguments |= {"past_key_values": cache, "attention_mask": extension.valid.to(attention_mask)}
    elif extension is not None:
        n_kv_heads = model.cfg.n_key_value_heads or model.cfg.n_heads
        arguments["past_kv_cache"] = HookedCache(extension, n_kv_heads, model.cfg.d_head)
    with ExitStack() as stack:
        # Gates last: a hook on hook_z must stand where fused attention looks for it.
        if fused:
            stack.enter_context(fused_attention(model))
        stack.enter_context(resumed(model, start))
        stack.enter_context(gated(model, gates, replacement))
        stack.callback(model.unembed.register_forward_pre_hook(gather).remove)
        logits = model(tokens, **arguments)
    if logits.shape[:2] != (1, len(row)):
        raise ValueError(
            f"model {model.cfg.model_name} is not supported: it does not unembed what it is given "
            f"(logits of shape {list(logits.shape)})"
        )
    return logits[0]
