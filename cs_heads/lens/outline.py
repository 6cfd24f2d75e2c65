"""What is known here of a model that lives in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OutlineConfig:
    """The fields of a TransformerLens configuration that are asked for away from the model."""

    n_layers: int
    n_heads: int
    n_ctx: int | None
    d_vocab: int
    d_vocab_out: int
    model_name: str


@dataclass(frozen=True)
class Outline:
    """A model's shape, tokenizer, description (``describe``), end tokens, ``fingerprint``, settings and kind of device.

    Stands for the model where texts are tokenised and results are labelled; it has no weights and cannot be run.
    """

    cfg: OutlineConfig
    tokenizer: Any
    description: dict[str, Any]
    end_tokens: frozenset[int]
    fingerprint: str
    settings: dict[str, Any]
    device: str
