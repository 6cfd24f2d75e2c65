"""Plain texts: the logits after each token with units off, and how far two models' next tokens are from each other."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from cs_heads.lens.forward import Tokens, logits_at, pad
from cs_heads.lens.logprobs import check_numbers, row_of
from cs_heads.lens.model import HookedModel, evaluating
from cs_heads.units import Units

Logits = Float[Tensor, "pos vocab"]

# Tokens whose distributions are held in float32 at once.
_AT_ONCE = 128


def text_logits(model: HookedModel, mask: Bool[ndarray, "layer unit"], units: Units, tokens: Tokens) -> Logits:
    """The logits after each token of a text, with the units of a mask off."""
    gates = 1 - torch.from_numpy(mask).float() if mask.any() else None
    with evaluating(model):
        found = logits_at(model, *pad([tokens]), gates=None if gates is None else gates[None], units=units)
    # Logits of minus infinity are fine.
    check_numbers(model, found.logsumexp(dim=1), lambda _: row_of(model, gates, tokens, units=units))
    return found


def next_token_sums(tokens: Tokens, intact: Logits, without: Logits) -> list[float]:
    """Of a text the tokens that are predicted, their KL divergence, and their negative log-probabilities."""
    wanted = torch.as_tensor(tokens)[1:].to(intact.device)
    sums = torch.zeros(3, dtype=torch.float64)
    for parts in zip(intact[:-1].split(_AT_ONCE), without[:-1].split(_AT_ONCE), wanted.split(_AT_ONCE), strict=True):
        before, after = (Categorical(logits=each.float()) for each in parts[:2])
        found = kl_divergence(before, after), -before.log_prob(parts[2]), -after.log_prob(parts[2])
        sums += torch.stack([each.double().sum() for each in found]).cpu()
    return [float(len(wanted)), *sums.tolist()]
