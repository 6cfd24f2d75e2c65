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
        layers: Keys and values by layer, each ``[row, kv_head, pos, d_head]``; none of layers that did not run. A
            buffer may have room beyond the last position of ``valid``.
    """

    valid: Bool[Tensor, "row pos"]
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """Memory held."""
        return sum(tensor.nbytes for pair in self.layers.values() for tensor in pair)

    def compact(self) -> None:
        """Move each row's tokens to the right, so that no gap follows its first token and no column is empty."""
        longest = int(self.valid.sum(dim=1).max()) if len(self.valid) else 0
        # A stable sort of 0 (no token) and 1 puts the gaps first and leaves the tokens in order.
        order = self.valid.int().argsort(dim=1, stable=True)[:, self.valid.shape[1] - longest :]
        if not torch.equal(order, torch.arange(self.valid.shape[1]).expand_as(self.valid)):
            at = Shared(order)
            for layer, (keys, values) in self.layers.items():
                self.layers[layer] = _moved(keys, at), _moved(values, at)
            self.valid = self.valid.gather(1, order)

    def select(self, rows: Int[Tensor, " n"], lengths: Int[Tensor, " n"] | None = None) -> KeyValues:
        """A copy of some rows, of which the first ``lengths`` tokens stay (all by default), moved to the right."""
        valid = self.valid[rows]
        if lengths is not None:
            valid = valid & (valid.cumsum(dim=1) <= lengths[:, None])
        picked, chosen = KeyValues(valid), Shared(rows)
        for layer, (keys, values) in self.layers.items():
            at = chosen.on(keys.device)
            picked.layers[layer] = keys[at], values[at]
        picked.compact()
        return picked

    @classmethod
    def joined(cls, parts: Sequence[KeyValues]) -> KeyValues:
        """The rows of all parts, one part after another."""
        widths = [part.valid.shape[1] for part in parts]
        before = [max(widths) - width for width in widths]

        def rows_of(layer: int, side: int) -> Tensor:
            each = zip((part.layers[layer][side] for part in parts), widths, before, strict=True)
            return torch.cat([pad(tensor[:, :, :width], (0, 0, n, 0)) for tensor, width, n in each])

        valid = torch.cat([pad(part.valid, (n, 0)) for part, n in zip(parts, before, strict=True)])
        return cls(valid, {layer: (rows_of(layer, 0), rows_of(layer, 1)) for layer in parts[0].layers})


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
        self.room, in_place = room, past is not None and parents is None
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
        self.past = past if self.n_past or in_place else None
        self.stored = past if in_place else KeyValues(self.valid) if keep else None
        self.n_layers_extended = 0

    def extend(
        self, layer: int, keys: Float[Tensor, "row kv_head new d_head"], values: Float[Tensor, "row kv_head new d_head"]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of old and new tokens of one layer, ``[row, kv_head, old + new, d_head]``."""
        self.n_layers_extended += 1
        if self.past is None:
            keys, values = self._join(None, keys), self._join(None, values)
        else:
            old, extend = self.past.layers[layer], self._join if self.parents else self._grow
            keys, values = extend(old[0], keys), extend(old[1], values)
        if self.stored is not None:
            self.stored.layers[layer] = keys, values
        n = self.n_past + self.n_new
        return keys[:, :, :n], values[:, :, :n]

    def mask(self, like: Tensor) -> Tensor:
        """Which old and new tokens of each row are valid, where ``like`` lies and in its dtype."""
        return self._mask.on(like.device).to(like.dtype)

    def finish(self) -> KeyValues:
        """The stored rows after the forward; without gaps, unless they grew in place."""
        assert self.stored is not None
        self.stored.valid = self.valid
        if self.stored is not self.past:
            self.stored.compact()
        return self.stored

    def _join(self, old: Tensor | None, new: Tensor) -> Tensor:
        parts = [new]
        if old is not None and self.past is not None and self.parents is not None:
            n_stored = self.past.valid.shape[1]
            kept = old[:, :, n_stored - self.n_past : n_stored]
            parts.insert(0, kept.index_select(0, self.parents.on(new.device)))
        if self.stored is not None and self.room:
            parts.append(new.new_empty(*new.shape[:2], self.room, new.shape[3]))
        return torch.cat(parts, dim=2) if len(parts) > 1 else new

    def _grow(self, old: Tensor, new: Tensor) -> Tensor:
        end = self.n_past + self.n_new
        if old.shape[2] < end:
            more = new.new_empty(*new.shape[:2], end - old.shape[2] + self.room, new.shape[3])
            old = torch.cat([old, more], dim=2)
        old[:, :, self.n_past : end] = new
        return old


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
