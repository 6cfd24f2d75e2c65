"""A Hugging Face model by itself, against which the same model under TransformerLens is held."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.gguf import gguf_in
from cs_heads.lens.load import folder_of, source_of
from cs_heads.lens.weights import WeightsError, quiet_loading
from cs_heads.text import first_line
from cs_heads.units import Unit

# Names of the module that takes the heads' concatenated z, inside a module of attention.
_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense", "wo", "Wo", "out")


@dataclass(frozen=True)
class PlainModel:
    """The Hugging Face model of a folder, file or name, and the tokenizer that lies beside it (or None).

    ``stored`` is the dtype of the files, where they say so.
    """

    model: Any
    tokenizer: Any
    stored: str | None

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        device: torch.device | str,
        revision: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> PlainModel:
        """What ``load_model`` loads, without TransformerLens.

        Raises:
            WeightsError: Weights that ``load_model`` refuses as well.
            ValueError: transformers cannot read it.
        """
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        name = str(name_or_path)
        try:
            with (
                redirect_stdout(sys.stderr),
                quiet_loading("transformers"),
                source_of(name, gguf_in(folder_of(name))) as (source, read),
            ):
                stored = getattr(AutoConfig.from_pretrained(source, revision=revision), "dtype", None)
                named = {"pretrained_model_name_or_path": source, "revision": revision}
                model = read(AutoModelForCausalLM, dtype=dtype, **named)
                try:
                    tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
                except (OSError, ValueError, KeyError, TypeError):
                    # A model over integers has none.
                    tokenizer = None
        except WeightsError:
            raise
        except Exception as error:  # whatever a loader makes of a broken file
            raise ValueError(f"transformers cannot read {name!r}: {first_line(error)[:300]}") from error
        return cls(model.eval().to(device), tokenizer, None if stored is None else str(stored).removeprefix("torch."))

    @property
    def config(self) -> Any:
        """The configuration of the part that reads text."""
        return self.model.config.get_text_config()

    def logprobs(self, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "row pos vocab"]:
        """Log-probabilities after every token; rows of one length."""
        with torch.no_grad():
            return self.model(tokens, use_cache=False).logits.float().log_softmax(dim=-1)

    def logprobs_without(self, tokens: Int[Tensor, "row pos"], heads: Sequence[Unit]) -> Float[Tensor, "row pos vocab"]:
        """Log-probabilities with one head off in each row: its slice of what the output projection takes is zeroed.

        A model whose output projections are not found raises ``ValueError``.
        """
        with zeroed(self._output_projections(), heads, self.config.num_attention_heads):
            return self.logprobs(tokens)

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


@contextmanager
def zeroed(projections: Sequence[Any], heads: Sequence[Unit], n_heads: int) -> Iterator[None]:
    """Zero one head in each row of a batch: its slice of what the output projection of its layer takes.

    Args:
        projections: The modules, by layer.
        heads: The head of each row.
        n_heads: Heads of a layer.
    """

    def zero(layer: int, module: Any, arguments: Any) -> Any:
        z = arguments[0].clone()
        d_head = z.shape[-1] // n_heads
        for row, head in enumerate(heads):
            if head.layer == layer:
                z[row, :, head.index * d_head : (head.index + 1) * d_head] = 0
        return (z, *arguments[1:])

    with ExitStack() as stack:
        for layer, module in enumerate(projections):
            stack.callback(module.register_forward_pre_hook(partial(zero, layer)).remove)
        yield
