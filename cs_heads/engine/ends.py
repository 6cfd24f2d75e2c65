"""Where a text ends, and what of it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ends:
    """A text ends by one of ``end_tokens``, by one of the strings ``stop``, or after ``max_new_tokens``."""

    max_new_tokens: int
    stop: tuple[str, ...]
    end_tokens: frozenset[int]

    def finished(self, text: Sequence[int], tokenizer: Any) -> bool:
        """Whether a text ends here; one without tokens does not."""
        if not text:
            return False
        if len(text) >= self.max_new_tokens or text[-1] in self.end_tokens:
            return True
        return bool(self.stop) and any(stop in tokenizer.decode(list(text)) for stop in self.stop)

    def kept(self, text: Sequence[int], tokenizer: Any) -> str:
        """A finished text without its end token, up to the first stop string."""
        kept = text[:-1] if text[-1] in self.end_tokens else text
        decoded = tokenizer.decode(list(kept), skip_special_tokens=True)
        ends = [decoded.index(stop) for stop in self.stop if stop in decoded]
        return decoded[: min(ends, default=len(decoded))]
