"""Checks of a loaded model, by itself and against plain Hugging Face, each a line with what to do about it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs_heads.lens.abilities import Abilities, abilities, beside_others, difference, tolerance, why_no_gradients
from cs_heads.lens.casts import InDtype
from cs_heads.lens.forward import check_runs, logits_at
from cs_heads.lens.logprobs import NotFiniteError, check_numbers, row_of
from cs_heads.lens.model import (
    HALF,
    FoldedValueBiasesError,
    HookedModel,
    backend_of,
    check_ablatable,
    check_units,
    context_length,
    device_of,
    dtype_of,
    evaluating,
)
from cs_heads.lens.reference_model import PlainModel, zeroed
from cs_heads.lens.timing import LARGE, matrix_rate
from cs_heads.lens.tokens import encode_prompt, prepended
from cs_heads.lens.weights import WeightsError, check_finite
from cs_heads.units import Grid, Head, Unit

_TEXTS = ("The capital of France is", "def f(x):\n    return x +", "One, two,")

# Tokens of a text that is tried.
_LENGTH = 12

# How many times the plain model's own rounding that of the model may be: two implementations round differently.
_OF_ROUNDING = 4

# How far from the effect of a head off in plain Hugging Face that of its gate may be, as a share of it (root mean
# squares): rounding is far below in float32; a value bias left standing, or a slice taken after W_O, far beyond.
_OF_EFFECT = 0.05

# How many times slower a large model in half precision may be than in float32.
_SLOWER = 1.5

_PLAIN = "plain Hugging Face"
_IN_FLOAT32 = "check the model with dtype='float32' (--dtype float32)"
_WRONGLY = "TransformerLens runs this model wrongly: do not measure it"
_NO_REFERENCE = "give the folder or name that the model is of, as cs-heads doctor does (check_model(model, reference=))"

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One line about a model: what was looked at, whether it is right, what was found, and what to do about it."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.status:<5} {self.name:<16} {self.found}" + (f"; {self.remedy}" if self.remedy else "")

    def to_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return asdict(self)


# What to do about an error that does not say it.
_REMEDIES = {
    "weights": "fetch the model's files again, or mend its config.json: what is missing is drawn at random",
    "folded biases": "load the model with cs_heads.load_model, unprocessed",
    "hook_z": "heads of this model cannot be ablated: report its architecture to TransformerLens",
    "heads": "load the model with cs_heads.load_model",
}


def failed(name: str, error: ValueError) -> Check:
    """Of an error: what was found, and, after its first full stop, what to do about it."""
    found, _, remedy = str(error).partition(". ")
    return Check(name, "fail", found, remedy or _REMEDIES[name])


def checks_of(model: HookedModel, plain: PlainModel | None) -> list[Check]:
    """Every check of a model in memory, ``plain`` being the same model by itself where it is at hand."""
    with evaluating(model):
        return [tried(name, partial(check, model, plain)) for name, check in _CHECKS.items()]


def not_run(model: HookedModel) -> list[Check]:
    """Nothing of a model that runs; else the line that says why it does not, and what else is wrong with it."""
    try:
        check_runs(model)
        with evaluating(model):
            _logprobs(model, _tokens(model, 1))
        return []
    except NotFiniteError as error:
        first, others = failed("logits", error), ["weights", "folded biases"]
    except ValueError as error:
        # A message of others may hold a full stop.
        first, others = Check("hook_z", "fail", str(error), _REMEDIES["hook_z"]), ["weights", "folded biases", "dtype"]
    still = [tried(name, partial(_CHECKS[name], model, None)) for name in others]
    return [first, *(line for line in still if line.status != "ok")]


def tried(name: str, check: Callable[[], Check]) -> Check:
    """A check, which has failed where it cannot be made because the model fails under it."""
    try:
        return check()
    except (NotFiniteError, WeightsError, FoldedValueBiasesError) as error:
        return failed(name, error)
    except Exception as error:  # whatever a broken model raises when it is run
        reason = " ".join(str(error).split()) or type(error).__name__
        return Check(name, "fail", f"could not be checked: {reason[:300]}", "mend this first: the model does not run")


def _weights(model: HookedModel, plain: PlainModel | None) -> Check:
    """Complete, and numbers."""
    check_finite(model)
    code = getattr(plain.model.config, "auto_map", None) if plain else None
    if code:
        found = f"the model's own code ({', '.join(map(str, code.values()))}) is not run: its class of transformers is"
        return Check("weights", "warn", found, "compare its outputs with those of its own code")
    n = sum(1 for _ in (plain.model if plain else model).parameters())
    return Check("weights", "ok", f"{n} tensors, finite{', none missing and none left over' if plain else ''}")


def _bos(model: HookedModel, plain: PlainModel | None) -> Check:
    """Texts in the tokens of the tokenizer itself, asked to add special tokens."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return Check("BOS", "warn", "the model has no tokenizer", "set model.tokenizer, or give token ids")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = prepended(tokenizer, None)
    if said:
        return Check("BOS", "warn", str(said[0].message), "say prepend_bos=True or prepend_bos=False")
    own: Any = None if plain is None else plain.tokenizer
    for text in _TEXTS if own is not None else ():
        try:
            ours = list(encode_prompt(tokenizer, text))
        except ValueError:  # words that this tokenizer has no token for
            continue
        theirs = list(own(text)["input_ids"])
        # An end token is no part of a prompt.
        alone = list(own(text, add_special_tokens=False)["input_ids"])
        while theirs != alone and theirs[-1:] == [own.eos_token_id] and len(theirs) > len(alone):
            theirs.pop()
        if ours != theirs:
            found = f"{text!r} is {ours[:6]} here, and {theirs[:6]} to the tokenizer of the model's files"
            return Check("BOS", "fail", found, "set model.tokenizer to the tokenizer of the model's files")
    what = tokenizer.bos_token if before is True else " ".join(before) if before else "none"
    return Check("BOS", "ok", f"{what} prepended, as the tokenizer does by itself")


def _dtype(model: HookedModel, plain: PlainModel | None) -> Check:
    """One dtype, as fine as that of the files, in which the device multiplies, and which does not overflow."""
    kinds = Counter(str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point())
    own = str(dtype_of(model)).removeprefix("torch.")
    if len(kinds) > 1:
        return Check("dtype", "warn", f"weights of {', '.join(kinds)}", "load the model with one dtype=")
    if dtype_of(model) == torch.float16:
        grid, tokens = Grid.from_model(model), _tokens(model, 1)
        # Each head off, in a row of its own, a layer at a time.
        for gates in _each_off(grid, list(grid)).split(grid.n_units):
            _logprobs(model, tokens.expand(grid.n_units, -1), gates)
    stored = plain and plain.stored
    if dtype_of(model) in HALF and stored not in (None, own):
        found = f"{own}, coarser than the files, {stored}: scores near a tie may turn"
        return Check("dtype", "warn", found, "prove what you find with dtype='float32' (--dtype float32)")
    if dtype_of(model) in HALF and sum(p.numel() for p in model.parameters()) >= LARGE:
        device = device_of(model)
        slower = matrix_rate(device, torch.float32) / matrix_rate(device, dtype_of(model))
        if slower > _SLOWER:
            found = f"{own}, in which this {device.type} multiplies {slower:.0f} times slower than in float32"
            return Check("dtype", "warn", found, "load the model with dtype='float32' (--dtype float32)")
    return Check("dtype", "ok", own + (f" (files: {stored})" if stored else ""))


def _folded_biases(model: HookedModel, plain: PlainModel | None) -> Check:
    """Value biases are where heads carry them."""
    check_ablatable(model)
    return Check("folded biases", "ok", "no value bias stands in an output bias")


def _fused_attention(model: HookedModel, plain: PlainModel | None) -> Check:
    """PyTorch's kernel with hook_z still firing, whose memory is not quadratic in length."""
    reason = abilities(model, Abilities(extend=False, resume=False)).why_not.get("fused attention")
    if reason is None:
        return Check("fused attention", "ok", "usable, with the same logits")
    remedy = "memory grows with the square of the length: keep prompts short, or batch_tokens small"
    return Check("fused attention", "warn", f"not usable: {reason}", remedy)


def _shortcuts(model: HookedModel, plain: PlainModel | None) -> Check:
    """What forwards share, in every way in which they do: numbers are right either way."""
    able = abilities(model)
    lost = [f"{name} not used: {why}" for name, why in able.why_not.items() if name != "fused attention"]
    if able.extend and (reason := why_no_gradients(model)):
        lost.append(f"gradients through stored keys and values not used: {reason}")
    if not lost:
        return Check("shortcuts", "ok", "stored keys and values, later layers and gradients: the same logits")
    remedy = "numbers are right without, and take longer; see that transformers is of a version cs-heads asks for"
    return Check("shortcuts", "warn", "; ".join(lost), remedy)


def _heads(model: HookedModel, plain: PlainModel | None) -> Check:
    """As many as the layers have."""
    grid = Grid.from_model(model)
    key_value = getattr(model.cfg, "n_key_value_heads", None) or grid.n_units
    try:
        check_units(model, "kv")
    except ValueError as error:
        return failed("heads", error)
    return Check("heads", "ok", f"{grid.n_layers} layers × {grid.n_units} heads, {key_value} key/value heads")


def _context(model: HookedModel, plain: PlainModel | None) -> Check:
    """No longer than the model's positions."""
    ours = context_length(model)
    theirs = getattr(plain.config, "max_position_embeddings", None) if plain is not None else None
    if ours is None:
        return Check("context length", "warn", "unknown: no prompt is refused as too long", "set model.cfg.n_ctx")
    found = f"{ours:,} tokens" + (f", in config.json {theirs:,}" if theirs not in (None, ours) else "")
    if theirs is None or ours == theirs:
        return Check("context length", "ok", found)
    remedy = (
        f"{'longer prompts are refused' if ours < theirs else 'the model has no more'}: set model.cfg.n_ctx = {theirs}"
    )
    return Check("context length", "warn" if ours < theirs else "fail", found, remedy)


def _hook_z(model: HookedModel, plain: PlainModel | None) -> Check:
    """There in every layer, before W_O: a head's gate is its slice of W_O's input zeroed; in float32."""
    grid = Grid.from_model(model)
    heads = [Head(layer, layer % grid.n_units) for layer in range(grid.n_layers)]
    gates = _each_off(grid, heads)
    # One text in every row, with another head off in each.
    rows = _tokens(model, 1).expand(len(heads), -1)
    with _both_in_float32(model, plain):
        intact = _logprobs(model, rows[:1])[:, -1]
        ours = _logprobs(model, rows, gates)[:, -1] - intact
        if plain is None:
            own, without = intact, _without(model, rows, heads)[:, -1]
        else:
            own, without = (each[:, -1] for each in (plain.logprobs(rows[:1]), plain.logprobs_without(rows, heads)))
    theirs, noise = without - own, 4 * _rms(intact - own)
    wrong = torch.clamp(_rms(ours - theirs) - noise, min=0) / _rms(theirs)
    untold = [str(head) for head, share in zip(heads, (noise / _rms(theirs)).tolist(), strict=True) if share > 0.5]
    against = f"its slice of W_O's input zeroed in {'itself' if plain is None else _PLAIN}"
    off = [str(head) for head, share in zip(heads, wrong.tolist(), strict=True) if not share <= _OF_EFFECT]
    if off:
        remedy = "hook_z is not what W_O takes; load the model with cs_heads.load_model, unprocessed"
        return Check("hook_z", "fail", f"with {', '.join(off[:3])} off, scores are not those of {against}", remedy)
    if untold:
        found = f"cannot be told of {', '.join(untold[:3])}: with no head off, the model is as far from {_PLAIN}"
        return Check("hook_z", "warn", found, f"see logits, and {_IN_FLOAT32}")
    return Check("hook_z", "ok", f"in all {grid.n_layers} layers; a head off is {against}")


def _logits(model: HookedModel, plain: PlainModel | None) -> Check:
    """Those of plain Hugging Face, of which those of half precision are no farther than rounding takes them."""
    if plain is None:
        return Check("logits", "warn", "not held against plain Hugging Face", _NO_REFERENCE)
    tokens = _tokens(model, 4)
    with _both_in_float32(model, plain):
        exact = dtype_of(model) not in HALF
        ours, theirs = _logprobs(model, tokens), plain.logprobs(tokens)
    if ours.shape != theirs.shape:
        found = f"of {ours.shape[-1]} tokens, in plain Hugging Face of {theirs.shape[-1]}"
        return Check("logits", "fail", found, "load the model with cs_heads.load_model")
    found = f"log-probabilities within {_nats(ours, theirs)} of {_PLAIN}{' in float32' * exact}"
    # Ten times what two ways of our own may differ by: two implementations round more differently.
    same = difference(ours, theirs) <= 10 * tolerance(torch.float32)
    if dtype_of(model) not in HALF:
        return Check("logits", "ok", found) if same else Check("logits", "fail", found, _WRONGLY)
    name = str(dtype_of(model)).removeprefix("torch.")
    rounding = _rms((_logprobs(model, tokens) - ours).flatten())
    usual = _rms((plain.logprobs(tokens) - theirs).flatten())
    found += f"; {name} moves them by {rounding:.2g} (root mean square), plain Hugging Face by {usual:.2g}"
    # A model that cannot be run in float32 is rounded here, too.
    near = same or _rms((ours - theirs).flatten()) <= (1 if exact else _OF_ROUNDING) * usual
    if not near or not rounding <= _OF_ROUNDING * usual:
        return Check("logits", "fail", found, _WRONGLY)
    if same:
        return Check("logits", "ok", found)
    return Check("logits", "warn", f"cannot be told in {name}, which rounds as much: {found}", _IN_FLOAT32)


_BESIDE_OTHERS = {
    "later tokens": "a text that goes on in another way, up to there",
    "padding": "a short text beside a long one",
    "batch": "a text among others",
}


def _beside_others(name: str, model: HookedModel, plain: PlainModel | None) -> Check:
    """In the model's own dtype, and in float32 too, where rounding hides nothing."""

    def compared() -> tuple[bool, str]:
        ours, alone = (logits.log_softmax(dim=-1) for logits in beside_others(model)[name])
        return difference(ours, alone) <= tolerance(dtype_of(model)), _nats(ours, alone)

    same, nats = compared()
    found = f"{_BESIDE_OTHERS[name]}: log-probabilities within {nats}"
    if same and dtype_of(model) in HALF:
        with InDtype(model, torch.float32):
            same, nats = compared()
        found += f", in float32 {nats}"
    return Check(name, "ok", found) if same else Check(name, "fail", found, _WRONGLY)


@contextmanager
def _both_in_float32(model: HookedModel, plain: PlainModel | None) -> Iterator[None]:
    with InDtype(model, torch.float32), nullcontext() if plain is None else InDtype(plain.model, torch.float32):
        yield


def _without(model: HookedModel, rows: Int[Tensor, "row pos"], heads: Sequence[Unit]) -> Float[Tensor, "row pos vocab"]:
    """Log-probabilities with one head off in each row, by the module or weights of W_O alone."""
    attentions = [block.attn for block in model.blocks]
    if backend_of(model) == "bridge":
        with zeroed([attention.o.original_component for attention in attentions], heads, model.cfg.n_heads):
            return _logprobs(model, rows)
    found = []
    for row, head in zip(rows, heads, strict=True):
        weights = attentions[head.layer].W_O[head.index]
        kept = weights.clone()
        try:
            weights.zero_()
            found.append(_logprobs(model, row[None]))
        finally:
            weights.copy_(kept)
    return torch.cat(found)


def _each_off(grid: Grid, heads: Sequence[Unit]) -> Float[Tensor, "row layer head"]:
    """Gates of as many rows as there are heads, each with one off."""
    return torch.stack([1 - torch.from_numpy(grid.mask([head])).float() for head in heads])


def _tokens(model: HookedModel, n_rows: int) -> Int[Tensor, "row pos"]:
    length = min(_LENGTH, context_length(model) or _LENGTH)
    drawn = torch.randint(model.cfg.d_vocab, (n_rows, length), generator=torch.Generator().manual_seed(0))
    return drawn.to(device_of(model))


def _logprobs(
    model: HookedModel, tokens: Int[Tensor, "row pos"], gates: Float[Tensor, "row layer head"] | None = None
) -> Float[Tensor, "row pos vocab"]:
    logits = logits_at(model, tokens, torch.ones(tokens.shape, dtype=torch.long), gates=gates).float()
    logits, texts = logits.reshape(*tokens.shape, -1), tokens.tolist()
    check_numbers(
        model, logits.amax(dim=2), lambda row: row_of(model, None if gates is None else gates[row], texts[row])
    )
    return logits.log_softmax(dim=-1)


def _nats(ours: Tensor, theirs: Tensor) -> str:
    off = (ours - theirs).flatten()
    return f"{float(off.abs().max()):.2g} nats (root mean square {float(_rms(off)):.2g})"


def _rms(values: Float[Tensor, "*row vocab"]) -> Float[Tensor, "*row"]:
    return values.pow(2).mean(dim=-1).sqrt()


_CHECKS: dict[str, Callable[[HookedModel, PlainModel | None], Check]] = {
    "weights": _weights,
    "hook_z": _hook_z,
    "logits": _logits,
    "BOS": _bos,
    **{name: partial(_beside_others, name) for name in _BESIDE_OTHERS},
    "dtype": _dtype,
    "folded biases": _folded_biases,
    "fused attention": _fused_attention,
    "shortcuts": _shortcuts,
    "heads": _heads,
    "context length": _context,
}
