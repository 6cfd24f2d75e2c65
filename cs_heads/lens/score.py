"""Log-probabilities of given target tokens under per-row gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cs_heads.lens.gates import gated, hooked
from cs_heads.lens.model import backend_of, device_of, evaluating

Tokens = Sequence[int]

# Float32 copies of the logits are made this many numbers at a time (64 MiB).
_CHUNK = 2**24


@dataclass(frozen=True)
class TokenScores:
    """Per row: the summed log-probability of the target (nats), and whether every target token is the argmax."""

    logprob: Float[np.ndarray, " batch"]
    greedy: Bool[np.ndarray, " batch"]


def score_tokens(
    model: Any,
    prompts: Sequence[Tokens],
    targets: Sequence[Tokens],
    gates: Float[Tensor, "batch layer head"] | None = None,
    padding_side: Literal["left", "right"] = "right",
) -> TokenScores:
    """Score each row's target tokens after its prompt tokens, with the row's own heads gated.

    One forward of ``[batch, longest row - 1]`` tokens. The residual stream is gathered at the
    positions that predict target tokens before it meets the unembedding, so logits exist for those
    alone; their log-softmax is float32 whatever the model's dtype. An empty prompt or target raises
    ``ValueError``: the first token of a text has no probability.
    """
    for name, rows in (("prompts", prompts), ("targets", targets)):
        empty = [row for row, tokens in enumerate(rows) if not len(tokens)]
        if empty:
            raise ValueError(f"{name} must hold at least one token a row; row {empty[0]} is empty")
    if not len(prompts) == len(targets) > 0:
        raise ValueError(f"prompts and targets must pair up, got {len(prompts)} and {len(targets)} rows")
    device = device_of(model)
    tokens, attention_mask, start = pad(
        [[*prompt, *target[:-1]] for prompt, target in zip(prompts, targets, strict=True)], padding_side
    )
    lengths = torch.tensor([len(target) for target in targets])
    row = torch.repeat_interleave(torch.arange(len(targets)), lengths)
    step = torch.cat([torch.arange(n) for n in lengths])
    first = start + torch.tensor([len(prompt) - 1 for prompt in prompts])
    wanted = torch.tensor([token for target in targets for token in target])
    with evaluating(model):
        logits = logits_at(
            model,
            tokens.to(device),
            attention_mask.to(device),
            row=row.to(device),
            position=(first[row] + step).to(device),
            gates=gates,
        )
        wanted = wanted.to(logits.device)
        logprob, best = _logprobs(logits, wanted)
    per_token, hit = logprob.double().cpu(), (best == wanted).cpu()
    summed = torch.zeros(len(targets), dtype=torch.double).index_add(0, row, per_token)
    misses = torch.zeros(len(targets)).index_add(0, row, (~hit).float())
    return TokenScores(summed.numpy(), (misses == 0).numpy())


def logits_at(
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch pos"],
    *,
    row: Int[Tensor, " n"],
    position: Int[Tensor, " n"],
    gates: Float[Tensor, "batch layer head"] | None,
) -> Float[Tensor, "n vocab"]:
    """Logits at the given (row, position) pairs alone, from one forward under per-row gates."""

    def gather(residual: Float[Tensor, "batch pos d_model"], hook: Any) -> Float[Tensor, "1 n d_model"]:
        return residual[row.to(residual.device), position.to(residual.device)][None]

    if backend_of(model) == "bridge":
        point, arguments = "unembed.hook_in", {"use_cache": False}
    else:
        point, arguments = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post", {}
    with gated(model, gates), hooked(model, {point: gather}):
        logits = model(tokens, attention_mask=attention_mask, **arguments)
    if logits.shape[:2] != (1, len(row)):
        raise ValueError(
            f"model {model.cfg.model_name} is not supported: it does not unembed what passes {point} "
            f"(logits of shape {list(logits.shape)})"
        )
    return logits[0]


def pad(
    rows: Sequence[Tokens], side: Literal["left", "right"]
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"], Int[Tensor, " batch"]]:
    """Token ids padded to one length, their attention mask, and where each row starts.

    Padding is token 0, which no attention mask lets through: the tokenizer needs no padding token.
    """
    if side not in ("left", "right"):
        raise ValueError(f"padding_side must be 'left' or 'right', got {side!r}")
    width = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    attention_mask = torch.zeros_like(tokens)
    start = torch.tensor([width - len(row) if side == "left" else 0 for row in rows])
    for i, row in enumerate(rows):
        tokens[i, start[i] : start[i] + len(row)] = torch.tensor(row)
        attention_mask[i, start[i] : start[i] + len(row)] = 1
    return tokens, attention_mask, start


def _logprobs(
    logits: Float[Tensor, "n vocab"], wanted: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
    rows = max(1, _CHUNK // logits.shape[1])
    logprobs, best = [], []
    for part, token in zip(logits.split(rows), wanted.split(rows), strict=True):
        scores = part.float()
        logprobs.append(scores.gather(1, token[:, None])[:, 0] - scores.logsumexp(dim=1))
        best.append(scores.argmax(dim=1))
    return torch.cat(logprobs), torch.cat(best)
