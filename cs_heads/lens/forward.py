"""One forward of a model: which rows, with which heads off, from which tokens and layer on, and which logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cs_heads.lens.cache import Extension, HookedCache, bridge_cache
from cs_heads.lens.fused import fused_attention
from cs_heads.lens.gates import gated, hooked, reading
from cs_heads.lens.locks import alone
from cs_heads.lens.model import (
    HookedModel,
    backend_of,
    config_of,
    context_length,
    device_of,
    dtype_of,
    evaluating,
    hook_name,
    replaced_forwards,
)
from cs_heads.lens.transfer import to_device
from cs_heads.text import first_line
from cs_heads.units import Grid, Units

Tokens = Sequence[int] | Int[np.ndarray, "_"]

# Of transformers, whose mask is one of padding alone: a bridge takes it for a whole one, and later tokens are seen.
_MASKED_BY_PADDING_ALONE = ("OpenAIGPTLMHeadModel",)

# Blocks of some architectures return a tensor (0 here), those of others so long a tuple or list; seen when recording.
_TUPLE_LENGTH: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Resumed:
    """Where a forward starts: ``residual [batch, pos, d_model]`` enters block ``layer``, those before are skipped."""

    layer: int
    residual: Float[Tensor, "batch pos d_model"]


def logits_at(
    model: HookedModel,
    tokens: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch pos"],
    at: tuple[Int[Tensor, " n"], Int[Tensor, " n"]] | None = None,
    *,
    gates: Float[Tensor, "batch layer unit"] | None = None,
    replacement: Mapping[int, Tensor] | None = None,
    units: Units = "heads",
    where: Bool[Tensor, "batch pos"] | None = None,
    extension: Extension | None = None,
    start: Resumed | None = None,
    fused: bool = False,
) -> Float[Tensor, "n vocab"]:
    """Logits at the given rows and positions alone, from one forward under per-row gates.

    The residual stream is gathered there before it meets the unembedding, so memory does not grow with
    vocabulary × sequence.

    Args:
        model: The model.
        tokens: Token ids, padded at the right, on any device.
        attention_mask: 1 for tokens, 0 for padding; in main memory, where it is looked at.
        at: The rows and positions that logits are wanted at; None is every token, one row after another.
        gates: What each row's units are multiplied by: 0 = ablated; None leaves them as they are.
        replacement: By layer, what an ablated unit gives (``gated``); None is zero.
        units: The kind of unit.
        where: The tokens of each row at which units are gated; None is all of them.
        extension: Lets the rows continue stored keys and values.
        start: Lets the forward start at a later layer.
        fused: Runs attention through the fused kernel.

    Raises:
        ValueError: The model does not unembed what is gathered.
    """
    device = device_of(model)
    tokens = to_device(tokens, device)
    row, position = attention_mask.nonzero(as_tuple=True) if at is None else at

    def gather(unembed: Any, residual: tuple[Float[Tensor, "batch pos d_model"]]) -> Float[Tensor, "1 n d_model"]:
        return residual[0][to_device(row, residual[0].device), to_device(position, residual[0].device)][None]

    placed = Extension(attention_mask) if extension is None else extension
    if backend_of(model) == "bridge":
        # A bridge takes the mask of old and new tokens, HookedTransformer that of the new ones.
        arguments: dict[str, Any] = {"use_cache": False, "attention_mask": placed.mask(tokens)}
        if type(model.original_model).__name__ in _MASKED_BY_PADDING_ALONE and extension is None:
            # Padding at the right is later than every token.
            del arguments["attention_mask"]
        if extension is not None:
            arguments["past_key_values"] = bridge_cache(extension, model.cfg.n_layers)
    else:
        arguments = {"attention_mask": to_device(attention_mask, device)}
        if extension is not None:
            n_kv_heads = model.cfg.n_key_value_heads or model.cfg.n_heads
            arguments["past_kv_cache"] = HookedCache(extension, n_kv_heads, model.cfg.d_head)
    with alone(model), ExitStack() as stack:
        # Gates last: a hook on hook_z must stand where fused attention looks for it.
        if fused:
            stack.enter_context(fused_attention(model))
        stack.enter_context(resumed(model, start))
        stack.enter_context(_nan_of_attention(model))
        stack.enter_context(gated(model, gates, replacement, units, where))
        stack.callback(model.unembed.register_forward_pre_hook(gather).remove)
        logits = model(tokens, **arguments)
    if logits.shape[:2] != (1, len(row)):
        what = f"it does not unembed what it is given (logits of shape {list(logits.shape)})"
        raise ValueError(f"model {model.cfg.model_name} is not supported: {what}")
    return logits[0]


@contextmanager
def _nan_of_attention(model: HookedModel) -> Iterator[None]:
    """Let z be NaN where attention is, inside the ``with`` block: TransformerLens lets such a head attend to nothing.

    ``HookedTransformer`` does, and a bridge in compatibility mode. In float16, where queries and keys overflow.
    """
    scrubbed = backend_of(model) == "hooked" or getattr(model, "compatibility_mode", False)
    if not scrubbed or dtype_of(model) != torch.float16:
        yield
        return
    seen: dict[int, Tensor] = {}

    def see(layer: int, scores: Float[Tensor, "batch head query key"], hook: Any) -> Tensor:
        # Masked keys are at minus infinity.
        seen[layer] = (scores.isnan() | scores.isposinf()).any(dim=3).transpose(1, 2)
        return scores

    def mark(layer: int, z: Float[Tensor, "batch pos head d_head"], hook: Any) -> Tensor:
        return z.masked_fill(seen.pop(layer)[..., None], torch.nan) if layer in seen else z

    hooks: dict[str, Callable[..., Tensor]] = {}
    for layer in range(model.cfg.n_layers):
        hooks[hook_name(layer)] = partial(mark, layer)
        hooks[f"blocks.{layer}.attn.hook_attn_scores"] = partial(see, layer)
    with hooked(model, hooks):
        yield


def check_runs(model: HookedModel) -> None:
    """Run a few tokens; a model that TransformerLens cannot run, or not show z of head by head, is a ``ValueError``."""
    grid, seen = Grid.from_model(model), dict[int, list[tuple[int, ...]]]()
    inside = getattr(model, "original_model", model)
    refused = f"model {model.cfg.model_name} is not supported: TransformerLens"
    try:
        with reading(model, lambda layer, z: seen.setdefault(layer, []).append(tuple(z.shape[2:]))):
            sample_logits(model)
    except Exception as error:  # whatever a bridge of other classes raises
        reason = f"{type(error).__name__}: {first_line(error)[:300]}"
        raise ValueError(f"{refused} cannot run its {type(inside).__name__} ({reason})") from error
    # Each layer by itself: others may be as they should.
    latent = " (multi-head latent attention)" if getattr(config_of(model), "kv_lora_rank", None) else ""
    for layer in range(grid.n_layers):
        shapes = seen.get(layer, [])
        if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][0] != grid.n_units:
            found = " and ".join(" × ".join(map(str, shape)) for shape in shapes) or "no"
            raise ValueError(
                f"{refused} does not show z of its {type(inside).__name__}{latent} head by head: at "
                f"{hook_name(layer)} are {found} numbers a token, for {grid.n_units} heads"
            )


def sample_logits(
    model: HookedModel, gates: Float[Tensor, "1 layer unit"] | None = None, units: Units = "heads"
) -> Float[np.ndarray, "pos vocab"]:
    """Logits at a few fixed tokens, in float32: copies of a model are compared by these."""
    n = min(8, context_length(model) or 8)
    tokens = (torch.arange(1, n + 1)[None] * 7919) % model.cfg.d_vocab
    with evaluating(model):
        logits = logits_at(model, tokens, torch.ones_like(tokens), gates=gates, units=units)
    return logits.float().cpu().numpy()


def last_logits(model: HookedModel, rows: Sequence[Tokens]) -> Float[Tensor, "batch vocab"]:
    """Logits after each row's last token."""
    tokens, attention_mask = pad(rows)
    return logits_at(model, tokens, attention_mask, (torch.arange(len(rows)), attention_mask.sum(dim=1) - 1))


def pad(rows: Sequence[Tokens]) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Token ids padded at the right to one length, and their attention mask.

    Padding is token 0, which no attention mask lets through: the tokenizer needs no padding token.
    """
    width = max(len(row) for row in rows)
    tokens, attention_mask = np.zeros((2, len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], attention_mask[i, : len(row)] = row, 1
    return torch.from_numpy(tokens), torch.from_numpy(attention_mask)


@contextmanager
def resumed(model: HookedModel, start: Resumed | None) -> Iterator[None]:
    """Skip the blocks before ``start.layer`` and let its residual in there, inside the ``with`` block."""
    if start is None:
        yield
        return

    def enter(block: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        residual = start.residual.to(residual_of(arguments, keywords))
        return ((residual, *arguments[1:]), keywords) if arguments else ((), {**keywords, "hidden_states": residual})

    with ExitStack() as stack:
        stack.callback(model.blocks[start.layer].register_forward_pre_hook(enter, with_kwargs=True).remove)
        with _skipping(model, range(start.layer)):
            yield


@contextmanager
def recorded(
    model: HookedModel, layers: Sequence[int], record: Callable[[int, Tensor], None], *, whole: bool = False
) -> Iterator[None]:
    """Call ``record(layer, residual [batch, pos, d_model])`` with what enters each of the blocks ``layers``.

    ``layers`` are not the first. Unless the forward is ``whole``, later blocks are skipped: nothing of them is asked,
    and its logits mean nothing.
    """

    def see_form(block: Any, arguments: Any, output: Any) -> None:
        _TUPLE_LENGTH[model] = len(output) if isinstance(output, tuple | list) else 0

    def hand_over(layer: int, block: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        record(layer, residual_of(arguments, keywords))

    with alone(model), ExitStack() as stack:
        for layer in layers:
            seen = partial(hand_over, layer)
            stack.callback(model.blocks[layer].register_forward_pre_hook(seen, with_kwargs=True).remove)
        stack.callback(model.blocks[0].register_forward_hook(see_form).remove)
        with _skipping(model, range(model.cfg.n_layers if whole else max(layers), model.cfg.n_layers)):
            yield


@contextmanager
def _skipping(model: HookedModel, layers: Sequence[int]) -> Iterator[None]:
    """Make the blocks ``layers`` hand on what they are given; put back at the end, also after an exception."""

    def hand_on(block: Any, *arguments: Any, **keywords: Any) -> Any:
        # As the block would, also where it lies on another device than the one before.
        residual = residual_of(arguments, keywords).to(device_of(block))
        length = _TUPLE_LENGTH.get(model, 0)
        return (residual, *[None] * (length - 1)) if length else residual

    with replaced_forwards((model.blocks[layer], partial(hand_on, model.blocks[layer])) for layer in layers):
        yield


def residual_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    """The residual stream that a block is given."""
    return arguments[0] if arguments else keywords["hidden_states"]
