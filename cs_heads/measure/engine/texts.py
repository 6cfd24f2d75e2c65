"""What a model says with heads off: texts by mask and example, and where they stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int

from cs_heads.lens.model import end_tokens
from cs_heads.measure.engine.ends import Ends
from cs_heads.measure.engine.protocol import EngineLike, Text
from cs_heads.measure.shelf import Shelf

Key = tuple[bytes, int]
"""A mask, one byte a head, and an example."""


class Texts:
    """Texts generated after the prompts of some examples with one set of stop strings; what is known is kept.

    ``used`` are the masks and examples whose text was asked for, ``generated`` the number that the model wrote
    here and not taken from ``shelf``.
    """

    def __init__(
        self,
        engine: EngineLike,
        prompts: Sequence[Text],
        max_new_tokens: int,
        stop: Sequence[str],
        progress: bool | None,
        *,
        shelf: Shelf | None = None,
    ) -> None:
        self.engine, self.prompts, self.progress = engine, prompts, progress
        self.ends = Ends(max_new_tokens, tuple(stop), end_tokens(engine.model))
        self.shelf = shelf
        self.generated = 0
        self.used: set[Key] = set()
        self._known: dict[Key, Text] = {}

    def __call__(self, masks: Bool[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]) -> np.ndarray:
        """Texts ``[row, k]``, up to the first stop string."""
        pairs = {(m.tobytes(), int(e)): (m, int(e)) for m, row in zip(masks, examples, strict=True) for e in row}
        chosen = list(pairs.values())
        said = {}
        if chosen:
            for batch in self.run(np.stack([m for m, _ in chosen]), np.array([e for _, e in chosen])):
                said.update({(chosen[pair][0].tobytes(), chosen[pair][1]): text for pair, text in batch})
        texts = [said[m.tobytes(), int(e)] for m, row in zip(masks, examples, strict=True) for e in row]
        return np.array(texts, dtype=object).reshape(examples.shape)

    def use(self, masks: Bool[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]) -> None:
        """Count these texts as asked for: their scores were."""
        self.used |= {(mask.tobytes(), int(e)) for mask, row in zip(masks, examples, strict=True) for e in row}

    def run(
        self, masks: Bool[np.ndarray, "pair layer head"], examples: Int[np.ndarray, " pair"]
    ) -> Iterator[list[tuple[int, str]]]:
        """Yield (pair, text) as texts are finished, each up to the first stop string; each pair stands once."""
        keys = [(mask.tobytes(), int(example)) for mask, example in zip(masks, examples, strict=True)]
        self._read(keys)
        known = [(pair, self._decoded(self._known[key])) for pair, key in enumerate(keys) if key in self._known]
        if known:
            self.used |= {keys[pair] for pair, _ in known}
            yield known
        left = {key: pair for pair, key in enumerate(keys) if key not in self._known}
        if not left:
            return
        intact = np.zeros(masks.shape[1:], dtype=bool)
        runs = [list(left)]
        if self.engine.worth_drafting(len(left)):
            drafted = [(intact.tobytes(), example) for example in sorted({example for _, example in left})]
            self._read(drafted)
            runs.insert(0, [key for key in drafted if key not in self._known])
        for run in runs:
            for done in self._generate([key for key in run if key not in self._known], intact):
                wanted = [(left[key], self._decoded(self._known[key])) for key in done if key in left]
                if wanted:
                    yield wanted

    def _read(self, keys: list[Key]) -> None:
        """Take what the store has of texts that are not known."""
        if self.shelf is None:
            return
        self.shelf.save()
        wanted: dict[bytes, set[int]] = {}
        for mask, example in keys:
            if (mask, example) not in self._known:
                wanted.setdefault(mask, set()).add(example)
        for mask, chosen in wanted.items():
            for example, (tokens, _) in self.shelf.read(_packed(mask)):
                if example in chosen:
                    self._known[mask, example] = tuple(np.frombuffer(tokens, dtype="<i4").tolist())

    def _write(self, keys: list[Key]) -> None:
        if self.shelf is not None:
            texts = [self._known[key] for key in keys]
            values = [(np.array(text, dtype="<i4").tobytes(), self._decoded(text)) for text in texts]
            self.shelf.write([(_packed(m), e, value) for (m, e), value in zip(keys, values, strict=True)])

    def _generate(self, keys: list[Key], intact: Bool[np.ndarray, "layer head"]) -> Iterator[list[Key]]:
        """Generate the texts of some masks and examples, drafted by those known of the intact model."""
        if not keys:
            return
        masks = np.stack([np.frombuffer(mask, dtype=bool).reshape(intact.shape) for mask, _ in keys])
        drafts = {example: text for (mask, example), text in self._known.items() if mask == intact.tobytes()}
        numbers = np.array([example for _, example in keys])
        batches = self.engine.generate(self.prompts, self.ends, masks, numbers, drafts=drafts, progress=self.progress)
        for batch in batches:
            for pair, text in batch:
                self._known[keys[pair]] = text
            self.generated += len(batch)
            done = [keys[pair] for pair, _ in batch]
            self.used.update(done)
            self._write(done)
            yield done

    def _decoded(self, text: Text) -> str:
        return self.ends.kept(text, self.engine.model.tokenizer)


def _packed(mask: bytes) -> bytes:
    """The mask with eight heads a byte, as stores have it."""
    return np.packbits(np.frombuffer(mask, dtype=bool)).tobytes()
