"""Greedy decoding under per-row gates, one token or several proposed tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.cache import Extension, KeyValues
from cs_heads.lens.forward import logits_at
from cs_heads.lens.model import HookedModel, device_of, evaluating
from cs_heads.lens.score import pad

Finished = Callable[[Sequence[int]], bool]
"""Whether a text, given as the tokens generated so far, ends here."""

# Positions that stored rows are given at once, to grow into.
_ROOM = 32


@dataclass
class Decoding:
    """Rows whose texts grow together: ``stored`` holds each row up to the last token of its text but one.

    ``replacement(rows, start, width)``, where heads become something else than zero, gives by layer what they
    become in tokens ``start[i]..start[i] + width`` after the prompt of row ``rows[i]``.
    """

    model: HookedModel
    stored: KeyValues
    texts: list[list[int]]
    gates: Float[Tensor, "row layer head"]
    replacement: Callable[[list[int], list[int], int], Mapping[int, Tensor]] | None = None
    fused: bool = False

    def __post_init__(self) -> None:
        self.rows = list(range(len(self.texts)))

    def keep(self, rows: list[int]) -> None:
        """Let all rows but ``rows`` leave the batch."""
        self.stored = self.stored_of(rows)
        self.rows = rows

    def stored_of(self, rows: list[int]) -> KeyValues:
        """A copy of what is stored of some rows."""
        place = {row: i for i, row in enumerate(self.rows)}
        chosen = torch.tensor([place[row] for row in rows], dtype=torch.long, device=self.stored.valid.device)
        return self.stored.select(chosen)

    def advance(self, proposals: Mapping[int, Sequence[int]] | None = None) -> dict[int, int]:
        """Run one forward; each text grows by what it agrees with of its proposal and by one token more.

        Returns how many tokens of its proposal each row took. Of equal logits the lowest token is taken.
        """
        proposed = [list((proposals or {}).get(row, ())) for row in self.rows]
        fed = [[self.texts[row][-1], *proposal] for row, proposal in zip(self.rows, proposed, strict=True)]
        tokens, mask = pad(fed)
        best = self._best(tokens, mask)
        taken = {}
        for i, (row, proposal) in enumerate(zip(self.rows, proposed, strict=True)):
            n = 0
            while n < len(proposal) and proposal[n] == best[i][n]:
                n += 1
            self.texts[row] += [*proposal[:n], best[i][n]]
            taken[row] = n
        # What was fed and not taken is forgotten.
        kept = torch.tensor([taken[row] + 1 for row in self.rows], device=self.stored.valid.device)
        width = tokens.shape[1]
        self.stored.valid[:, -width:] &= torch.arange(width, device=kept.device) < kept[:, None]
        return taken

    def _best(self, tokens: Int[Tensor, "row new"], mask: Int[Tensor, "row new"]) -> list[list[int]]:
        width = tokens.shape[1]
        row, position = mask.nonzero(as_tuple=True)
        extension = Extension(mask.to(device_of(self.model)), self.stored, room=_ROOM)
        start = [len(self.texts[r]) - 1 for r in self.rows]
        with evaluating(self.model):
            logits = logits_at(
                self.model,
                tokens,
                mask,
                row=row,
                position=position,
                gates=self.gates[self.rows],
                replacement=None if self.replacement is None else self.replacement(self.rows, start, width),
                extension=extension,
                fused=self.fused,
            )
        self.stored = extension.finish()
        best = torch.zeros(tokens.shape, dtype=torch.long)
        best[row, position] = logits.argmax(dim=1).cpu()
        return best.tolist()
