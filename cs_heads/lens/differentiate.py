"""Gradients in the gates of a frozen model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cs_heads.lens.batches import TokenBudget, run_in_batches, token_budget_for
from cs_heads.lens.forward import Tokens, logits_at
from cs_heads.lens.gates import by_unit, gated, hooked, per_token, tokens_gated
from cs_heads.lens.logprobs import with_targets
from cs_heads.lens.model import HookedModel, device_of, evaluating, hook_names
from cs_heads.lens.transfer import Shared, to_device
from cs_heads.units import Positions, Units


@contextmanager
def differentiable(model: HookedModel) -> Iterator[None]:
    """Run the model without dropout, its weights frozen and gradients on; all is as before at the end."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with ExitStack() as stack, evaluating(model), torch.enable_grad():
        for parameter in trained:
            stack.callback(parameter.requires_grad_, True)
            parameter.requires_grad_(False)
        yield


def gate_gradients(
    model: HookedModel,
    prompts: Sequence[Tokens],
    targets: Sequence[Tokens],
    gates: Float[Tensor | np.ndarray, "batch layer head"],
    batch_tokens: int | TokenBudget | None = None,
    *,
    done: Callable[[int], Any] = lambda _: None,
    measured: Float[Tensor | np.ndarray, "batch layer head"] | None = None,
    positions: Sequence[Tokens] | None = None,
    units: Units = "heads",
    off_at: Positions = "all",
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch layer head"]]:
    """Per row: the mean negative log-probability of the target (nats per token), and its gradient in the row's gates.

    Gates may be float32 where the weights are bfloat16: what is gated is then multiplied in float32. Rows are
    independent, so one backward pass gives every row its own gradient. Both results lie where ``gates`` lie.

    Args:
        model: The model.
        prompts: The prompt of each row.
        targets: The target of each row.
        gates: The gates of each row.
        batch_tokens: Tokens of one pass at most; calls that share a ``TokenBudget`` find out once what fits.
        done: Called with the number of rows done.
        measured: Gradients that an earlier call left, NaN where it did not get to, filled in place: a batch of which
            every row is known is not run, and its loss is NaN.
        positions: Those of ``with_targets``.
        units: The kind of unit that is gated.
        off_at: Where units are gated.

    Raises:
        ValueError: An empty prompt or target.
    """
    for name, rows in (("prompts", prompts), ("targets", targets)):
        if len(rows) != len(gates) or not all(map(len, rows)):
            raise ValueError(f"{name} must hold one or more tokens for each of {len(gates)} rows of gates")
    gates = torch.as_tensor(gates)
    nll = gates.new_full((len(gates),), torch.nan)
    gradient = torch.full_like(gates, torch.nan) if measured is None else torch.as_tensor(measured)
    unknown = np.ones(len(gates), dtype=bool) if measured is None else gradient.isnan().any(dim=(1, 2)).cpu().numpy()
    device = device_of(model)
    room = token_budget_for(model, batch_tokens, "gradient")

    def run(batch: Int[np.ndarray, " n"]) -> None:
        new = int(unknown[batch].sum())
        if not new:
            return
        leaf = to_device(gates[batch].detach(), device).requires_grad_()
        ends, width = [len(prompts[i]) for i in batch], max(lengths[i] for i in batch)
        where = tokens_gated(off_at, [0] * len(batch), ends, width)
        with hooked(model, gate_hooks(model, leaf, units, where)):
            read_at = None if positions is None else [positions[i] for i in batch]
            loss = target_nll(model, [prompts[i] for i in batch], [targets[i] for i in batch], read_at)
        slopes = torch.autograd.grad(loss.sum(), leaf)[0]
        # In one transfer, for which the device is waited for once.
        both = torch.cat([loss.detach().to(slopes.device)[:, None], slopes.flatten(1)], dim=1).to(gates.device)
        nll[batch], gradient[batch] = both[:, 0].to(nll), both[:, 1:].reshape(slopes.shape).to(gradient)
        done(new)

    lengths = _lengths(prompts, targets, positions)
    with differentiable(model):
        run_in_batches(lengths, room, run)
    return nll, gradient


def replacement_gradients(
    model: HookedModel,
    prompts: Sequence[Tokens],
    targets: Sequence[Tokens],
    gates: Float[Tensor, "batch layer unit"],
    constants: Mapping[int, Float[Tensor, "unit width"]],
    *,
    room: TokenBudget,
    positions: Sequence[Tokens] | None = None,
    units: Units = "heads",
    off_at: Positions = "all",
) -> dict[int, Float[Tensor, "unit width"]]:
    """The gradient of the mean negative log-probability of targets in what units give where they are off.

    Args:
        model: The model.
        prompts: The prompt of each row.
        targets: The target of each row.
        gates: The gates of each row.
        constants: By layer, what each unit gives.
        room: Tokens of one pass at most.
        positions: Those of ``with_targets``.
        units: The kind of unit.
        off_at: Where units are off.

    Returns:
        By layer; the mean over the rows.
    """
    gradients = {layer: torch.zeros_like(constant) for layer, constant in constants.items()}

    def run(batch: Int[np.ndarray, " n"]) -> None:
        leaves = {layer: constant.clone().requires_grad_() for layer, constant in constants.items()}
        given = {layer: leaf[None, None] for layer, leaf in leaves.items()}
        width = max(lengths[i] for i in batch)
        where = tokens_gated(off_at, [0] * len(batch), [len(prompts[i]) for i in batch], width)
        read_at = None if positions is None else [positions[i] for i in batch]
        with gated(model, gates[batch], given, units, where):
            loss = target_nll(model, [prompts[i] for i in batch], [targets[i] for i in batch], read_at)
        found = torch.autograd.grad(loss.sum() / len(prompts), list(leaves.values()), allow_unused=True)
        for layer, gradient in zip(leaves, found, strict=True):
            # A layer in which no row has a unit off has none.
            if gradient is not None:
                gradients[layer] += gradient

    lengths = _lengths(prompts, targets, positions)
    with differentiable(model):
        run_in_batches(lengths, room, run)
    return gradients


def _lengths(prompts: Sequence[Tokens], targets: Sequence[Tokens], positions: Sequence[Tokens] | None) -> list[int]:
    """Tokens of each row: the prompt alone where the target is read inside it."""
    inside = [()] * len(prompts) if positions is None else positions
    return [
        len(prompt) if len(places) else len(prompt) + len(target) - 1
        for prompt, target, places in zip(prompts, targets, inside, strict=True)
    ]


def gate_hooks(
    model: HookedModel,
    gates: Float[Tensor, "batch layer unit"],
    units: Units = "heads",
    where: Bool[Tensor, "batch pos"] | None = None,
) -> dict[str, Callable[..., Tensor]]:
    """Hooks on the units of every layer, also where all gates are 1: such a gate has a gradient too."""
    at = None if where is None else Shared(where)

    def gate(layer: int, value: Tensor, hook: Any) -> Tensor:
        # Half-precision z and float32 gates multiply in float32; a layer may lie on another device.
        z = by_unit(value, gates.shape[2], len(gates))
        mixed = z * per_token(gates[:, layer].to(z.device), None if at is None else at.on(z.device))
        return mixed.to(z.dtype).reshape(value.shape)

    return {name: partial(gate, layer) for layer, name in enumerate(hook_names(model, units))}


def target_nll(
    model: HookedModel, prompts: Sequence[Tokens], targets: Sequence[Tokens], positions: Sequence[Tokens] | None = None
) -> Float[Tensor, " batch"]:
    """Mean negative log-probability of each row's target (nats per token), in float32, one forward."""
    tokens, attention_mask, reads = with_targets(prompts, targets, positions)
    row = torch.from_numpy(reads.row)
    logits = logits_at(model, tokens, attention_mask, row=row, position=torch.from_numpy(reads.position))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wanted = to_device(torch.from_numpy(reads.token), logits.device)
    nll = logits.logsumexp(dim=1) - logits.gather(1, wanted[:, None])[:, 0]
    summed = nll.new_zeros(len(targets)).index_add(0, to_device(row, logits.device), nll)
    return summed / to_device(torch.tensor([len(target) for target in targets]), logits.device)
