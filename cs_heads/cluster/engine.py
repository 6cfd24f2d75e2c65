"""The engine of an experiment whose model lives on workers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from cs_heads.cluster.pool import WorkerCall, WorkerPool
from cs_heads.cluster.worker import Job
from cs_heads.designs import first_layer
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.generation import rows_together, worth_drafting
from cs_heads.engine.layout import lay_out
from cs_heads.engine.protocol import Known, PairExamples, PairMasks, PairResult, PairText, TextRequest
from cs_heads.lens import EncodedExample
from cs_heads.lens.model import HookedModel, ModelInfo

# A chunk to read, in token budgets of one forward; one to write, in rows decoded together: at least, at most.
_READING = 1 / 8, 2.0
_WRITING = 1 / 8, 1.0

# Chunks to aim at, where they are neither too small nor too large: enough for many workers to end together.
_CHUNKS = 32

Cost = Callable[[tuple[int, ...]], float]
"""What one mask on these examples takes, in tokens or texts."""

_keys = count()


class ClusterEngine:
    """Does what ``Engine`` does, chunk by chunk on the workers of a pool; numbers do not depend on how many there are.

    Args:
        pool: The workers.
        model: What is known here of the model on the workers.
        device: Their kind of device.
        examples: The examples of the task, as tokens; ``add`` takes in those of others.
        batch_tokens: Tokens of one forward at most.
        ablation: What is ablated, and what it gives then.
        compute_dtype: What forwards run in (None: the dtype of the weights).
    """

    def __init__(
        self,
        pool: WorkerPool,
        model: HookedModel | ModelInfo,
        device: str,
        examples: Sequence[EncodedExample],
        *,
        batch_tokens: int,
        ablation: Ablation,
        compute_dtype: str | None = None,
    ) -> None:
        self.model, self.examples, self.ablation = model, list(examples), ablation
        self.compute_dtype = compute_dtype
        self.batch_tokens, self._device, self._pool = batch_tokens, device, pool
        self._job: str | None = None

    def add(self, examples: Sequence[EncodedExample]) -> int:
        """Take in the examples of another task, where units give zero; the number of the first of them."""
        self.examples += examples
        if self._job is not None:
            self._pool.forget(self._job)
            self._job = None
        return len(self.examples) - len(examples)

    def worth_drafting(self, n_texts: int) -> bool:
        """Whether the intact model should generate first, to draft ``n_texts`` texts of masked ones."""
        return worth_drafting(self._device, n_texts)

    def run(self, masks: PairMasks, examples: PairExamples, known: Known = None) -> Iterator[list[PairResult]]:
        """Yield the results of pairs chunk by chunk: see ``EngineLike``."""
        job = self._opened()
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        across, positions = self.ablation.shares_examples, self.ablation.positions

        def tokens(chosen: tuple[int, ...]) -> float:
            layout = lay_out(self.examples, chosen, share=True, across_examples=across, positions=positions)
            return float(layout.n_tokens)

        prompts = [example.prompt for example in self.examples]
        least, most = (share * self.batch_tokens for share in _READING)
        chunks = cut(masks, examples, tokens, prompts, least=least, most=most)
        chunks = [chunk for chunk in chunks if not known[chunk].all()]
        calls = [WorkerCall("logprobs", (job, masks[chunk], examples[chunk], known[chunk]), (job,)) for chunk in chunks]
        yield from self._run(calls, chunks, known)

    def generate(
        self, request: TextRequest, masks: PairMasks, examples: PairExamples, known: Known = None
    ) -> Iterator[list[PairText]]:
        """Yield the texts of pairs chunk by chunk: see ``EngineLike``."""
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        job, asked = self._opened(), self._open(request)
        least, most = (share * rows_together(self._device) for share in _WRITING)
        chunks = cut(masks, examples, len, request.prompts, least=least, most=most)
        chunks = [chunk for chunk in chunks if not known[chunk].all()]
        calls = [WorkerCall("generate", (job, masks[chunk], examples[chunk], asked), (job, asked)) for chunk in chunks]
        try:
            yield from self._run(calls, chunks, known)
        finally:
            self._pool.forget(asked)

    def _run(
        self, calls: list[WorkerCall], chunks: list[Int[np.ndarray, " chunk"]], known: Bool[np.ndarray, " pair"]
    ) -> Iterator[list[Any]]:
        """Yield the results of each chunk under the numbers of their pairs, but for ``known`` pairs."""
        for number, results in self._pool.run(calls):
            numbered = [(int(chunks[number][pair]), *rest) for pair, *rest in results]
            yield [result for result in numbered if not known[result[0]]]

    def _opened(self) -> str:
        """The key of this experiment's job; the first time, what heads become is prepared by one worker for all."""
        if self._job is None:
            if not self.ablation.is_prepared:
                first = self._open(self._job_with(self.ablation))
                [(_, self.ablation)] = self._pool.run([WorkerCall("prepare", (first,), (first,))])
                self._pool.forget(first)
            self._job = self._open(self._job_with(self.ablation))
        return self._job

    def _job_with(self, ablation: Ablation) -> Job:
        return Job(tuple(self.examples), self.batch_tokens, ablation, self.compute_dtype)

    def _open(self, what: Job | TextRequest) -> str:
        key = f"{type(what).__name__.lower()} {next(_keys)}"
        self._pool.open(key, what)
        if isinstance(what, Job):
            weakref.finalize(self, self._pool.forget, key)
        return key


def cut(
    masks: PairMasks,
    examples: PairExamples,
    cost: Cost,
    order: Sequence[tuple[int, ...]],
    *,
    least: float,
    most: float,
) -> list[Int[np.ndarray, " chunk"]]:
    """Cut pairs into chunks; the same for any number of workers.

    Masks whose first ablated layer is the same share a chunk, and those of earlier layers go first.

    Args:
        masks: The mask of each pair.
        examples: The example of each pair.
        cost: What one mask on some examples costs, in tokens or texts.
        order: By example, what a mask that costs too much is cut by, so that shared prefixes stay together.
        least: Cost of a chunk at least, where there is as much.
        most: Cost of a chunk at most.

    Returns:
        The numbers of the pairs of each chunk: whole masks, unless one costs more than ``most`` by itself.
    """
    cost = cache(cost)

    def cost_of(pairs: list[int]) -> float:
        return float(cost(tuple(sorted(examples[pairs].tolist()))))

    parts: list[tuple[int, list[int], float]] = []
    for mask, pairs in masks.pairs():
        for part in _split(pairs, examples, cost_of(pairs), order, most):
            parts.append((first_layer(mask), part, cost_of(part)))
    parts.sort(key=lambda part: part[0])
    size = min(max(sum(part[2] for part in parts) / _CHUNKS, least), most)
    chunks: list[list[int]] = []
    filled = size
    for _, pairs, price in parts:
        if filled + price > size:
            chunks.append([])
            filled = 0.0
        chunks[-1] += pairs
        filled += price
    return [np.array(chunk) for chunk in chunks]


def _split(
    pairs: list[int], examples: PairExamples, price: float, order: Sequence[tuple[int, ...]], most: float
) -> list[list[int]]:
    """The pairs of one mask, in parts where they cost too much together."""
    n = min(len(pairs), int(np.ceil(price / most)))
    if n <= 1:
        return [pairs]
    alike = sorted(pairs, key=lambda pair: (order[int(examples[pair])], int(examples[pair])))
    return [part.tolist() for part in np.array_split(alike, n)]
