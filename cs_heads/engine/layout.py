"""The token sequences of some examples, cut into pieces that each run once for a mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from jaxtyping import Bool, Int

from cs_heads.engine.prefixes import Prefixes, shared_prefixes, unshared
from cs_heads.lens import EncodedExample


@dataclass(frozen=True)
class Piece:
    """Tokens run in one go after those of ``parent``, and what is read there.

    ``wanted[i]`` is scored at position ``offsets[i]`` of the piece and goes to slot ``slots[i]``;
    ``source`` is a sequence, (example, continuation), that holds the piece from token ``start`` on.
    """

    tokens: Int[np.ndarray, " pos"]
    start: int
    source: tuple[int, int]
    parent: int | None
    children: tuple[int, ...]
    offsets: Int[np.ndarray, " read"]
    wanted: Int[np.ndarray, " read"]
    slots: Int[np.ndarray, " read"]


@dataclass(frozen=True)
class Layout:
    """Pieces of ``examples``, parents first, and slots for what is read in them.

    Slot i belongs to continuation ``continuation[i]`` of the example at place ``local[i]`` of ``examples``;
    the slots of an example stand together, in the order of its tokens. ``paths`` are the pieces that hold a
    sequence, (example, continuation), from its first token to its last; ``prompts`` the tokens of each (first) prompt.
    """

    examples: tuple[int, ...]
    pieces: tuple[Piece, ...]
    paths: dict[tuple[int, int], list[int]]
    local: Int[np.ndarray, " slot"]
    continuation: Int[np.ndarray, " slot"]
    prompts: dict[int, int]

    def slots_of(self, local: int) -> slice:
        """The slots of the example at place ``local``."""
        first, last = np.searchsorted(self.local, [local, local + 1])
        return slice(int(first), int(last))

    def asks(self, piece: Piece, wanted: Bool[np.ndarray, " local"]) -> bool:
        """Whether one of the ``wanted`` examples reads something at a piece, or at one that goes on from it."""
        if wanted[self.local[piece.slots]].any():
            return True
        return any(self.asks(self.pieces[child], wanted) for child in piece.children)

    @property
    def n_tokens(self) -> int:
        """Tokens run for one mask."""
        return sum(len(piece.tokens) for piece in self.pieces)

    def ids(self) -> dict[tuple[int, int], Int[np.ndarray, " pos"]]:
        """Numbers of the tokens of each sequence, (example, continuation); a shared token has one number."""
        first = np.cumsum([0, *(len(piece.tokens) for piece in self.pieces)])
        numbers = [np.arange(begin, end) for begin, end in pairwise(first)]
        return {key: np.concatenate([numbers[piece] for piece in path]) for key, path in self.paths.items()}


def lay_out(
    encoded: Sequence[EncodedExample] | Mapping[int, EncodedExample],
    examples: Sequence[int],
    share: bool,
    across_examples: bool = True,
) -> Layout:
    """Cut the examples numbered ``examples`` into pieces, with shared beginnings where ``share`` says so.

    ``across_examples=False`` shares within an example alone: between the choices of one question.
    """
    keys = [(e, c) for e in examples for c in range(len(encoded[e].continuations))]
    sequences = [encoded[e].inputs_of(c) for e, c in keys]
    found = _prefixes(keys, sequences, share, across_examples)
    place = {example: i for i, example in enumerate(examples)}
    reads: list[list[tuple[int, int, int]]] = [[] for _ in found.segments]
    paths: dict[tuple[int, int], list[int]] = {}
    local: list[int] = []
    continuation: list[int] = []
    for i, (e, c) in enumerate(keys):
        path = paths[e, c] = found.path(i)
        starts = [found.segments[segment].start for segment in path]
        for position, token in zip(encoded[e].positions_of(c), encoded[e].continuations[c], strict=True):
            held = int(np.searchsorted(starts, position, side="right")) - 1
            reads[path[held]].append((position - starts[held], token, len(local)))
            local.append(place[e])
            continuation.append(c)
    children: list[list[int]] = [[] for _ in found.segments]
    for i, segment in enumerate(found.segments):
        if segment.parent is not None:
            children[segment.parent].append(i)
    pieces = tuple(
        Piece(
            np.array(sequences[segment.sequence][segment.start : segment.stop], dtype=np.int64),
            segment.start,
            keys[segment.sequence],
            segment.parent,
            tuple(children[i]),
            *np.array(reads[i], dtype=np.int64).reshape(-1, 3).T,
        )
        for i, segment in enumerate(found.segments)
    )
    return Layout(
        tuple(examples),
        pieces,
        paths,
        np.array(local),
        np.array(continuation),
        {e: len(encoded[e].prompt) for e in examples},
    )


def _prefixes(
    keys: list[tuple[int, int]], sequences: list[tuple[int, ...]], share: bool, across_examples: bool
) -> Prefixes:
    if not share:
        return unshared(sequences)
    if across_examples:
        return shared_prefixes(sequences)
    by_example = groupby(zip(keys, sequences, strict=True), key=lambda pair: pair[0][0])
    return Prefixes.joined([shared_prefixes([tokens for _, tokens in group]) for _, group in by_example])
