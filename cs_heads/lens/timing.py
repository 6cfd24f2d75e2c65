"""Where the time of forwards goes: part by part, with the tokens they ran and the multiplications these took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from cs_heads.lens.model import HookedModel, device_of
from cs_heads.lens.turns import alone

Part = Literal["attention", "MLP", "unembedding", "rest of the model", "hooks and gates", "outside forwards"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Parts of a measurement: layers of a kind; the unembedding with the log-probabilities read of it; norms, the embedding
and all else that the model does; putting hooks on and what they do; and what is done between forwards."""

# Side of the matrices whose product is timed, and how often: enough to keep a device busy.
_SIDE = {"cpu": 2048}
_OTHER_SIDE = 8192
_PRODUCTS = 4

# They are smaller where so many seconds would not do: a processor without bfloat16 units is a thousand times slower.
_LEAST_SIDE, _LONG = 256, 0.02

LARGE = 50_000_000
"""Weights from which on products are what a forward takes."""

_clock: Clock | None = None


@dataclass
class Clock:
    """Seconds by part, each without the parts inside it, and what forwards ran meanwhile.

    Attributes:
        device: Where work is waited for at the bounds of a part.
        seconds: By part; their sum is the time between the first part and the last.
        forwards: Forwards.
        tokens: Their tokens, without padding.
        padded: Their tokens, with padding.
        flops: Twice the multiplications by weights that tokens without padding need, in the layers that they ran
            through, and at the positions that were read.
    """

    device: torch.device
    seconds: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    forwards: int = 0
    tokens: int = 0
    padded: int = 0
    flops: int = 0
    _open: list[Part] = field(default_factory=list)
    _since: float = 0.0
    _now_running: int = 0

    def enter(self, part: Part) -> None:
        """Begin a part, inside the one that is running."""
        self._credit()
        self._open.append(part)

    def leave(self) -> None:
        """End the part that is running."""
        self.leave_to(len(self._open) - 1)

    def leave_to(self, depth: int) -> None:
        """End what is running but for ``depth`` parts: more than one, where memory ran out inside a forward."""
        self._credit()
        del self._open[depth:]

    @property
    def depth(self) -> int:
        """How many parts are running, each inside the one before."""
        return len(self._open)

    def count(self, attention_mask: Int[Tensor, "batch pos"]) -> None:
        """Count the tokens of a forward that begins."""
        self._now_running = int(attention_mask.sum())
        self.forwards += 1
        self.tokens += self._now_running
        self.padded += attention_mask.numel()

    def multiply(self, weights: int) -> None:
        """Count what the tokens of this forward take of so many weights."""
        self.flops += 2 * weights * self._now_running

    def _credit(self) -> None:
        now = _now(self.device)
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def _now(device: torch.device) -> float:
    """The time at which a device has done all that it was given, in seconds."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return perf_counter()


@contextmanager
def timed(part: Part, attention_mask: Int[Tensor, "batch pos"] | None = None) -> Iterator[None]:
    """Credit what runs inside the ``with`` block to a part, where a clock runs; else nothing is done.

    Args:
        part: The part.
        attention_mask: Of a forward that begins: its tokens are counted.
    """
    clock = _clock
    if clock is None:
        yield
        return
    depth = clock.depth
    clock.enter(part)
    try:
        if attention_mask is not None:
            clock.count(attention_mask)
        yield
    finally:
        clock.leave_to(depth)


@contextmanager
def clocked(model: HookedModel) -> Iterator[Clock]:
    """A clock that runs inside the ``with`` block, for all that is done in this process.

    Forward hooks stand on the model's layers meanwhile; they, and only they, are removed at the end, also after an
    exception. Waiting for a device at the bounds of parts makes forwards on a GPU slower than they are.
    """
    global _clock  # noqa: PLW0603 - what is timed lies deep inside calls that know of no clock
    clock = Clock(device_of(model))

    def enter(part: Part, weights: int, *_: Any) -> None:
        clock.enter(part)
        clock.multiply(weights)

    def leave(*_: Any) -> None:
        clock.leave()

    def read(d_model: int, module: Any, arguments: Any, logits: Tensor) -> None:
        clock.flops += 2 * d_model * logits.numel()
        clock.leave()

    with alone(model), ExitStack() as stack:
        for block in model.blocks:
            parts: dict[Part, Any] = {"attention": getattr(block, "attn", None), "MLP": getattr(block, "mlp", None)}
            for part, module in parts.items():
                if module is not None:
                    # A bridge has matrices that were joined a second time, cut into pieces.
                    own = getattr(module, "original_component", module)
                    weights = sum(weight.numel() for weight in own.parameters() if weight.ndim > 1)
                    stack.callback(module.register_forward_pre_hook(partial(enter, part, weights)).remove)
                    stack.callback(module.register_forward_hook(leave).remove)
        stack.callback(model.unembed.register_forward_pre_hook(partial(enter, "unembedding", 0)).remove)
        stack.callback(model.unembed.register_forward_hook(partial(read, model.cfg.d_model)).remove)
        _clock = clock
        try:
            with timed("outside forwards"):
                yield clock
        finally:
            _clock = None


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a matrix product, as large as is done in a fiftieth of a second or so: the fastest of a few."""
    side, largest = _LEAST_SIDE, _SIDE.get(device.type, _OTHER_SIDE)
    while True:
        one, other = torch.randn(2, side, side, device=device, dtype=torch.float32).to(dtype)
        times = [_now(device)]
        for _ in range(_PRODUCTS):
            one @ other
            times.append(_now(device))
        seconds = min(after - before for before, after in pairwise(times))
        if side >= largest or seconds > _LONG:
            return 2 * side**3 / seconds
        side *= 2
