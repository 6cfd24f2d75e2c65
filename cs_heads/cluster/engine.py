"""The engine of an experiment whose model lives on workers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from cs_heads.cluster.chunks import cut
from cs_heads.cluster.pool import Call, Pool
from cs_heads.cluster.worker import Job, Writing
from cs_heads.engine.ablation import Ablation, shares_examples
from cs_heads.engine.ends import Ends
from cs_heads.engine.generation import rows_together, worth_drafting
from cs_heads.engine.layout import lay_out
from cs_heads.engine.protocol import PairResult, PairText, Text
from cs_heads.lens import EncodedExample
from cs_heads.settings import progress_bar

# A chunk to score, in token budgets of one forward; one to write, in rows decoded together: at least, at most.
_SCORING = 1 / 8, 2.0
_WRITING = 1 / 8, 1.0

_keys = count()


class ClusterEngine:
    """Does what ``Engine`` does, chunk by chunk on the workers of a pool, the same for any number of them.

    ``model`` is what is known here of the model on the workers, ``device`` their kind of device.
    """

    def __init__(
        self,
        pool: Pool,
        model: Any,
        device: str,
        examples: Sequence[EncodedExample],
        *,
        batch_tokens: int,
        ablation: Ablation | None,
    ) -> None:
        self.model, self.examples, self.ablation = model, examples, ablation
        self.batch_tokens, self._device, self._pool = batch_tokens, device, pool
        self._job: str | None = None

    def worth_drafting(self, n_texts: int) -> bool:
        """Whether the intact model should write first, to draft so many texts of masked ones."""
        return worth_drafting(self._device, n_texts)

    def run(
        self,
        masks: Shaped[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        progress: bool | None,
        known: Bool[np.ndarray, " pair"] | None = None,
    ) -> Iterator[list[PairResult]]:
        """Yield results chunk by chunk: (pair, log-probability and share of argmax tokens of each continuation).

        Pairs that are ``known`` are cut into chunks like the others, and not yielded: the others' numbers are what
        they would be if none were known.
        """
        job = self._opened()
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        across = shares_examples(self.ablation)

        @cache
        def tokens(chosen: tuple[int, ...]) -> float:
            return float(lay_out(self.examples, chosen, share=True, across_examples=across).n_tokens)

        prompts = [example.prompt for example in self.examples]
        least, most = (share * self.batch_tokens for share in _SCORING)
        chunks = cut(masks, examples, tokens, prompts, least=least, most=most)
        chunks = [chunk for chunk in chunks if not known[chunk].all()]
        calls = [Call("score", (job, masks[chunk], examples[chunk], known[chunk]), (job,)) for chunk in chunks]
        with progress_bar(len(examples), "eval", progress, int(known.sum())) as bar:
            for number, results in self._pool.run(calls):
                bar.update(len(results))
                yield [(int(chunks[number][pair]), logprobs, hits) for pair, logprobs, hits in results]

    def generate(
        self,
        prompts: Sequence[Text],
        ends: Ends,
        masks: Shaped[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        *,
        drafts: Mapping[int, Text],
        progress: bool | None,
        known: Bool[np.ndarray, " pair"] | None = None,
    ) -> Iterator[list[PairText]]:
        """Yield (pair, tokens) chunk by chunk, but for ``known`` pairs, as ``run`` does."""
        known = np.zeros(len(examples), dtype=bool) if known is None else known
        job, writing = self._opened(), self._open(Writing(prompts, ends))
        least, most = (share * rows_together(self._device) for share in _WRITING)
        chunks = cut(masks, examples, len, prompts, least=least, most=most)
        chunks = [chunk for chunk in chunks if not known[chunk].all()]
        calls = []
        for chunk in chunks:
            wanted = {int(e): drafts[int(e)] for e in np.unique(examples[chunk]) if int(e) in drafts}
            calls.append(Call("generate", (job, masks[chunk], examples[chunk], writing, wanted), (job, writing)))
        try:
            with progress_bar(len(examples), "text", progress, int(known.sum())) as bar:
                for number, texts in self._pool.run(calls):
                    new = [(int(chunks[number][pair]), text) for pair, text in texts]
                    new = [(pair, text) for pair, text in new if not known[pair]]
                    bar.update(len(new))
                    yield new
        finally:
            self._pool.forget(writing)

    def _opened(self) -> str:
        """The key of this experiment's job; the first time, what heads become is prepared by one worker for all."""
        if self._job is None:
            if self.ablation is not None:
                first = self._open(Job(self.examples, self.batch_tokens, self.ablation))
                [(_, self.ablation)] = self._pool.run([Call("prepare", (first,), (first,))])
                self._pool.forget(first)
            self._job = self._open(Job(self.examples, self.batch_tokens, self.ablation))
        return self._job

    def _open(self, what: Job | Writing) -> str:
        key = f"{type(what).__name__.lower()} {next(_keys)}"
        self._pool.open(key, what)
        if isinstance(what, Job):
            weakref.finalize(self, self._pool.forget, key)
        return key
