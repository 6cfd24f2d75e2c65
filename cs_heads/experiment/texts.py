"""What a model says with heads off: texts by mask and example, and where they stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from jaxtyping import Int, Shaped

from cs_heads.designs import mask_key, masks_of_keys
from cs_heads.engine.protocol import EngineLike, PairMasks, StoppingCriteria, TextRequest
from cs_heads.lens.model import end_tokens
from cs_heads.progress import counting
from cs_heads.store.stored_observations import PlannedCall, StoredObservations
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
        engine: EngineLike,
        grid: Grid,
        prompts: Sequence[TokenIds],
        max_new_tokens: int,
        stop: Sequence[str],
        *,
        name: str,
        progress: bool | None,
        stored: StoredObservations | None = None,
    ) -> None:
        self.engine, self.grid, self.prompts = engine, grid, prompts
        self.name, self.progress = name, progress
        self.ends = StoppingCriteria(max_new_tokens, tuple(stop), end_tokens(engine.model))
        self.stored = stored
        self.generated = 0
        self.used: set[Key] = set()
        self._known: dict[Key, TokenIds] = {}

    def __call__(self, masks: Shaped[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]) -> np.ndarray:
        """Texts ``[row, k]``, up to the first stop string."""
        named = [mask_key(mask) for mask in masks]
        row_of = {(key, int(e)): i for i, key in enumerate(named) for e in examples[i]}
        pairs, said = list(row_of), {}
        if pairs:
            of_pairs = PairMasks.of(masks)[np.array(list(row_of.values()))]
            for batch in self.run(of_pairs, np.array([e for _, e in pairs])):
                said.update({pairs[pair]: text for pair, text in batch})
        texts = [said[key, int(e)] for key, row in zip(named, examples, strict=True) for e in row]
        return np.array(texts, dtype=object).reshape(examples.shape)

    def known(self) -> list[tuple[bytes, int, str]]:
        """What was said: mask, example, text."""
        return [(mask, example, self._decoded(text)) for (mask, example), text in self._known.items()]

    def run(self, masks: PairMasks, examples: Int[np.ndarray, " pair"]) -> Iterator[list[tuple[int, str]]]:
        """Yield (pair, text) as texts are finished, each up to the first stop string; each pair stands once."""
        named = [mask_key(mask) for mask in masks.masks]
        keys = [(named[number], int(example)) for number, example in zip(masks.which, examples, strict=True)]
        pairs = {key: pair for pair, key in enumerate(keys)}
        self._read(keys)
        known = [key for key in keys if key in self._known]
        for done in chain([known] if known else [], self._missing(keys)):
            self.used.update(done)
            if done:
                yield [(pairs[key], self._decoded(self._known[key])) for key in done]

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

    def _write(self, keys: list[Key], call: PlannedCall | None) -> None:
        if self.stored is not None:
            texts = [self._known[key] for key in keys]
            values = [(np.array(text, dtype="<i4").tobytes(), self._decoded(text)) for text in texts]
            self.stored.write([(m, e, value) for (m, e), value in zip(keys, values, strict=True)], call)

    def _missing(self, keys: list[Key]) -> Iterator[list[Key]]:
        """Generate those of some texts that are not known; a call that was cut short is planned as it was begun."""
        missing = np.array([key not in self._known for key in keys])
        if not missing.any():
            return
        call = None
        if self.stored is not None:
            call = self.stored.begin([mask for mask, _ in keys], np.array([e for _, e in keys]), missing)
        planned = [keys[i] for i in (np.flatnonzero(missing) if call is None else call.pairs)]
        yield from self._generate(planned, call)
        if self.stored is not None and call is not None:
            self.stored.end(call)

    def _generate(self, keys: list[Key], call: PlannedCall | None) -> Iterator[list[Key]]:
        if not keys:
            return
        different = list(dict.fromkeys(mask for mask, _ in keys))
        number = {mask: place for place, mask in enumerate(different)}
        masks = PairMasks(masks_of_keys(self.grid, different), np.array([number[mask] for mask, _ in keys]))
        numbers, known = np.array([e for _, e in keys]), np.array([key in self._known for key in keys])
        request = TextRequest(self.prompts, self.ends)
        with counting(self.name, len(numbers), self.progress, int(known.sum())) as bar:
            for batch in self.engine.generate(request, masks, numbers, known):
                for pair, text in batch:
                    self._known[keys[pair]] = text
                self.generated += len(batch)
                done = [keys[pair] for pair, _ in batch]
                self._write(done, call)
                bar.add(len(batch))
                yield done

    def _decoded(self, text: TokenIds) -> str:
        return self.ends.kept(text, self.engine.model.tokenizer)
