"""Gates on ``hook_z``: each row of a batch runs with its own heads off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from cs_heads.lens.model import HookedModel, hook_names
from cs_heads.units import HeadGrid


@contextmanager
def gated(
    model: HookedModel, gates: Float[Tensor, "batch layer head"] | None, replacement: Mapping[int, Tensor] | None = None
) -> Iterator[None]:
    """Multiply each head's z by its row's gate inside the ``with`` block: 0 = ablated, 1 = intact.

    A head is a slice of ``blocks.{l}.attn.hook_z``, ``[batch, pos, n_heads, d_head]``, before W_O; the bias ``b_O``
    stays. Layers where every gate is 1 are not hooked. The hooks, and only they, are removed at the end, also after an
    exception.

    Args:
        model: The model.
        gates: The gates of each row; None hooks nothing.
        replacement: By layer, what an ablated head's z becomes, of a shape that broadcasts to z:
            ``gate * z + (1 - gate) * replacement``; None is zero.

    Raises:
        ValueError: Gates of another grid, or a batch with another number of rows than the gates.
    """
    grid = HeadGrid.from_model(model)
    hooks = {}
    if gates is not None:
        if gates.shape[1:] != grid.shape:
            raise ValueError(f"gates must be [batch, {grid.n_layers}, {grid.n_heads}], got {list(gates.shape)}")
        # The layer is bound here: on the bridge, `hook.name` inside a hook is another name than hook_z.
        for layer, name in enumerate(hook_names(model)):
            if (gates[:, layer] != 1).any():
                hooks[name] = partial(_mix, gates[:, layer], None if replacement is None else replacement[layer])
    with hooked(model, hooks):
        yield


@contextmanager
def hooked(model: HookedModel, hooks: Mapping[str, Callable[..., Tensor]]) -> Iterator[None]:
    """Add forward hooks by name and remove exactly these at the end; an unknown name raises ``ValueError``.

    TransformerLens's own ``model.hooks`` ignores an unknown name on some versions, and
    ``reset_hooks`` would take other people's hooks along.
    """
    unknown = [name for name in hooks if name not in model.hook_dict]
    if unknown:
        raise ValueError(f"model has no hook point {', '.join(unknown)}")
    added = []
    try:
        for name, hook in hooks.items():
            point = model.hook_dict[name]
            point.add_hook(hook)
            added.append((point, point.fwd_hooks[-1]))
        yield
    finally:
        for point, handle in added:
            handle.hook.remove()
            point.fwd_hooks[:] = [other for other in point.fwd_hooks if other is not handle]


@contextmanager
def reading(
    model: HookedModel, read: Callable[[int, Tensor], None], names: Mapping[int, str] | None = None
) -> Iterator[None]:
    """Call ``read(layer, value)`` in every layer's forward inside the ``with`` block.

    Args:
        model: The model.
        read: Takes the layer and z, ``[batch, pos, head, d_head]``, or what is at the hook points given.
        names: Other hook points than ``hook_z``, by layer.
    """

    def hand_over(layer: int, value: Tensor, hook: Any) -> Tensor:
        read(layer, value)
        return value

    named = dict(enumerate(hook_names(model))) if names is None else names
    with hooked(model, {name: partial(hand_over, layer) for layer, name in named.items()}):
        yield


def _mix(
    gates: Float[Tensor, "row head"],
    replacement: Tensor | None,
    z: Float[Tensor, "batch pos head d_head"],
    hook: Any,
) -> Float[Tensor, "batch pos head d_head"]:
    if z.shape[0] != gates.shape[0]:
        raise ValueError(f"gates have {gates.shape[0]} rows, the batch has {z.shape[0]}")
    # A new tensor: the bridge hands hooks a view, whose gradient would be lost.
    gate = rearrange(gates.to(z), "batch head -> batch 1 head 1")
    return z * gate if replacement is None else z * gate + replacement.to(z) * (1 - gate)
