"""Greedy decoding under per-row gates, from stored keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cs_heads.lens.cache import Extension, KeyValues
from cs_heads.lens.forward import logits_at
from cs_heads.lens.model import device_of, evaluating

Finished = Callable[[Sequence[int]], bool]
"""Whether a text, given as the tokens generated so far, ends here."""

# Finished rows leave the batch together, once they are this share of it: leaving copies those that stay.
_LEAVE = 0.25

# Positions that stored rows are given at once, to grow into.
_ROOM = 32


def decode(
    model: Any,
    stored: KeyValues,
    generated: list[list[int]],
    finished: Finished,
    *,
    gates: Float[Tensor, "row layer head"],
    replacement: Callable[[list[int]], Mapping[int, Tensor]] | None = None,
    fused: bool = False,
) -> None:
    """Go on with each row greedily, token by token, until it is finished; ``generated`` grows in place.

    ``stored`` holds the keys and values of each row up to the last token of ``generated`` but one, and is
    used up. ``replacement(rows)`` gives what ablated heads become at the last token of ``generated`` of each of
    those rows. Of equal logits the lowest token is taken.
    """
    device = device_of(model)
    live = list(range(len(generated)))
    waiting = [row for row in live if not finished(generated[row])]
    with evaluating(model):
        while waiting:
            if len(waiting) <= (1 - _LEAVE) * len(live):
                stored = stored.select(torch.tensor([live.index(row) for row in waiting], device=stored.valid.device))
                live = waiting
            tokens = torch.tensor([[generated[row][-1]] for row in live], device=device)
            extension = Extension(torch.ones_like(tokens), stored, room=_ROOM)
            logits = logits_at(
                model,
                tokens,
                torch.ones_like(tokens),
                row=torch.arange(len(live)),
                position=torch.zeros(len(live), dtype=torch.long),
                gates=gates[live],
                replacement=None if replacement is None else replacement(live),
                extension=extension,
                fused=fused,
            )
            stored = extension.finish()
            # A finished row that has not left yet runs on, and is not listened to.
            going_on = set(waiting)
            for row, token in zip(live, logits.float().argmax(dim=1).tolist(), strict=True):
                if row in going_on:
                    generated[row].append(token)
            waiting = [row for row in waiting if not finished(generated[row])]
