"""Log-probabilities of (mask, example) pairs: every forward full, and nothing run twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from cs_heads.engine.ablation import Ablation
from cs_heads.engine.forwards import Forwards, Mask, Residuals, layers_to_store, roots
from cs_heads.engine.generation import Generation
from cs_heads.engine.layout import Layout, Piece, first_layer, lay_out
from cs_heads.engine.protocol import Known, PairExamples, PairMasks, PairResult, PairText, TextRequest
from cs_heads.lens import EncodedExample
from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.casts import InDtype, can_be_cast
from cs_heads.lens.logprobs import TokenLogprobs
from cs_heads.lens.model import HookedModel
from cs_heads.units import Grid

Batch = TypeVar("Batch")


@dataclass
class _Work:
    """One mask on the examples ``asked`` of a layout: its pairs, and what has been read so far."""

    mask: Mask
    layout: Layout
    pairs: list[int]
    asked: Bool[np.ndarray, " local"]
    new: Bool[np.ndarray, " local"]
    logprob: Float[np.ndarray, " slot"] = field(init=False)
    greedy: Bool[np.ndarray, " slot"] = field(init=False)
    seen: Bool[np.ndarray, " slot"] = field(init=False)
    missing: Int[np.ndarray, " local"] = field(init=False)

    def __post_init__(self) -> None:
        self.logprob = np.zeros(len(self.layout.local))
        self.greedy, self.seen = np.zeros((2, len(self.layout.local)), dtype=bool)
        self.missing = np.bincount(self.layout.local, minlength=len(self.pairs))

    def read(self, piece: Piece, logprobs: TokenLogprobs) -> list[PairResult]:
        """Take in what was read at a piece; the results of the pairs that this completes."""
        # A piece may be read again, after a batch that did not fit.
        new = piece.slots[~self.seen[piece.slots]]
        self.seen[piece.slots] = True
        self.logprob[piece.slots], self.greedy[piece.slots] = logprobs.logprob, logprobs.greedy
        np.subtract.at(self.missing, self.layout.local[new], 1)
        completed = [int(i) for i in np.unique(self.layout.local[new]) if not self.missing[i]]
        return [self._result(i) for i in completed if self.new[i]]

    def _result(self, local: int) -> PairResult:
        slots = self.layout.slots_of(local)
        continuation = self.layout.continuation[slots]
        hits = np.bincount(continuation, weights=self.greedy[slots]) / np.bincount(continuation)
        logprobs = np.bincount(continuation, weights=self.logprob[slots])
        return self.pairs[local], np.stack([logprobs, hits], axis=1)


class Engine:
    """Reads log-probabilities of (mask, example) pairs on one model; each row of a batch carries the mask of its pair.

    Args:
        model: The model.
        examples: The examples of the task, as tokens; ``add`` takes in those of others.
        batch_tokens: Tokens of one forward at most; None: ``plan.token_budget``.
        ablation: What is ablated, and what it gives then (None: heads, zero).
        ideas: Shortcuts that may be taken; None is all of them.
        compute_dtype: What forwards run in (None: the dtype of the weights).
    """

    def __init__(
        self,
        model: HookedModel,
        examples: Sequence[EncodedExample],
        batch_tokens: int | None = None,
        ablation: Ablation | None = None,
        ideas: Abilities | None = None,
        *,
        compute_dtype: str | None = None,
    ) -> None:
        self.model, self.examples, self.ablation = model, list(examples), ablation or Ablation()
        if compute_dtype is not None and not can_be_cast(model):
            raise ValueError(
                f"compute_dtype must be None for model {model.cfg.model_name}, whose weights are not all in memory as "
                f"floating-point numbers; got {compute_dtype!r}"
            )
        # The weights in the dtype that forwards run in; engines of one experiment's like share them.
        self.cast = None if compute_dtype is None else InDtype(model, getattr(torch, compute_dtype))
        self._limits = batch_tokens, self.ablation, ideas

    def add(self, examples: Sequence[EncodedExample]) -> int:
        """Take in the examples of another task, where units give zero; the number of the first of them."""
        self.examples += examples
        return len(self.examples) - len(examples)

    @cached_property
    def forwards(self) -> Forwards:
        """What runs the model; made, and tried on the model, when first asked for."""
        batch_tokens, ablation, ideas = self._limits
        if self.cast is not None:
            # What is not exact in the dtype of the weights does not pass for rounding in another.
            ideas = abilities(self.model, ideas)
        with self.cast or nullcontext():
            return Forwards(self.model, self.examples, batch_tokens, ablation, ideas)

    def run(
        self, masks: PairMasks, examples: Int[np.ndarray, " pair"], known: Bool[np.ndarray, " pair"] | None = None
    ) -> Iterator[list[PairResult]]:
        """Yield results as they come: (pair, log-probability and share of argmax tokens of each continuation).

        Each pair of mask and example stands once. Its results are those of the pair by itself, whatever
        shares its batch. Pairs that are ``known`` are planned for and not yielded, and forwards that nobody else
        needs are left out: the others are, bit for bit, what they would be if none were known.
        """
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        yield from self._stepwise(self._run(masks, examples, known))

    def _run(
        self, masks: PairMasks, examples: PairExamples, known: Bool[np.ndarray, " pair"]
    ) -> Iterator[list[PairResult]]:
        self.forwards.look()
        works = self._works(masks, examples, known)
        residuals, groups = self._groups(works)
        for layer, group in groups:
            if residuals is not None and layer == residuals.layers[0]:
                self._record(residuals)
            together = [group] if self.ablation.positions == "last" else [[work] for work in group]
            rows = [row for works in together for row in roots(works, works[0].layout)]
            for done in self.forwards.run(rows, residuals, layer):
                completed = [
                    pair
                    for row, logprobs in done.by_row()
                    for work in row.works
                    for pair in work.read(row.piece, logprobs)
                ]
                if completed:
                    yield completed

    def generate(
        self, request: TextRequest, masks: PairMasks, examples: PairExamples, known: Known = None
    ) -> Iterator[list[PairText]]:
        """Yield the texts of pairs as they are finished: see ``EngineLike`` and ``Generation.run``."""
        finished = partial(request.stopping.finished, tokenizer=self.model.tokenizer)
        generation = Generation(self.forwards, request.prompts, finished)
        return self._stepwise(generation.run(masks, examples, known))

    def _stepwise(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches of an iterator that runs in the compute dtype; while one is taken in the weights are as they were."""
        while True:
            with self.cast or nullcontext():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def lay_out(self, examples: tuple[int, ...]) -> Layout:
        """The examples cut into pieces, as far as the model can share them."""
        share, ablation = self.forwards.able.extend, self.ablation
        return lay_out(self.examples, examples, share, ablation.shares_examples, ablation.positions)

    def _works(
        self, masks: PairMasks, examples: Int[np.ndarray, " pair"], known: Bool[np.ndarray, " pair"]
    ) -> list[_Work]:
        works, layouts = [], dict[tuple[int, ...], Layout]()
        # Where prompts but for their last tokens are common to all masks, they stand in one layout.
        everything = tuple(np.unique(examples).tolist()) if self.ablation.positions == "last" else None
        for mask, pairs in masks.pairs():
            pairs.sort(key=lambda pair: examples[pair])
            chosen = everything or tuple(examples[pairs].tolist())
            if chosen not in layouts:
                layouts[chosen] = self.lay_out(chosen)
            local = np.searchsorted(chosen, examples[pairs])
            numbers, asked, new = np.zeros(len(chosen), dtype=int), *np.zeros((2, len(chosen)), dtype=bool)
            numbers[local], asked[local], new[local] = pairs, True, ~known[pairs]
            works.append(_Work(mask, layouts[chosen], numbers.tolist(), asked, new))
        return works

    def _groups(self, works: list[_Work]) -> tuple[Residuals | None, list[tuple[int, list[_Work]]]]:
        """The intact residuals to be recorded, if any, and works by the layer they start at, the first layer first."""
        residuals: Residuals | None = None
        start = np.zeros(len(works), dtype=int)
        if self.forwards.able.resume:
            layout = self.lay_out(tuple(sorted({example for work in works for example in work.layout.examples})))
            first = np.array([first_layer(work.mask) for work in works])
            tokens = [work.layout.n_own_tokens(work.asked) for work in works]
            layers = layers_to_store(self.model, first, tokens, layout.n_tokens)
            if layers:
                residuals = Residuals(layout, layers)
                start = np.array([max((layer for layer in layers if layer <= f), default=0) for f in first])
        each = [
            (layer, [work for work, s in zip(works, start, strict=True) if s == layer]) for layer in np.unique(start)
        ]
        return residuals, [(int(layer), group) for layer, group in each]

    def _record(self, residuals: Residuals) -> None:
        """Record residual streams of the intact model, by forwards that stop at the last of their layers."""
        nothing_off = np.zeros(Grid.from_model(self.model, self.ablation.units).shape, dtype=bool)
        everything = np.ones(len(residuals.layout.examples), dtype=bool)
        work = _Work(nothing_off, residuals.layout, [], everything, everything)
        for _ in self.forwards.run(roots([work], residuals.layout), residuals, None):
            pass
