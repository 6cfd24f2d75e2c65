"""Running (mask, example) pairs through the model, many in one forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from tqdm.auto import tqdm

from cs_heads.lens import EncodedExample, score_tokens
from cs_heads.lens.model import device_of

BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536}
"""Tokens of one forward to begin with, by device; halved where memory does not suffice."""

# Logits of one forward at most (float32: 512 MiB), so that the vocabulary bounds a batch too.
_MAX_LOGITS = 2**27

PairResult = tuple[int, Float[np.ndarray, " continuation"], Bool[np.ndarray, " continuation"]]


class Engine:
    """Scores (mask, example) pairs on one model; each row of a batch carries the mask of its pair."""

    def __init__(self, model: Any, examples: Sequence[EncodedExample], batch_tokens: int | None) -> None:
        self.model = model
        self.examples = examples
        self.batch_tokens = batch_tokens or BATCH_TOKENS.get(device_of(model).type, 16_384)
        self._length = np.array([len(e.prompt) + max(map(len, e.continuations)) - 1 for e in examples])
        self._rows = np.array([len(e.continuations) for e in examples])
        self._targets = np.array([sum(map(len, e.continuations)) for e in examples])

    def run(
        self,
        masks: Bool[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        progress: bool | None,
    ) -> Iterator[list[PairResult]]:
        """Yield results batch by batch: (pair, log-probability and greedy match of each continuation).

        Pairs go longest first, so rows of like length share a batch and the first forward is the
        one most likely to want more memory than there is. A batch that does not fit is halved; a
        single pair that does not fit raises ``MemoryError``.
        """
        order = np.argsort(-self._length[examples], kind="stable")
        # disable=None: no bar where standard error is a file.
        with tqdm(total=len(order), unit="eval", disable=None if progress is None else not progress) as bar:
            done = 0
            while done < len(order):
                batch = order[done : done + self._batch_size(examples[order[done:]])]
                try:
                    results = self._forward(masks, examples, batch)
                except (RuntimeError, MemoryError) as error:
                    if not _is_out_of_memory(error):
                        raise
                    if len(batch) == 1:
                        raise MemoryError(
                            f"example {examples[batch[0]]} ({self._length[examples[batch[0]]]} tokens, "
                            f"{self._rows[examples[batch[0]]]} rows) does not fit into memory by itself"
                        ) from error
                    self._halve(len(batch), int(self._cost(examples[batch]).max()))
                    continue
                done += len(batch)
                yield results
                bar.update(len(batch))

    def _cost(self, examples: Int[np.ndarray, " pair"]) -> Int[np.ndarray, " pair"]:
        return self._rows[examples] * self._length[examples]

    def _batch_size(self, examples: Int[np.ndarray, " pair"]) -> int:
        """How many of the next pairs go into one forward: within the budgets, but one at least."""
        padded_tokens = np.cumsum(self._rows[examples]) * self._length[examples[0]]
        logits = np.cumsum(self._targets[examples]) * self.model.cfg.d_vocab
        fits = (padded_tokens <= self.batch_tokens) & (logits <= _MAX_LOGITS)
        return max(1, int(fits.sum()))

    def _halve(self, n_pairs: int, largest: int) -> None:
        self.batch_tokens = max(1, min(self.batch_tokens, n_pairs * largest) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _forward(
        self,
        masks: Bool[np.ndarray, "pair layer head"],
        examples: Int[np.ndarray, " pair"],
        batch: Int[np.ndarray, " n"],
    ) -> list[PairResult]:
        encoded = [self.examples[examples[pair]] for pair in batch]
        rows = np.repeat(batch, [len(example.continuations) for example in encoded])
        scores = score_tokens(
            self.model,
            prompts=[example.prompt for example in encoded for _ in example.continuations],
            targets=[target for example in encoded for target in example.continuations],
            gates=torch.from_numpy(~masks[rows]).float(),
        )
        ends = np.cumsum([len(example.continuations) for example in encoded])[:-1]
        parts = zip(np.split(scores.logprob, ends), np.split(scores.greedy, ends), strict=True)
        return [(int(pair), logprob, greedy) for pair, (logprob, greedy) in zip(batch, parts, strict=True)]


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory")
    )
