"""Keys and values kept from one forward for the next: of shared prefixes, and of texts being generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache, DynamicLayer

from cs_heads.lens.transfer import Shared


@dataclass
class KeyValues:
    """Keys and values of some rows, by layer.

    Attributes:
        valid: Which positions hold tokens; in main memory, so that plans are made without waiting for a device.
        keys: By layer, ``[row, kv_head, pos, d_head]``; none of layers that did not run. A buffer may have room beyond
            the last position of ``valid``.
        values: As ``keys``.
    """

    valid: Bool[Tensor, "row pos"]
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """Memory held."""
        return sum(tensor.nbytes for part in (self.keys, self.values) for tensor in part.values())

    def compact(self) -> None:
        """Move each row's tokens to the right, so that no gap follows its first token."""
        valid = self.valid
        if bool((valid[:, 1:] < valid[:, :-1]).any()):
            order = _to_the_right(valid)
            at = Shared(order)
            for part in (self.keys, self.values):
                for layer, tensor in part.items():
                    part[layer] = _moved(tensor, at)
            self.valid = valid.gather(1, order)

    def select(self, rows: Int[Tensor, " n"], lengths: Int[Tensor, " n"] | None = None) -> KeyValues:
        """A copy of some rows, of which the first ``lengths`` tokens stay (all by default), moved to the right."""
        valid = self.valid[rows]
        if lengths is not None:
            valid = valid & (valid.cumsum(dim=1) <= lengths[:, None])
        order = _to_the_right(valid)
        chosen, at = Shared(rows), Shared(order)

        def of_rows(part: dict[int, Tensor]) -> dict[int, Tensor]:
            return {layer: _moved(tensor[chosen.on(tensor.device)], at) for layer, tensor in part.items()}

        return KeyValues(valid.gather(1, order), of_rows(self.keys), of_rows(self.values))

    @classmethod
    def joined(cls, parts: Sequence[KeyValues]) -> KeyValues:
        """The rows of all parts, one part after another."""
        widths = [part.valid.shape[1] for part in parts]
        before = [max(widths) - width for width in widths]

        def rows_of(sides: list[dict[int, Tensor]]) -> dict[int, Tensor]:
            each = list(zip(sides, widths, before, strict=True))
            return {
                layer: torch.cat([pad(side[layer][:, :, :width], (0, 0, n, 0)) for side, width, n in each])
                for layer in sides[0]
            }

        valid = torch.cat([pad(part.valid, (n, 0)) for part, n in zip(parts, before, strict=True)])
        return cls(valid, rows_of([part.keys for part in parts]), rows_of([part.values for part in parts]))


def _to_the_right(valid: Bool[Tensor, "row pos"]) -> Int[Tensor, "row longest"]:
    """Positions that hold tokens, in order, at the right of as many columns as the longest row needs."""
    longest = int(valid.sum(dim=1).max()) if len(valid) else 0
    # A stable sort of 0 (no token) and 1 puts the gaps first and leaves the tokens in order.
    return valid.int().argsort(dim=1, stable=True)[:, valid.shape[1] - longest :]


def _moved(tensor: Float[Tensor, "row kv_head pos d_head"], order: Shared) -> Tensor:
    at = order.on(tensor.device)[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return tensor.gather(2, at)


class Extension:
    """What one forward adds to stored rows.

    Args:
        attention_mask: 1 for the new tokens of each row, 0 for padding; in main memory.
        past: Stored rows; None where rows start anew.
        parents: The row of ``past`` that each new row continues, in main memory; None extends the rows of ``past`` in
            place.
        keep: Store the keys and values of old and new tokens together; otherwise they live for one layer at a time.
        room: Positions that are allocated beyond the last token.
    """

    def __init__(
        self,
        attention_mask: Int[Tensor, "row new"],
        past: KeyValues | None = None,
        parents: Int[Tensor, " row"] | None = None,
        keep: bool = False,
        room: int = 0,
    ) -> None:
        self.past, self.room = past, room
        self.parents = None if parents is None else Shared(parents)
        new = attention_mask.bool()
        if past is None:
            old = new[:, :0]
        else:
            old = past.valid if parents is None else past.valid[parents]
            if parents is not None:
                # Compacted rows stand at the right: the longest says how many columns are needed.
                old = old[:, old.shape[1] - int(old.sum(dim=1).max()) :]
        self.n_past, self.n_new = old.shape[1], new.shape[1]
        self.valid = torch.cat([old, new], dim=1)
        self._mask = Shared(self.valid)
        self.kept = KeyValues(self.valid) if keep else None
        self.n_layers_extended = 0

    def extend(
        self, layer: int, keys: Float[Tensor, "row kv_head new d_head"], values: Float[Tensor, "row kv_head new d_head"]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of old and new tokens of one layer, ``[row, kv_head, old + new, d_head]``."""
        self.n_layers_extended += 1
        if self.past is not None and self.parents is None:
            return self._grow(self.past.keys, layer, keys), self._grow(self.past.values, layer, values)
        old_keys, old_values = self._old(layer, keys), self._old(layer, values, of_values=True)
        keys, values = self._join(old_keys, keys), self._join(old_values, values)
        if self.kept is not None:
            self.kept.keys[layer], self.kept.values[layer] = keys, values
        n = self.n_past + self.n_new
        return keys[:, :, :n], values[:, :, :n]

    def mask(self, like: Tensor) -> Tensor:
        """Which old and new tokens of each row are valid, where ``like`` lies and in its dtype."""
        return self._mask.on(like.device).to(like.dtype)

    def finish(self) -> KeyValues:
        """The stored rows after the forward."""
        if self.past is not None and self.parents is None:
            self.past.valid = self.valid
            return self.past
        assert self.kept is not None
        return self.kept

    def _old(self, layer: int, like: Tensor, of_values: bool = False) -> Tensor | None:
        if self.past is None or not self.n_past:
            return None
        stored = (self.past.values if of_values else self.past.keys)[layer]
        assert self.parents is not None
        n_stored = self.past.valid.shape[1]
        return stored[:, :, n_stored - self.n_past : n_stored].index_select(0, self.parents.on(like.device))

    def _join(self, old: Tensor | None, new: Tensor) -> Tensor:
        parts = [new] if old is None else [old, new]
        if self.kept is not None and self.room:
            parts.append(new.new_empty(*new.shape[:2], self.room, new.shape[3]))
        return torch.cat(parts, dim=2) if len(parts) > 1 else new

    def _grow(self, stored: dict[int, Tensor], layer: int, new: Tensor) -> Tensor:
        end = self.n_past + self.n_new
        if stored[layer].shape[2] < end:
            more = new.new_empty(*new.shape[:2], end - stored[layer].shape[2] + self.room, new.shape[3])
            stored[layer] = torch.cat([stored[layer], more], dim=2)
        stored[layer][:, :, self.n_past : end] = new
        return stored[layer][:, :, :end]


def bridge_cache(extension: Extension, n_layers: int) -> DynamicCache:
    """The Hugging Face cache through which a bridge meets an extension."""
    cache = DynamicCache()
    cache.layers = [_BridgeLayer(extension, layer) for layer in range(n_layers)]
    return cache


class _BridgeLayer(DynamicLayer):
    def __init__(self, extension: Extension, layer: int) -> None:
        super().__init__()
        self.extension, self.layer = extension, layer
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.extension.extend(self.layer, key_states, value_states)

    def get_seq_length(self) -> int:
        # Of every layer, also of those a forward does not run: masks and positions ask the first.
        return self.extension.n_past


class HookedCache:
    """What HookedTransformer asks of a key/value cache, answered by an extension."""

    frozen = False

    def __init__(self, extension: Extension, n_kv_heads: int, d_head: int) -> None:
        self.extension = extension
        self._shape = (len(extension.valid), extension.n_past, n_kv_heads, d_head)

    def __getitem__(self, layer: int) -> _HookedEntry:
        return _HookedEntry(self.extension, layer, self._shape)

    def append_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """The mask of old and new tokens."""
        return self.extension.mask(attention_mask)


class _HookedEntry:
    def __init__(self, extension: Extension, layer: int, shape: tuple[int, ...]) -> None:
        self.extension, self.layer = extension, layer
        # HookedTransformer reads the shape alone.
        self.past_keys = torch.empty(1).expand(shape)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        extended = self.extension.extend(self.layer, keys.transpose(1, 2), values.transpose(1, 2))
        return extended[0].transpose(1, 2), extended[1].transpose(1, 2)
