"""Running pieces of text under masks, batch by batch, each after the piece that it follows.

What the intact model does below the first ablated layer is kept, so that masks can start there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from cs_heads.designs import as_gates
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.layout import Layout, Piece, Place
from cs_heads.engine.plan import free_memory, token_budget
from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.batches import TokenBudget, in_batches, like_lengths
from cs_heads.lens.cache import Extension, KeyValues
from cs_heads.lens.forward import Resumed, pad, recorded
from cs_heads.lens.fused import why_not_fused
from cs_heads.lens.gates import tokens_gated
from cs_heads.lens.logprobs import ANY_READ, Reads, TokenLogprobs, check_numbers, row_of, token_logprobs
from cs_heads.lens.model import HALF, HookedModel, context_length, device_of, dtype_of
from cs_heads.lens.transfer import Shared, to_device

# Logits of one forward at most, so that the vocabulary bounds a batch too: 256 MiB in float32, on a GPU 1 GiB.
_MAX_LOGITS = {"cpu": 2**26, "cuda": 2**28}

# Bytes of keys and values that one forward may leave behind for those that follow it.
_MAX_STORED = {"cpu": 2**29, "cuda": 2**33}

# What a token of a stored prefix costs a row that follows it, in tokens run.
_CARRY = 1 / 8

# What a forward costs beside its tokens, in tokens: calls of kernels, and weights that are read; in float32, and in
# half precision. Measured on a CPU (SmolLM2 on two cores: 90 milliseconds, and 1 or .27 a token), reckoned elsewhere.
_OVERHEAD = {"cpu": (96, 320), "cuda": (1024, 1024)}

# Forwards that works of one starting layer take at least: prefixes, and what follows them, of a few lengths.
_FORWARDS_A_START = 4

# Layers that masks start at, at most: a forward holds rows of one alone.
_MOST_STARTS = 8

# Share of the free memory that residual streams may fill, and keys and values of several forwards.
_SHARE = 0.1


Mask = Shaped[np.ndarray, "layer head"]
"""A mask (bool, True = ablated), or gates (float)."""


@dataclass(frozen=True)
class Row:
    """A piece of a layout under a mask, after row ``parent`` of what is stored.

    ``works`` read something here: each has a ``mask``, the examples of the layout that it is ``asked`` for, and those
    of them that are ``new``, not known yet. They are several where a piece is common to their masks: before the first
    token at which units are off it is run once for all.
    """

    works: tuple[Any, ...]
    layout: Layout
    piece: Piece
    parent: int = 0

    @property
    def mask(self) -> Mask:
        """What is off here: nothing in a common piece."""
        mask = self.works[0].mask
        return np.zeros(mask.shape, dtype=bool) if self.piece.common else mask

    @property
    def is_new(self) -> bool:
        """Whether something that is not known is read in this row, or in one that follows it."""
        return any(self.layout.asks(self.piece, work.new) for work in self.works)

    def following(self, parent: int) -> list[Row]:
        """The rows that follow this one, which is row ``parent`` of what is stored."""
        pieces = [self.layout.pieces[child] for child in self.piece.children]
        return [row for piece in pieces for row in _rows_of(piece, self.works, self.layout, parent)]


def roots(works: Sequence[Any], layout: Layout) -> list[Row]:
    """The rows with which masks begin on the examples of a layout."""
    pieces = [piece for piece in layout.pieces if piece.parent is None]
    return [row for piece in pieces for row in _rows_of(piece, works, layout, 0)]


def _rows_of(piece: Piece, works: Sequence[Any], layout: Layout, parent: int) -> list[Row]:
    """The rows of a piece for the masks that are asked for something there, or after it."""
    asking = [work for work in works if layout.asks(piece, work.asked)]
    sharing = [asking] if piece.common else [[work] for work in asking]
    return [Row(tuple(some), layout, piece, parent) for some in sharing if some]


@dataclass(frozen=True)
class Done:
    """A forward that has run: its rows, what was read in them one after another, and what it stored, if anything."""

    rows: list[Row]
    logprobs: TokenLogprobs
    stored: KeyValues | None

    def by_row(self) -> Iterator[tuple[Row, TokenLogprobs]]:
        """Each row with what was read in it."""
        ends = np.cumsum([len(row.piece.slots) for row in self.rows])
        for row, end in zip(self.rows, ends, strict=True):
            part = slice(end - len(row.piece.slots), end)
            logprobs = self.logprobs
            yield row, TokenLogprobs(logprobs.logprob[part], logprobs.greedy[part], logprobs.best[part])


class Residuals:
    """Residual streams of the intact model at some layers, one vector ``[d_model]`` a token of a layout."""

    def __init__(self, layout: Layout, layers: Sequence[int]) -> None:
        self.layers = list(layers)
        self.layout = layout
        self._ids = layout.ids()
        self._stored: dict[int, Tensor] = {}

    @contextmanager
    def recording(self, model: HookedModel, places: Sequence[Place]) -> Iterator[None]:
        """Store what enters each layer, from the rows at ``places``, inside the ``with`` block."""
        row = np.repeat(np.arange(len(places)), [n for _, _, n in places])
        position = np.concatenate([np.arange(n) for _, _, n in places])
        ids = np.concatenate([self._numbers(place) for place in places])
        at = Shared(torch.from_numpy(np.stack([ids, row, position])))

        def record(layer: int, residual: Tensor) -> None:
            if layer not in self._stored:
                self._stored[layer] = residual.new_empty(self.layout.n_tokens, residual.shape[2])
            ids, row, position = at.on(residual.device)
            self._stored[layer][ids] = residual[row, position]

        with recorded(model, self.layers, record):
            yield

    def start(self, layer: int, places: Sequence[Place], width: int) -> Resumed:
        """What rows at ``places``, padded to ``width``, start from at ``layer``."""
        ids = np.zeros((len(places), width), dtype=np.int64)
        for row, place in enumerate(places):
            ids[row, : place[2]] = self._numbers(place)
        stored = self._stored[layer]
        return Resumed(layer, stored[to_device(torch.from_numpy(ids), stored.device)])

    def _numbers(self, place: Place) -> Int[np.ndarray, " pos"]:
        sequence, start, n = place
        return self._ids[sequence][start : start + n]


def layers_to_store(
    model: HookedModel, first: Int[np.ndarray, " mask"], tokens: Sequence[int], intact_tokens: int
) -> list[int]:
    """Layers at which masks start: those that save most, if any save more than the intact run and forwards cost.

    A mask starts at the last of them before its first layer.

    Args:
        model: The model.
        first: The first layer that each mask touches.
        tokens: The tokens that each mask runs.
        intact_tokens: The tokens of the intact run.
    """
    if not (first > 0).any():
        return []
    device = device_of(model)
    n_bytes = intact_tokens * model.cfg.d_model * dtype_of(model).itemsize
    most = min(_MOST_STARTS, int(_SHARE * free_memory(device) / n_bytes))
    # Of masks that could start later; by number of layers, quantiles of their tokens, from the first mask on or not.
    order = np.argsort(first, kind="stable")
    order = order[first[order] > 0]
    run, of = np.asarray(tokens, dtype=float)[order], first[order]
    done = np.cumsum(run) - run / 2
    best, chosen = 0.0, list[int]()
    for n, begin in product(range(1, most + 1), (0, 1)):
        shares = (np.arange(n) + begin) / (n + begin)
        layers = np.unique(of[np.searchsorted(done, run.sum() * shares).clip(max=len(of) - 1)])
        at = np.concatenate([[0], layers])[np.searchsorted(layers, of, side="right")]
        saved = float(at @ run) - float(layers[-1]) * intact_tokens
        saved -= model.cfg.n_layers * overhead(model) * _FORWARDS_A_START * len(layers)
        if saved > best:
            best, chosen = saved, layers.tolist()
    return chosen


def overhead(model: HookedModel) -> int:
    """What a forward costs beside its tokens, in tokens."""
    of_device = _OVERHEAD.get(device_of(model).type, _OVERHEAD["cuda"])
    return of_device[dtype_of(model) in HALF]


class Forwards:
    """Plans and runs forwards on one model, within a budget of tokens and memory.

    Args:
        model: The model.
        examples: All examples of the task, which mean and resample ablation run beforehand.
        batch_tokens: Tokens of one forward at most; None: ``plan.token_budget``.
        ablation: What is ablated, and what it gives then (None: heads, zero).
        ideas: Shortcuts that may be taken (None: all); those that are not exact on this model are left out.
    """

    def __init__(
        self,
        model: HookedModel,
        examples: Sequence[EncodedExample],
        batch_tokens: int | None = None,
        ablation: Ablation | None = None,
        ideas: Abilities | None = None,
    ) -> None:
        self.model, self.ablation = model, ablation or Ablation()
        self._ideas = ideas
        self._able = dict[bool, Abilities]()
        self.look()
        self.budget = TokenBudget(batch_tokens or token_budget(model))
        device = device_of(model)
        self._overhead = overhead(model)
        self._most_logits = _MAX_LOGITS.get(device.type, _MAX_LOGITS["cpu"])
        self._most_kept = _MAX_STORED.get(device.type, _MAX_STORED["cpu"])
        # What is joined is in memory twice for a moment.
        self._most_pooled = min(self._most_kept // 2, int(_SHARE * free_memory(device)))
        if not self.ablation.is_prepared:
            self.ablation.prepare(model, examples, self.budget.tokens, self.able.fused)

    def look(self) -> None:
        """See what is exact now: hooks may have been put inside attention, or taken out, since."""
        fusable = why_not_fused(self.model) is None
        if fusable not in self._able:
            self._able[fusable] = abilities(self.model, self._ideas)
        self.able = self._able[fusable]

    def run(
        self,
        rows: list[Row],
        residuals: Residuals | None = None,
        layer: int | None = 0,
        *,
        keep_all: bool = False,
        stored: KeyValues | None = None,
    ) -> Iterator[Done]:
        """Run rows and all pieces that follow them, forward by forward.

        Forwards in which all is known are planned and left out, so that the others are what they would be with them.

        Args:
            rows: The pieces that masks begin with.
            residuals: What forwards start from, or record.
            layer: Where forwards start (from ``residuals``, unless 0); None records ``residuals`` instead.
            keep_all: Store the keys and values of every piece, not only of those that others follow.
            stored: Keys and values of the rows' parents; None where masks begin.

        Raises:
            DoesNotFitError: A row does not fit into memory by itself; a batch that does not fit is halved.
            NotFiniteError: What was read of a row is NaN or infinite; forwards before it were handed out.
        """

        def some(batch: Sequence[Row], keep: bool) -> Iterator[Done]:
            yield self._forward(list(batch), stored, residuals, layer, keep)

        def leaves(batch: Sequence[Row]) -> Iterator[Done]:
            if any(row.is_new for row in batch):
                yield from some(batch, keep_all)

        def parents(pool: Sequence[Row]) -> Iterator[Done]:
            if not any(row.is_new for row in pool):
                return
            kept, further, done = [], [], 0
            for forward in in_batches(pool, size_of_kept, partial(some, keep=True), self._halve, _named):
                yield forward
                further += [child for i, row in enumerate(forward.rows, start=done) for child in row.following(i)]
                done += len(forward.rows)
                assert forward.stored is not None
                kept.append(forward.stored)
            # What follows the rows of several forwards fills forwards together.
            both = KeyValues.joined(kept) if len(kept) > 1 else kept[0]
            del kept, forward
            yield from self.run(further, residuals, layer, keep_all=keep_all, stored=both)

        def shrink(pool: Sequence[Row]) -> None:
            # Forwards of a pool are made smaller one by one: only one that is all of it is not.
            if _tokens(pool)[-1] <= self.budget.tokens:
                self._halve(pool)
            self._most_pooled = min(self._most_pooled, int(self._kept_bytes(pool)[-1])) // 2

        size_of_kept = partial(self._batch_size, keep=True)
        ordered = sorted(rows, key=lambda row: (-len(row.piece.tokens), -row.piece.start))
        # The longest first: like lengths share a batch, and what is most likely not to fit is tried first.
        last, inner = ([row for row in ordered if bool(row.piece.children) == side] for side in (False, True))
        yield from in_batches(last, partial(self._batch_size, keep=keep_all), leaves, self._halve, _named)
        # Where each forward's keys and values are handed out, those of others are not kept with them.
        yield from in_batches(inner, size_of_kept if keep_all else self._pool_size, parents, shrink, _named)

    def _halve(self, batch: Sequence[Row]) -> None:
        """Make forwards smaller than this one, which did not fit."""
        self.budget.halve(_tokens(batch)[-1])

    def _forward(
        self, batch: list[Row], stored: KeyValues | None, residuals: Residuals | None, layer: int | None, keep: bool
    ) -> Done:
        tokens, attention_mask = pad([row.piece.tokens for row in batch])
        extension = None
        if stored is not None or keep:
            parents = None if stored is None else torch.tensor([row.parent for row in batch])
            extension = Extension(attention_mask, stored, parents, keep)
        places = [(row.piece.source, row.piece.start, len(row.piece.tokens)) for row in batch]
        options: dict[str, Any] = {"extension": extension, "fused": self.able.fused}
        if layer is None:
            assert residuals is not None
            with residuals.recording(self.model, places):
                logprobs = token_logprobs(self.model, tokens, attention_mask, ANY_READ, **options)
        else:
            gates = np.stack([as_gates(row.mask).astype(np.float32) for row in batch])
            if layer and residuals is not None:
                options["start"] = residuals.start(layer, places, tokens.shape[1])
            ends = [row.layout.ends[row.piece.source] for row in batch]
            options["replacement"] = self.ablation.replacement(gates, places, ends, tokens.shape[1])
            options["units"] = self.ablation.units
            starts = [row.piece.start for row in batch]
            options["where"] = tokens_gated(self.ablation.positions, starts, ends, tokens.shape[1])
            reads = Reads(
                np.repeat(np.arange(len(batch)), [len(row.piece.slots) for row in batch]),
                np.concatenate([row.piece.offsets for row in batch]),
                np.concatenate([row.piece.wanted for row in batch]),
            )
            logprobs = token_logprobs(
                self.model, tokens, attention_mask, reads, gates=torch.from_numpy(gates), **options
            )

            def where(read: int) -> str:
                row = batch[int(reads.row[read])]
                text, example = row.layout.text_of(row.piece), row.piece.source[0]
                return row_of(self.model, as_gates(row.mask), text, example, self.ablation.units)

            check_numbers(self.model, logprobs.logprob, where)
        return Done(batch, logprobs, extension.finish() if extension is not None and keep else None)

    def _batch_size(self, rows: Sequence[Row], keep: bool) -> int:
        """How many of the next rows go into one forward: within the budgets, but one at least."""
        # None has less than a token; some more are looked at for where to cut.
        rows = rows[: 1 + 4 * self.budget.tokens]
        longest = len(rows[0].piece.tokens)
        past = np.maximum.accumulate([row.piece.start for row in rows])
        logits = np.cumsum([len(row.piece.slots) for row in rows]) * self.model.cfg.d_vocab
        fits = (_tokens(rows) <= self.budget.tokens) & (logits <= self._most_logits)
        context = context_length(self.model)
        if context is not None:
            # Padding is numbered onwards from the past of its row, and must have a place in the table, too.
            fits &= past + longest <= context
        if keep:
            fits &= self._kept_bytes(rows) <= self._most_kept
        lengths = np.array([len(row.piece.tokens) for row in rows])
        return max(1, min(int(fits.sum()), like_lengths(lengths, self.budget.tokens, self._overhead)))

    def _pool_size(self, rows: Sequence[Row]) -> int:
        """Of how many of the next rows keys and values are kept together, for those that follow: at least a forward."""
        fits = self._kept_bytes(rows[: 1 + self._most_pooled // self._token_bytes]) <= self._most_pooled
        return max(self._batch_size(rows, keep=True), int(fits.sum()))

    def _kept_bytes(self, rows: Sequence[Row]) -> Int[np.ndarray, " row"]:
        """Keys and values of the first row, the first two rows, ..., padded to one length."""
        past = np.maximum.accumulate([row.piece.start for row in rows])
        return np.arange(1, len(rows) + 1) * (len(rows[0].piece.tokens) + past) * self._token_bytes

    @property
    def _token_bytes(self) -> int:
        """Keys and values of one token."""
        cfg = self.model.cfg
        n_kv_heads = cfg.n_key_value_heads or cfg.n_heads
        return 2 * dtype_of(self.model).itemsize * cfg.n_layers * cfg.d_head * n_kv_heads


def _tokens(rows: Sequence[Row]) -> Float[np.ndarray, " row"]:
    """What the first row, the first two rows, ... cost in one forward, in padded tokens."""
    past = np.maximum.accumulate([row.piece.start for row in rows])
    return np.arange(1, len(rows) + 1) * (len(rows[0].piece.tokens) + _CARRY * past)


def _named(row: Row) -> str:
    return f"example {row.piece.source[0]} ({row.piece.start + len(row.piece.tokens)} tokens)"
