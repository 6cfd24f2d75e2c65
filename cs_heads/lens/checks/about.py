"""What a model is: its weights, tokens, dtype, heads and context."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

from cs_heads.lens.abilities import Abilities, abilities
from cs_heads.lens.bos import prepended
from cs_heads.lens.checks.check import Check
from cs_heads.lens.fused import why_not_fused
from cs_heads.lens.model import FoldedValueBiasesError, check_ablatable, context_length, dtype_of
from cs_heads.lens.plain import PlainModel
from cs_heads.lens.tokens import encode_prompt
from cs_heads.lens.weights import WeightsError, check_finite
from cs_heads.units import HeadGrid

_TEXTS = ("The capital of France is", "def f(x):\n    return x +", "One, two,")


def weights(model: Any, plain: PlainModel | None) -> Check:
    """Complete, and numbers."""
    try:
        check_finite(model)
    except WeightsError as error:
        return faulty(error)
    n = sum(1 for _ in (plain.model if plain else model).parameters())
    return Check("weights", "ok", f"{n} tensors, finite{', none missing and none left over' if plain else ''}")


def faulty(error: ValueError) -> Check:
    """Of weights of which something is wrong."""
    remedy = "fetch the model's files again, or mend its config.json: what is missing is drawn at random"
    return Check("weights", "fail", str(error), remedy)


def bos(model: Any, plain: PlainModel | None) -> Check:
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


def dtype(model: Any, plain: PlainModel | None) -> Check:
    """One dtype, as fine as that of the files."""
    kinds = Counter(str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point())
    own = str(dtype_of(model)).removeprefix("torch.")
    if len(kinds) > 1:
        return Check("dtype", "warn", f"weights of {', '.join(kinds)}", "load the model with one dtype=")
    stored = plain.stored if plain is not None else None
    if own in ("bfloat16", "float16") and stored not in (None, own):
        found = f"{own}, coarser than the files, {stored}: scores near a tie may turn"
        return Check("dtype", "warn", found, "prove what you find with dtype='float32' (--dtype float32)")
    return Check("dtype", "ok", own + (f" (files: {stored})" if stored else ""))


def folded_biases(model: Any, plain: PlainModel | None) -> Check:
    """Value biases are where heads carry them."""
    try:
        check_ablatable(model)
    except FoldedValueBiasesError as error:
        return folded(error)
    return Check("folded biases", "ok", "no value bias stands in an output bias")


def folded(error: FoldedValueBiasesError) -> Check:
    """Of a model that is refused, whose value biases zeroing a head leaves standing."""
    found, _, remedy = str(error).partition(". ")
    return Check("folded biases", "fail", found, remedy or "load the model with cs_heads.load_model, unprocessed")


def fused_attention(model: Any, plain: PlainModel | None) -> Check:
    """PyTorch's kernel with hook_z still firing, whose memory is not quadratic in length."""
    if abilities(model, Abilities(fused=True, extend=False, resume=False)).fused:
        return Check("fused attention", "ok", "usable, with the same logits")
    reason = why_not_fused(model) or "its logits differ from those of the plain forward"
    remedy = "memory grows with the square of the length: keep prompts short, or batch_tokens small"
    return Check("fused attention", "warn", f"not usable: {reason}", remedy)


def heads(model: Any, plain: PlainModel | None) -> Check:
    """As many as the configuration says."""
    grid = HeadGrid.from_model(model)
    key_value = getattr(model.cfg, "n_key_value_heads", None) or grid.n_heads
    found = f"{grid.n_layers} layers × {grid.n_heads} heads, {key_value} key/value heads"
    if plain is not None:
        config = plain.config
        n_heads = config.num_attention_heads
        theirs = (config.num_hidden_layers, n_heads, _key_value_heads(config) or n_heads)
        if theirs != (*grid.shape, key_value):
            found += ", in config.json {} × {} and {}".format(*theirs)
            return Check("heads", "fail", found, "load the model with cs_heads.load_model")
    return Check("heads", "ok", found)


def _key_value_heads(config: Any) -> int | None:
    """As many as a configuration says, in words of its own that some have."""
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        return 1
    names = ("num_key_value_heads", "num_kv_heads")
    return next((found for name in names if (found := getattr(config, name, None)) is not None), None)


def context(model: Any, plain: PlainModel | None) -> Check:
    """No longer than the model's positions."""
    ours = context_length(model)
    theirs = getattr(plain.config, "max_position_embeddings", None) if plain is not None else None
    if ours is None:
        return Check("context length", "warn", "unknown: no prompt is refused as too long", "set model.cfg.n_ctx")
    found = f"{ours:,} tokens"
    if theirs is not None and ours != theirs:
        found += f", in config.json {theirs:,}"
        if ours > theirs:
            return Check(
                "context length", "fail", found, f"set model.cfg.n_ctx = {theirs}: the model has no more positions"
            )
        return Check("context length", "warn", found, f"longer prompts are refused; set model.cfg.n_ctx = {theirs}")
    return Check("context length", "ok", found)
