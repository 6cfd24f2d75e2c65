"""What tells one model from another: a hash of its weights, and what it does with them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cs_heads.lens.model import HookedModel, ModelInfo, ModelSettings, config_inside
from cs_heads.lens.quantized import scales_of

# Words of 8 bytes that are summed up at once; a new length would change every fingerprint.
_CHUNK = 2**20

# Odd, so that multiplying loses nothing modulo 2^64: Knuth's multiplicative hashing constant, and a step of the
# MurmurHash3 finalizer.
_FACTOR = 0x9E3779B97F4A7C15 - 2**64
_SECOND = 0xC4CEB9FE1A85EC53 - 2**64

# Of a word: the half that a shift to the right moves down.
_LOW = 2**32 - 1


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

    The same for the same weights loaded again or on another device, in integer arithmetic done where the weights
    are: a changed weight changes it, and so does another dtype. A CPU core reads about a GB a second. Hooks and
    buffers are not part of it. Weights that are not in memory (``meta`` tensors of an offloaded model) raise
    ``ValueError``.
    """
    if isinstance(model, ModelInfo):
        return model.fingerprint
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ValueError(
                f"model has weights that are not in memory ({name} is on the meta device): they cannot be "
                "distinguished from others, so nothing can be stored of it"
            )
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(checksum(parameter.detach()))
        for scale, values in scales_of(parameter).items():
            digest.update(f"{scale} {tuple(values.shape)} {values.dtype}\n".encode())
            digest.update(checksum(values.detach()))
    return digest.hexdigest()[:16]


def checksum(values: Tensor) -> bytes:
    """Sums of the words of 8 bytes, each mixed with its place, and the bytes left over; the same on every device."""
    flat = values.reshape(-1)
    if flat.storage_offset() * flat.element_size() % 8 or not flat.is_contiguous():
        flat = flat.clone(memory_format=torch.contiguous_format)
    octets = flat.view(torch.uint8)
    whole = len(octets) // 8 * 8
    words = octets[:whole].view(torch.int64)
    factors = _factors(words.device)
    # One copy to main memory a tensor, not one a chunk.
    sums = [_mixed(chunk, factors[: len(chunk)]).sum() for chunk in words.split(_CHUNK) if len(chunk)]
    left = octets[whole:].cpu().numpy().tobytes()
    return (torch.stack(sums).cpu().numpy().astype("<i8").tobytes() if sums else b"") + left


@cache
def _factors(device: torch.device) -> Int[Tensor, " word"]:
    """An odd one for each place of a chunk."""
    return (torch.arange(_CHUNK, dtype=torch.int64, device=device) * _FACTOR) | 1


def _mixed(words: Int[Tensor, " word"], factors: Int[Tensor, " word"]) -> Int[Tensor, " word"]:
    """Each word and its place made one number, of which every bit depends on every bit, and none is lost.

    Without this a sum would not see what neighbors undo: two signs turned, the highest bits of two words, add up to
    nothing. Multiplying carries bits up and shifting carries them down, as in the finalizer of MurmurHash3.
    """
    mixed = (words >> 32).bitwise_and_(_LOW).bitwise_xor_(words)
    for factor in (factors, _SECOND):
        mixed.mul_(factor)
        # The shift of signed integers repeats the sign.
        mixed.bitwise_xor_((mixed >> 32).bitwise_and_(_LOW))
    return mixed


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
    config = config_inside(model)
    own = ModelSettings(cfg=_plain(vars(model.cfg)))
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
    """A hash of the buffers by name, shape and values; those computed from the configuration to bfloat16's precision.

    Such tables may differ by a rounding from device to device.
    """
    found = {}
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not is_stretched(module, name):
                computed = name in module._non_persistent_buffers_set and buffer.is_floating_point()
                found[f"{path}.{name}"] = buffer.to(torch.bfloat16) if computed else buffer
    digest = hashlib.sha256()
    for name, buffer in sorted(found.items()):
        digest.update(f"{name} {tuple(buffer.shape)}\n".encode())
        digest.update(checksum(buffer.detach()))
    return digest.hexdigest()[:16]
