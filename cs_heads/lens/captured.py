"""Steps of decoding that are captured once, as a CUDA graph, and replayed: the host queues one thing for all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.cache import FixedExtension, KeyValues
from cs_heads.lens.forward import logits_at
from cs_heads.lens.fused import fused_attention
from cs_heads.lens.gates import hooked
from cs_heads.lens.model import HookedModel, config_of, context_length, device_of, devices_of
from cs_heads.lens.transfer import to_device

Run = Callable[[], Tensor]
Capture = Callable[[Run, torch.device], Run]
"""Takes what queues work on a device and gives what queues the same work again, on the same memory."""

REPLAYS = 64
"""Steps that one capture serves; each column of room that is still free is masked in all of them."""

# Names under which configurations say how far back some layer looks.
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")


def cuda_graph(run: Run, device: torch.device) -> Run:
    """Capture work on a GPU as a CUDA graph, after a run for what is made at the first one."""
    # Streams and graphs belong to the current device, which need not be the model's.
    with torch.cuda.device(device):
        aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            run()
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(graph):
            result = run()

    def replay() -> Tensor:
        with torch.cuda.device(device):
            graph.replay()
        return result

    return replay


_CAPTURES: dict[str, Capture] = {"cuda": cuda_graph}
"""By kind of device."""


def captures_on(device: torch.device) -> bool:
    """Whether a kind of device captures work at all."""
    return device.type in _CAPTURES


def why_not_capturable(model: HookedModel) -> str | None:
    """Why steps on this model are not even tried to be captured; None where they are (``abilities``)."""
    if not captures_on(device_of(model)):
        return f"there are none on {device_of(model).type}"
    if len(devices_of(model)) > 1:
        return "the model lies on several devices"
    config = config_of(model)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    if any(getattr(config, name, None) for name in _WINDOWS):
        return "some layer looks back no farther than a window"
    if any(_has_alibi(each) for each in (model.cfg, config)):
        return "ALiBi counts columns, of which a captured step leaves some free before the new token"
    return None


def _has_alibi(config: Any) -> bool:
    """As a configuration of Hugging Face or of TransformerLens says it; those of Bloom and MPT say it by the latter."""
    kinds = [getattr(config, name, None) for name in ("position_embedding_type", "positional_embedding_type")]
    return "alibi" in kinds or bool(getattr(config, "alibi", False))


class CapturedStep:
    """A forward of one token a row, captured: rows and hooks stay what they are, tokens and positions go on.

    Args:
        model: The model, in ``evaluating``.
        stored: Keys and values of the rows; they are given room, and grow in place.
        hooks: By hook point (``gate_hooks``); what these hold in memory must not change.
        fused: Whether attention runs through the fused kernel.
        room: Tokens that each row can be given, fewer where the model's context ends before.
    """

    def __init__(
        self, model: HookedModel, stored: KeyValues, hooks: Mapping[str, Callable[..., Tensor]], fused: bool, room: int
    ) -> None:
        # Kept as long as this: a graph works on the memory that its hooks hold.
        self._model, self._hooks, self._fused = model, hooks, fused
        device, n_rows = device_of(model), len(stored.valid)
        width = min(stored.valid.shape[1] + room + 1, context_length(model) or torch.iinfo(torch.long).max)
        self._extension = FixedExtension(stored, width)
        self._tokens = torch.zeros(n_rows, 1, dtype=torch.long, device=device)
        self._options: dict[str, Any] = {
            "attention_mask": torch.ones_like(self._tokens),
            "row": torch.arange(n_rows, device=device),
            "position": torch.zeros(n_rows, dtype=torch.long, device=device),
        }
        self._replay = _CAPTURES[device.type](self._logits, device)

    @property
    def full(self) -> bool:
        """Whether no row can be given another token."""
        return self._extension.full

    def __call__(self, tokens: Int[Tensor, "row 1"]) -> Float[Tensor, "row vocab"]:
        """Logits after one more token of each row; the next call overwrites them."""
        self._tokens.copy_(to_device(tokens, self._tokens.device))
        self._extension.step()
        return self._replay()

    def _logits(self) -> Tensor:
        with ExitStack() as stack:
            if self._fused:
                stack.enter_context(fused_attention(self._model))
            # After it: hooks must stand where fused attention looks for them.
            stack.enter_context(hooked(self._model, self._hooks))
            return logits_at(self._model, self._tokens, extension=self._extension, **self._options)
