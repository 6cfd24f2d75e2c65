"""The token sequences of some examples as a tree of pieces: what several begin with is run once for a mask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from jaxtyping import Bool, Int, Shaped

from cs_heads.lens import EncodedExample
from cs_heads.lens.tokens import common_prefix
from cs_heads.text import TokenIds
from cs_heads.units import Positions

Source = tuple[int, int]
"""A token sequence: its example, and its continuation."""

Place = tuple[Source, int, int]
"""Where the tokens of a row stand: sequence, first token, how many."""

# What continuing from a stored prefix costs a row, in tokens run: a shared prefix must save more.
_CARRY = 4


@dataclass(frozen=True)
class Segment:
    """Tokens run in one go: ``start..stop`` of sequence ``sequence``, after segment ``parent``."""

    sequence: int
    start: int
    stop: int
    parent: int | None


class PrefixTree:
    """Token sequences as ``segments``, parents before children; a shared prefix is one segment, nested to any depth.

    A shared prefix is a segment of its own where that saves more tokens than carrying it costs; a sequence that
    another begins with, or equals, has no segment of its own.

    Args:
        sequences: Token ids.
        groups: Numbers of the sequences that may share prefixes, group by group; None is all of them.
        cuts: A place in each sequence where a segment begins; None is none.

    >>> few_shot = (7,) * 20
    >>> tree = PrefixTree([(*few_shot, 1), (*few_shot, 2), (*few_shot, 2)])
    >>> [(s.start, s.stop, s.parent) for s in tree.segments], tree.last
    ([(0, 20, None), (20, 21, 0), (20, 21, 0)], [1, 2, 2])
    """

    def __init__(
        self,
        sequences: Sequence[TokenIds],
        groups: Iterable[Sequence[int]] | None = None,
        cuts: Sequence[int] | None = None,
    ) -> None:
        self.sequences, self.cuts = sequences, [0] * len(sequences) if cuts is None else cuts
        self.segments: list[Segment] = []
        # By sequence, the segment that holds its last token.
        self.last = [0] * len(sequences)
        for group in [range(len(sequences))] if groups is None else groups:
            self._add(sorted(group, key=sequences.__getitem__), 0, None)

    def path(self, sequence: int) -> list[int]:
        """The segments that make up a sequence, from its first token on."""
        path = []
        segment: int | None = self.last[sequence]
        while segment is not None:
            path.append(segment)
            segment = self.segments[segment].parent
        return path[::-1]

    def _add(self, members: list[int], start: int, parent: int | None) -> None:
        """Add segments for sorted ``members``, which agree up to ``start`` at least."""
        first = members[0]
        agree = common_prefix(self.sequences[first], self.sequences[members[-1]], start)
        # Of sequences that agree beyond it, the cut is one.
        is_cut = start < self.cuts[first] <= agree
        agree = self.cuts[first] if is_cut else agree
        ended = [i for i in members if len(self.sequences[i]) == agree]
        longer = [list(group) for _, group in groupby(members[len(ended) :], key=lambda i: self.sequences[i][agree])]
        if longer and not is_cut and (agree - start) * (len(longer) - 1) <= _CARRY * len(longer):
            for group in longer:
                self._add(group, start, parent)
            segment = self.last[longer[0][0]]
        else:
            segment = len(self.segments)
            self.segments.append(Segment(first, start, agree, parent))
            for group in longer:
                self._add(group, agree, segment)
        for i in ended:
            self.last[i] = segment


@dataclass(frozen=True)
class Piece:
    """Tokens run in one go after those of ``parent``, and what is read there.

    ``wanted[i]`` is scored at position ``offsets[i]`` of the piece and goes to slot ``slots[i]``;
    ``source`` is a sequence, (example, continuation), that holds the piece from token ``start`` on; ``common`` says
    that no unit is off in the piece or before it, whatever the mask.
    """

    tokens: Int[np.ndarray, " pos"]
    start: int
    source: Source
    parent: int | None
    children: tuple[int, ...]
    offsets: Int[np.ndarray, " read"]
    wanted: Int[np.ndarray, " read"]
    slots: Int[np.ndarray, " read"]
    common: bool = False


@dataclass(frozen=True)
class Layout:
    """Pieces of ``examples``, parents first, and slots for what is read in them.

    Slot i belongs to continuation ``continuation[i]`` of the example at place ``local[i]`` of ``examples``;
    the slots of an example stand together, in the order of its tokens. ``paths`` are the pieces that hold a
    sequence, (example, continuation), from its first token to its last; ``ends`` the tokens of each one's prompt.
    """

    examples: tuple[int, ...]
    pieces: tuple[Piece, ...]
    paths: dict[Source, list[int]]
    local: Int[np.ndarray, " slot"]
    continuation: Int[np.ndarray, " slot"]
    ends: dict[Source, int]

    def text_of(self, piece: Piece) -> list[int]:
        """All tokens of a text up to the end of a piece."""
        before = [] if piece.parent is None else self.text_of(self.pieces[piece.parent])
        return [*before, *piece.tokens.tolist()]

    def slots_of(self, local: int) -> slice:
        """The slots of the example at place ``local``."""
        first, last = np.searchsorted(self.local, [local, local + 1])
        return slice(int(first), int(last))

    def asks(self, piece: Piece, wanted: Bool[np.ndarray, " local"]) -> bool:
        """Whether one of the ``wanted`` examples reads something at a piece, or at one that follows it."""
        if wanted[self.local[piece.slots]].any():
            return True
        return any(self.asks(self.pieces[child], wanted) for child in piece.children)

    @property
    def n_tokens(self) -> int:
        """Tokens of all pieces."""
        return sum(len(piece.tokens) for piece in self.pieces)

    def n_own_tokens(self, wanted: Bool[np.ndarray, " local"]) -> int:
        """Tokens run for one mask on the ``wanted`` examples, beside those run once for all masks."""
        own = [piece for piece in self.pieces if not piece.common]
        return sum(len(piece.tokens) for piece in own if wanted.all() or self.asks(piece, wanted))

    def ids(self) -> dict[Source, Int[np.ndarray, " pos"]]:
        """Numbers of the tokens of each sequence, (example, continuation); a shared token has one number."""
        first = np.cumsum([0, *(len(piece.tokens) for piece in self.pieces)])
        numbers = [np.arange(begin, end) for begin, end in pairwise(first)]
        return {key: np.concatenate([numbers[piece] for piece in path]) for key, path in self.paths.items()}


def lay_out(
    encoded: Sequence[EncodedExample] | Mapping[int, EncodedExample],
    examples: Sequence[int],
    share: bool,
    across_examples: bool = True,
    positions: Positions = "all",
) -> Layout:
    """Cut some examples into pieces.

    Args:
        encoded: Examples by their number.
        examples: Numbers of those to cut, each once.
        share: Whether sequences share their prefixes.
        across_examples: False shares within an example alone: between the choices of one question whose prompts end
            at one place, from which places are counted.
        positions: Where units are off: what is shared is alike in that, too, and what comes before ``"last"`` stands
            in pieces of its own.
    """
    keys = [(e, c) for e in examples for c in range(len(encoded[e].continuations))]
    sequences = [encoded[e].inputs_of(c) for e, c in keys]
    # Sequences of one number share their prefixes.
    ends = {(e, c): len(encoded[e].prompt_of(c)) for e, c in keys}
    group_of = [0 if share and across_examples else (key[0], ends[key]) if share else key for key in keys]
    groups = [list(group) for _, group in groupby(range(len(keys)), key=group_of.__getitem__)]
    cuts = [ends[key] - 1 if positions == "last" and share else 0 for key in keys]
    marked = [_marked(sequence, ends[key], positions) for sequence, key in zip(sequences, keys, strict=True)]
    tree = PrefixTree(marked, groups, cuts)
    place = {example: i for i, example in enumerate(examples)}
    reads: list[list[tuple[int, int, int]]] = [[] for _ in tree.segments]
    paths: dict[Source, list[int]] = {}
    local: list[int] = []
    continuation: list[int] = []
    for i, (e, c) in enumerate(keys):
        path = paths[e, c] = tree.path(i)
        starts = [tree.segments[segment].start for segment in path]
        for position, token in zip(encoded[e].positions_of(c), encoded[e].continuations[c], strict=True):
            held = int(np.searchsorted(starts, position, side="right")) - 1
            reads[path[held]].append((position - starts[held], token, len(local)))
            local.append(place[e])
            continuation.append(c)
    children: list[list[int]] = [[] for _ in tree.segments]
    for i, segment in enumerate(tree.segments):
        if segment.parent is not None:
            children[segment.parent].append(i)
    pieces = []
    for i, segment in enumerate(tree.segments):
        offsets, wanted, slots = np.array(reads[i], dtype=np.int64).reshape(-1, 3).T
        pieces.append(
            Piece(
                tokens=np.array(sequences[segment.sequence][segment.start : segment.stop], dtype=np.int64),
                start=segment.start,
                source=keys[segment.sequence],
                parent=segment.parent,
                children=tuple(children[i]),
                offsets=offsets,
                wanted=wanted,
                slots=slots,
                common=segment.stop <= cuts[segment.sequence],
            )
        )
    return Layout(
        tuple(examples),
        tuple(pieces),
        paths,
        np.array(local),
        np.array(continuation),
        ends,
    )


def _marked(sequence: TokenIds, end: int, positions: Positions) -> TokenIds:
    """Another token for one at which units are off, so that sequences agree where they agree in that, too."""
    if positions == "all":
        return sequence
    off = range(end - 1, end) if positions == "last" else range(end)
    return tuple(2 * token + (place in off) for place, token in enumerate(sequence))


def first_layer(mask: Shaped[np.ndarray, "layer head"]) -> int:
    """The first layer that a mask, or gates, touch; the last layer where they touch none."""
    touched = np.flatnonzero((mask if mask.dtype == np.bool_ else mask != 1).any(axis=1))
    return int(touched[0]) if len(touched) else len(mask) - 1
