"""A model copied, here or to another process, and the ``ModelInfo`` of one that lives there."""

from __future__ import annotations

import io
from collections import ChainMap
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from cs_heads.lens.fingerprint import fingerprint, settings_of
from cs_heads.lens.model import HookedModel, ModelInfo, context_length, device_of, devices_of, end_tokens, vocabularies
from cs_heads.lens.state import describe
from cs_heads.lens.tokens import leading_tokens


def model_info(model: HookedModel) -> ModelInfo:
    """What other processes need to know of a model."""
    cfg, tokenizer = model.cfg, getattr(model, "tokenizer", None)
    # Asked here, where the tokenizer's files lie; it keeps the answer.
    leading_tokens(tokenizer)
    said = {name: getattr(cfg, name, None) for name in ("n_layers", "n_heads", "n_key_value_heads", "d_mlp")}
    d_vocab, d_vocab_out = vocabularies(model)
    said["n_ctx"] = context_length(model)
    config = SimpleNamespace(**said, d_vocab=d_vocab, d_vocab_out=d_vocab_out, model_name=str(cfg.model_name))
    known = fingerprint(model), settings_of(model), device_of(model).type
    return ModelInfo(config, tokenizer, describe(model), end_tokens(model), *known)


def packed_model(model: HookedModel) -> bytes:
    """A TransformerLens model as bytes, with its tokenizer and the hooks that stand on it.

    A model that cannot be written so, for one because a hook on it holds an open file, raises ``ValueError``, and so
    does one that is split over several devices: it would arrive on one.
    """
    devices = devices_of(model)
    if len(devices) > 1:
        raise ValueError(
            f"model {model.cfg.model_name} cannot be sent to workers, it is split over {', '.join(map(str, devices))}: "
            "give a function that loads it split, and each worker loads its own"
        )
    try:
        return _bytes_of(model).getvalue()
    except Exception as error:  # whatever stands in the way of pickling some part of the model
        raise ValueError(
            f"model {model.cfg.model_name} cannot be sent to workers ({error}): give its name or folder, "
            "or a function that loads it, and each worker loads its own"
        ) from error


def unpacked_model(data: bytes, device: str) -> HookedModel:
    """The model of ``packed_model``, on ``device``."""
    model: HookedModel = torch.load(io.BytesIO(data), map_location=device, weights_only=False)
    if hasattr(model.cfg, "device"):
        model.cfg.device = device
    return model


def copied_model(model: HookedModel) -> Any:
    """A copy that shares nothing: hooks and other functions in it work on modules of its own."""
    return torch.load(_bytes_of(model), weights_only=False)


def use_threads(n: int) -> None:
    """Compute with ``n`` threads from now on, in this process."""
    torch.set_num_threads(n)


def _bytes_of(model: HookedModel) -> io.BytesIO:
    """A model by value, functions in it as well."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar[Any] = ChainMap(
            {ContextVar: _reduce_context_variable}, cloudpickle.Pickler.dispatch_table
        )

    buffer = io.BytesIO()
    torch.save(model, buffer, pickle_module=SimpleNamespace(Pickler=Pickler, __name__="cloudpickle"))
    buffer.seek(0)
    return buffer


def _reduce_context_variable(variable: ContextVar[Any]) -> tuple[Any, ...]:
    """An empty one: transformers' own hooks, which stand on a model that has run, refer to one."""
    if variable.get(None) is not None:
        raise TypeError(f"context variable {variable.name!r} is set")
    return partial(ContextVar, variable.name, default=None), ()
