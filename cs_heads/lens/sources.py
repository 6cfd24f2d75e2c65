"""By which tokens it reads from a head writes into the logits: its pattern times its values, through W_O."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.direct import HeldNorm, at_the_end, close, head_outputs, readout
from cs_heads.lens.forward import Tokens
from cs_heads.lens.gates import reading
from cs_heads.lens.model import HookedModel, evaluating
from cs_heads.lens.transfer import to_device
from cs_heads.units import Unit


def writes_by_source(
    model: HookedModel,
    rows: Sequence[Tokens],
    answers: Int[np.ndarray, "row 2"],
    heads: Sequence[Unit],
    room: TokenBudget,
) -> tuple[Float[np.ndarray, "chosen _"], ...]:
    """Of each row what every token that heads read from, at its end, makes of what they write into the difference.

    Over a row's tokens it sums to ``Writes.heads``. One forward a row. Empty where the model does not show its
    patterns and values, or they do not sum to z, as where z is gated.

    Args:
        model: The model.
        rows: Tokens of each row.
        answers: Two tokens a row.
        heads: The heads.
        room: Tokens of one forward.
    """
    layers, points = sorted({head.layer for head in heads}), model.hook_dict
    patterned, valued = ({at: f"blocks.{at}.attn.hook_{name}" for at in layers} for name in ("pattern", "v"))
    found: dict[int, np.ndarray] = {}
    if any(name not in points for name in (*patterned.values(), *valued.values())):
        return ()

    def run(batch: Int[np.ndarray, " n"]) -> None:
        tokens = [rows[i] for i in batch]
        last = torch.tensor([len(row) - 1 for row in tokens])
        patterns: dict[int, Tensor] = {}
        values: dict[int, Tensor] = {}

        def keep(into: dict[int, Tensor], layer: int, value: Tensor) -> None:
            at = to_device(last, value.device)
            into[layer] = (value[torch.arange(len(at)), :, at] if into is patterns else value).float()

        with (
            reading(model, partial(keep, patterns), patterned),
            reading(model, partial(keep, values), valued),
        ):
            seen = at_the_end(model, tokens)
        final = HeldNorm(model, model.ln_final, seen.ends["last"])
        read, _ = readout(model, final.of(seen.ends["last"]), torch.from_numpy(answers[batch]))
        made = {}
        for layer in layers if len(patterns) == len(values) == len(layers) else ():
            z = seen.z[layer]
            n_heads, width = z.shape[1:]
            of_groups = values[layer].flatten(2).unflatten(2, (-1, width))
            value = of_groups.repeat_interleave(n_heads // of_groups.shape[2], dim=2)
            if value.shape[2] != n_heads or not close(model, _summed(patterns[layer], value), z):
                return
            weights = _weights(model, layer, z, seen.attention[layer], final.back(read))
            read_from = einsum(value, weights, "row key head d, row head d -> row head key")
            made[layer] = patterns[layer] * read_from
        for row, i in enumerate(batch if made else ()):
            by_head = [made[head.layer][row, head.index, : len(rows[i])] for head in heads]
            found[i] = torch.stack(by_head).double().cpu().numpy()

    with evaluating(model):
        run_in_batches([len(row) for row in rows], room, run)
    return tuple(found[i] for i in range(len(rows))) if len(found) == len(rows) else ()


def _summed(pattern: Float[Tensor, "row head key"], value: Float[Tensor, "row key head d"]) -> Tensor:
    return einsum(pattern, value, "row head key, row key head d -> row head d")


def _weights(
    model: HookedModel,
    layer: int,
    z: Float[Tensor, "row head d"],
    added: Float[Tensor, "row d_model"],
    direction: Float[Tensor, "row d_model"],
) -> Float[Tensor, "row head d"]:
    """What each number of z counts in what the heads of a layer write in a direction, scales of norms held."""
    with torch.enable_grad():
        given = z.detach().requires_grad_()
        written, _ = head_outputs(model, layer, given, added)
        [weights] = torch.autograd.grad(einsum(direction.to(z), written, "row d, row head d ->"), given)
    return weights
