"""Starting a forward at a later layer, from the residual stream of the intact model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor


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

    Later blocks are skipped: nothing of them is asked, and the logits of such a forward mean nothing.
    """

    def hook_of(layer: int) -> Callable[..., None]:
        def hand_over(block: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            record(layer, _residual(arguments, keywords))

        return hand_over

    handles = [model.blocks[layer].register_forward_pre_hook(hook_of(layer), with_kwargs=True) for layer in layers]
    try:
        with _skipping(model, range(max(layers), model.cfg.n_layers)):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _skipping(model: Any, layers: Sequence[int]) -> Iterator[None]:
    """Make the blocks ``layers`` hand on what they are given; put back at the end, also after an exception."""
    blocks = [model.blocks[layer] for layer in layers]
    try:
        for block in blocks:
            block.__dict__["forward"] = _hand_on
        yield
    finally:
        for block in blocks:
            block.__dict__.pop("forward", None)


def _hand_on(*arguments: Any, **keywords: Any) -> Tensor:
    return _residual(arguments, keywords)


def _residual(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    return arguments[0] if arguments else keywords["hidden_states"]
