"""What a model says with heads off: texts by mask and example, and where they stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from cs_heads.lens.model import end_tokens
from cs_heads.measure.engine import Engine
from cs_heads.measure.engine.generation import Generation, Text


class Texts:
    """Texts generated after the prompts of some examples with one set of stop strings; what is known is kept."""

    def __init__(
        self, engine: Engine, prompts: Sequence[Text], max_new_tokens: int, stop: Sequence[str], progress: bool | None
    ) -> None:
        self.engine, self.prompts, self.progress = engine, prompts, progress
        self.max_new_tokens, self.stop = max_new_tokens, tuple(stop)
        self.generated = 0
        self._end = end_tokens(engine.model)
        self._known: dict[tuple[bytes, int], Text] = {}

    def __call__(self, masks: Bool[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]) -> np.ndarray:
        """Texts ``[row, k]``, up to the first stop string."""
        intact = np.zeros(masks.shape[1:], dtype=bool)
        wanted = [(mask, int(example)) for mask, row in zip(masks, examples, strict=True) for example in row]
        generation = Generation(self.engine.forwards, self.prompts, self.finished)
        missing = {key for mask, example in wanted if (key := (mask.tobytes(), example)) not in self._known}
        if generation.worth_drafting(len(missing)):
            self._generate(generation, [(intact, example) for example in sorted({e for _, e in missing})], {})
        drafts = {example: text for (mask, example), text in self._known.items() if mask == intact.tobytes()}
        self._generate(generation, wanted, drafts if self.engine.forwards.able.draft else {})
        texts = [self._decoded(self._known[mask.tobytes(), example]) for mask, example in wanted]
        return np.array(texts, dtype=object).reshape(examples.shape)

    def finished(self, text: Sequence[int]) -> bool:
        """Whether a text ends here: by an end token, a stop string, or its length."""
        if not text:
            return False
        if len(text) >= self.max_new_tokens or text[-1] in self._end:
            return True
        return bool(self.stop) and any(stop in self._tokenizer.decode(list(text)) for stop in self.stop)

    @property
    def _tokenizer(self) -> Any:
        return self.engine.model.tokenizer

    def _generate(
        self, generation: Generation, wanted: list[tuple[Bool[np.ndarray, "layer head"], int]], drafts: dict[int, Text]
    ) -> None:
        missing = {
            (mask.tobytes(), example): mask for mask, example in wanted if (mask.tobytes(), example) not in self._known
        }
        if not missing:
            return
        keys = list(missing)
        masks, examples = np.stack(list(missing.values())), np.array([example for _, example in keys])
        for batch in generation.run(masks, examples, drafts, self.progress):
            for pair, text in batch:
                self._known[keys[pair]] = text
            self.generated += len(batch)

    def _decoded(self, text: Text) -> str:
        kept = text[:-1] if text[-1] in self._end else text
        decoded = self._tokenizer.decode(list(kept), skip_special_tokens=True)
        ends = [decoded.index(stop) for stop in self.stop if stop in decoded]
        return decoded[: min(ends, default=len(decoded))]
