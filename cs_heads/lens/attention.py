"""What heads attend to: attention patterns of some heads on a prompt, under a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.forward import Tokens, last_logits
from cs_heads.lens.gates import gated, reading
from cs_heads.lens.logprobs import check_numbers, row_of
from cs_heads.lens.model import HookedModel, device_of, evaluating
from cs_heads.lens.transfer import to_device
from cs_heads.units import Grid, Unit


def attention_patterns(
    model: HookedModel, tokens: Sequence[int], heads: Sequence[Unit], mask: Bool[np.ndarray, "layer head"] | None = None
) -> Float[np.ndarray, "chosen query key"]:
    """Attention of each head after the softmax: each query's row is over the keys and sums to 1.

    One forward of one prompt, read from ``blocks.{l}.attn.hook_pattern``, where attention is computed pattern by
    pattern; all hooks are gone afterwards.

    Args:
        model: The model.
        tokens: The prompt.
        heads: Heads whose patterns are returned.
        mask: Heads that are off (True = ablated); such a head still attends, its z is zeroed.

    Raises:
        ValueError: A model that has no such hook or does not run it.
        NotFiniteError: Attention is NaN.
    """
    grid = Grid.from_model(model)
    wanted = [grid.resolve(head) for head in heads]
    names = {layer: f"blocks.{layer}.attn.hook_pattern" for layer in sorted({head.layer for head in wanted})}
    seen: dict[int, Float[np.ndarray, "head query key"]] = {}

    def keep(layer: int, pattern: Float[Tensor, "batch head query key"]) -> None:
        seen[layer] = pattern[0].float().cpu().numpy()

    gates = None if mask is None else 1 - torch.from_numpy(mask).float()[None]
    with evaluating(model), reading(model, keep, names), gated(model, gates):
        model(torch.tensor([list(tokens)], device=device_of(model)))
    if silent := [names[layer] for layer in names if layer not in seen]:
        raise ValueError(f"model does not run {', '.join(silent)}: its attention patterns cannot be read")
    patterns = np.stack([seen[head.layer][head.index] for head in wanted])
    off = None if gates is None else gates[0]
    check_numbers(model, patterns, lambda i: f"in attention of {wanted[i]} {row_of(model, off, tokens)}")
    return patterns


def last_patterns(
    model: HookedModel,
    rows: Sequence[Tokens],
    room: TokenBudget,
    weights: Callable[[int], Float[np.ndarray, "kind query key"]],
) -> tuple[list[Float[np.ndarray, "head key"]], list[Float[np.ndarray, "sum head"]]]:
    """Of each row the attention of its last token by all heads, layer after layer; and of all tokens weighted sums.

    Args:
        model: The model.
        rows: Tokens of each row.
        room: Tokens of one forward.
        weights: Gives what attention is weighted by in some sums of a row; last comes the mean entropy, in nats.

    Raises:
        ValueError: A model that has no such hook or does not run it.
    """
    names = {layer: f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)}
    last, every = ({row: dict[int, np.ndarray]() for row in range(len(rows))} for _ in range(2))

    def run(batch: Int[np.ndarray, " n"]) -> None:
        made = [torch.from_numpy(weights(int(i))).float() for i in batch]

        def keep(layer: int, pattern: Float[Tensor, "batch head query key"]) -> None:
            for row, (i, weight) in enumerate(zip(batch.tolist(), made, strict=True)):
                n = len(rows[i])
                whole = pattern[row, :, :n, :n].float()
                last[i][layer] = whole[:, -1].cpu().numpy()
                sums = einsum(whole, to_device(weight, whole.device), "head q k, kind q k -> kind head")
                entropy = torch.special.entr(whole).sum(dim=2).mean(dim=1, keepdim=True)
                every[i][layer] = torch.cat([sums, entropy.T]).cpu().numpy()

        with reading(model, keep, names):
            last_logits(model, [rows[i] for i in batch])

    with evaluating(model):
        run_in_batches([len(row) for row in rows], room, run)
    if silent := [name for layer, name in names.items() if any(layer not in seen for seen in last.values())]:
        raise ValueError(f"model does not run {', '.join(silent)}: its attention patterns cannot be read")
    patterns = [np.concatenate([seen[layer] for layer in names]) for seen in last.values()]
    return patterns, [np.concatenate([seen[layer] for layer in names], axis=1) for seen in every.values()]


def token_texts(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Each token as a reader sees it, with the space before a word where the tokenizer keeps one; without one its id.

    >>> from tokenizers import Tokenizer, models
    >>> from transformers import PreTrainedTokenizerFast
    >>> vocabulary = Tokenizer(models.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    >>> token_texts(PreTrainedTokenizerFast(tokenizer_object=vocabulary), [0, 1, 0])
    ['the', 'cat', 'the']
    """
    if tokenizer is None:
        return [str(int(token)) for token in tokens]
    texts = []
    for token in tokens:
        text, piece = tokenizer.decode([int(token)]), str(tokenizer.convert_ids_to_tokens(int(token)))
        # SentencePiece tokenizers swallow the space of a text's first token.
        texts.append(f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text)
    return texts
