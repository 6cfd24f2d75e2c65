"""Names and addresses of attention heads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from cs_heads.arguments import MAX_HEADS, check_integer, check_list, check_within, in_line

_HEAD = re.compile(r"L(\d{1,20})H(\d{1,20})")


@dataclass(frozen=True, order=True)
class Head:
    """One query head, before W_O; heads sort by layer, then by head.

    Attributes:
        layer: Its layer, from 0.
        head: Its place in the layer, from 0.

    Raises:
        ValueError: A number that is no integer in 0..1,000,000.

    >>> Head(16, 21)
    Head(16, 21)
    >>> str(Head(16, 21)), Head.parse("L16H21") == Head(16, 21)
    ('L16H21', True)
    """

    layer: int
    head: int

    def __post_init__(self) -> None:
        for name, value in (("layer", self.layer), ("head", self.head)):
            object.__setattr__(self, name, check_within(name, value, 0, MAX_HEADS))

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    def __repr__(self) -> str:
        return f"Head({self.layer}, {self.head})"

    @classmethod
    def parse(cls, text: Any) -> Head:
        """Read a head's name, ``"L16H21"``; anything else raises ``ValueError``."""
        match = _HEAD.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"text {text!r:.80} is no head; heads are written like 'L16H21'")
        return cls(int(match[1]), int(match[2]))


HeadLike = Head | str | tuple[int, int]
"""A head as a user may write it: ``Head(2, 5)``, ``"L2H5"`` or ``(2, 5)``."""


def as_head(head: Any) -> Head:
    """A head from any of its spellings; what is none raises ``ValueError``."""
    if isinstance(head, Head):
        return head
    if isinstance(head, str):
        return Head.parse(head)
    if not isinstance(head, Sequence | np.ndarray) or len(head) != 2:
        raise ValueError(f"a head must be Head(2, 5), 'L2H5' or (2, 5), got {in_line(head)}")
    return Head(*head)


def as_heads(name: str, heads: Any) -> tuple[Head, ...]:
    """A list of heads in any of their spellings; one head, or what is no list of heads, raises ``ValueError``.

    >>> as_heads("off", ["L0H1", (2, 3)])
    (Head(0, 1), Head(2, 3))
    >>> as_heads("off", [None])
    Traceback (most recent call last):
    ValueError: off must be a list of heads: a head must be Head(2, 5), 'L2H5' or (2, 5), got None
    """
    if isinstance(heads, Head):
        raise ValueError(f"{name} must be a list of heads, got one head, {heads}")
    listed = check_list(name, heads, "heads, as ranking.top(5) gives")
    try:
        return tuple(map(as_head, listed))
    except ValueError as error:
        raise ValueError(f"{name} must be a list of heads: {error}") from error


@dataclass(frozen=True)
class HeadGrid:
    """The layers × heads of one model; flat index = ``layer * n_heads + head``.

    Attributes:
        n_layers: Number of layers.
        n_heads: Query heads of each layer.

    Raises:
        ValueError: A number that is no integer in 1..1,000,000.

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
            object.__setattr__(self, name, check_within(name, value, 1, MAX_HEADS))

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
        layer, head = divmod(check_integer("index", index, 0, self.size - 1), self.n_heads)
        return Head(layer, head)

    def index(self, head: HeadLike) -> int:
        """The flat index of a head; a head outside the grid raises ``ValueError``."""
        head = self.resolve(head)
        return head.layer * self.n_heads + head.head

    def resolve(self, head: HeadLike) -> Head:
        """A head of this grid from any of its spellings; one outside the grid raises ``ValueError``."""
        head = as_head(head)
        if head not in self:
            raise ValueError(
                f"head {head} is not in the grid: layers 0..{self.n_layers - 1}, heads 0..{self.n_heads - 1}"
            )
        return head

    def heads(self, mask: Bool[np.ndarray, "layer head"]) -> list[Head]:
        """The heads that a mask ablates, by index."""
        return [self.head(int(index)) for index in np.flatnonzero(mask)]

    def to_dict(self) -> dict[str, int]:
        """JSON-ready; ``HeadGrid.from_dict`` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, int]) -> HeadGrid:
        """The grid that ``to_dict`` wrote."""
        return cls(**record)

    def mask(self, heads: Iterable[HeadLike]) -> Bool[np.ndarray, "layer head"]:
        """A mask that ablates just these heads."""
        mask = np.zeros(self.shape, dtype=bool)
        for head in as_heads("heads", heads):
            resolved = self.resolve(head)
            mask[resolved.layer, resolved.head] = True
        return mask


def check_grid(grid: Any) -> HeadGrid:
    """The grid itself; raises ``ValueError`` for anything else."""
    if not isinstance(grid, HeadGrid):
        raise ValueError(f"grid must be a HeadGrid, got {in_line(grid)}")
    return grid
