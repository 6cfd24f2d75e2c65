"""Starting a forward at a later layer, from the residual stream of the intact model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from jaxtyping import Float
from torch import Tensor

from cs_heads.lens.model import device_of, replaced_forwards

# Blocks of some architectures return a tensor (0 here), those of others so long a tuple; seen when recording.
_TUPLE_LENGTH: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Resumed:
    """Where a forward starts: ``residual [batch, pos, d_model]`` enters block ``layer``, those before are skipped."""

    layer: int
    residual: Float[Tensor, "batch pos d_model"]


@contextmanager
def resumed(model: Any, start: Resumed | None) -> Iterator[None]:
    """Skip the blocks before ``start.layer`` and let its residual in there, inside the ``with`` block."""
    if start is None:
        yield
        return

    def enter(block: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        residual = start.residual.to(_residual(arguments, keywords))
        return ((residual, *arguments[1:]), keywords) if arguments else ((), {**keywords, "hidden_states": residual})

    handle = model.blocks[start.layer].register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with _skipping(model, range(start.layer)):
            yield
    finally:
        handle.remove()


@contextmanager
def recorded(model: Any, layers: Sequence[int], record: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call ``record(layer, residual [batch, pos, d_model])`` with what enters each of the blocks ``layers``.

    ``layers`` are not the first. Later blocks are skipped: nothing of them is asked, and the logits of such
    a forward mean nothing.
    """

    def see_form(block: Any, arguments: Any, output: Any) -> None:
        _TUPLE_LENGTH[model] = len(output) if isinstance(output, tuple) else 0

    def hook_of(layer: int) -> Callable[..., None]:
        def hand_over(block: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            record(layer, _residual(arguments, keywords))

        return hand_over

    handles = [model.blocks[layer].register_forward_pre_hook(hook_of(layer), with_kwargs=True) for layer in layers]
    handles.append(model.blocks[0].register_forward_hook(see_form))
    try:
        with _skipping(model, range(max(layers), model.cfg.n_layers)):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _skipping(model: Any, layers: Sequence[int]) -> Iterator[None]:
    """Make the blocks ``layers`` hand on what they are given; put back at the end, also after an exception."""

    def hand_on_of(block: Any) -> Callable[..., Any]:
        def hand_on(*arguments: Any, **keywords: Any) -> Any:
            # As the block would, also where it lies on another device than the one before.
            residual = _residual(arguments, keywords).to(device_of(block))
            length = _TUPLE_LENGTH.get(model, 0)
            return (residual, *[None] * (length - 1)) if length else residual

        return hand_on

    blocks = [model.blocks[layer] for layer in layers]
    with replaced_forwards((block, hand_on_of(block)) for block in blocks):
        yield


def _residual(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    return arguments[0] if arguments else keywords["hidden_states"]
