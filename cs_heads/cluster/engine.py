"""The engine of an experiment whose model lives on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from cs_heads.cluster.pool import WorkerPool
from cs_heads.cluster.worker import Job, Sent
from cs_heads.designs import first_layer
from cs_heads.engine.ablation import Ablation
from cs_heads.engine.generation import rows_together
from cs_heads.engine.layout import lay_out
from cs_heads.engine.protocol import Known, PairExamples, PairMasks, PairResult, PairText, TextRequest
from cs_heads.lens import EncodedExample
from cs_heads.lens.model import HookedModel, ModelInfo
from cs_heads.text import TokenIds

# A chunk to read, in token budgets of one forward; one to write, in rows decoded together: at least, at most.
_READING = 1 / 8, 2.0
_WRITING = 1 / 8, 1.0

# Chunks to aim at, where they are neither too small nor too large: enough for many workers to end together.
_CHUNKS = 32

Chunk = Int[np.ndarray, " _chunk"]
"""The numbers of the pairs of a chunk."""


class ClusterEngine:
    """Does what ``Engine`` does, chunk by chunk on the workers of a pool; numbers do not depend on how many there are.

    Args:
        pool: The workers.
        model: What is known here of the model on the workers.
        info: What they say of it.
        examples: The examples of the task, as tokens; ``add`` takes in those of others.
        batch_tokens: Tokens of one forward at most.
        ablation: What is ablated, and what it gives then.
        compute_dtype: What forwards run in (None: the dtype of the weights).
    """

    def __init__(
        self,
        pool: WorkerPool,
        model: HookedModel | ModelInfo,
        info: ModelInfo,
        examples: Sequence[EncodedExample],
        *,
        batch_tokens: int,
        ablation: Ablation,
        compute_dtype: str | None = None,
    ) -> None:
        self.model, self.examples, self.ablation = model, list(examples), ablation
        self.compute_dtype, self.batch_tokens = compute_dtype, batch_tokens
        self._pool, self._weights, self._device = pool, info.fingerprint, info.device
        self._job: Sent | None = None

    def add(self, examples: Sequence[EncodedExample]) -> int:
        """Take in the examples of another task, where units give zero; the number of the first of them."""
        self.examples += examples
        self._job = None
        return len(self.examples) - len(examples)

    def run(self, masks: PairMasks, examples: PairExamples, known: Known = None) -> Iterator[list[PairResult]]:
        """Yield the results of pairs chunk by chunk: see ``EngineLike``."""
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        ablation, asked = self.ablation, tuple(np.unique(examples).tolist())
        layout = lay_out(
            self.examples, asked, share=True, across_examples=ablation.shares_examples, positions=ablation.positions
        )
        least, most = (share * self.batch_tokens for share in _READING)
        size = chunk_size(len(examples), layout.n_tokens / max(len(asked), 1), least, most)
        chunks = cut(masks, examples, [example.prompt for example in self.examples], size)
        yield from self._run("logprobs", lambda chunk: (masks[chunk], examples[chunk], known[chunk]), chunks, known)

    def generate(
        self, request: TextRequest, masks: PairMasks, examples: PairExamples, known: Known = None
    ) -> Iterator[list[PairText]]:
        """Yield the texts of pairs chunk by chunk: see ``EngineLike``."""
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        sent = self._pool.send(request)
        least, most = (share * rows_together(self._device) for share in _WRITING)
        chunks = cut(masks, examples, request.prompts, chunk_size(len(examples), 1.0, least, most))
        yield from self._run("generate", lambda chunk: (masks[chunk], examples[chunk], sent), chunks, known)

    def _run(
        self, method: str, arguments: Callable[[Chunk], tuple[Any, ...]], chunks: list[Chunk], known: np.ndarray
    ) -> Iterator[list[Any]]:
        """Yield the results of each chunk under the numbers of their pairs, but for ``known`` pairs."""
        job = self._sent_job()
        chunks = [chunk for chunk in chunks if not known[chunk].all()]
        calls = [(method, (job, *arguments(chunk))) for chunk in chunks]
        for number, results in self._pool.run(calls):
            numbered = [(int(chunks[number][pair]), *rest) for pair, *rest in results]
            yield [result for result in numbered if not known[result[0]]]

    def _sent_job(self) -> Sent:
        """This experiment's job; the first time, what heads become is prepared by one worker for all."""
        if self._job is None:
            if not self.ablation.is_prepared:
                [(_, self.ablation)] = self._pool.run([("prepare", (self._send_job(),))])
            self._job = self._send_job()
        return self._job

    def _send_job(self) -> Sent:
        job = Job(tuple(self.examples), self.batch_tokens, self._weights, self.ablation, self.compute_dtype)
        return self._pool.send(job)


def cut(masks: PairMasks, examples: PairExamples, order: Sequence[TokenIds], size: int) -> list[Chunk]:
    """Cut pairs into chunks; the same for any number of workers.

    Masks whose first ablated layer is the same share a chunk, and those of earlier layers go first.

    Args:
        masks: The mask of each pair.
        examples: The example of each pair.
        order: By example, what a mask of too many pairs is cut by, so that shared prefixes stay together.
        size: Pairs of a chunk at most.

    Returns:
        The numbers of the pairs of each chunk: whole masks, unless one has more than ``size`` by itself.
    """
    chunks: list[list[int]] = []
    for _, pairs in sorted(masks.pairs(), key=lambda each: first_layer(each[0])):
        alike = sorted(pairs, key=lambda pair: (order[int(examples[pair])], int(examples[pair])))
        for part in np.array_split(alike, -(-len(alike) // size)):
            if not chunks or len(chunks[-1]) + len(part) > size:
                chunks.append([])
            chunks[-1] += part.tolist()
    return [np.array(chunk) for chunk in chunks]


def chunk_size(n_pairs: int, cost: float, least: float, most: float) -> int:
    """Pairs of a chunk: few enough for many workers to share them, of ``cost`` each, from ``least`` to ``most``."""
    return max(1, int(min(max(n_pairs / _CHUNKS, least / cost), most / cost)))
