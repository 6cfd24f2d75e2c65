"""A model in another dtype for a while."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from cs_heads.lens.locks import alone
from cs_heads.lens.model import HALF


def can_be_cast(model: Any) -> bool:
    """Whether all weights are in memory, and floating-point numbers."""
    return all(weight.is_floating_point() and weight.device.type != "meta" for weight in model.parameters())


class InDtype:
    """A model with its weights in another dtype, inside a ``with`` block; afterwards they are as before, bit for bit.

    To float32 everything of half precision is cast, so that differences are those of the computation and not of
    rounding; to half precision what loading in that dtype would cast. A model whose weights are not all in memory, or
    not all floating-point numbers, stays as it is: see ``dtype_of``.

    Args:
        model: The model.
        dtype: The other dtype. The weights are cast when first needed, and kept as long as this object is; they are
            cast anew where they have changed, which is not seen of changes to ``weight.data``.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model, self.dtype = model, dtype
        self._others = [other for other in (torch.float32, *HALF) if other != dtype]
        self._cast: list[torch.Tensor] = []
        self._versions: list[tuple[int, int]] = []
        self._stack, self._depth = ExitStack(), 0

    def __enter__(self) -> None:
        if not self._depth:
            # Whatever happens before all is cast, what was cast is put back.
            with ExitStack() as stack:
                stack.enter_context(alone(self.model))
                values = self._values()
                versions = [(value.data_ptr(), value._version) for value in values]
                if versions != self._versions:
                    # Memory first: the weights of before are of no use any more.
                    self._cast, self._versions = [], []
                    self._cast, self._versions = [value.data.to(self.dtype) for value in values], versions
                for value, cast in zip(values, self._cast, strict=True):
                    stack.callback(setattr, value, "data", value.data)
                    value.data = cast
                # HookedTransformer casts to what its configuration says, whatever its weights are.
                cfg: Any = getattr(self.model, "cfg", None)
                if values and getattr(cfg, "dtype", None) in self._others:
                    stack.callback(setattr, cfg, "dtype", cfg.dtype)
                    cfg.dtype = self.dtype
                self._stack = stack.pop_all()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._stack.close()

    def _values(self) -> list[torch.Tensor]:
        if not can_be_cast(self.model):
            return []
        every = self.dtype == torch.float32 or "HookedTransformer" in {cls.__name__ for cls in type(self.model).__mro__}
        # What a Hugging Face model computes positions with stays in float32 when it is loaded in half precision;
        # a bridge has an unembedding bias that is no parameter.
        buffers = (value for name, value in self.model.named_buffers() if every or name.endswith((".weight", ".bias")))
        return [value for value in (*self.model.parameters(), *buffers) if value.dtype in self._others]
