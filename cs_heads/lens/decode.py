"""Greedy decoding under per-row gates, token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from cs_heads.lens.cache import Extension, KeyValues
from cs_heads.lens.forward import logits_at
from cs_heads.lens.model import HookedModel, evaluating
from cs_heads.units import Units

Finished = Callable[[Sequence[int]], bool]
"""Whether a text, given as the tokens generated so far, ends here."""

# Positions that stored rows are given at once, to grow into.
_ROOM = 32


@dataclass
class Decoding:
    """Rows whose texts grow together.

    Attributes:
        model: The model.
        stored: Keys and values of each row, up to the last token of its text but one.
        texts: The tokens generated so far.
        gates: The gates of each row.
        replacement: Called as ``replacement(rows, start)``: by layer, what ablated heads become in token ``start[i]``
            after the prompt of row ``rows[i]``; None is zero.
        fused: Whether attention runs through the fused kernel.
        units: The kind of unit that is gated.
    """

    model: HookedModel
    stored: KeyValues
    texts: list[list[int]]
    gates: Float[Tensor, "row layer head"]
    replacement: Callable[[list[int], list[int]], Mapping[int, Tensor] | None]
    fused: bool = False
    units: Units = "heads"

    def __post_init__(self) -> None:
        self.rows = list(range(len(self.texts)))
        # By row, the logit of the token that the last step gave it.
        self.logits: dict[int, float] = {}

    def keep(self, rows: list[int]) -> None:
        """Let all rows but ``rows`` leave the batch."""
        place = {row: i for i, row in enumerate(self.rows)}
        self.stored = self.stored.select(torch.tensor([place[row] for row in rows], dtype=torch.long))
        self.rows = rows

    def advance(self) -> None:
        """Run one forward; each text grows by a token. Of equal logits the lowest token is taken."""
        tokens = torch.tensor([[self.texts[r][-1]] for r in self.rows])
        attention_mask = torch.ones_like(tokens)
        with evaluating(self.model):
            extension = Extension(attention_mask, self.stored, room=_ROOM)
            logits = logits_at(
                self.model,
                tokens,
                attention_mask,
                gates=self.gates[self.rows],
                replacement=self.replacement(self.rows, [len(self.texts[r]) - 1 for r in self.rows]),
                units=self.units,
                extension=extension,
                fused=self.fused,
            )
        self.stored = extension.finish()
        likeliest = logits.argmax(dim=1)
        top = logits.gather(1, likeliest[:, None])[:, 0].float()
        # In one transfer, for which the device is waited for once.
        both = torch.stack([likeliest.int(), top.view(torch.int32)]).cpu()
        for r, token, logit in zip(self.rows, both[0].tolist(), both[1].view(torch.float32).tolist(), strict=True):
            self.texts[r].append(token)
            self.logits[r] = logit
