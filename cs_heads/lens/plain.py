"""A model as transformers runs it by itself: what models of TransformerLens are held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.heads import Head
from cs_heads.lens.load import DEMO, quietly

# Names of the module that takes the heads' concatenated z, inside a module of attention.
_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense", "wo", "out")

# Tensors that a line names.
_NAMED = 3


@dataclass(frozen=True)
class PlainModel:
    """The Hugging Face model of a folder or name, in float32, and the tokenizer that lies beside it (or None).

    ``faults`` say what is wrong with its files: tensors that are missing, unexpected, of another shape, or that hold
    NaN or infinity. ``stored`` is the dtype of the files, where they say so.
    """

    model: Any
    tokenizer: Any
    faults: tuple[str, ...]
    stored: str | None

    @classmethod
    def load(cls, name_or_path: str | Path, device: torch.device | str, revision: str | None = None) -> PlainModel:
        """What ``load_model`` loads, without TransformerLens; ``ValueError`` where transformers cannot read it."""
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        source = str(DEMO if str(name_or_path) == "demo" else name_or_path)
        options: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        try:
            # Tensors that do not fit are told here, in a line.
            with quietly("transformers"):
                stored = getattr(AutoConfig.from_pretrained(source, revision=revision), "dtype", None)
                model, info = AutoModelForCausalLM.from_pretrained(
                    source, dtype=torch.float32, revision=revision, **options
                )
        except Exception as error:  # whatever a loader makes of a broken file
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"transformers cannot read {str(name_or_path)!r}: {reason[:300]}") from error
        try:
            with quietly():
                tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
        except (OSError, ValueError, KeyError, TypeError):
            # A model over integers has none.
            tokenizer = None
        faults = (*_of_files(info), *not_finite(model.named_parameters()))
        stored = None if stored is None else str(stored).removeprefix("torch.")
        return cls(model.eval().to(device), tokenizer, faults, stored)

    @property
    def config(self) -> Any:
        """The configuration of the part that reads text."""
        return self.model.config.get_text_config()

    def logits(self, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "row pos vocab"]:
        """Logits after every token; rows of one length."""
        with torch.no_grad():
            return self.model(tokens, use_cache=False).logits.float()

    def logits_without(
        self, tokens: Int[Tensor, "row pos"], heads: Sequence[Head], n_heads: int
    ) -> Float[Tensor, "row pos vocab"]:
        """Logits with one head off in each row: its slice of what the output projection takes is zeroed.

        A model whose output projections are not found raises ``ValueError``.
        """
        projections = self._output_projections()

        def hook_of(layer: int) -> Any:
            def zero(module: Any, arguments: Any) -> Any:
                z = arguments[0].clone()
                d_head = z.shape[-1] // n_heads
                for row, head in enumerate(heads):
                    if head.layer == layer:
                        z[row, :, head.head * d_head : (head.head + 1) * d_head] = 0
                return (z, *arguments[1:])

            return zero

        handles = [module.register_forward_pre_hook(hook_of(layer)) for layer, module in enumerate(projections)]
        try:
            return self.logits(tokens)
        finally:
            for handle in handles:
                handle.remove()

    def _output_projections(self) -> list[Any]:
        """By layer."""
        found = [
            module
            for path, module in self.model.named_modules()
            if path.rpartition(".")[2] in _PROJECTIONS and "att" in path.rpartition(".")[0].lower()
        ]
        if len(found) != self.config.num_hidden_layers:
            raise ValueError(
                f"{type(self.model).__name__} has no output projection of a known name in each layer "
                f"({', '.join(_PROJECTIONS)})"
            )
        return found


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """What is to be said of tensors that hold NaN or infinity; nothing where none does."""
    broken = [name for name, tensor in tensors if not bool(tensor.isfinite().all())]
    return [f"NaN or infinite: {_named(broken)}"] if broken else []


def _of_files(info: dict[str, Any]) -> list[str]:
    wrong = {
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "of another shape": sorted(key[0] if isinstance(key, tuple) else key for key in info["mismatched_keys"]),
    }
    return [f"{what}: {_named(names)}" for what, names in wrong.items() if names]


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
