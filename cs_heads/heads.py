"""Names and addresses of attention heads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from cs_heads.integers import check_integer

_HEAD = re.compile(r"L(\d+)H(\d+)")


@dataclass(frozen=True, order=True)
class Head:
    """One query head, before W_O; heads sort by layer, then by head.

    >>> Head(16, 21)
    Head(16, 21)
    >>> str(Head(16, 21)), Head.parse("L16H21") == Head(16, 21)
    ('L16H21', True)
    """

    layer: int
    head: int

    def __post_init__(self) -> None:
        for name, value in (("layer", self.layer), ("head", self.head)):
            object.__setattr__(self, name, check_integer(name, value, 0))

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    def __repr__(self) -> str:
        return f"Head({self.layer}, {self.head})"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read a head's name, ``"L16H21"``; anything else raises ``ValueError``."""
        match = _HEAD.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"text {text!r} is no head; heads are written like 'L16H21'")
        return cls(int(match[1]), int(match[2]))


HeadLike = Head | str | tuple[int, int]
"""A head as a user may write it: ``Head(2, 5)``, ``"L2H5"`` or ``(2, 5)``."""


@dataclass(frozen=True)
class HeadGrid:
    """The layers × heads of one model; flat index = ``layer * n_heads + head``.

    >>> grid = HeadGrid(n_layers=3, n_heads=4)
    >>> grid.size, grid.head(6), grid.index(Head(1, 2))
    (12, Head(1, 2), 6)
    >>> grid.mask(["L0H1", (2, 3)]).sum()
    np.int64(2)
    """

    n_layers: int
    n_heads: int

    def __post_init__(self) -> None:
        for name, value in (("n_layers", self.n_layers), ("n_heads", self.n_heads)):
            object.__setattr__(self, name, check_integer(name, value, 1))

    @classmethod
    def from_model(cls, model: Any) -> HeadGrid:
        """The grid of a TransformerLens model: ``cfg.n_layers`` × ``cfg.n_heads`` (query heads under GQA)."""
        cfg: Any = getattr(model, "cfg", None)
        if not hasattr(cfg, "n_layers") or not hasattr(cfg, "n_heads"):
            raise ValueError(
                f"model must be a TransformerLens HookedTransformer or TransformerBridge, got {type(model).__name__}"
            )
        return cls(cfg.n_layers, cfg.n_heads)

    @property
    def size(self) -> int:
        """Number of heads."""
        return self.n_layers * self.n_heads

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_layers, n_heads)``."""
        return self.n_layers, self.n_heads

    def __iter__(self) -> Iterator[Head]:
        return (self.head(index) for index in range(self.size))

    def __contains__(self, head: Head) -> bool:
        return head.layer < self.n_layers and head.head < self.n_heads

    def head(self, index: int) -> Head:
        """The head at a flat index; an index outside the grid raises ``ValueError``."""
        if not 0 <= index < self.size:
            raise ValueError(f"index must be in 0..{self.size - 1}, got {index}")
        layer, head = divmod(int(index), self.n_heads)
        return Head(layer, head)

    def index(self, head: HeadLike) -> int:
        """The flat index of a head; a head outside the grid raises ``ValueError``."""
        head = self.resolve(head)
        return head.layer * self.n_heads + head.head

    def resolve(self, head: HeadLike) -> Head:
        """A head of this grid from any of its spellings; one outside the grid raises ``ValueError``."""
        if isinstance(head, str):
            head = Head.parse(head)
        elif not isinstance(head, Head):
            head = Head(*head)
        if head not in self:
            raise ValueError(
                f"head {head} is not in the grid: layers 0..{self.n_layers - 1}, heads 0..{self.n_heads - 1}"
            )
        return head

    def mask(self, heads: Iterable[HeadLike]) -> Bool[np.ndarray, "layer head"]:
        """A mask that ablates just these heads."""
        mask = np.zeros(self.shape, dtype=bool)
        for head in heads:
            resolved = self.resolve(head)
            mask[resolved.layer, resolved.head] = True
        return mask
