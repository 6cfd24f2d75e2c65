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
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.abilities import difference, tolerance
from cs_heads.lens.batches import TokenBudget, run_in_batches
from cs_heads.lens.forward import Tokens, last_logits, residual_of
from cs_heads.lens.gates import gated, reading
from cs_heads.lens.logprobs import check_numbers, row_of
from cs_heads.lens.model import HookedModel, backend_of, check_units, dtype_of, evaluating, hook_names
from cs_heads.lens.transfer import to_device
from cs_heads.units import Grid, Unit, Units, kind_of

# Norms that may stand between what the heads write and the residual stream, and how far sums of many parts may be off,
# as a share of the largest number, or what rounding makes in a narrow dtype.
_OF_ATTENTION: tuple[Units, ...] = ("heads", "kv", "attn")
_NORMS_AFTER, _OFF = ("ln1_post", "ln1"), 1e-3


@dataclass(frozen=True)
class UnitWrites:
    """What each of some units, heads or others, adds to the residual stream after the last token.

    Of each row ``written`` is its part of the difference of two logits, with the scale of the final norm held, and
    ``without`` that difference with it taken out of the last residual stream, everything else as in the intact model;
    ``mean`` is what it adds behind the final norm, on average, where that is known.
    """

    written: Float[np.ndarray, "row chosen"]
    without: Float[np.ndarray, "row chosen"]
    mean: Float[np.ndarray, "chosen d_model"] | None = None


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

    def of(self, heads: Sequence[Unit]) -> UnitWrites:
        """That of some heads."""
        layers, places = zip(*((head.layer, head.index) for head in heads), strict=True)
        return UnitWrites(self.heads[:, layers, places], self.without[:, layers, places])


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
    n, grid = len(rows), Grid.from_model(model)
    by_layer, by_head = (n, grid.n_layers), (n, *grid.shape)
    found = Writes(*(np.zeros(shape) for shape in ((n,), by_head, by_layer, by_layer, (n,), by_head)))

    def run(batch: Int[np.ndarray, " n"]) -> None:
        tokens = [rows[i] for i in batch]
        for name, part in vars(_parts(model, at_the_end(model, tokens), torch.from_numpy(answers[batch]))).items():
            getattr(found, name)[batch] = part
        check_numbers(model, found.heads[batch], lambda i: row_of(model, None, tokens[i], int(batch[i])))

    with evaluating(model):
        run_in_batches([len(row) for row in rows], room, run)
    return found


def unit_writes(
    model: HookedModel,
    rows: Sequence[Tokens],
    answers: Int[np.ndarray, "row 2"],
    units: Sequence[Unit],
    room: TokenBudget,
) -> UnitWrites:
    """What units write into the logit of a row's first answer less that of its second.

    It is how much less the attention or the MLP of its layer adds with the unit off: one forward a row and unit, and
    one a row with nothing off.

    Args:
        model: The model.
        rows: Tokens of each row.
        answers: Two tokens a row.
        units: Units of one kind.
        room: Tokens of one forward.
    """
    kind = kind_of(units[0])
    n, grid = len(rows), Grid.from_model(model, kind)
    written, without = np.zeros((n, len(units))), np.zeros((n, len(units)))
    added = torch.zeros(n, len(units), model.cfg.d_model)

    def run(batch: Int[np.ndarray, " n"]) -> None:
        tokens = [rows[i] for i in batch]
        intact = at_the_end(model, tokens)
        last = intact.ends["last"]
        final = HeldNorm(model, model.ln_final, last)
        read, bias = readout(model, final.of(last), torch.from_numpy(answers[batch]))
        direction = final.back(read)
        for place, unit in enumerate(units):
            gates = torch.ones(len(batch), *grid.shape)
            gates[:, unit.layer, unit.index] = 0
            with gated(model, gates, units=kind):
                off = at_the_end(model, tokens)
            before, after = (seen.attention if kind in _OF_ATTENTION else seen.mlp for seen in (intact, off))
            taken = (before[unit.layer] - after[unit.layer]).to(last.device)
            left = einsum(read, final.again(last - taken), "row d, row d -> row") + bias
            written[batch, place] = einsum(direction, taken, "row d, row d -> row").double().cpu().numpy()
            without[batch, place] = left.double().cpu().numpy()
            added[batch, place] = final.part(taken).cpu()

    with evaluating(model):
        run_in_batches([len(row) for row in rows], room, run)
    # Those with a unit off.
    room.rows += n * len(units)
    return UnitWrites(written, without, added.mean(dim=0).numpy())


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

    kinds: dict[Units, dict[int, Tensor]] = {"heads": seen.z, "attn": seen.attention, "mlp": seen.mlp}
    with ExitStack() as stack:
        for units, into in kinds.items():
            stack.enter_context(reading(model, partial(keep, into), dict(enumerate(hook_names(model, units)))))
        stack.callback(model.blocks[0].register_forward_pre_hook(first, with_kwargs=True).remove)
        stack.callback(model.ln_final.register_forward_pre_hook(last).remove)
        last_logits(model, rows)
    return seen


def _parts(model: HookedModel, seen: Seen, answers: Int[Tensor, "row 2"]) -> Writes:
    last = seen.ends["last"]
    first, attention, mlp = (
        torch.stack([each.to(last.device) for each in by_place.values()], dim=1)
        for by_place in ({0: seen.ends["first"]}, seen.attention, seen.mlp)
    )
    added = torch.cat([first, attention, mlp], dim=1).sum(dim=1)
    _check_close(model, added, last, "its layers do not add up to what its final norm is given")
    final = HeldNorm(model, model.ln_final, last)
    read, bias = readout(model, final.of(last), answers)
    direction, heads, without = final.back(read), [], []
    for layer, z in seen.z.items():
        written, taken = head_outputs(model, layer, z, seen.attention[layer])
        heads.append(einsum(direction, written.to(last.device), "row d, row head d -> row head"))
        left = final.again(last[:, None] - taken.to(last.device))
        without.append(einsum(read, left, "row d, row head d -> row head") + bias[:, None])
    by_head, left_out = torch.stack(heads, dim=1), torch.stack(without, dim=1)
    whole = einsum(read, final.of(last), "row d, row d -> row") + bias
    layers, mlps = (einsum(direction, each, "row d, row layer d -> row layer") for each in (attention, mlp))
    rest = einsum(direction, first[:, 0], "row d, row d -> row") + read @ final.bias.to(read) + bias
    total, written_by, biases, by_mlp, last_biases, kept = (
        each.double().cpu().numpy() for each in (whole, by_head, layers - by_head.sum(dim=2), mlps, rest, left_out)
    )
    return Writes(total, written_by, biases, by_mlp, last_biases, kept)


class HeldNorm:
    """A norm ``w * (x - mean) / scale + bias``, or the same without the mean, at some ``x``: a linear map once held.

    What ``w`` and the bias are, and whether the mean is taken off, is seen from what the norm makes of two inputs.
    """

    def __init__(self, model: HookedModel, norm: Any, x: Float[Tensor, "row d"]) -> None:
        dtype = next((p.dtype for p in norm.parameters()), x.dtype)
        # What the norm makes of other inputs, with their own scale.
        self.again: Callable[[Tensor], Tensor] = lambda x: norm(x.to(dtype)).float()
        size = x.shape[-1]
        # Large, so that the small number under the root does not count, and of mean zero.
        signs = 64.0 * (1 - 2 * (torch.arange(size, device=x.device) % 2)).float()
        self.bias, odd, even = self.again(torch.stack([0 * signs, signs, signs.abs()])[None])[0]
        self.weight = (odd - self.bias) * signs.sign()
        self.centers = bool((even - self.bias).abs().max() < 0.5 * self.weight.abs().max())
        made, turned = self.again(x[None])[0] - self.bias, self._turned(x)
        self.scale = (turned**2).sum(dim=-1, keepdim=True) / (turned * made).sum(dim=-1, keepdim=True)
        _check_close(model, turned / self.scale, made, "its norm does not divide by one number a token")

    def _turned(self, x: Float[Tensor, "*row d"]) -> Float[Tensor, "*row d"]:
        return self.weight * (x - x.mean(dim=-1, keepdim=True) if self.centers else x)

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
    if backend_of(model) == "hooked":
        each = einsum(z.to(attn.W_O), attn.W_O, "row head d, head d model -> row head model").float()
        bias = attn.b_O.float()
    else:
        eye = torch.eye(n_heads, device=z.device, dtype=z.dtype)
        alone = einsum(z, eye, "row head d, head kept -> row kept head d")
        inputs = torch.cat([alone, torch.zeros_like(alone[:, :1])], dim=1).flatten(2)
        made = attn.o(inputs.to(next(p.dtype for p in attn.o.parameters()))).float()
        each, bias = made[:, :-1] - made[:, -1:], made[0, -1]
    whole = (each.sum(dim=1) + bias).detach()
    if close(model, whole, added):
        return each, each
    factor = (whole * added).sum() / (whole * whole).sum()
    if close(model, whole * factor, added):
        return each * factor, each * factor
    for norm in (getattr(model.blocks[layer], name, None) for name in _NORMS_AFTER):
        held = None if norm is None else HeldNorm(model, norm, whole)
        if held is not None and close(model, held.of(whole), added):
            return held.part(each), added[:, None] - held.again(whole[:, None] - each)
    raise ValueError(
        f"model {model.cfg.model_name} is not supported: what its attention adds in layer {layer} is not the sum of "
        "what its heads write, scaled or behind a norm"
    )


def close(model: HookedModel, found: Tensor, wanted: Tensor) -> bool:
    """Whether a sum of many parts is what it should be, to rounding."""
    return difference(found, wanted) <= max(_OFF, tolerance(dtype_of(model)))


def _check_close(model: HookedModel, found: Tensor, wanted: Tensor, what: str) -> None:
    if not close(model, found, wanted):
        raise ValueError(f"model {model.cfg.model_name} is not supported: {what}")
