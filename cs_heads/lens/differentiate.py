"""Gradients in the gates of a frozen model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.batches import TokenBudget, run_in_batches, token_budget_for
from cs_heads.lens.forward import Tokens, logits_at
from cs_heads.lens.gates import hooked
from cs_heads.lens.logprobs import with_targets
from cs_heads.lens.model import HookedModel, device_of, evaluating, hook_names


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
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch layer head"]]:
    """Per row: the mean negative log-probability of the target (nats per token), and its gradient in the row's gates.

    Gates may be float32 where the weights are bfloat16: z is then multiplied in float32. Rows are independent, so one
    backward pass gives every row its own gradient. Both results lie where ``gates`` lie. Calls that share a
    ``TokenBudget`` find out once what fits into memory. ``done`` is called with the number of rows done. Gradients
    that an earlier call left in ``measured``, NaN where it did not get to, are filled in place: a batch of which every
    row is known is not run, and its loss is NaN. ``positions`` are those of ``target_logprobs``. An empty prompt or
    target raises ``ValueError``.
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
        leaf = gates[batch].detach().to(device).requires_grad_()
        with hooked(model, gate_hooks(model, leaf)):
            read_at = None if positions is None else [positions[i] for i in batch]
            loss = target_nll(model, [prompts[i] for i in batch], [targets[i] for i in batch], read_at)
        nll[batch] = loss.detach().to(nll)
        gradient[batch] = torch.autograd.grad(loss.sum(), leaf)[0].to(gradient)
        done(new)

    lengths = [len(prompt) + len(target) - 1 for prompt, target in zip(prompts, targets, strict=True)]
    if positions is not None:
        lengths = [len(prompts[i]) if len(inside) else lengths[i] for i, inside in enumerate(positions)]
    with differentiable(model):
        run_in_batches(lengths, room, run)
    return nll, gradient


def gate_hooks(model: HookedModel, gates: Float[Tensor, "batch layer head"]) -> dict[str, Callable[..., Tensor]]:
    """Hooks on the ``hook_z`` of every layer, also where all gates are 1: such a gate has a gradient too."""

    def gate(
        layer: int, z: Float[Tensor, "batch pos head d_head"], hook: Any
    ) -> Float[Tensor, "batch pos head d_head"]:
        # Half-precision z and float32 gates multiply in float32; a layer may lie on another device.
        return (z * rearrange(gates[:, layer].to(z.device), "batch head -> batch 1 head 1")).to(z.dtype)

    return {name: partial(gate, layer) for layer, name in enumerate(hook_names(model))}


def target_nll(
    model: HookedModel, prompts: Sequence[Tokens], targets: Sequence[Tokens], positions: Sequence[Tokens] | None = None
) -> Float[Tensor, " batch"]:
    """Mean negative log-probability of each row's target (nats per token), in float32, one forward."""
    tokens, attention_mask, reads = with_targets(prompts, targets, positions)
    row = torch.from_numpy(reads.row)
    logits = logits_at(model, tokens, attention_mask, row=row, position=torch.from_numpy(reads.position))
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wanted = torch.from_numpy(reads.token).to(logits.device)
    nll = logits.logsumexp(dim=1) - logits.gather(1, wanted[:, None])[:, 0]
    summed = nll.new_zeros(len(targets)).index_add(0, row.to(logits.device), nll)
    return summed / torch.tensor([len(target) for target in targets], device=logits.device)
