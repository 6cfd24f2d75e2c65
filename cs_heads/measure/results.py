"""What has been measured: one score and one log-probability per (mask, example)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Int

from cs_heads.heads import HeadGrid
from cs_heads.measure.shelf import Shelf

Measured = Float[np.ndarray, "example 2"]
Run = Callable[
    [Bool[np.ndarray, "pair layer head"], Int[np.ndarray, " pair"], Bool[np.ndarray, " pair"]],
    Iterator[list[tuple[int, Float[np.ndarray, " 2"]]]],
]
"""Masks and examples of different pairs, and which of them are known and not asked for: yields batches of results."""


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
        return self.at(np.packbits(mask).tobytes())

    def at(self, packed: bytes) -> Measured:
        """The entry of a mask as packed bits."""
        if packed not in self._by_mask:
            self._by_mask[packed] = np.full((self.n_examples, 2), np.nan)
        return self._by_mask[packed]

    def __iter__(self) -> Iterator[tuple[Bool[np.ndarray, "layer head"], Measured]]:
        for key, measured in self._by_mask.items():
            bits = np.unpackbits(np.frombuffer(key, dtype=np.uint8), count=self.grid.size)
            yield bits.astype(bool).reshape(self.grid.shape), measured


class Measurement:
    """One column of ``results``, score (0) or log-probability (1): taken from a shelf of the store, or else run.

    ``taken`` counts the different pairs asked for so far, ``ran`` those of them that were run here.
    """

    def __init__(self, results: Results, column: int, shelf: Shelf | None) -> None:
        self.results, self.column, self.shelf = results, column, shelf
        self.taken = self.ran = 0

    def __call__(
        self, masks: Bool[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"], run: Run
    ) -> Float[np.ndarray, "row k 2"]:
        """The entries of each row's examples, with what was missing measured and kept, batch by batch."""
        packed = [np.packbits(mask).tobytes() for mask in masks]
        entries = [self.results.at(mask) for mask in packed]
        if self.shelf is not None:
            self.shelf.save()
        pairs = np.array(
            list({(mask, int(e)): (row, e) for row, mask in enumerate(packed) for e in examples[row]}.values())
        ).reshape(-1, 2)
        if self._missing(entries, pairs).any():
            self._read(packed, entries, pairs)
            self._run(masks, packed, entries, pairs, run)
        return np.stack([entry[chosen] for entry, chosen in zip(entries, examples, strict=True)])

    def _missing(self, entries: list[Measured], pairs: Int[np.ndarray, "pair 2"]) -> Bool[np.ndarray, " pair"]:
        return np.array([np.isnan(entries[row][example, self.column]) for row, example in pairs], dtype=bool)

    def _read(self, packed: list[bytes], entries: list[Measured], pairs: Int[np.ndarray, "pair 2"]) -> None:
        """Fill in what the store has of the pairs that are missing."""
        if self.shelf is None:
            return
        wanted: dict[int, set[int]] = {}
        for row, example in pairs[self._missing(entries, pairs)]:
            wanted.setdefault(int(row), set()).add(int(example))
        for row, chosen in wanted.items():
            for example, values in self.shelf.read(packed[row]):
                if example in chosen:
                    self._keep(entries[row][example], np.array(values, dtype=float))

    def _run(
        self,
        masks: Bool[np.ndarray, "row layer head"],
        packed: list[bytes],
        entries: list[Measured],
        pairs: Int[np.ndarray, "pair 2"],
        run: Run,
    ) -> None:
        missing = self._missing(entries, pairs)
        if not missing.any():
            return
        if self.shelf is None:
            call, chosen, known = None, pairs[missing], np.zeros(int(missing.sum()), dtype=bool)
        else:
            call = self.shelf.begin([packed[row] for row in pairs[:, 0]], pairs[:, 1], missing)
            chosen, known = pairs[call.pairs], call.known
        for batch in run(masks[chosen[:, 0]], chosen[:, 1], known):
            for pair, values in batch:
                row, example = chosen[pair]
                self._keep(entries[row][example], values)
            self.ran += len(batch)
            if self.shelf is not None:
                places = [(*chosen[pair], values) for pair, values in batch]
                self.shelf.write([(packed[row], int(e), tuple(values.tolist())) for row, e, values in places], call)
        if self.shelf is not None and call is not None:
            self.shelf.end(call)

    def _keep(self, entry: Float[np.ndarray, " 2"], values: Float[np.ndarray, " 2"]) -> None:
        """Take in a result; what is known of the other column stays."""
        self.taken += bool(np.isnan(entry[self.column]))
        np.copyto(entry, values, where=~np.isnan(values))
