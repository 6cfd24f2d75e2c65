"""Names and addresses of heads and of other units that can be off: layers × units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool

from cs_heads.arguments import MAX_HEADS, check_integer, check_list, check_within, in_line

Units = Literal["heads", "kv", "attn", "mlp", "neurons", "experts"]
"""A kind of unit: what can be off in a layer."""

_NAME = re.compile(r"L(\d{1,20})([A-Z]+)(\d{0,20})")


@dataclass(frozen=True, order=True, init=False)
class Unit:
    """Something in a layer that can be off: a head, a key/value group, a whole layer's attention or MLP, a neuron.

    Units sort by layer, then by index. A kind of unit takes both, or its name alone: ``Head("L2H6")``. Like a pair of
    both it gives them back: ``layer, index = head``, ``head[0]``.

    Attributes:
        layer: Its layer, from 0.
        index: Its place in the layer, from 0.

    Raises:
        ValueError: A number that is no integer in 0..1,000,000, or a name that is not of this kind.

    >>> Unit.parse("L3KV1"), str(Unit.parse("L3MLP")), Neuron(3, 512) == Unit.parse("L3N512")
    (KeyValueGroup(3, 1), 'L3MLP', True)
    """

    layer: int
    index: int

    letters: ClassVar[str] = ""
    word: ClassVar[str] = "unit"

    def __init__(self, layer: int | str, index: int | None = None) -> None:
        if isinstance(layer, str) and index is None:
            named = self.parse(layer)
            layer, index = named.layer, named.index
        object.__setattr__(self, "layer", check_within("layer", layer, 0, MAX_HEADS))
        object.__setattr__(self, "index", check_within(self.word, index, 0, MAX_HEADS))

    def __str__(self) -> str:
        return f"L{self.layer}{self.letters}{self.index}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.layer}, {self.index})"

    def __iter__(self) -> Iterator[int]:
        return iter((self.layer, self.index))

    def __getitem__(self, place: int) -> int:
        return (self.layer, self.index)[place]

    @classmethod
    def parse(cls, text: Any) -> Unit:
        """Read the name of a unit.

        Args:
            text: The name, as ``"L16H21"``.

        Raises:
            ValueError: No name of a unit, or one of another kind than the class.
        """
        match = _NAME.fullmatch(text.strip()) if isinstance(text, str) else None
        kind = None if match is None else next((each for each in _KINDS.values() if each.letters == match[2]), None)
        if match is None or kind is None or not issubclass(kind, cls) or bool(match[3]) == issubclass(kind, _Layer):
            word, example = (Head.word, "L16H21") if cls in (Unit, Head) else (cls.word, str(cls(3, 0)))
            others = f", other units like {', '.join(str(each(3, 0)) for each in _KINDS.values() if each is not Head)}"
            like = f"{example!r}{others if cls is Unit else ''}"
            raise ValueError(f"text {text!r:.80} is no {word}; {word}s are written like {like}")
        return kind(int(match[1]), int(match[3] or 0))


class Head(Unit):
    """One query head, before W_O.

    Attributes:
        layer: Its layer, from 0.
        index: Its place in the layer, from 0.

    >>> Head(16, 21)
    Head(16, 21)
    >>> str(Head(16, 21)), Head("L16H21") == Head(16, 21)
    ('L16H21', True)
    """

    letters, word = "H", "head"

    @property
    def head(self) -> int:
        """Its place in the layer, from 0."""
        return self.index


class KeyValueGroup(Unit):
    """All query heads that share a key/value head; without grouped-query attention one head."""

    letters, word = "KV", "key/value group"


class Neuron(Unit):
    """One neuron of an MLP, after its activation function (and gate): what the output weights are multiplied by."""

    letters, word = "N", "neuron"


class Expert(Unit):
    """One expert of a mixture of experts, and with it what the router gives it."""

    letters, word = "E", "expert"


class _Layer(Unit):
    def __init__(self, layer: int | str, index: int = 0) -> None:
        super().__init__(layer, None if isinstance(layer, str) and not index else index)
        check_within("index", self.index, 0, 0)

    def __str__(self) -> str:
        return f"L{self.layer}{self.letters}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.layer})"


class AttentionLayer(_Layer):
    """All that the attention of a layer adds to the residual stream, its output bias too."""

    letters, word = "ATTN", "attention layer"


class MLPLayer(_Layer):
    """All that the MLP of a layer adds to the residual stream, its output bias too."""

    letters, word = "MLP", "MLP layer"


_KINDS: dict[Units, type[Unit]] = {
    "heads": Head,
    "kv": KeyValueGroup,
    "attn": AttentionLayer,
    "mlp": MLPLayer,
    "neurons": Neuron,
    "experts": Expert,
}
UNITS = tuple(_KINDS)
"""The kinds of unit."""


def kind_of(unit: Unit) -> Units:
    """The kind of a unit.

    >>> kind_of(Head(2, 5)), kind_of(Unit.parse("L3MLP"))
    ('heads', 'mlp')
    """
    return next(kind for kind, each in _KINDS.items() if isinstance(unit, each))


Positions = Literal["all", "last", "prompt"]
POSITIONS: tuple[Positions, ...] = ("all", "last", "prompt")
"""Where units are off: at every token, at the last of the prompt alone, or at those of the prompt."""


HeadLike = Unit | str | tuple[int, int]
"""A head, or another unit, as a user may write it: ``Head(2, 5)``, ``"L2H5"``, ``(2, 5)``; ``"L3N512"``."""


def as_head(head: Any) -> Unit:
    """A unit from any of its spellings, of which a pair of numbers is a head; what is none raises ``ValueError``."""
    if isinstance(head, Unit):
        return head
    if isinstance(head, str):
        return Unit.parse(head)
    if not isinstance(head, Sequence | np.ndarray) or len(head) != 2:
        raise ValueError(f"a head must be Head(2, 5), 'L2H5' or (2, 5), got {in_line(head)}")
    return Head(*head)


def as_heads(name: str, heads: Any) -> tuple[Unit, ...]:
    """A list of heads in any of their spellings; one head, or what is no list of heads, raises ``ValueError``.

    >>> as_heads("off", ["L0H1", (2, 3)])
    (Head(0, 1), Head(2, 3))
    >>> as_heads("off", [None])
    Traceback (most recent call last):
    ValueError: off must be a list of heads: a head must be Head(2, 5), 'L2H5' or (2, 5), got None
    """
    if isinstance(heads, Unit):
        raise ValueError(f"{name} must be a list of heads, got one head, {heads}")
    listed = check_list(name, heads, "heads, as ranking.top(5) gives")
    try:
        return tuple(map(as_head, listed))
    except ValueError as error:
        raise ValueError(f"{name} must be a list of heads: {error}") from error


@dataclass(frozen=True, repr=False)
class Grid:
    """The layers × units of one kind in a model; flat index = ``layer * n_units + index``.

    Attributes:
        n_layers: Number of layers.
        n_units: Units of each layer.
        kind: The kind of unit.

    Raises:
        ValueError: A number that is no integer in 1..1,000,000, or an unknown kind.

    >>> grid = Grid(3, 512, "neurons")
    >>> grid.size, grid.unit(513), grid.index("L1N1")
    (1536, Neuron(1, 1), 513)
    >>> Grid(3, 4).mask(["L0H1", (2, 3)]).sum()
    np.int64(2)
    """

    n_layers: int
    n_units: int
    kind: Units = "heads"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {in_line(self.kind)}")
        for name, said in (("n_layers", "n_layers"), ("n_units", f"n_{self.kind}")):
            most = 1 if name == "n_units" and issubclass(_KINDS[self.kind], _Layer) else MAX_HEADS
            object.__setattr__(self, name, check_within(said, getattr(self, name), 1, most))

    def __repr__(self) -> str:
        return f"Grid({self.n_layers}, {self.n_units}, {self.kind!r})"

    @classmethod
    def from_model(cls, model: Any, kind: Units = "heads") -> Grid:
        """The grid of a TransformerLens model, by its ``cfg``.

        Args:
            model: The model.
            kind: The kind of unit; ``"kv"`` counts query heads where the model does not group them.

        Returns:
            Its layers, and so many units of the kind in each.

        Raises:
            ValueError: What is no such model, or one that does not say how many neurons or experts its MLPs have.
        """
        cfg: Any = getattr(model, "cfg", None)
        if not hasattr(cfg, "n_layers") or not hasattr(cfg, "n_heads"):
            wanted = "a TransformerLens HookedTransformer or TransformerBridge"
            raise ValueError(f"model must be {wanted}, got {type(model).__name__}")
        said = {
            "heads": cfg.n_heads,
            "kv": getattr(cfg, "n_key_value_heads", None) or cfg.n_heads,
            "neurons": getattr(cfg, "d_mlp", None),
            "experts": getattr(cfg, "num_experts", None),
        }
        if not said.get(kind, 1):
            raise ValueError(f"units must not be {kind!r} for model {cfg.model_name}, which says no number of them")
        return Grid(cfg.n_layers, said.get(kind, 1), kind)

    @property
    def size(self) -> int:
        """Number of units."""
        return self.n_layers * self.n_units

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_layers, n_units)``."""
        return self.n_layers, self.n_units

    @property
    def word(self) -> str:
        """What one unit is called."""
        return _KINDS[self.kind].word

    def __str__(self) -> str:
        return f"{self.n_layers} × {self.n_units} {self.word}s"

    def __iter__(self) -> Iterator[Unit]:
        return (self.unit(index) for index in range(self.size))

    def __contains__(self, unit: Unit) -> bool:
        return isinstance(unit, _KINDS[self.kind]) and unit.layer < self.n_layers and unit.index < self.n_units

    def unit(self, index: int) -> Unit:
        """The unit at a flat index.

        Args:
            index: The index, from 0.

        Raises:
            ValueError: ``index`` lies outside the grid.
        """
        layer, place = divmod(check_integer("index", index, 0, self.size - 1), self.n_units)
        return _KINDS[self.kind](layer, place)

    def index(self, unit: HeadLike) -> int:
        """The flat index of a unit.

        Args:
            unit: In any of its spellings.

        Raises:
            ValueError: The unit is not in the grid.
        """
        unit = self.resolve(unit)
        return unit.layer * self.n_units + unit.index

    def resolve(self, unit: HeadLike) -> Unit:
        """A unit of this grid from any of its spellings.

        Args:
            unit: As ``Head(2, 6)``, ``"L2H6"`` or ``(2, 6)``.

        Raises:
            ValueError: The unit is not in the grid.
        """
        unit = as_head(unit)
        if unit not in self:
            here = f": layers 0..{self.n_layers - 1}, {self.word}s 0..{self.n_units - 1}"
            if not isinstance(unit, _KINDS[self.kind]):
                here = f", which is of {self.word}s, as {self.unit(0)}; for {unit.word}s give units={kind_of(unit)!r}"
            raise ValueError(f"{unit.word} {unit} is not in the grid{here}")
        return unit

    def units(self, mask: Bool[np.ndarray, "layer head"]) -> list[Unit]:
        """The units that a mask ablates, by index.

        Args:
            mask: The mask, True where a unit is off.
        """
        return [self.unit(int(index)) for index in np.flatnonzero(mask)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; ``Grid.from_dict`` reads it."""
        return asdict(self)

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Grid:
        """The grid that ``to_dict`` wrote.

        Args:
            record: The record.

        Raises:
            ValueError: It has other fields, or its numbers or its kind of unit are not allowed.
        """
        if {*record} != {"n_layers", "n_units", "kind"}:
            raise ValueError(f"grid must have n_layers, n_units and kind, got {in_line(record)}")
        return Grid(**record)

    def mask(self, units: Iterable[HeadLike]) -> Bool[np.ndarray, "layer head"]:
        """A mask that ablates just these units.

        Args:
            units: The units, in any of their spellings.

        Raises:
            ValueError: A unit is not in the grid.
        """
        mask = np.zeros(self.shape, dtype=bool)
        for unit in as_heads("heads", units):
            resolved = self.resolve(unit)
            mask[resolved.layer, resolved.index] = True
        return mask


def check_grid(grid: Any) -> Grid:
    """The grid itself; raises ``ValueError`` for anything else."""
    if not isinstance(grid, Grid):
        raise ValueError(f"grid must be a Grid, got {in_line(grid)}")
    return grid
