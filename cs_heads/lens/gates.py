"""Gates on heads, by ``hook_z``, and on other units: each row of a batch runs with its own units off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from cs_heads.lens.locks import alone
from cs_heads.lens.model import HookedModel, hook_name, hook_names
from cs_heads.lens.transfer import Shared, to_device
from cs_heads.units import Grid, Positions, Unit, Units


@contextmanager
def gated(
    model: HookedModel,
    gates: Float[Tensor, "batch layer unit"] | None,
    replacement: Mapping[int, Tensor] | None = None,
    units: Units = "heads",
    where: Bool[Tensor, "batch pos"] | None = None,
) -> Iterator[None]:
    """Multiply what each unit gives by its row's gate inside the ``with`` block: 0 = ablated, 1 = intact.

    A head is a slice of ``blocks.{l}.attn.hook_z``, ``[batch, pos, n_heads, d_head]``, before W_O; the bias ``b_O``
    stays. A key/value group is as many slices; a neuron is a number of ``mlp.hook_post``; an expert is the weight that
    it has, where it is chosen, of ``mlp.hook_expert_weights``; an attention or MLP layer is all of ``hook_attn_out`` or
    ``hook_mlp_out``, what it adds to the residual stream. Layers where every gate is 1 are not hooked. The hooks, and
    only they, are removed at the end, also after an exception.

    Args:
        model: The model.
        gates: The gates of each row, in main memory: where they are 1 decides what is hooked; None hooks nothing. With
            a gradient they lie on the model's device, every layer is hooked, and what is gated is multiplied in their
            dtype.
        replacement: By layer, what an ablated unit gives, ``[batch or 1, pos or 1, unit, width]``, as ``by_unit`` has
            it: ``gate * z + (1 - gate) * replacement``; None is zero.
        units: The kind of unit.
        where: The tokens of each row at which units are gated; None is all of them.

    Raises:
        ValueError: Gates of another grid, or a batch with another number of rows than the gates.
    """
    grid = Grid.from_model(model, units)
    if gates is not None and gates.shape[1:] != grid.shape:
        raise ValueError(f"gates must be [batch, {grid.n_layers}, {grid.n_units}], got {list(gates.shape)}")
    with hooked(model, {} if gates is None else gate_hooks(gates, replacement, units, where)):
        yield


def gate_hooks(
    gates: Float[Tensor, "*batch layer unit"],
    replacement: Mapping[int, Tensor] | None = None,
    units: Units = "heads",
    where: Bool[Tensor, "batch pos"] | None = None,
) -> dict[str, Callable[..., Tensor]]:
    """The hooks of ``gated`` by the name of their hook point; those of layers where every gate is 1 are left out.

    Args:
        gates: The gates of each row, ``[batch, layer, unit]``; or ``[layer, unit]``, those of every row, however many
            there are.
        replacement: As in ``gated``.
        units: As in ``gated``.
        where: As in ``gated``.
    """
    # A gate of 1 has a gradient, too.
    off = torch.ones(gates.shape[:-1], dtype=torch.bool) if gates.requires_grad else (gates != 1).any(dim=-1)
    touched = (off.any(dim=0) if off.ndim > 1 else off).tolist()
    shared, at = Shared(gates), None if where is None else Shared(where)
    # The layer is bound here: on the bridge, `hook.name` inside a hook is another name than hook_z.
    return {
        hook_name(layer, units): partial(_mix, (shared, layer, units), _given(replacement, layer), at)
        for layer in range(len(touched))
        if touched[layer]
    }


def _given(replacement: Mapping[int, Tensor] | None, layer: int) -> Callable[[torch.device], Tensor] | None:
    """Gives a layer's on a device: the same copy to every forward or, where tokens differ, one for this forward."""
    if replacement is None:
        return None
    # Copies of all tokens would fill a device.
    return Shared(replacement[layer]).on if replacement[layer].shape[1] == 1 else partial(to_device, replacement[layer])


def hooks_of(
    grid: Grid, factors: Mapping[Unit, float], replacement: Mapping[int, Tensor] | None = None
) -> dict[str, Callable[..., Tensor]]:
    """Hooks by hook point that multiply what units give by a number each, in every row and at every token.

    Args:
        grid: The units of the model.
        factors: The number of each unit; 1 of those left out.
        replacement: As in ``gated``.
    """
    gates = torch.ones(grid.shape)
    for unit, factor in factors.items():
        gates[unit.layer, unit.index] = factor
    return gate_hooks(gates, replacement, grid.kind)


@contextmanager
def hooked(model: HookedModel, hooks: Mapping[str, Callable[..., Tensor]]) -> Iterator[None]:
    """Add forward hooks by name and remove exactly these at the end; an unknown name raises ``ValueError``.

    TransformerLens's own ``model.hooks`` ignores an unknown name on some versions, and
    ``reset_hooks`` would take other people's hooks along.
    """
    # A bridge makes the dict anew whenever it is asked.
    points = model.hook_dict if hooks else {}
    unknown = [name for name in hooks if name not in points]
    if unknown:
        raise ValueError(f"model has no hook point {', '.join(unknown)}")
    added = []
    with alone(model):
        try:
            for name, hook in hooks.items():
                point = points[name]
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


def by_unit(
    value: Float[Tensor, "*any"], n_units: int, n_rows: int, units: Units
) -> Float[Tensor, "row pos unit width"]:
    """What is at the hook point of a layer, cut into its units: each has as many numbers, one after another.

    Args:
        value: ``[row, pos, ...]``, or ``[token, unit]`` at a router, which takes the rows' tokens one after another.
        n_units: Units of the layer.
        n_rows: Rows of the batch.
        units: Their kind.

    Raises:
        ValueError: Another number of units, or of rows, at the hook point.
    """
    if value.ndim == 2 and len(value) % n_rows == 0:
        value = value.reshape(n_rows, -1, value.shape[1])
    if len(value) != n_rows:
        raise ValueError(f"gates have {n_rows} rows, the batch has {len(value)}")
    here = value.shape[2:]
    # z has an axis of heads, of which each key/value group has as many; else a unit is one number, or all of them.
    fits = here[0] % n_units == 0 if units == "kv" else n_units in ((1, here[0]) if len(here) == 1 else (here[0],))
    if not fits:
        raise ValueError(
            f"gates are of a model with {n_units} {units} in a layer, and this one has {here[0]} of what they gate: "
            "give it heads of its own grid"
        )
    return value.reshape(*value.shape[:2], n_units, -1)


def tokens_gated(
    positions: Positions, start: Sequence[int], prompt: Sequence[int], width: int
) -> Bool[Tensor, "row pos"] | None:
    """The tokens of each row at which units are off; None where they are off at all.

    Args:
        positions: Which.
        start: The place in its text of each row's first token.
        prompt: The tokens of each row's prompt.
        width: Tokens of a padded row.
    """
    if positions == "all":
        return None
    at, ends = torch.tensor(start)[:, None] + torch.arange(width), torch.tensor(prompt)[:, None]
    return at == ends - 1 if positions == "last" else at < ends


def _mix(
    of_layer: tuple[Shared, int, Units],
    replacement: Callable[[torch.device], Tensor] | None,
    where: Shared | None,
    value: Tensor,
    hook: Any,
) -> Tensor:
    shared, layer, units = of_layer
    # Of gates of every row there are as many as the value has; a router takes the tokens of all one after another.
    n_rows = len(shared.tensor) if shared.tensor.ndim > 2 else len(value) if value.ndim > 2 else 1
    z = by_unit(value, shared.tensor.shape[-1], n_rows, units)
    gates = shared.on(z.device)[..., layer, :]
    gates = gates if gates.requires_grad else gates.to(z.dtype)
    gate = rearrange(gates if gates.ndim > 1 else gates[None], "row unit -> row 1 unit 1")
    if where is not None:
        gate = torch.where(where.on(z.device)[:, :, None, None], gate, 1.0)
    # A new tensor: the bridge hands hooks a view, whose gradient would be lost.
    mixed = z * gate if replacement is None else z * gate + replacement(z.device).to(z.dtype) * (1 - gate)
    return mixed.to(z.dtype).reshape(value.shape)
