"""Greedy decoding under per-row gates, one token or several proposed tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from cs_heads.lens.cache import Extension, KeyValues
from cs_heads.lens.forward import logits_at, pad
from cs_heads.lens.model import HookedModel, evaluating
from cs_heads.lens.tokens import common_prefix
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
        replacement: Called as ``replacement(rows, start, width)``: by layer, what ablated heads become in tokens
            ``start[i]..start[i] + width`` after the prompt of row ``rows[i]``; None is zero.
        fused: Whether attention runs through the fused kernel.
        units: The kind of unit that is gated.
    """

    model: HookedModel
    stored: KeyValues
    texts: list[list[int]]
    gates: Float[Tensor, "row layer head"]
    replacement: Callable[[list[int], list[int], int], Mapping[int, Tensor] | None] | None = None
    fused: bool = False
    units: Units = "heads"

    def __post_init__(self) -> None:
        self.rows = list(range(len(self.texts)))
        # By row, the summed logits of the tokens that the last step gave it: NaN or infinite where one of them is.
        self.logits: dict[int, float] = {}

    def keep(self, rows: list[int]) -> None:
        """Let all rows but ``rows`` leave the batch."""
        self.stored = self.stored_of(rows)
        self.rows = rows

    def stored_of(self, rows: list[int]) -> KeyValues:
        """A copy of what is stored of some rows."""
        place = {row: i for i, row in enumerate(self.rows)}
        chosen = torch.tensor([place[row] for row in rows], dtype=torch.long)
        return self.stored.select(chosen)

    def advance(self, proposals: Mapping[int, Sequence[int]] | None = None) -> None:
        """Run one forward; each text grows by the part of its proposal that it agrees with, and by one more token.

        Of equal logits the lowest token is taken.
        """
        proposed = [list((proposals or {}).get(row, ())) for row in self.rows]
        tokens, attention_mask = pad(
            [[self.texts[r][-1], *proposal] for r, proposal in zip(self.rows, proposed, strict=True)]
        )
        width = tokens.shape[1]
        row, position = attention_mask.nonzero(as_tuple=True)
        with evaluating(self.model):
            extension = Extension(attention_mask, self.stored, room=_ROOM)
            start = [len(self.texts[r]) - 1 for r in self.rows]
            logits = logits_at(
                self.model,
                tokens,
                attention_mask,
                row=row,
                position=position,
                gates=self.gates[self.rows],
                replacement=None if self.replacement is None else self.replacement(self.rows, start, width),
                units=self.units,
                extension=extension,
                fused=self.fused,
            )
        self.stored = extension.finish()
        likeliest = logits.argmax(dim=1)
        # In one transfer, for which the device is waited for once.
        top = logits.gather(1, likeliest[:, None])[:, 0].float()
        both = torch.zeros(2, *tokens.shape, dtype=torch.int32)
        both[:, row, position] = torch.stack([likeliest.int(), top.view(torch.int32)]).cpu()
        best, tops = both[0].tolist(), both[1].view(torch.float32)
        taken = []
        for r, proposal, said, given in zip(self.rows, proposed, best, tops, strict=True):
            taken.append(common_prefix(proposal, said))
            self.texts[r] += said[: taken[-1] + 1]
            self.logits[r] = float(given[: taken[-1] + 1].sum())
        # What was fed and not taken is forgotten.
        kept = torch.tensor([n + 1 for n in taken])
        self.stored.valid[:, -width:] &= torch.arange(width) < kept[:, None]
