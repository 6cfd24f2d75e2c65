"""Running (mask, example) pairs through the model: every forward full, and nothing run twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from tqdm.auto import tqdm

from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.cache import Extension, KeyValues
from cs_heads.lens.model import device_of, dtype_of
from cs_heads.lens.score import Reads, pad, read_tokens
from cs_heads.measure.ablation import Ablation
from cs_heads.measure.intact import Residuals, layers_to_store
from cs_heads.measure.layout import Layout, Piece, lay_out
from cs_heads.measure.plan import token_budget

# Logits of one forward at most (float32: 256 MiB), so that the vocabulary bounds a batch too.
_MAX_LOGITS = 2**26

# Bytes of keys and values that one forward may leave behind for those that go on from it.
_MAX_STORED = {"cpu": 2**29, "cuda": 2**33}

# What a token of a stored prefix costs a row that goes on from it, in tokens run.
_CARRY = 1 / 8

PairResult = tuple[int, Float[np.ndarray, " continuation"], Bool[np.ndarray, " continuation"]]


class _DoesNotFit(MemoryError):
    """One row by itself wants more memory than there is."""


@dataclass
class _Work:
    """One mask on the examples of a layout: its gates, its pairs, and what has been read so far."""

    gates: Float[np.ndarray, "layer head"]
    layout: Layout
    pairs: list[int]
    logprob: Float[np.ndarray, " slot"] = field(init=False)
    greedy: Bool[np.ndarray, " slot"] = field(init=False)
    missing: Int[np.ndarray, " local"] = field(init=False)

    def __post_init__(self) -> None:
        self.logprob = np.full(len(self.layout.local), np.nan)
        self.greedy = np.zeros(len(self.layout.local), dtype=bool)
        self.missing = np.bincount(self.layout.local, minlength=len(self.pairs))

    def read(self, piece: Piece, logprob: Float[np.ndarray, " n"], greedy: Bool[np.ndarray, " n"]) -> list[PairResult]:
        """Take in what was read at a piece; the results of the pairs that this completes."""
        new = piece.slots[np.isnan(self.logprob[piece.slots])]
        self.logprob[piece.slots], self.greedy[piece.slots] = logprob, greedy
        np.subtract.at(self.missing, self.layout.local[new], 1)
        return [self._result(int(i)) for i in np.unique(self.layout.local[new]) if not self.missing[i]]

    def _result(self, local: int) -> PairResult:
        slots = np.flatnonzero(self.layout.local == local)
        continuation = self.layout.continuation[slots]
        misses = np.bincount(continuation, weights=~self.greedy[slots])
        return self.pairs[local], np.bincount(continuation, weights=self.logprob[slots]), misses == 0


@dataclass(frozen=True)
class _Item:
    """One row of a forward: a piece under a mask, going on from row ``parent`` of what is stored."""

    work: _Work
    piece: Piece
    parent: int


class Engine:
    """Scores (mask, example) pairs on one model; each row of a batch carries the mask of its pair.

    ``ideas`` says which short cuts may be taken; those that are not exact on this model are left out.
    """

    def __init__(
        self,
        model: Any,
        examples: Sequence[EncodedExample],
        batch_tokens: int | None = None,
        ablation: Ablation | None = None,
        ideas: Abilities | None = None,
    ) -> None:
        self.model, self.examples, self.ablation = model, examples, ablation
        self._wanted, self._batch_tokens = ideas, batch_tokens
        self._able: Abilities | None = None
        self._layouts: dict[tuple[int, ...], Layout] = {}

    def run(
        self,
        masks: Bool[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        progress: bool | None,
    ) -> Iterator[list[PairResult]]:
        """Yield results forward by forward: (pair, log-probability and greedy match of each continuation).

        A batch that does not fit into memory is halved; a row that does not fit by itself raises
        ``MemoryError``. Results are those of each pair by itself, whatever shares its batch.
        """
        self._prepare()
        self._layouts = {}
        works = self._works(masks, examples)
        # disable=None: no bar where standard error is a file.
        with tqdm(total=len(examples), unit="eval", disable=None if progress is None else not progress) as bar:
            for residuals, layer, group in self._groups(works):
                items = [_Item(work, work.layout.pieces[i], 0) for work in group for i in work.layout.roots]
                for results in self._descend(items, None, residuals, layer):
                    yield results
                    bar.update(len(results))

    def _prepare(self) -> None:
        if self._able is None:
            self._able = abilities(self.model, self._wanted)
            self.batch_tokens = self._batch_tokens or token_budget(self.model, self._able.fused)
            if self.ablation is not None:
                self.ablation.prepare(self.model, self.examples, self.batch_tokens)

    def _works(self, masks: Bool[np.ndarray, "pair layer head"], examples: Int[np.ndarray, " pair"]) -> list[_Work]:
        by_mask: dict[bytes, list[int]] = {}
        for pair, mask in enumerate(masks):
            by_mask.setdefault(mask.tobytes(), []).append(pair)
        works = []
        for pairs in by_mask.values():
            pairs.sort(key=lambda pair: examples[pair])
            works.append(_Work(1.0 - masks[pairs[0]], self._layout(tuple(examples[pairs].tolist())), pairs))
        return works

    def _layout(self, examples: tuple[int, ...]) -> Layout:
        if examples not in self._layouts:
            assert self._able is not None
            across = self.ablation is None or self.ablation.same_for_all_examples
            self._layouts[examples] = lay_out(self.examples, examples, self._able.extend, across)
        return self._layouts[examples]

    def _groups(self, works: list[_Work]) -> Iterator[tuple[Residuals | None, int, list[_Work]]]:
        """Works that start at the same layer, with the intact residuals they start from."""
        assert self._able is not None
        layout = self._layout(tuple(sorted({example for work in works for example in work.layout.examples})))
        first = np.array([_first_ablated(work.gates) for work in works])
        layers: list[int] = []
        if self._able.resume:
            layers = layers_to_store(self.model, first, [work.layout.n_tokens for work in works], layout.n_tokens)
        start = np.array([max((layer for layer in layers if layer <= f), default=0) for f in first])
        residuals = self._record(layout, layers) if layers else None
        for layer in np.unique(start):
            yield residuals, int(layer), [work for work, s in zip(works, start, strict=True) if s == layer]

    def _record(self, layout: Layout, layers: list[int]) -> Residuals:
        """The residual streams of the intact model, by one run that stops at the last of ``layers``."""
        residuals = Residuals(layout, layers)
        intact = _Work(np.ones((self.model.cfg.n_layers, self.model.cfg.n_heads)), layout, list(layout.examples))
        items = [_Item(intact, layout.pieces[i], 0) for i in layout.roots]
        for _ in self._descend(items, None, residuals, None):
            pass
        return residuals

    def _descend(
        self, items: list[_Item], stored: KeyValues | None, residuals: Residuals | None, layer: int | None
    ) -> Iterator[list[PairResult]]:
        """Run items batch by batch, and after each batch the pieces that go on from it.

        ``layer`` is where forwards start, None where they record ``residuals`` instead. The longest go first:
        rows of like length share a batch, and the first forward is the one most likely not to fit.
        """
        for keep in (False, True):
            chosen = [item for item in items if bool(item.piece.children) == keep]
            order = sorted(chosen, key=lambda item: (-len(item.piece.tokens), -item.piece.start))
            done = 0
            while done < len(order):
                batch = order[done : done + self._batch_size(order[done:], keep)]
                failure: Exception | None = None
                try:
                    results, left = self._forward(batch, stored, residuals, layer, keep)
                    yield results
                    if left is not None:
                        further = [
                            _Item(item.work, item.work.layout.pieces[child], row)
                            for row, item in enumerate(batch)
                            for child in item.piece.children
                        ]
                        yield from self._descend(further, left, residuals, layer)
                except (RuntimeError, MemoryError) as error:
                    if not _is_out_of_memory(error):
                        raise
                    failure = error
                    if len(batch) == 1:
                        raise self._too_large(batch[0], error) from error
                left = None
                if failure is None:
                    done += len(batch)
                else:
                    self._halve(batch)

    def _forward(
        self, batch: list[_Item], stored: KeyValues | None, residuals: Residuals | None, layer: int | None, keep: bool
    ) -> tuple[list[PairResult], KeyValues | None]:
        assert self._able is not None
        tokens, attention_mask, _ = pad([item.piece.tokens for item in batch])
        device = device_of(self.model)
        extension = None
        if stored is not None or keep:
            parents = None if stored is None else torch.tensor([item.parent for item in batch], device=device)
            extension = Extension(attention_mask.to(device), stored, parents, keep)
        places = [(item.piece.source, item.piece.start, len(item.piece.tokens)) for item in batch]
        gates = np.stack([item.work.gates for item in batch])
        options: dict[str, Any] = {"extension": extension, "fused": self._able.fused}
        if layer is None:
            assert residuals is not None
            with residuals.recording(self.model, places):
                read_tokens(self.model, tokens, attention_mask, _ANY, **options)
            results: list[PairResult] = []
        else:
            start = None if not layer or residuals is None else residuals.start(layer, places, tokens.shape[1])
            if self.ablation is not None:
                options["replacement"] = self.ablation.replacement(gates, places, tokens.shape[1])
            lengths = [len(item.piece.slots) for item in batch]
            reads = Reads(
                np.repeat(np.arange(len(batch)), lengths),
                np.concatenate([item.piece.offsets for item in batch]),
                np.concatenate([item.piece.wanted for item in batch]),
            )
            gates_ = torch.from_numpy(gates).float()
            scores = read_tokens(self.model, tokens, attention_mask, reads, gates=gates_, start=start, **options)
            results, ends = [], np.cumsum(lengths)
            for item, n, end in zip(batch, lengths, ends, strict=True):
                results += item.work.read(item.piece, scores.logprob[end - n : end], scores.greedy[end - n : end])
        if not keep:
            return results, None
        assert extension is not None
        left = extension.finish()
        left.compact()
        return results, left

    def _batch_size(self, items: list[_Item], keep: bool) -> int:
        """How many of the next items go into one forward: within the budgets, but one at least."""
        n = np.arange(1, len(items) + 1)
        lengths = np.array([len(item.piece.tokens) for item in items])
        past = np.maximum.accumulate([item.piece.start for item in items])
        logits = np.cumsum([len(item.piece.slots) for item in items]) * self.model.cfg.d_vocab
        fits = (n * (lengths[0] + _CARRY * past) <= self.batch_tokens) & (logits <= _MAX_LOGITS)
        if keep:
            cfg = self.model.cfg
            n_kv_heads = cfg.n_key_value_heads or cfg.n_heads
            bytes_per_token = 2 * dtype_of(self.model).itemsize * cfg.n_layers * cfg.d_head * n_kv_heads
            limit = _MAX_STORED.get(device_of(self.model).type, _MAX_STORED["cpu"])
            fits &= n * (lengths[0] + past) * bytes_per_token <= limit
        return max(1, int(fits.sum()))

    def _too_large(self, item: _Item, error: BaseException) -> MemoryError:
        if isinstance(error, _DoesNotFit):
            return error
        n_tokens = item.piece.start + len(item.piece.tokens)
        return _DoesNotFit(f"example {item.piece.source[0]} ({n_tokens} tokens) does not fit into memory by itself")

    def _halve(self, batch: list[_Item]) -> None:
        run = len(batch) * max(len(item.piece.tokens) for item in batch)
        self.batch_tokens = max(1, min(self.batch_tokens, run) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# A forward that records has no use for logits, but must make some.
_ANY = Reads(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))


def _first_ablated(gates: Float[np.ndarray, "layer head"]) -> int:
    """The first layer a mask touches; the last layer for one that touches none."""
    touched = np.flatnonzero((gates != 1).any(axis=1))
    return int(touched[0]) if len(touched) else len(gates) - 1


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory")
    )
