"""What heads and layers write straight into the logits: logit attribution with the scale of the final norm held.

The last residual stream is the sum of what the embedding and every layer's attention and MLP add. A final norm divides
it by one number a token; with that number held, a difference of logits is a sum over the same parts (Elhage et al., *A
Mathematical Framework for Transformer Circuits*, 2021; nostalgebraist, *interpreting GPT: the logit lens*, 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.abilities import difference, tolerance
from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.forward import Tokens, last_logits, logits_at, pad, residual_of
from cs_heads.lens.gates import reading
from cs_heads.lens.logprobs import check_numbers, row_of
from cs_heads.lens.model import HookedModel, backend_of, check_units, dtype_of, evaluating, hook_name
from cs_heads.lens.transfer import to_device
from cs_heads.units import Grid, Units

# Norms that may stand between what the heads write and the residual stream, and how far sums of many parts may be off,
# as a share of the largest number, or what rounding makes in a narrow dtype.
_NORMS_AFTER, _OFF = ("ln1_post", "ln1"), 1e-3


@dataclass(frozen=True)
class Writes:
    """Of each row the difference of two logits after its last token, before a soft cap, and what it is the sum of.

    ``heads``, ``attention`` (what a layer's attention adds beside its heads: biases), ``mlps`` and ``rest`` (the
    embedding, and biases after the last layer) add up to ``difference``. ``without`` is the difference with what
    one head writes taken out of the last residual stream, everything else as in the intact model.
    """

    difference: Float[np.ndarray, " row"]
    heads: Float[np.ndarray, "row layer head"]
    attention: Float[np.ndarray, "row layer"]
    mlps: Float[np.ndarray, "row layer"]
    rest: Float[np.ndarray, " row"]
    without: Float[np.ndarray, "row layer head"]


def direct_writes(
    model: HookedModel, rows: Sequence[Tokens], answers: Int[np.ndarray, "row 2"], room: TokenBudget
) -> Writes:
    """What each head and layer writes into the logit of a row's first answer less that of its second.

    One forward a row.

    Args:
        model: The model.
        rows: Tokens of each row.
        answers: Two tokens a row.
        room: Tokens of one forward.

    Raises:
        ValueError: A model whose layers do not add up to what its final norm is given, or whose norm is none that
            divides by one number a token.
    """
    for units in ("attn", "mlp"):
        check_units(model, units)
    grid, n = Grid.from_model(model), len(rows)
    found = Writes(
        difference=np.zeros(n),
        heads=np.zeros((n, *grid.shape)),
        attention=np.zeros((n, grid.n_layers)),
        mlps=np.zeros((n, grid.n_layers)),
        rest=np.zeros(n),
        without=np.zeros((n, *grid.shape)),
    )

    def run(batch: Int[np.ndarray, " n"]) -> None:
        tokens = [rows[i] for i in batch]
        seen = at_the_end(model, tokens)
        for name, part in vars(_parts(model, seen, torch.from_numpy(answers[batch]))).items():
            getattr(found, name)[batch] = part
        check_numbers(model, found.heads[batch], lambda i: row_of(model, None, tokens[i], int(batch[i])))

    with evaluating(model):
        run_in_batches([len(row) for row in rows], room, run)
    return found


def likeliest_of(
    model: HookedModel, rows: Sequence[Tokens], among: Sequence[Sequence[int]], but: Sequence[int], room: TokenBudget
) -> Int[np.ndarray, " row"]:
    """The token that the model likes best after each row, among some (none: all tokens), but one.

    Args:
        model: The model.
        rows: Tokens of each row.
        among: The tokens of each row that are compared.
        but: The one of each row that is not.
        room: Tokens of one forward.
    """
    found = np.zeros(len(rows), dtype=np.int64)

    def run(batch: Int[np.ndarray, " n"]) -> None:
        logits = last_logits(model, [rows[i] for i in batch]).float()
        for row, i in zip(logits, batch, strict=True):
            allowed = torch.full_like(row, -torch.inf)
            allowed[list(among[i]) or slice(None)] = 0
            allowed[but[i]] = -torch.inf
            found[i] = int((row + allowed).argmax())

    with evaluating(model):
        run_in_batches([len(row) for row in rows], room, run)
    return found


@dataclass
class Seen:
    """At the last token of each row: z by layer, what attention and MLP add, the residual stream first and last."""

    z: dict[int, Float[Tensor, "row head d_head"]]
    attention: dict[int, Float[Tensor, "row d_model"]]
    mlp: dict[int, Float[Tensor, "row d_model"]]
    ends: dict[str, Float[Tensor, "row d_model"]]


def at_the_end(model: HookedModel, rows: Sequence[Tokens]) -> Seen:
    """What one forward has at the last token of each row."""
    seen, place = Seen({}, {}, {}, {}), torch.tensor([len(row) - 1 for row in rows])

    def keep(into: dict[Any, Tensor], at: Any, value: Tensor) -> None:
        here = to_device(place, value.device)
        into[at] = value[torch.arange(len(rows), device=value.device), here].float()

    def first(block: Any, arguments: Any, keywords: Any) -> None:
        keep(seen.ends, "first", residual_of(arguments, keywords))

    def last(norm: Any, arguments: Any) -> None:
        keep(seen.ends, "last", arguments[0])

    layers = range(model.cfg.n_layers)
    with ExitStack() as stack:
        stack.enter_context(reading(model, partial(keep, seen.z)))
        added: tuple[tuple[Units, dict[int, Tensor]], ...] = (("attn", seen.attention), ("mlp", seen.mlp))
        for units, into in added:
            names = {layer: hook_name(layer, units) for layer in layers}
            stack.enter_context(reading(model, partial(keep, into), names))
        stack.callback(model.blocks[0].register_forward_pre_hook(first, with_kwargs=True).remove)
        stack.callback(model.ln_final.register_forward_pre_hook(last).remove)
        tokens, attention_mask = pad(rows)
        logits_at(model, tokens, attention_mask, row=torch.arange(len(rows)), position=place)
    return seen


def _parts(model: HookedModel, seen: Seen, answers: Int[Tensor, "row 2"]) -> Writes:
    last = seen.ends["last"]
    added = seen.ends["first"].to(last.device)
    for each in (*seen.attention.values(), *seen.mlp.values()):
        added = added + each.to(last.device)
    _check_close(model, added, last, "its layers do not add up to what its final norm is given")
    final = HeldNorm(model, model.ln_final, last)
    read, bias = readout(model, final.of(last), answers)
    total = einsum(read, final.of(last), "row d, row d -> row") + bias
    direction = final.back(read)
    heads, attention, mlps, without = [], [], [], []
    for layer in range(model.cfg.n_layers):
        written, taken = head_outputs(model, layer, seen.z[layer], seen.attention[layer])
        both = einsum(direction, seen.attention[layer].to(direction.device), "row d, row d -> row")
        heads.append(einsum(direction, written.to(direction.device), "row d, row head d -> row head"))
        attention.append(both - heads[-1].sum(dim=1))
        mlps.append(einsum(direction, seen.mlp[layer].to(direction.device), "row d, row d -> row"))
        left = final.again(last[:, None] - taken.to(last.device))
        without.append(einsum(read, left, "row d, row head d -> row head") + bias[:, None])
    by_head, biases, by_mlp, left_out = (
        torch.stack(each, dim=1).double().cpu().numpy() for each in (heads, attention, mlps, without)
    )
    whole = total.double().cpu().numpy()
    rest = whole - by_head.sum(axis=(1, 2)) - biases.sum(axis=1) - by_mlp.sum(axis=1)
    return Writes(whole, by_head, biases, by_mlp, rest, left_out)


class HeldNorm:
    """A norm ``w * (x - mean) / scale + bias``, or the same without the mean, at some ``x``: a linear map once held.

    What ``w`` and the bias are, and whether the mean is taken off, is seen from what the norm makes of two inputs.
    """

    def __init__(self, model: HookedModel, norm: Any, x: Float[Tensor, "row d"]) -> None:
        dtype = next((p.dtype for p in norm.parameters()), x.dtype)
        self._call: Callable[[Tensor], Tensor] = lambda x: norm(x.to(dtype)).float()
        size = x.shape[-1]
        # Large, so that the small number under the root does not count, and of mean zero.
        signs = 64.0 * (1 - 2 * (torch.arange(size, device=x.device) % 2)).float()
        with torch.no_grad():
            self.bias, odd, even = self._call(torch.stack([0 * signs, signs, signs.abs()])[None])[0]
            self.weight = (odd - self.bias) * signs.sign()
            self.centers = bool((even - self.bias).abs().max() < 0.5 * self.weight.abs().max())
            made = self._call(x[None])[0] - self.bias
            turned = self._turned(x)
            self.scale = (turned**2).sum(dim=-1, keepdim=True) / (turned * made).sum(dim=-1, keepdim=True)
        _check_close(model, turned / self.scale, made, "its norm does not divide by one number a token")

    def _turned(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        return self.weight * (x - x.mean(dim=-1, keepdim=True) if self.centers else x)

    def again(self, x: Float[Tensor, "row some d"]) -> Float[Tensor, "row some d"]:
        """What the norm makes of other inputs, with their own scale."""
        with torch.no_grad():
            return self._call(x)

    def of(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        """What it makes of an input with the scale held, its bias too."""
        return self.part(x) + self.bias

    def part(self, x: Float[Tensor, "row *some d"]) -> Float[Tensor, "row *some d"]:
        """What a part of the input becomes with the scale held."""
        scale = self.scale if x.ndim == 2 else self.scale[:, None]
        return self._turned(x) / scale

    def back(self, direction: Float[Tensor, "row d"]) -> Float[Tensor, "row d"]:
        """The direction in its input that a direction in its output is read from."""
        read = self.weight * direction / self.scale
        return read - read.mean(dim=-1, keepdim=True) if self.centers else read


def readout(
    model: HookedModel, x: Float[Tensor, "row d"], answers: Int[Tensor, "row 2"]
) -> tuple[Float[Tensor, "row d"], Float[Tensor, " row"]]:
    """The direction that the difference of two logits is read in, and what the unembedding adds."""
    at = to_device(answers, x.device)
    with torch.enable_grad():
        given = x.detach().to(dtype_of(model)).requires_grad_()
        logits = model.unembed(given[None])[0].float()
        right, wrong = logits.gather(1, at).unbind(dim=1)
        direction = torch.autograd.grad((right - wrong).sum(), given)[0].float()
    return direction, (right - wrong).detach() - (direction * given.detach().float()).sum(dim=1)


def head_outputs(
    model: HookedModel, layer: int, z: Float[Tensor, "row head d_head"], added: Float[Tensor, "row d_model"]
) -> tuple[Float[Tensor, "row head d_model"], Float[Tensor, "row head d_model"]]:
    """What each head of a layer adds to the residual stream; and how much less the layer adds without it.

    The two differ where a norm stands behind the heads, whose scale is held for the first alone.
    """
    attn, n_heads = model.blocks[layer].attn, z.shape[1]
    with torch.no_grad():
        if backend_of(model) == "hooked":
            each = einsum(z.to(attn.W_O), attn.W_O, "row head d, head d model -> row head model").float()
            bias = attn.b_O.float()
        else:
            eye = torch.eye(n_heads, device=z.device, dtype=z.dtype)
            alone = einsum(z, eye, "row head d, head kept -> row kept head d")
            inputs = rearrange(
                torch.cat([alone, torch.zeros_like(alone[:, :1])], dim=1), "row some h d -> row some (h d)"
            )
            dtype = next(p.dtype for p in attn.o.parameters())
            made = attn.o(inputs.to(dtype)).float()
            each, bias = made[:, :-1] - made[:, -1:], made[0, -1]
    whole = each.sum(dim=1) + bias
    if _close(model, whole, added):
        return each, each
    factor = (whole * added).sum() / (whole * whole).sum()
    if _close(model, whole * factor, added):
        return each * factor, each * factor
    for norm in (getattr(model.blocks[layer], name, None) for name in _NORMS_AFTER):
        held = None if norm is None else HeldNorm(model, norm, whole)
        if held is not None and _close(model, held.of(whole), added):
            return held.part(each), added[:, None] - held.again(whole[:, None] - each)
    raise ValueError(
        f"model {model.cfg.model_name} is not supported: what its attention adds in layer {layer} is not the sum of "
        "what its heads write, scaled or behind a norm"
    )


def _close(model: HookedModel, found: Tensor, wanted: Tensor) -> bool:
    return difference(found, wanted) <= max(_OFF, tolerance(dtype_of(model)))


def _check_close(model: HookedModel, found: Tensor, wanted: Tensor, what: str) -> None:
    if not _close(model, found, wanted):
        raise ValueError(f"model {model.cfg.model_name} is not supported: {what}")
