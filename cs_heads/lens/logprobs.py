"""Log-probabilities of given target tokens under per-row gates; what a model gives must be numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cs_heads.lens.forward import Tokens, logits_at
from cs_heads.lens.model import HookedModel, dtype_of, evaluating
from cs_heads.lens.transfer import to_device
from cs_heads.units import Grid, Units

# Float32 copies of the logits are made this many numbers at a time (64 MiB).
_CHUNK = 2**24

# Units that an error names before it counts the rest, and tokens of a text.
_NAMED, _START = 5, 12


@dataclass(frozen=True)
class TokenLogprobs:
    """Of each token read: log-probability (nats), whether it is the argmax, and the argmax itself."""

    logprob: Float[np.ndarray, " n"]
    greedy: Bool[np.ndarray, " n"]
    best: Int[np.ndarray, " n"]


class NotFiniteError(ValueError):
    """A model gave NaN or infinity where a number was to be read."""


def check_numbers(
    model: HookedModel, values: Float[np.ndarray | Tensor, "n *any"], where: Callable[[int], str]
) -> None:
    """Let nothing but numbers pass: whatever is read of a model goes through here before it counts for something.

    Logits of minus infinity, as some models have them for tokens that they never say, are fine where none is read.

    Args:
        model: The model.
        values: What was read, such as log-probabilities or gradients.
        where: Says of ``values[i]`` which units were off, and in which example (``row_of``).

    Raises:
        NotFiniteError: A value is NaN or infinite; it names the dtype, and the first one by ``where``.
    """
    finite = torch.as_tensor(values).isfinite().reshape(len(values), -1 if len(values) else 0).all(dim=1)
    if not finite.all():
        dtype = str(dtype_of(model)).removeprefix("torch.")
        narrow = "Load it in float32 or bfloat16, whose numbers go farther"
        first = int(finite.int().argmin())
        raise NotFiniteError(
            f"model {model.cfg.model_name} gives NaN or infinity in {dtype} {where(first)}, which is no score. "
            f"{narrow if dtype == 'float16' else 'Look for weights, or a hook, of very large numbers'}"
        )


def row_of(
    model: HookedModel,
    gates: Float[Tensor | np.ndarray, "layer unit"] | None,
    tokens: Tokens,
    example: int | None = None,
    units: Units = "heads",
    *,
    how: str = "off",
) -> str:
    """What ``check_numbers`` says of a row: the units off in it (or gated), its example, and how this begins."""
    mixed = np.zeros(0) if gates is None else np.asarray(torch.as_tensor(gates).detach().cpu()).astype(float)
    off = Grid.from_model(model, units).units(mixed != 1) if (mixed != 1).any() else []
    named = ", ".join(map(str, off[:_NAMED])) + (f" and {len(off) - _NAMED} more" if len(off) > _NAMED else "")
    named = f"with {named} {'gated' if mixed[mixed != 1].any() else how}" if off else "with nothing off"
    start = [int(token) for token in tokens[:_START]]
    tokenizer = getattr(model, "tokenizer", None)
    text = str(start) if tokenizer is None else repr(tokenizer.decode(start))
    return f"{named}, on {'the' if example is None else f'example {example}, the'} text that begins {text[:80]}"


@dataclass(frozen=True)
class Reads:
    """Tokens to be read: ``token[i]`` is read from the logits of row ``row[i]`` at position ``position[i]``.

    ``LIKELIEST`` in place of a token is the argmax, whichever that is.
    """

    row: Int[np.ndarray, " n"]
    position: Int[np.ndarray, " n"]
    token: Int[np.ndarray, " n"]


LIKELIEST = -1

ANY_READ = Reads(np.array([0]), np.array([0]), np.array([LIKELIEST]))
"""What is read in a forward that is run for its inside alone: it must make some logits."""


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
    with evaluating(model):
        places = torch.from_numpy(place // tokens.shape[1]), torch.from_numpy(place % tokens.shape[1])
        logits = logits_at(model, tokens, attention_mask, places, gates=gates, **options)
        at, wanted = (to_device(torch.from_numpy(side), logits.device) for side in (which, reads.token))
        normalizer, argmax = [], []
        for part in logits.split(max(1, _CHUNK // logits.shape[1])):
            scores = part.float()
            normalizer.append(scores.logsumexp(dim=1))
            argmax.append(scores.argmax(dim=1))
        likeliest = torch.cat(argmax)[at]
        wanted = torch.where(wanted == LIKELIEST, likeliest, wanted)
        logprob = logits[at, wanted].float() - torch.cat(normalizer)[at]
        # In one transfer, for which the device is waited for once.
        both = torch.stack([logprob, likeliest.int().view(torch.float32)]).cpu().numpy()
    best = both[1].view(np.int32).astype(np.int64)
    return TokenLogprobs(both[0].astype(np.float64), best == reads.token, best)
