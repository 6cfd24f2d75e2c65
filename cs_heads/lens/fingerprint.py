"""What tells one set of weights from another."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from cs_heads.lens.model import ModelInfo

# Words of 8 bytes that are summed up at once; a new length would change every fingerprint.
_CHUNK = 2**20

# Odd, so that multiplying loses nothing modulo 2^64: Knuth's multiplicative hashing constant, and a step of the
# MurmurHash3 finalizer.
_FACTOR = 0x9E3779B97F4A7C15 - 2**64
_SECOND = 0xC4CEB9FE1A85EC53 - 2**64

# Of a word: the half that a shift to the right moves down.
_LOW = 2**32 - 1


def fingerprint(model: Any) -> str:
    """A hash of every bit of every parameter: its name, shape, dtype and values; 16 hexadecimal digits.

    The same for the same weights loaded again or on another device, in integer arithmetic done where the weights
    are: a changed weight changes it, and so does another dtype. A CPU core reads about a GB a second. Hooks and
    buffers are not part of it. Weights that are not in memory (``meta`` tensors of an offloaded model) raise
    ``ValueError``.
    """
    if isinstance(model, ModelInfo):
        return model.fingerprint
    digest = hashlib.sha256()
    factors: dict[torch.device, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ValueError(
                f"model has weights that are not in memory ({name} is on the meta device): they cannot be told from "
                "others, so nothing can be stored of it"
            )
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(checksum(parameter.detach(), factors))
    return digest.hexdigest()[:16]


def checksum(values: Tensor, factors: dict[torch.device, Tensor] | None = None) -> bytes:
    """Sums of the words of 8 bytes, each mixed with its place, and the bytes left over; the same on every device.

    ``factors`` keeps the places' factors for the next call.
    """
    flat = values.reshape(-1)
    if flat.storage_offset() * flat.element_size() % 8 or not flat.is_contiguous():
        flat = flat.clone(memory_format=torch.contiguous_format)
    octets = flat.view(torch.uint8)
    whole = len(octets) // 8 * 8
    words = octets[:whole].view(torch.int64)
    places = _places(min(_CHUNK, len(words)), words.device, {} if factors is None else factors)
    # One copy to main memory a tensor, not one a chunk.
    sums = [_mixed(chunk, places[: len(chunk)]).sum() for chunk in words.split(_CHUNK) if len(chunk)]
    left = octets[whole:].cpu().numpy().tobytes()
    return (torch.stack(sums).cpu().numpy().astype("<i8").tobytes() if sums else b"") + left


def _places(n: int, device: torch.device, factors: dict[torch.device, Tensor]) -> Int[Tensor, " word"]:
    """An odd factor for each place of a chunk, at least ``n`` of them."""
    if device not in factors or len(factors[device]) < n:
        factors[device] = (torch.arange(n, dtype=torch.int64, device=device) * _FACTOR) | 1
    return factors[device]


def _mixed(words: Int[Tensor, " word"], factors: Int[Tensor, " word"]) -> Int[Tensor, " word"]:
    """Each word and its place made one number, of which every bit depends on every bit, and none is lost.

    Without this a sum would not see what neighbours undo: two signs turned, the highest bits of two words, add up to
    nothing. Multiplying carries bits up and shifting carries them down, as in the finalizer of MurmurHash3.
    """
    mixed = (words >> 32).bitwise_and_(_LOW).bitwise_xor_(words)
    for factor in (factors, _SECOND):
        mixed.mul_(factor)
        # The shift of signed integers repeats the sign.
        mixed.bitwise_xor_((mixed >> 32).bitwise_and_(_LOW))
    return mixed
