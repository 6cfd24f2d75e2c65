"""What tells one model from another: a hash of its weights, and what it does with them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from cs_heads.lens.model import HookedModel, ModelInfo, ModelSettings, config_inside
from cs_heads.lens.quantized import scales_of

# Tensors that are hashed at once: a GPU's are copied to main memory for it.
_THREADS = 8

# Fields that change no number, or that stand elsewhere in the key of a result: names and places, libraries, devices,
# dtype, tokens (each example has its own), how weights were first drawn, dropout, and which hooks are fed.
# fmt: off
_ELSEWHERE = frozenset(
    {"model_name", "tokenizer_name", "name_or_path", "transformers_version", "architectures", "dtype",
     "torch_dtype", "device", "n_devices", "trust_remote_code", "from_checkpoint", "checkpoint_index",
     "checkpoint_label_type", "checkpoint_value", "bos_token_id", "eos_token_id", "pad_token_id",
     "sep_token_id", "decoder_start_token_id", "default_prepend_bos", "tokenizer_prepends_bos",
     "tokenizer_appends_eos", "default_padding_side", "init_mode", "init_weights", "initializer_range", "seed",
     "n_params", "train_seq_length", "use_attn_result", "use_split_qkv_input", "use_hook_mlp_in",
     "use_attn_in", "use_hook_tokens", "ungroup_grouped_query_attention", "split_attention_weights",
     "attn_implementation", "output_attentions", "output_hidden_states", "return_dict", "use_cache",
     "id2label", "label2id", "problem_type", "task_specific_params", "chunk_size_feed_forward",
     "pretraining_tp", "resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_type", "summary_use_proj",
     "summary_activation", "summary_proj_to_labels"}
)
# fmt: on

# Rotary tables that are stretched as longer texts come; what they are stretched by stands in the configuration.
_STRETCHED = ("dynamic", "longrope")


def fingerprint(model: HookedModel | ModelInfo | torch.nn.Module) -> str:
    """A hash of every bit of every parameter: its name, shape, dtype and values; 16 hexadecimal digits.

    The same for the same weights loaded again or on another device: a changed weight changes it, and so does another
    dtype. A CPU core reads about a GB a second. Hooks and buffers are not part of it. Weights that are not in memory
    (``meta`` tensors of an offloaded model) raise ``ValueError``.
    """
    if isinstance(model, ModelInfo):
        return model.fingerprint
    named: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ValueError(
                f"model has weights that are not in memory ({name} is on the meta device): they cannot be "
                "distinguished from others, so nothing can be stored of it"
            )
        named[name] = parameter
        named |= {f"{name}.{scale}": values for scale, values in scales_of(parameter).items()}
    return _hash(named)


def _hash(named: Mapping[str, Tensor]) -> str:
    """A hash of the name, shape, dtype and bytes of each tensor."""

    def of_bytes(values: Tensor) -> str:
        # Packed weights have a class and a ``cpu`` of their own.
        octets = values.detach().as_subclass(Tensor).cpu().reshape(-1).contiguous().view(torch.uint8)
        return hashlib.sha256(octets.numpy().data).hexdigest()

    with ThreadPoolExecutor(_THREADS) as pool:
        hashed = zip(named.items(), pool.map(of_bytes, named.values()), strict=True)
        told = [f"{name} {tuple(values.shape)} {values.dtype} {own}" for (name, values), own in hashed]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def settings_of(model: HookedModel | ModelInfo) -> ModelSettings:
    """The configurations of TransformerLens and Hugging Face and a hash of all buffers, JSON-ready.

    Numbers, texts and lists of them, by field; left out are names, places, devices, dtype and library versions, and
    what is None or False, so that a field new to a library is no difference as long as it is off. Equal for the same
    model loaded again or on another device; another epsilon, rotary base or soft cap differs. A change of a module
    made by hand that is neither in a configuration, a buffer nor a weight is not seen.
    """
    if isinstance(model, ModelInfo):
        return model.settings
    return {**configurations_of(model), "buffers": _buffers(model)}


def configurations_of(model: HookedModel) -> ModelSettings:
    """The configurations of TransformerLens and Hugging Face: ``settings_of`` without the hash."""
    config, own = config_inside(model), {"cfg": _plain(vars(model.cfg))}
    return own if config is None else {**own, "config": _plain(config.to_dict())}


def _plain(value: Any) -> Any:
    """What of a configuration is numbers and texts; None for what is not, or changes nothing."""
    if isinstance(value, Mapping):
        named = {str(name): _plain(inner) for name, inner in value.items()}
        elsewhere = {name for name in named if name.startswith("_") or name in _ELSEWHERE or "dropout" in name}
        kept = sorted(item for item in named.items() if item[0] not in elsewhere)
        return {name: inner for name, inner in kept if inner is not None and inner is not False}
    if isinstance(value, str | bool):
        return value
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    if isinstance(value, int | float):
        # Infinity and NaN are no JSON.
        return value + 0 if math.isfinite(value) else str(value)
    return None


def is_stretched(module: torch.nn.Module, buffer: str) -> bool:
    """Whether a buffer of a module is a rotary table that is stretched as longer texts come."""
    return buffer == "inv_freq" and getattr(module, "rope_type", None) in _STRETCHED


def _buffers(model: HookedModel) -> str:
    """A hash of the buffers; those computed from the configuration to bfloat16's precision.

    Such tables may differ by a rounding from device to device.
    """
    found = {}
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not is_stretched(module, name):
                computed = name in module._non_persistent_buffers_set and buffer.is_floating_point()
                found[f"{path}.{name}"] = buffer.to(torch.bfloat16) if computed else buffer
    return _hash(dict(sorted(found.items())))
