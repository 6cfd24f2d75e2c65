"""The engine of an experiment whose model lives on workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cs_heads.cluster.pool import WorkerPool
from cs_heads.cluster.worker import Job, Sent
from cs_heads.engine.generation import rows_together
from cs_heads.engine.layout import first_layer, lay_out
from cs_heads.engine.protocol import Known, PairExamples, PairMasks, PairResult, PairText, TextRequest
from cs_heads.lens import EncodedExample
from cs_heads.lens.model import HookedModel, ModelInfo
from cs_heads.text import TokenIds

# A chunk to read, in token budgets of one forward; one to write, in rows decoded together: at least, at most.
_READING = 1 / 8, 2.0
_WRITING = 1 / 8, 1.0

# Chunks to aim at, where they are neither too small nor too large: enough for many workers to end together.
_CHUNKS = 32


class ClusterEngine:
    """Does what ``Engine`` does, chunk by chunk on the workers of a pool; numbers do not depend on how many there are.

    Args:
        pool: The workers.
        model: What is known here of the model on the workers.
        device: Their kind of device.
        job: The experiment; ``add`` takes in the examples of others.
    """

    def __init__(self, pool: WorkerPool, model: HookedModel | ModelInfo, device: str, job: Job) -> None:
        self.model, self.examples, self.ablation = model, list(job.examples), job.ablation
        self._pool, self._device, self._job = pool, device, job
        self._sent: Sent | None = None

    def add(self, examples: Sequence[EncodedExample]) -> int:
        """Take in the examples of another task, where units give zero; the number of the first of them."""
        self.examples += examples
        self._sent = None
        return len(self.examples) - len(examples)

    def run(self, masks: PairMasks, examples: PairExamples, known: Known = None) -> Iterator[list[PairResult]]:
        """Yield the results of pairs chunk by chunk: see ``EngineLike``."""
        ablation, asked = self.ablation, tuple(np.unique(examples).tolist())
        layout = lay_out(
            self.examples, asked, share=True, across_examples=ablation.shares_examples, positions=ablation.positions
        )
        least, most = (share * self._job.batch_tokens for share in _READING)
        size = chunk_size(len(examples), layout.n_tokens / max(len(asked), 1), least, most)
        chunks = cut(masks, examples, [example.prompt for example in self.examples], size)
        yield from self._run(chunks, masks, examples, known)

    def generate(
        self, request: TextRequest, masks: PairMasks, examples: PairExamples, known: Known = None
    ) -> Iterator[list[PairText]]:
        """Yield the texts of pairs chunk by chunk: see ``EngineLike``."""
        least, most = (share * rows_together(self._device) for share in _WRITING)
        chunks = cut(masks, examples, request.prompts, chunk_size(len(examples), 1.0, least, most))
        yield from self._run(chunks, masks, examples, known, self._pool.send(request))

    def _run(
        self,
        chunks: list[np.ndarray],
        masks: PairMasks,
        examples: PairExamples,
        known: Known,
        request: Sent | None = None,
    ) -> Iterator[list[Any]]:
        """Yield the results of each chunk under the numbers of their pairs, but for ``known`` pairs."""
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        if not self.ablation.is_prepared:
            # What heads become is prepared by one worker for all.
            [(_, self.ablation)] = self._pool.run([("prepare", (self._send(),))])
        job = self._sent = self._sent or self._send()
        chunks = [chunk for chunk in chunks if not known[chunk].all()]
        calls = [("run", (job, masks[chunk], examples[chunk], known[chunk], request)) for chunk in chunks]
        for number, results in self._pool.run(calls):
            numbered = [(int(chunks[number][pair]), said) for pair, said in results]
            yield [result for result in numbered if not known[result[0]]]

    def _send(self) -> Sent:
        return self._pool.send(replace(self._job, examples=[*self.examples], ablation=self.ablation))


def cut(masks: PairMasks, examples: PairExamples, order: Sequence[TokenIds], size: int) -> list[np.ndarray]:
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
