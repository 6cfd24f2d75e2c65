"""Other ways to the engine's numbers, as others' public code goes them; for ``engine.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from cs_heads.lens import EncodedExample
from cs_heads.lens.forward import pad
from cs_heads.lens.gates import gated

Row = tuple[tuple[int, ...], tuple[int, ...]]


def rows_of(examples: list[EncodedExample]) -> list[Row]:
    """Every (prompt, continuation), one row each."""
    return [(example.prompt, target) for example in examples for target in example.continuations]


def summed(logits: torch.Tensor, rows: list[Row]) -> list[float]:
    """Log-probability of each row's continuation from all its logits, ``[row, pos, vocab]``."""
    logprobs = logits.float().log_softmax(-1)
    places = [
        (i, len(prompt) - 1 + step, token) for i, (prompt, to) in enumerate(rows) for step, token in enumerate(to)
    ]
    # Gathered where they are, so that a GPU is waited for once.
    row, position, token = torch.tensor(places, device=logits.device).T
    found = logprobs[row, position, token].double().cpu().numpy()
    return np.bincount([i for i, *_ in places], weights=found).tolist()


def by_pair(scores: list[float], examples: list[EncodedExample]) -> list[np.ndarray]:
    """Scores of consecutive rows, one array of continuations a pair."""
    counts = [len(example.continuations) for example in examples]
    n_masks = len(scores) // sum(counts)
    return np.split(np.array(scores), np.cumsum(counts * n_masks)[:-1])


def inputs(rows: list[Row], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded tokens and attention mask."""
    tokens, attention_mask = pad([(*prompt, *target[:-1]) for prompt, target in rows])
    return tokens.to(device), attention_mask.to(device)


def projections(model: Any) -> list[Any]:
    """The output projection of each layer, whose input is the heads side by side."""
    if hasattr(model, "transformer"):
        return [block.attn.c_proj for block in model.transformer.h]
    return [layer.self_attn.o_proj for layer in model.model.layers]


@contextmanager
def patched(model: Any, mask: np.ndarray) -> Iterator[None]:
    """Zero the heads of one mask ``[layer, head]``."""

    def zero(off: np.ndarray) -> Callable[..., Any]:
        def hook(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            z = arguments[0].unflatten(-1, (len(off), -1)).clone()
            z[:, :, torch.from_numpy(off)] = 0
            return (z.flatten(-2), *arguments[1:])

        return hook

    handles = [
        p.register_forward_pre_hook(zero(off)) for p, off in zip(projections(model), mask, strict=True) if off.any()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def hugging_face(
    model: Any, examples: list[EncodedExample], masks: np.ndarray, batched: bool = True, reload: Path | None = None
) -> list[np.ndarray]:
    """(a) One mask at a time; all rows of the task in one batch (32 at most), or one by one."""
    scores: list[float] = []
    rows = rows_of(examples)
    size = 32 if batched else 1
    for mask in masks:
        if reload is not None:
            model = AutoModelForCausalLM.from_pretrained(reload, attn_implementation="sdpa").eval()
        with patched(model, mask):
            for begin in range(0, len(rows), size):
                part = rows[begin : begin + size]
                tokens, attention_mask = inputs(part, model.device)
                scores += summed(model(tokens, attention_mask=attention_mask, use_cache=False).logits, part)
    return by_pair(scores, examples)


@torch.no_grad()
def run_with_hooks(bridge: Any, examples: list[EncodedExample], masks: np.ndarray) -> list[np.ndarray]:
    """(b) TransformerLens, one mask at a time, rows in batches of 32."""
    scores: list[float] = []
    rows = rows_of(examples)

    def zero(off: np.ndarray) -> Callable[..., torch.Tensor]:
        def hook(z: torch.Tensor, hook: Any) -> torch.Tensor:
            z = z.clone()
            z[:, :, torch.from_numpy(off)] = 0
            return z

        return hook

    for mask in masks:
        hooks = [(f"blocks.{layer}.attn.hook_z", zero(off)) for layer, off in enumerate(mask) if off.any()]
        for begin in range(0, len(rows), 32):
            part = rows[begin : begin + 32]
            tokens, attention_mask = inputs(part, next(bridge.parameters()).device)
            logits = bridge.run_with_hooks(tokens, attention_mask=attention_mask, use_cache=False, fwd_hooks=hooks)
            scores += summed(logits, part)
    return by_pair(scores, examples)


@torch.no_grad()
def batched_full_logits(
    bridge: Any, examples: list[EncodedExample], masks: np.ndarray, rows: int = 64
) -> list[np.ndarray]:
    """(c) Masks side by side in a batch, each row by itself, with all logits."""
    scores: list[float] = []
    todo = [(mask, row) for mask in masks for row in rows_of(examples)]
    for begin in range(0, len(todo), rows):
        part = todo[begin : begin + rows]
        tokens, attention_mask = inputs([row for _, row in part], next(bridge.parameters()).device)
        with gated(bridge, torch.from_numpy(np.stack([~mask for mask, _ in part])).float()):
            logits = bridge(tokens, attention_mask=attention_mask, use_cache=False)
        scores += summed(logits, [row for _, row in part])
    return by_pair(scores, examples)


@torch.no_grad()
def generate_per_mask(
    model: Any, examples: list[EncodedExample], masks: np.ndarray, n_tokens: int
) -> list[tuple[int, ...]]:
    """Hugging Face's greedy ``generate``, one mask at a time, all examples in one left-padded batch."""
    # What is padded at the right backwards is padded at the left.
    tokens, attention_mask = (side.flip(1).to(model.device) for side in pad([e.prompt[::-1] for e in examples]))
    settings = {"do_sample": False, "max_new_tokens": n_tokens, "min_new_tokens": n_tokens, "pad_token_id": 0}
    texts: list[tuple[int, ...]] = []
    for mask in masks:
        with patched(model, mask):
            made = model.generate(tokens, attention_mask=attention_mask, eos_token_id=None, **settings)
        texts += [tuple(row.tolist()) for row in made[:, tokens.shape[1] :]]
    return texts


def nnsight_per_mask(model: Any) -> Callable[[list[EncodedExample], np.ndarray], list[np.ndarray]] | None:
    """(d) nnsight, one mask at a time, rows in batches of 32; None where it is not installed."""
    try:
        from nnsight import NNsight
    except ImportError:
        return None
    traced = NNsight(model)

    def run(examples: list[EncodedExample], masks: np.ndarray) -> list[np.ndarray]:
        scores: list[float] = []
        rows = rows_of(examples)
        for mask in masks:
            for begin in range(0, len(rows), 32):
                part = rows[begin : begin + 32]
                tokens, attention_mask = inputs(part, model.device)
                with torch.no_grad(), traced.trace(tokens, attention_mask=attention_mask, use_cache=False):
                    for projection, off in zip(projections(traced), mask, strict=True):
                        if off.any():
                            gates = (
                                torch.from_numpy(~off).float().repeat_interleave(projection.input.shape[-1] // len(off))
                            )
                            projection.input = projection.input * gates
                    logits = traced.output.logits.save()
                scores += summed(logits, part)
        return by_pair(scores, examples)

    return run
