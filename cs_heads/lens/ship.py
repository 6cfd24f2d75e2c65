"""A model sent to another process, and the ``ModelInfo`` of one that lives there."""

from __future__ import annotations

import io
import sys
from collections import ChainMap
from contextvars import ContextVar
from functools import cache, reduce
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float

from cs_heads.lens.fingerprint import fingerprint, settings_of
from cs_heads.lens.forward import last_logits
from cs_heads.lens.model import (
    HookedModel,
    InfoConfig,
    ModelInfo,
    context_length,
    device_of,
    devices_of,
    end_tokens,
    evaluating,
    vocabularies,
)
from cs_heads.lens.state import describe
from cs_heads.lens.tokens import leading_tokens

# Whose context variables may hang on a model; searching all modules would wake the sleeping ones.
_SEARCHED = ("transformers", "transformer_lens")


def model_info(model: HookedModel) -> ModelInfo:
    """What other processes need to know of a model."""
    cfg, tokenizer = model.cfg, getattr(model, "tokenizer", None)
    # Asked here, where the tokenizer's files lie; it keeps the answer.
    leading_tokens(tokenizer)
    return ModelInfo(
        InfoConfig(
            cfg.n_layers,
            cfg.n_heads,
            getattr(cfg, "n_key_value_heads", None),
            getattr(cfg, "d_mlp", None),
            context_length(model),
            *vocabularies(model),
            str(cfg.model_name),
        ),
        tokenizer,
        describe(model),
        end_tokens(model),
        fingerprint(model),
        settings_of(model),
        device_of(model).type,
    )


def packed_model(model: HookedModel) -> bytes:
    """A TransformerLens model as bytes, with its tokenizer and the hooks that stand on it.

    A model that cannot be written so, for one because a hook on it holds an open file, raises ``ValueError``, and so
    does one that is split over several devices: it would arrive on one.
    """
    import cloudpickle

    devices = devices_of(model)
    if len(devices) > 1:
        raise ValueError(
            f"model {model.cfg.model_name} cannot be sent to workers, it is split over {', '.join(map(str, devices))}: "
            "give a function that loads it split, and each worker loads its own"
        )

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar[Any] = ChainMap(
            {ContextVar: _reduce_context_variable}, cloudpickle.Pickler.dispatch_table
        )

    buffer = io.BytesIO()
    try:
        torch.save(model, buffer, pickle_module=SimpleNamespace(Pickler=Pickler, __name__="cloudpickle"))
    except Exception as error:  # whatever stands in the way of pickling some part of the model
        raise ValueError(
            f"model {model.cfg.model_name} cannot be sent to workers ({error}): give its name or folder, "
            "or a function that loads it, and each worker loads its own"
        ) from error
    return buffer.getvalue()


def unpacked_model(data: bytes, device: str) -> HookedModel:
    """The model of ``packed_model``, on ``device``."""
    model: HookedModel = torch.load(io.BytesIO(data), map_location=device, weights_only=False)
    if hasattr(model.cfg, "device"):
        model.cfg.device = device
    return model


def use_threads(n: int) -> None:
    """Compute with ``n`` threads from now on, in this process."""
    torch.set_num_threads(n)


def sample_logits(model: HookedModel) -> Float[np.ndarray, "n vocab"]:
    """Logits after a few fixed tokens, in float32: copies of a model are compared by these."""
    n = min(8, context_length(model) or 8)
    tokens = (torch.arange(3 * n).reshape(3, n) * 7919) % model.cfg.d_vocab
    with evaluating(model):
        return last_logits(model, tokens.tolist()).float().cpu().numpy()


@cache
def _path_to(variable: ContextVar[Any]) -> tuple[str, ...] | None:
    """The module that holds a variable, and the names that lead to it there: its own, or that of what wraps it."""
    for key, module in list(sys.modules.items()):
        for name, value in list(vars(module).items()) if key.split(".")[0] in _SEARCHED else ():
            if value is variable:
                return module.__name__, name
            if type(value).__module__ == module.__name__:
                for inner, wrapped in getattr(value, "__dict__", {}).items():
                    if wrapped is variable:
                        return module.__name__, name, inner
    return None


def _reduce_context_variable(variable: ContextVar[Any]) -> tuple[Any, ...]:
    """By where a module holds it: transformers' own hooks, which stand on a model that has run, refer to one."""
    path = _path_to(variable)
    if path is None:
        raise TypeError(f"context variable {variable.name!r} is in no module")
    return _follow, path


def _follow(module: str, *names: str) -> Any:
    return reduce(getattr, names, import_module(module))
