"""Checks of a loaded model, by itself and against plain Hugging Face, each a line with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cs_heads.lens.checks import about, scores
from cs_heads.lens.checks.check import Check as Check
from cs_heads.lens.model import evaluating
from cs_heads.lens.plain import PlainModel

_CHECKS = {
    "weights": about.weights,
    "hook_z": scores.hook_z,
    "logits": scores.logits,
    "BOS": about.bos,
    "padding": scores.padding,
    "batch": scores.batch,
    "dtype": about.dtype,
    "folded biases": about.folded_biases,
    "fused attention": about.fused_attention,
    "heads": about.heads,
    "context length": about.context,
}


def checks_of(model: Any, plain: PlainModel | None) -> list[Check]:
    """Every check of a model in memory, ``plain`` being the same model by itself where it is at hand."""
    with evaluating(model):
        return [tried(name, partial(check, model, plain)) for name, check in _CHECKS.items()]


def tried(name: str, check: Callable[[], Check]) -> Check:
    """A check, which has failed where it cannot be made because the model fails under it."""
    try:
        return check()
    except Exception as error:  # whatever a broken model raises when it is run
        reason = " ".join(str(error).split()) or type(error).__name__
        return Check(name, "fail", f"could not be checked: {reason[:300]}", "mend this first: the model does not run")
