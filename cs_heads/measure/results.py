"""What has been measured: one score and one log-probability per (mask, example)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float

from cs_heads.heads import HeadGrid

Measured = Float[np.ndarray, "example 2"]


class Results:
    """Scores and log-probabilities by mask; NaN where an example has not been measured under it.

    The key of an entry is the whole mask: a result never answers for another ablation.
    """

    def __init__(self, grid: HeadGrid, n_examples: int) -> None:
        self.grid = grid
        self.n_examples = n_examples
        self._by_mask: dict[bytes, Measured] = {}

    def of(self, mask: Bool[np.ndarray, "layer head"]) -> Measured:
        """The entry of one mask, ``[example, (score, logprob)]``, to read and to fill."""
        key = np.packbits(mask).tobytes()
        if key not in self._by_mask:
            self._by_mask[key] = np.full((self.n_examples, 2), np.nan)
        return self._by_mask[key]

    def __iter__(self) -> Iterator[tuple[Bool[np.ndarray, "layer head"], Measured]]:
        for key, measured in self._by_mask.items():
            bits = np.unpackbits(np.frombuffer(key, dtype=np.uint8), count=self.grid.size)
            yield bits.astype(bool).reshape(self.grid.shape), measured
