"""Texts under masks, decoded greedily, many rows together.

A text is that of plain greedy decoding: in float32, token for token. In half precision two logits may be so near that
another batch takes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cs_heads.designs import as_gates
from cs_heads.engine.forwards import Done, Forwards, Mask, Row, roots
from cs_heads.engine.layout import lay_out
from cs_heads.engine.plan import free_memory
from cs_heads.engine.protocol import Known, PairExamples, PairMasks, PairText
from cs_heads.lens import EncodedExample
from cs_heads.lens.batches import TokenBudget, in_batches
from cs_heads.lens.cache import Extension, KeyValues
from cs_heads.lens.forward import logits_at
from cs_heads.lens.logprobs import LIKELIEST, check_numbers, row_of
from cs_heads.lens.model import context_length, device_of, evaluating
from cs_heads.text import TokenIds

Finished = Callable[[Sequence[int]], bool]
"""Whether a text, given as the tokens generated so far, ends here."""

# Rows decoded together, and the memory their keys and values may take: bytes, and as a share of what is free.
_ROWS = {"cpu": 256, "cuda": 512}
_STORED = {"cpu": 2**30, "cuda": 2**34}
_SHARE = 0.15

# Finished rows leave the batch together, once they are this share of it: leaving copies those that stay.
_LEAVE = 0.25

# Positions that stored rows are given at once, to grow into.
_ROOM = 32

# What is read after a prompt.
_ANY: tuple[TokenIds] = ((LIKELIEST,),)


@dataclass(frozen=True)
class _Pair:
    """A text to be generated, or ``known``: for pair ``number``, after the prompt of ``example``, under ``mask``."""

    number: int
    example: int
    mask: Mask
    known: bool


@dataclass(frozen=True, eq=False)
class _Work:
    """The pairs of a mask, by the place of their example in a layout: None of one that the mask is not asked for."""

    mask: Mask
    pairs: list[_Pair | None]

    @cached_property
    def asked(self) -> Bool[np.ndarray, " local"]:
        return np.array([pair is not None for pair in self.pairs])

    @cached_property
    def new(self) -> Bool[np.ndarray, " local"]:
        return np.array([pair is not None and not pair.known for pair in self.pairs])


@dataclass
class _TextPool:
    """Texts begun, with their stored keys and values, until there are enough to be continued together."""

    pairs: list[_Pair] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    stored: list[KeyValues] = field(default_factory=list)

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
        pool = _TextPool()
        self._begun = set()
        for done in self.forwards.run(rows, keep_all=self.forwards.able.extend):
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
        asked = []
        for mask, numbers in masks.pairs():
            chosen = zip(numbers, examples[numbers].tolist(), strict=True)
            asked.append((mask, {e: _Pair(number, e, mask, bool(known[number])) for number, e in chosen}))
        if positions == "last":
            # Prompts but for their last tokens are common to all masks, so they stand in one layout.
            works = [_Work(mask, [pairs.get(e) for e in encoded]) for mask, pairs in asked]
            return roots(works, lay_out(encoded, list(encoded), *share, positions))
        return [
            row
            for mask, pairs in asked
            for row in roots([_Work(mask, [*pairs.values()])], lay_out(encoded, list(pairs), *share, positions))
        ]

    def _begin(self, done: Done, pool: _TextPool) -> list[PairText]:
        """Take the first token of each text into the pool; the texts that end there."""
        ended: list[PairText] = []
        places = []
        for i, (row, logprobs) in enumerate(done.by_row()):
            for slot, offset, best in zip(row.piece.slots, row.piece.offsets, logprobs.best, strict=True):
                pair = row.works[0].pairs[int(row.layout.local[slot])]
                # Not asked for under this mask; or a prompt is run again, after a batch that did not fit.
                if pair is None or pair.number in self._begun:
                    continue
                self._begun.add(pair.number)
                if pair.known:
                    continue
                if self.finished([int(best)]):
                    ended.append((pair.number, (int(best),)))
                    continue
                pool.pairs.append(pair)
                pool.texts.append([int(best)])
                places.append((i, row.piece.start + int(offset) + 1))
        if places and done.stored is not None:
            rows, lengths = torch.tensor(places).T
            pool.stored.append(done.stored.select(rows, lengths))
        return ended

    def _decode(self, pool: _TextPool) -> list[PairText]:
        """Token by token until every text is finished."""
        if pool.pairs and self.forwards.able.extend:
            self._decode_stored(pool)
        elif pool.pairs:
            self._decode_whole(pool)
        return [(pair.number, tuple(text)) for pair, text in zip(pool.pairs, pool.texts, strict=True)]

    def _decode_stored(self, pool: _TextPool) -> None:
        """From stored keys and values every token is a step of its own."""
        model, ablation, context = self.forwards.model, self.forwards.ablation, context_length(self.forwards.model)
        gates = np.stack([as_gates(pair.mask).astype(np.float32) for pair in pool.pairs])
        if ablation.positions != "all":
            # What is decoded comes after the prompt.
            gates = np.ones_like(gates)

        def where(place: int) -> str:
            pair = pool.pairs[unfinished[place]]
            return row_of(model, as_gates(pair.mask), self.prompts[pair.example], pair.example, ablation.units)

        stored, rows = KeyValues.joined(pool.stored), list(range(len(pool.pairs)))
        while unfinished := [r for r in rows if not self.finished(pool.texts[r])]:
            few = len(unfinished) <= (1 - _LEAVE) * len(rows)
            # Finished rows leave at once where they would grow beyond the context.
            beyond = context is not None and stored.valid.shape[1] >= context
            if few or (beyond and len(unfinished) < len(rows)):
                stored, rows = stored.select(torch.tensor([rows.index(r) for r in unfinished])), unfinished
            texts, examples = [pool.texts[r] for r in rows], [pool.pairs[r].example for r in rows]
            prompts = [len(self.prompts[example]) for example in examples]
            starts = [n + len(text) - 1 for n, text in zip(prompts, texts, strict=True)]
            places = [((example, 0), start, 1) for example, start in zip(examples, starts, strict=True)]
            replacement = ablation.replacement(gates[rows], places, prompts, 1)
            stored, tokens, logits = self._step(stored, [text[-1] for text in texts], gates[rows], replacement)
            # A finished row that has not left yet runs on, and is not listened to.
            heard = np.isin(rows, unfinished)
            check_numbers(model, logits[heard], where)
            for r, token in zip(unfinished, tokens[heard].tolist(), strict=True):
                pool.texts[r].append(token)

    def _step(
        self,
        stored: KeyValues,
        last: list[int],
        gates: Float[np.ndarray, "row layer unit"],
        replacement: Mapping[int, Tensor] | None,
    ) -> tuple[KeyValues, Int[np.ndarray, " row"], Float[np.ndarray, " row"]]:
        """Run the last token of each row: what is stored then, the likeliest tokens, of equals the lowest, and logits.

        Args:
            stored: Keys and values up to that token.
            last: The token.
            gates: The gates of each row.
            replacement: What ablated units give there.
        """
        tokens, model = torch.tensor(last)[:, None], self.forwards.model
        extension = Extension(torch.ones_like(tokens), stored, room=_ROOM)
        options: dict[str, Any] = {"units": self.forwards.ablation.units, "fused": self.forwards.able.fused}
        options |= {"gates": torch.from_numpy(gates), "replacement": replacement, "extension": extension}
        with evaluating(model):
            logits = logits_at(model, tokens, torch.ones_like(tokens), **options)
        likeliest = logits.argmax(dim=1)
        top = logits.gather(1, likeliest[:, None])[:, 0].float()
        # In one transfer, for which the device is waited for once.
        both = torch.stack([likeliest.int(), top.view(torch.int32)]).cpu()
        return extension.finish(), both[0].numpy(), both[1].view(torch.float32).numpy()

    def _decode_whole(self, pool: _TextPool) -> None:
        """Without stored keys and values every token runs its text from the beginning."""
        while unfinished := [i for i, text in enumerate(pool.texts) if not self.finished(text)]:
            rows, texts = [], {}
            for i in unfinished:
                pair, texts[pool.pairs[i].number] = pool.pairs[i], pool.texts[i]
                so_far = EncodedExample(self.prompts[pair.example], ((*pool.texts[i], LIKELIEST),), False)
                rows += roots([_Work(pair.mask, [pair])], lay_out({pair.example: so_far}, [pair.example], share=False))
            for done in self.forwards.run(rows):
                for row, logprobs in done.by_row():
                    texts[row.works[0].pairs[0].number].append(int(logprobs.best[-1]))
