"""What a model says with heads off: texts by mask and example, and where they stop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from cs_heads.lens.model import end_tokens
from cs_heads.measure.engine.ends import Ends
from cs_heads.measure.engine.generation import Text
from cs_heads.measure.engine.protocol import EngineLike


class Texts:
    """Texts generated after the prompts of some examples with one set of stop strings; what is known is kept."""

    def __init__(
        self,
        engine: EngineLike,
        prompts: Sequence[Text],
        max_new_tokens: int,
        stop: Sequence[str],
        progress: bool | None,
    ) -> None:
        self.engine, self.prompts, self.progress = engine, prompts, progress
        self.ends = Ends(max_new_tokens, tuple(stop), end_tokens(engine.model))
        self.generated = 0
        self._known: dict[tuple[bytes, int], Text] = {}

    def __call__(self, masks: Bool[np.ndarray, "row layer head"], examples: Int[np.ndarray, "row k"]) -> np.ndarray:
        """Texts ``[row, k]``, up to the first stop string."""
        intact = np.zeros(masks.shape[1:], dtype=bool)
        wanted = [(mask, int(example)) for mask, row in zip(masks, examples, strict=True) for example in row]
        missing = {key for mask, example in wanted if (key := (mask.tobytes(), example)) not in self._known}
        if self.engine.worth_drafting(len(missing)):
            self._generate([(intact, example) for example in sorted({e for _, e in missing})], {})
        drafts = {example: text for (mask, example), text in self._known.items() if mask == intact.tobytes()}
        self._generate(wanted, drafts if self.engine.drafts else {})
        texts = [self._decoded(self._known[mask.tobytes(), example]) for mask, example in wanted]
        return np.array(texts, dtype=object).reshape(examples.shape)

    def _generate(self, wanted: list[tuple[Bool[np.ndarray, "layer head"], int]], drafts: dict[int, Text]) -> None:
        missing = {
            (mask.tobytes(), example): mask for mask, example in wanted if (mask.tobytes(), example) not in self._known
        }
        if not missing:
            return
        keys = list(missing)
        masks, examples = np.stack(list(missing.values())), np.array([example for _, example in keys])
        for batch in self.engine.generate(self.prompts, self.ends, masks, examples, drafts, self.progress):
            for pair, text in batch:
                self._known[keys[pair]] = text
            self.generated += len(batch)

    def _decoded(self, text: Text) -> str:
        return self.ends.kept(text, self.engine.model.tokenizer)
