"""What a model says with heads off: texts by mask and example, and where they stop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Shaped

from cs_heads.designs import mask_key, masks_of_keys
from cs_heads.engine.protocol import PairMasks, StoppingCriteria, TextRequest
from cs_heads.experiment.plan import Observed
from cs_heads.progress import counting
from cs_heads.store.stored_observations import PlannedCall, StoredObservations, begin_together
from cs_heads.text import TokenIds
from cs_heads.units import Grid

Key = tuple[bytes, int]
"""The key of a mask, and an example."""


class Texts:
    """Texts generated after the prompts of some examples with one set of stop strings; what is known is kept.

    ``used`` are the masks and examples whose text was asked for, ``generated`` the number that the model wrote
    here, and did not take from ``stored``.
    """

    def __init__(
        self,
        observed: Observed,
        grid: Grid,
        prompts: Sequence[TokenIds],
        ends: StoppingCriteria,
        stored: StoredObservations | None,
    ) -> None:
        self.engine, self.name, self.progress = observed.engine, observed.task.name, observed.progress
        self.grid, self.prompts, self.ends, self.stored = grid, prompts, ends, stored
        self.generated = 0
        self.used: set[Key] = set()
        self._known: dict[Key, TokenIds] = {}

    def __call__(self, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]) -> np.ndarray:
        """Texts ``[row, k]``, up to the first stop string."""
        named = [mask_key(mask) for mask in masks]
        asked = [(key, int(example)) for key, row in zip(named, examples, strict=True) for example in row]
        pairs = list(dict.fromkeys(asked))
        self._read(pairs)
        try:
            self._write_missing(pairs)
        finally:
            self.used.update(pair for pair in pairs if pair in self._known)
        return np.array([self._decoded(self._known[pair]) for pair in asked], dtype=object).reshape(examples.shape)

    def known(self) -> list[tuple[bytes, int, str]]:
        """What was said: mask, example, text."""
        return [(mask, example, self._decoded(text)) for (mask, example), text in self._known.items()]

    def _read(self, keys: list[Key]) -> None:
        """Take what the store has of texts that are not known."""
        if self.stored is None:
            return
        self.stored.flush()
        wanted: dict[bytes, set[int]] = {}
        for mask, example in keys:
            if (mask, example) not in self._known:
                wanted.setdefault(mask, set()).add(example)
        for mask, chosen in wanted.items():
            for example, tokens in self.stored.read(mask):
                if example in chosen:
                    self._known[mask, example] = tuple(np.frombuffer(tokens, dtype="<i4").tolist())

    def _write_missing(self, keys: list[Key]) -> None:
        """Generate those of some texts that are not known; a call that was cut short is planned as it was begun."""
        missing = np.array([key not in self._known for key in keys])
        if not missing.any():
            return
        call = None
        if self.stored is not None:
            asked = [mask for mask, _ in keys], np.array([example for _, example in keys])
            [call] = begin_together([(self.stored, *asked, missing)])
        planned = [keys[i] for i in (np.flatnonzero(missing) if call is None else call.pairs)]
        if planned:
            self._generate(planned, call)
        if self.stored is not None and call is not None:
            self.stored.end(call)

    def _generate(self, keys: list[Key], call: PlannedCall | None) -> None:
        different = list(dict.fromkeys(mask for mask, _ in keys))
        number = {mask: place for place, mask in enumerate(different)}
        masks = PairMasks(masks_of_keys(self.grid, different), np.array([number[mask] for mask, _ in keys]))
        numbers, known = np.array([e for _, e in keys]), np.array([key in self._known for key in keys])
        request = TextRequest(self.prompts, self.ends)
        with counting(self.name, len(numbers), self.progress, int(known.sum())) as bar:
            for batch in self.engine.generate(request, masks, numbers, known):
                self._known |= {keys[pair]: text for pair, text in batch}
                self.generated += len(batch)
                if self.stored is not None:
                    said = [
                        (*keys[pair], (np.array(text, dtype="<i4").tobytes(), self._decoded(text)))
                        for pair, text in batch
                    ]
                    self.stored.write(said, call)
                bar.add(len(batch))

    def _decoded(self, text: TokenIds) -> str:
        return self.ends.kept(text, self.engine.model.tokenizer)
