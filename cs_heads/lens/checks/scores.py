"""What a model says: its heads, logits and scores, by itself and against plain Hugging Face."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.abilities import tolerance
from cs_heads.lens.checks.check import Check
from cs_heads.lens.forward import logits_at
from cs_heads.lens.gates import gated, reading
from cs_heads.lens.model import HALF, context_length, device_of, dtype_of, hook_names, in_float32
from cs_heads.lens.plain import PlainModel
from cs_heads.lens.score import pad
from cs_heads.units import Head, HeadGrid

# Tokens of a text that is tried.
_LENGTH = 12

# How many times the plain model's own rounding that of the model may be: two implementations round differently.
_OF_ROUNDING = 4

# How far from the effect of a head off in plain Hugging Face that of its gate may be, as a share of it (root mean
# squares): rounding is far below in float32; a value bias left standing, or a slice taken after W_O, far beyond.
_OF_EFFECT = 0.05

_PLAIN = "plain Hugging Face"
_IN_FLOAT32 = "check the model with dtype='float32' (--dtype float32)"
_WRONGLY = "TransformerLens runs this model wrongly: do not measure it"
_NO_REFERENCE = "give the folder or name that the model is of, as cs-heads doctor does (check_model(model, reference=))"


def hook_z(model: Any, plain: PlainModel | None) -> Check:
    """There in every layer, before W_O: a head's gate is its slice of W_O's input zeroed; in float32."""
    with _both_in_float32(model, plain):
        return _hook_z(model, plain)


def _hook_z(model: Any, plain: PlainModel | None) -> Check:
    grid = HeadGrid.from_model(model)
    remedy = "heads of this model cannot be ablated: report its architecture to TransformerLens"
    absent = [name for name in hook_names(model) if name not in model.hook_dict]
    if absent:
        return Check("hook_z", "fail", f"no hook point {', '.join(absent[:3])}", remedy)
    tokens = _tokens(model, grid.n_layers + 1)
    seen: Counter[int] = Counter()
    with reading(model, lambda layer, z: seen.update([layer] * (z.shape[2] == grid.n_heads and z.ndim == 4))):
        intact = _logprobs(model, tokens[:1])
    silent = [str(layer) for layer in range(grid.n_layers) if seen[layer] != 1]
    if silent:
        return Check("hook_z", "fail", f"does not fire once, head by head, in layer {', '.join(silent[:3])}", remedy)
    heads = [Head(layer, layer % grid.n_heads) for layer in range(grid.n_layers)]
    gates = torch.ones(len(heads), *grid.shape, device=tokens.device)
    for row, head in enumerate(heads):
        gates[row, head.layer, head.head] = 0
    # One text in every row, with another head off in each.
    rows = tokens[:1].expand(len(heads), -1)
    untold: list[str] = []
    if plain is None:
        wrong = _away_from_own_projection(model, rows, heads, gates)
        against = "its z times W_O taken from what attention adds"
    else:
        ours = _logprobs(model, rows, gates)[:, -1] - intact[:, -1]
        own = _logprobs_of(plain.logits(tokens[:1]))[:, -1]
        theirs = _logprobs_of(plain.logits_without(rows, heads, grid.n_heads))[:, -1] - own
        noise = 4 * _rms(intact[:, -1] - own)
        wrong = torch.clamp(_rms(ours - theirs) - noise, min=0) / _rms(theirs)
        untold = [str(head) for head, share in zip(heads, (noise / _rms(theirs)).tolist(), strict=True) if share > 0.5]
        against = "its slice of the output projection's input zeroed in plain Hugging Face"
    off = [str(head) for head, share in zip(heads, wrong.tolist(), strict=True) if not share <= _OF_EFFECT]
    if off:
        remedy = "hook_z is not what W_O takes; load the model with cs_heads.load_model, unprocessed"
        return Check("hook_z", "fail", f"with {', '.join(off[:3])} off, scores are not those of {against}", remedy)
    if untold:
        found = f"cannot be told of {', '.join(untold[:3])}: with no head off, the model is as far from {_PLAIN}"
        return Check("hook_z", "warn", found, f"see logits, and {_IN_FLOAT32}")
    return Check("hook_z", "ok", f"in all {grid.n_layers} layers; a head off is {against}")


def logits(model: Any, plain: PlainModel | None) -> Check:
    """Those of plain Hugging Face, of which those of half precision are no farther than rounding takes them."""
    if plain is None:
        return Check("logits", "warn", "not held against plain Hugging Face", _NO_REFERENCE)
    tokens = _tokens(model, 4)
    with _both_in_float32(model, plain):
        exact = dtype_of(model) not in HALF
        ours, theirs = _logprobs(model, tokens), _logprobs_of(plain.logits(tokens))
    if ours.shape != theirs.shape:
        found = f"of {ours.shape[-1]} tokens, in plain Hugging Face of {theirs.shape[-1]}"
        return Check("logits", "fail", found, "load the model with cs_heads.load_model")
    found = f"log-probabilities within {_nats(ours, theirs)} of {_PLAIN}{' in float32' * exact}"
    # Ten times what two ways of our own may differ by: two implementations round more differently.
    same = _difference(ours, theirs) <= 10 * tolerance(torch.float32)
    if dtype_of(model) not in HALF:
        return Check("logits", "ok", found) if same else Check("logits", "fail", found, _WRONGLY)
    name = str(dtype_of(model)).removeprefix("torch.")
    rounding = _rms((_logprobs(model, tokens) - ours).flatten())
    usual = _rms((_logprobs_of(plain.logits(tokens)) - theirs).flatten())
    found += f"; {name} moves them by {rounding:.2g} (root mean square), plain Hugging Face by {usual:.2g}"
    # A model that cannot be run in float32 is rounded here, too.
    near = same or _rms((ours - theirs).flatten()) <= (1 if exact else _OF_ROUNDING) * usual
    if not near or not rounding <= _OF_ROUNDING * usual:
        return Check("logits", "fail", found, _WRONGLY)
    if same:
        return Check("logits", "ok", found)
    return Check("logits", "warn", f"cannot be told in {name}, which rounds as much: {found}", _IN_FLOAT32)


def padding(model: Any, plain: PlainModel | None) -> Check:
    """A short text scores the same beside a long one."""
    long, short = _tokens(model, 2).tolist()
    short = short[: max(1, len(short) // 3)]
    return _unchanged(
        "padding",
        model,
        "a short text beside a long one",
        lambda: (_last(model, [short, long])[:1], _last(model, [short])),
    )


def batch(model: Any, plain: PlainModel | None) -> Check:
    """A text scores the same among others."""
    rows = _tokens(model, 8).tolist()
    return _unchanged(
        "batch",
        model,
        "a text among seven others",
        lambda: (_last(model, rows), torch.cat([_last(model, [row]) for row in rows])),
    )


def _unchanged(name: str, model: Any, what: str, both: Callable[[], tuple[Tensor, Tensor]]) -> Check:
    """In the model's own dtype, and in float32 too, where rounding hides nothing."""
    ours, alone = both()
    same = _difference(ours, alone) <= tolerance(dtype_of(model))
    found = f"{what}: log-probabilities within {_nats(ours, alone)}"
    if same and dtype_of(model) in HALF:
        with in_float32(model):
            ours, alone = both()
            same = _difference(ours, alone) <= tolerance(dtype_of(model))
        found += f", in float32 {_nats(ours, alone)}"
    if same:
        return Check(name, "ok", found)
    return Check(name, "fail", found, "give batch_tokens=1, so that each text has a forward of its own")


@contextmanager
def _both_in_float32(model: Any, plain: PlainModel | None) -> Iterator[None]:
    with in_float32(model), nullcontext() if plain is None else in_float32(plain.model):
        yield


def _away_from_own_projection(
    model: Any, tokens: Int[Tensor, "row pos"], heads: Sequence[Head], gates: Float[Tensor, "row layer head"]
) -> Float[Tensor, " row"]:
    """How far the loss of a head from what its layer adds is from z W_O, as a share of it; by the model's own W_O."""
    z: dict[int, Tensor] = {}
    added: list[dict[int, Tensor]] = [{}, {}]

    def hook_of(layer: int, kept: dict[int, Tensor]) -> Any:
        def keep(module: Any, arguments: Any, output: Any) -> None:
            kept[layer] = (output[0] if isinstance(output, tuple) else output).float()

        return keep

    for kept, gate in zip(added, (None, gates), strict=True):
        handles = [block.attn.register_forward_hook(hook_of(i, kept)) for i, block in enumerate(model.blocks)]
        try:
            if gate is None:
                with reading(model, lambda layer, value: z.update({layer: value.float()})):
                    model(tokens)
            else:
                with gated(model, gate):
                    model(tokens)
        finally:
            for handle in handles:
                handle.remove()
    shares = []
    for row, head in enumerate(heads):
        lost = (added[0][head.layer] - added[1][head.layer])[row]
        taken = z[head.layer][row, :, head.head] @ model.blocks[head.layer].attn.W_O[head.head].float()
        shares.append((lost - taken).pow(2).mean().sqrt() / taken.pow(2).mean().sqrt())
    return torch.stack(shares)


def _tokens(model: Any, n_rows: int) -> Int[Tensor, "row pos"]:
    length = min(_LENGTH, context_length(model) or _LENGTH)
    drawn = torch.randint(model.cfg.d_vocab, (n_rows, length), generator=torch.Generator().manual_seed(0))
    return drawn.to(device_of(model))


def _logprobs(
    model: Any, tokens: Int[Tensor, "row pos"], gates: Float[Tensor, "row layer head"] | None = None
) -> Float[Tensor, "row pos vocab"]:
    mask = torch.ones_like(tokens)
    row, position = mask.nonzero(as_tuple=True)
    flat = logits_at(model, tokens, mask, row=row, position=position, gates=gates)
    return _logprobs_of(flat.float()).reshape(*tokens.shape, -1)


def _last(model: Any, rows: Sequence[list[int]]) -> Float[Tensor, "row vocab"]:
    """Log-probabilities after each row's last token."""
    tokens, mask = pad(rows)
    position = torch.tensor([len(row) - 1 for row in rows])
    device = device_of(model)
    flat = logits_at(model, tokens.to(device), mask.to(device), row=torch.arange(len(rows)), position=position)
    return _logprobs_of(flat.float())


def _logprobs_of(values: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
    return values.log_softmax(dim=-1)


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest, as a share of the largest log-probability."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _nats(ours: Tensor, theirs: Tensor) -> str:
    difference = ours - theirs
    return f"{float(difference.abs().max()):.2g} nats (root mean square {float(difference.pow(2).mean().sqrt()):.2g})"


def _rms(values: Float[Tensor, "*row vocab"]) -> Float[Tensor, "*row"]:
    return values.pow(2).mean(dim=-1).sqrt()
