"""Log-probabilities of given target tokens under per-row gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cs_heads.lens.forward import Tokens, logits_at, pad
from cs_heads.lens.model import HookedModel, evaluating
from cs_heads.lens.timing import timed
from cs_heads.lens.tokens import EncodedExample
from cs_heads.lens.transfer import to_device

# Float32 copies of the logits are made this many numbers at a time (64 MiB).
_CHUNK = 2**24


@dataclass(frozen=True)
class TokenLogprobs:
    """Of each token read: log-probability (nats), whether it is the argmax, and the argmax itself."""

    logprob: Float[np.ndarray, " n"]
    greedy: Bool[np.ndarray, " n"]
    best: Int[np.ndarray, " n"]


@dataclass(frozen=True)
class Reads:
    """Tokens to be read: ``token[i]`` is read from the logits of row ``row[i]`` at position ``position[i]``."""

    row: Int[np.ndarray, " n"]
    position: Int[np.ndarray, " n"]
    token: Int[np.ndarray, " n"]


ANY_READ = Reads(*np.zeros((3, 1), dtype=np.int64))
"""What is read in a forward that is run for its inside alone: it must make some logits."""


def with_targets(
    prompts: Sequence[Tokens], targets: Sequence[Tokens], positions: Sequence[Tokens] | None = None
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"], Reads]:
    """Lay out rows for ``token_logprobs``: each prompt followed by its target but for the last token.

    Args:
        prompts: The prompt of each row.
        targets: The target of each row.
        positions: Where in its prompt the tokens of a row's target are read; such a row is its prompt alone.

    Returns:
        Padded token ids, their attention mask, and where each target token is read.
    """
    positions = [()] * len(targets) if positions is None else positions
    each = [
        EncodedExample(_plain(prompt), (_plain(target),), merged=False, positions=_plain(inside))
        for prompt, target, inside in zip(prompts, targets, positions, strict=True)
    ]
    row = np.repeat(np.arange(len(targets)), [len(target) for target in targets])
    places = np.concatenate([example.positions_of(0) for example in each])
    return *pad([example.inputs_of(0) for example in each]), Reads(row, places, np.concatenate(targets))


def _plain(tokens: Tokens) -> tuple[int, ...]:
    return tuple(int(token) for token in tokens)


def token_logprobs(
    model: HookedModel,
    tokens: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch pos"],
    reads: Reads,
    *,
    gates: Float[Tensor, "batch layer head"] | None = None,
    **options: Any,
) -> TokenLogprobs:
    """Log-probabilities of single tokens after one forward; logits are computed once for each position.

    Args:
        model: The model.
        tokens: Token ids, padded at the right.
        attention_mask: 1 for tokens, 0 for padding.
        reads: Which tokens are scored, and where.
        gates: What each row's heads are multiplied by: 0 = ablated; None leaves them as they are.
        options: ``replacement``, ``units``, ``where``, ``extension``, ``start`` and ``fused`` of ``logits_at``.
    """
    place, which = np.unique(reads.row * tokens.shape[1] + reads.position, return_inverse=True)
    with timed("unembedding", attention_mask), evaluating(model):
        logits = logits_at(
            model,
            tokens,
            attention_mask,
            row=torch.from_numpy(place // tokens.shape[1]),
            position=torch.from_numpy(place % tokens.shape[1]),
            gates=gates,
            **options,
        )
        at, wanted = (to_device(torch.from_numpy(side), logits.device) for side in (which, reads.token))
        normalizer, argmax = [], []
        for part in logits.split(max(1, _CHUNK // logits.shape[1])):
            scores = part.float()
            normalizer.append(scores.logsumexp(dim=1))
            argmax.append(scores.argmax(dim=1))
        logprob = logits[at, wanted].float() - torch.cat(normalizer)[at]
        # In one transfer, for which the device is waited for once.
        both = torch.stack([logprob, torch.cat(argmax)[at].int().view(torch.float32)]).cpu().numpy()
    best = both[1].view(np.int32).astype(np.int64)
    return TokenLogprobs(both[0].astype(np.float64), best == reads.token, best)
