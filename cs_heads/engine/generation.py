"""Texts under masks, decoded greedily, many rows together.

A text is that of plain greedy decoding: in float32, token for token. In half precision two logits may be so near that
another batch takes the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from cs_heads.designs import as_gates
from cs_heads.engine.forwards import Done, Forwards, Mask, Row, common_roots, roots
from cs_heads.engine.layout import lay_out
from cs_heads.engine.plan import free_memory
from cs_heads.engine.protocol import Known, PairExamples, PairMasks, PairText
from cs_heads.lens import EncodedExample
from cs_heads.lens.batches import TokenBudget, in_batches
from cs_heads.lens.cache import KeyValues
from cs_heads.lens.decode import Decoding, Finished
from cs_heads.lens.logprobs import LIKELIEST, check_numbers, row_of
from cs_heads.lens.model import context_length, device_of
from cs_heads.text import TokenIds

# Rows decoded together, and the memory their keys and values may take: bytes, and as a share of what is free.
_ROWS = {"cpu": 256, "cuda": 512}
_STORED = {"cpu": 2**30, "cuda": 2**34}
_SHARE = 0.15

# Finished rows leave the batch together, once they are this share of it: leaving copies those that stay.
_LEAVE = 0.25

# What is read after a prompt.
_ANY: tuple[TokenIds] = ((LIKELIEST,),)


@dataclass(frozen=True)
class _Pair:
    """A text to be generated, or ``known``: for pair ``number``, after the prompt of ``example``, under ``mask``."""

    number: int
    example: int
    mask: Mask
    known: bool


@dataclass
class _TextPool:
    """Texts begun, with their stored keys and values, until there are enough to be continued together."""

    pairs: list[_Pair] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    stored: list[KeyValues] = field(default_factory=list)

    def add(self, pairs: list[_Pair], texts: list[list[int]], stored: list[KeyValues]) -> None:
        self.pairs += pairs
        self.texts += texts
        self.stored += stored

    def full(self, device: torch.device) -> bool:
        held = sum(stored.n_bytes for stored in self.stored)
        most = min(_STORED.get(device.type, _STORED["cpu"]), _SHARE * free_memory(device))
        return len(self.pairs) >= rows_together(device.type) or held >= most

    def part(self, begin: int, end: int) -> _TextPool:
        """The texts ``begin..end``, copied: they grow without those here."""
        part = _TextPool(self.pairs[begin:end], [list(text) for text in self.texts[begin:end]])
        first = 0
        for stored in self.stored:
            number = first + torch.arange(len(stored.valid))
            rows = ((number >= begin) & (number < end)).nonzero()[:, 0]
            if len(rows):
                part.stored.append(stored if len(rows) == len(number) else stored.select(rows))
            first += len(number)
        return part


def rows_together(device: str) -> int:
    """Rows decoded together at most, on a kind of device."""
    return _ROWS.get(device, _ROWS["cpu"])


class Generation:
    """Generates a text after the prompt of each (mask, example) pair.

    Args:
        forwards: What runs the model.
        prompts: Prompts by number of the example, as tokens.
        finished: Whether a text, as its tokens so far, ends here.
    """

    def __init__(self, forwards: Forwards, prompts: Sequence[TokenIds], finished: Finished) -> None:
        self.forwards, self.prompts, self.finished = forwards, prompts, finished
        self._device = device_of(forwards.model)
        self._begun: set[int] = set()

    def run(self, masks: PairMasks, examples: PairExamples, known: Known = None) -> Iterator[list[PairText]]:
        """Yield the texts of pairs as they are finished: see ``EngineLike.generate``.

        Where the ``known`` pairs are those that an interrupted run has yielded, the others are generated in the very
        batches of that run.
        """
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        self.forwards.look()
        rows = self._rows(masks, examples, known)
        needed = _asked_for if known.any() else None
        pool = _TextPool()
        self._begun = set()
        for done in self.forwards.run(rows, keep_all=self.forwards.able.extend, needed=needed):
            yield self._begin(done, pool)
            # Known texts are in no pool: those that were decoded together became known together.
            if pool.full(self._device):
                yield self._finish(pool)
                pool = _TextPool()
        yield self._finish(pool)

    def _finish(self, pool: _TextPool) -> list[PairText]:
        """The texts of a pool; where memory does not suffice, of parts of it, each from the beginning."""
        # A row is one token of a step.
        together = TokenBudget(len(pool.pairs))
        texts = in_batches(
            range(len(pool.pairs)),
            size=lambda _: together.tokens,
            run=lambda rows: self._decode(pool.part(rows[0], rows[-1] + 1)),
            shrink=lambda rows: together.halve(len(rows)),
            describe=lambda row: f"the text of example {pool.pairs[row].example}",
        )
        return list(texts)

    def _rows(self, masks: PairMasks, examples: PairExamples, known: Bool[np.ndarray, " pair"]) -> list[Row]:
        """Prompts alone: the first token of every text is read at their ends."""
        positions = self.forwards.ablation.positions
        share = self.forwards.able.extend, self.forwards.ablation.shares_examples
        encoded = {int(e): EncodedExample(self.prompts[e], _ANY, False) for e in np.unique(examples)}
        works = []
        for mask, numbers in masks.pairs():
            chosen = examples[numbers].tolist()
            pairs = {
                example: _Pair(number, example, mask, bool(known[number]))
                for number, example in zip(numbers, chosen, strict=True)
            }
            works.append((mask, pairs))
        if positions != "last":
            return [
                row
                for mask, pairs in works
                for row in roots(list(pairs.values()), mask, lay_out(encoded, list(pairs), *share, positions))
            ]
        # Prompts but for their last tokens are common to all masks, so they stand in one layout.
        layout = lay_out(encoded, list(encoded), *share, positions)
        return common_roots(
            [([pairs.get(e) for e in encoded], mask, np.array([e in pairs for e in encoded])) for mask, pairs in works],
            layout,
        )

    def _begin(self, done: Done, pool: _TextPool) -> list[PairText]:
        """Take the first token of each text into the pool; the texts that end there."""
        ended: list[PairText] = []
        pairs, texts, places = [], [], []
        for i, (row, logprobs) in enumerate(done.by_row()):
            for slot, offset, best in zip(row.piece.slots, row.piece.offsets, logprobs.best, strict=True):
                pair = row.owner[int(row.layout.local[slot])]
                # Not asked for under this mask; or a prompt is run again, after a batch that did not fit.
                if pair is None or pair.number in self._begun:
                    continue
                self._begun.add(pair.number)
                if pair.known:
                    continue
                if self.finished([int(best)]):
                    ended.append((pair.number, (int(best),)))
                    continue
                pairs.append(pair)
                texts.append([int(best)])
                places.append((i, row.piece.start + int(offset) + 1))
        stored = []
        if pairs and done.stored is not None:
            rows, lengths = torch.tensor(places).T
            stored = [done.stored.select(rows, lengths)]
        pool.add(pairs, texts, stored)
        return ended

    def _decode(self, pool: _TextPool) -> list[PairText]:
        """Token by token until every text is finished."""
        if pool.pairs and self.forwards.able.extend:
            decoding, context = self._decoding(pool), context_length(self.forwards.model)
            while unfinished := [r for r in decoding.rows if not self.finished(pool.texts[r])]:
                few = len(unfinished) <= (1 - _LEAVE) * len(decoding.rows)
                # Finished rows leave at once where they would grow beyond the context.
                beyond = context is not None and decoding.stored.valid.shape[1] >= context
                if few or (beyond and len(unfinished) < len(decoding.rows)):
                    decoding.keep(unfinished)
                length = {r: len(pool.texts[r]) for r in decoding.rows}
                decoding.advance()
                self._check(decoding, pool, unfinished)
                # A finished row that has not left yet runs on, and is not listened to.
                for r in set(decoding.rows) - set(unfinished):
                    del pool.texts[r][length[r] :]
        elif pool.pairs:
            self._decode_whole(pool)
        return [(pair.number, tuple(text)) for pair, text in zip(pool.pairs, pool.texts, strict=True)]

    def _check(self, decoding: Decoding, pool: _TextPool, rows: list[int]) -> None:
        """Raise ``NotFiniteError`` where the tokens that some rows were given by the last step were chosen of none."""

        def where(place: int) -> str:
            pair = pool.pairs[rows[place]]
            return row_of(decoding.model, as_gates(pair.mask), self.prompts[pair.example], pair.example, decoding.units)

        check_numbers(decoding.model, np.array([decoding.logits[r] for r in rows]), where)

    def _decoding(self, pool: _TextPool) -> Decoding:
        gates = torch.from_numpy(np.stack([as_gates(pair.mask).astype(np.float32) for pair in pool.pairs]))
        if self.forwards.ablation.positions != "all":
            # What is decoded comes after the prompt.
            gates = torch.ones_like(gates)
        ablation = self.forwards.ablation

        def replacement(rows: list[int], start: list[int]) -> Mapping[int, Tensor] | None:
            prompts = [len(self.prompts[pool.pairs[r].example]) for r in rows]
            places = [((pool.pairs[r].example, 0), n + s, 1) for r, n, s in zip(rows, prompts, start, strict=True)]
            return ablation.replacement(gates[rows].numpy(), places, prompts, 1)

        stored, fused = KeyValues.joined(pool.stored), self.forwards.able.fused
        return Decoding(self.forwards.model, stored, pool.texts, gates, replacement, fused, ablation.units)

    def _decode_whole(self, pool: _TextPool) -> None:
        """Without stored keys and values every token runs its text from the beginning."""
        while unfinished := [i for i, text in enumerate(pool.texts) if not self.finished(text)]:
            rows = []
            for i in unfinished:
                pair = pool.pairs[i]
                so_far = EncodedExample(self.prompts[pair.example], ((*pool.texts[i], LIKELIEST),), False)
                rows += roots(i, pair.mask, lay_out({pair.example: so_far}, [pair.example], share=False))
            for done in self.forwards.run(rows):
                for row, logprobs in done.by_row():
                    pool.texts[row.owner].append(int(logprobs.best[-1]))


def _asked_for(row: Row) -> bool:
    """Whether a text that is not known begins in a row, or in one that follows it."""
    return any(
        row.layout.asks(row.piece, np.array([pair is not None and not pair.known for pair in pairs]))
        for pairs in row.owners
    )
