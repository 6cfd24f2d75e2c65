"""Texts under masks, decoded greedily: drafted by the intact model, verified in one forward, then decoded on.

The draft is verified as in speculative decoding with a greedy target (Leviathan et al. 2023, section 2),
so that the text is that of plain greedy decoding, token for token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from cs_heads.lens import EncodedExample
from cs_heads.lens.cache import KeyValues
from cs_heads.lens.decode import Finished, decode
from cs_heads.lens.model import device_of
from cs_heads.measure.forwards import Done, Forwards, Row, roots
from cs_heads.measure.layout import lay_out

Text = tuple[int, ...]
PairText = tuple[int, Text]

# Rows decoded together, and the memory their keys and values may take.
_ROWS = {"cpu": 64, "cuda": 512}
_STORED = {"cpu": 2**30, "cuda": 2**34}

# Stands where there is no draft: what the model says instead of it is the first token.
_NO_DRAFT: Text = (0,)


@dataclass
class _Verified:
    """One mask on some examples: how much of each draft is what the masked model says; None once that is known."""

    pairs: list[int]
    drafts: list[Text | None]
    agreed: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.agreed = [0] * len(self.pairs)


@dataclass
class _Waiting:
    """Rows that have left their drafts, until there are enough to decode together."""

    rows: list[tuple[int, int, Float[np.ndarray, "layer head"]]] = field(default_factory=list)
    """Pair, example, gates."""
    texts: list[list[int]] = field(default_factory=list)
    stored: list[KeyValues] = field(default_factory=list)


class Generation:
    """Generates a text after the prompt of each (mask, example) pair; ``finished`` says where a text ends."""

    def __init__(self, forwards: Forwards, prompts: Sequence[Text], finished: Finished) -> None:
        self.forwards, self.prompts, self.finished = forwards, prompts, finished

    def run(
        self,
        masks: Bool[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        drafts: Mapping[int, Text],
        progress: bool | None,
    ) -> Iterator[list[PairText]]:
        """Yield (pair, tokens) as texts are finished; ``drafts`` are finished texts by example, of some or none."""
        device = device_of(self.forwards.model).type
        waiting = _Waiting()
        with tqdm(total=len(examples), unit="text", disable=None if progress is None else not progress) as bar:
            for done in self.forwards.run(self._rows(masks, examples, drafts), keep_all=self.forwards.able.extend):
                texts = self._verify(done, waiting)
                held = sum(stored.n_bytes for stored in waiting.stored)
                if len(waiting.rows) >= _ROWS.get(device, _ROWS["cpu"]) or held >= _STORED.get(device, _STORED["cpu"]):
                    texts += self._decode(waiting)
                    waiting = _Waiting()
                yield texts
                bar.update(len(texts))
            texts = self._decode(waiting)
            yield texts
            bar.update(len(texts))

    def _rows(
        self, masks: Bool[np.ndarray, "pair layer head"], examples: Int[np.ndarray, " pair"], drafts: Mapping[int, Text]
    ) -> list[Row]:
        ablation, able = self.forwards.ablation, self.forwards.able
        encoded = {
            int(e): EncodedExample(self.prompts[e], (drafts.get(int(e), _NO_DRAFT),), False)
            for e in np.unique(examples)
        }
        by_mask: dict[bytes, list[int]] = {}
        for pair, mask in enumerate(masks):
            by_mask.setdefault(mask.tobytes(), []).append(pair)
        rows = []
        for pairs in by_mask.values():
            chosen = [int(e) for e in examples[pairs]]
            layout = lay_out(encoded, chosen, able.extend, ablation is None or ablation.same_for_all_examples)
            owner = _Verified(pairs, [drafts.get(e) for e in chosen])
            rows += roots(owner, 1.0 - masks[pairs[0]], layout)
        return rows

    def _verify(self, done: Done, waiting: _Waiting) -> list[PairText]:
        """Compare drafts with what was read; texts that end in or after their drafts, the others to ``waiting``."""
        texts: list[PairText] = []
        left: list[tuple[int, int]] = []
        for i, (row, scores) in enumerate(done.by_row()):
            verified: _Verified = row.owner
            for slot, offset, agrees, best in zip(
                row.piece.slots, row.piece.offsets, scores.greedy, scores.best, strict=True
            ):
                local = int(row.layout.local[slot])
                agreed, draft = verified.agreed[local], verified.drafts[local]
                if agreed is None:
                    continue
                pair = verified.pairs[local]
                if draft is not None and agrees:
                    verified.agreed[local] = agreed + 1 if agreed + 1 < len(draft) else None
                    if verified.agreed[local] is None:
                        texts.append((pair, draft))
                    continue
                verified.agreed[local] = None
                text = [*(draft or ())[:agreed], int(best)]
                if self.finished(text):
                    texts.append((pair, tuple(text)))
                else:
                    waiting.rows.append((pair, row.layout.examples[local], row.gates))
                    waiting.texts.append(text)
                    left.append((i, row.piece.start + int(offset) + 1))
        if left and done.stored is not None and self.forwards.able.extend:
            rows, lengths = torch.tensor(left, device=done.stored.valid.device).T
            waiting.stored.append(done.stored.select(rows, lengths))
        return texts

    def _decode(self, waiting: _Waiting) -> list[PairText]:
        if not waiting.rows:
            return []
        forwards = self.forwards
        if not forwards.able.extend:
            return self._decode_whole(waiting)
        gates = torch.from_numpy(np.stack([gates for _, _, gates in waiting.rows])).float()
        examples = [example for _, example, _ in waiting.rows]

        def replacement(rows: list[int]) -> Mapping[int, Tensor]:
            assert forwards.ablation is not None
            ends = [len(self.prompts[examples[row]]) + len(waiting.texts[row]) - 1 for row in rows]
            places = [((examples[row], 0), end, 1) for row, end in zip(rows, ends, strict=True)]
            return forwards.ablation.replacement(gates[rows].numpy(), places, 1)

        options: dict[str, Any] = {
            "gates": gates,
            "replacement": None if forwards.ablation is None else replacement,
            "fused": forwards.able.fused,
        }
        decode(forwards.model, KeyValues.joined(waiting.stored), waiting.texts, self.finished, **options)
        return [(pair, tuple(text)) for (pair, _, _), text in zip(waiting.rows, waiting.texts, strict=True)]

    def _decode_whole(self, waiting: _Waiting) -> list[PairText]:
        """Without stored keys and values every token runs the text from its beginning."""
        unfinished = list(range(len(waiting.rows)))
        while unfinished:
            rows = []
            for i in unfinished:
                _, example, gates = waiting.rows[i]
                so_far = EncodedExample((*self.prompts[example], *waiting.texts[i]), (_NO_DRAFT,), False)
                rows += roots(i, gates, lay_out({example: so_far}, [example], share=False))
            for done in self.forwards.run(rows):
                for row, scores in done.by_row():
                    waiting.texts[row.owner].append(int(scores.best[0]))
            unfinished = [i for i in unfinished if not self.finished(waiting.texts[i])]
        return [(pair, tuple(text)) for (pair, _, _), text in zip(waiting.rows, waiting.texts, strict=True)]
