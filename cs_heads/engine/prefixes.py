"""Which beginnings the token sequences of a task share, so that each is run once for a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

Tokens = tuple[int, ...]

# Tokens' worth of work that going on from a stored prefix costs a row: a shared prefix must save more.
_CARRY = 4


@dataclass(frozen=True)
class Segment:
    """A piece of text run in one go: tokens ``start..stop`` of sequence ``sequence``, after segment ``parent``."""

    sequence: int
    start: int
    stop: int
    parent: int | None


@dataclass(frozen=True)
class Prefixes:
    """Segments, parents before children, and for each sequence the segment that holds its last token."""

    segments: tuple[Segment, ...]
    last: tuple[int, ...]

    def path(self, sequence: int) -> list[int]:
        """The segments that make up a sequence, from its first token on."""
        path = []
        segment: int | None = self.last[sequence]
        while segment is not None:
            path.append(segment)
            segment = self.segments[segment].parent
        return path[::-1]

    @classmethod
    def joined(cls, parts: Sequence[Prefixes]) -> Prefixes:
        """One after another: the sequences of the first part, of the second, and so on; nothing shared between them."""
        segments: list[Segment] = []
        last: list[int] = []
        for part in parts:
            by, sequences = len(segments), len(last)
            segments += [
                replace(s, sequence=s.sequence + sequences, parent=None if s.parent is None else s.parent + by)
                for s in part.segments
            ]
            last += [segment + by for segment in part.last]
        return cls(tuple(segments), tuple(last))


def unshared(sequences: Sequence[Tokens]) -> Prefixes:
    """Every sequence by itself, as if none shared anything."""
    segments = tuple(Segment(i, 0, len(tokens), None) for i, tokens in enumerate(sequences))
    return Prefixes(segments, tuple(range(len(sequences))))


def shared_prefixes(sequences: Sequence[Tokens]) -> Prefixes:
    """Segments in which what several sequences begin with stands once, nested to any depth.

    A shared beginning is a segment of its own where that saves more tokens than carrying it costs; a
    sequence that another begins with, or equals, has no segment of its own.

    >>> few_shot = (7,) * 20
    >>> found = shared_prefixes([(*few_shot, 1), (*few_shot, 2), (*few_shot, 2)])
    >>> [(s.start, s.stop, s.parent) for s in found.segments], found.last
    ([(0, 20, None), (20, 21, 0), (20, 21, 0)], (1, 2, 2))
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    builder = _Builder(sequences)
    builder.build(order, 0, None)
    return Prefixes(tuple(builder.segments), tuple(builder.last))


class _Builder:
    def __init__(self, sequences: Sequence[Tokens]) -> None:
        self.sequences = sequences
        self.segments: list[Segment] = []
        self.last = [0] * len(sequences)

    def build(self, members: list[int], start: int, parent: int | None) -> None:
        """Add segments for sorted ``members``, which agree up to ``start`` at least."""
        first = members[0]
        agree = _agreement(self.sequences[first], self.sequences[members[-1]], start)
        ended = [i for i in members if len(self.sequences[i]) == agree]
        going_on = [list(group) for _, group in groupby(members[len(ended) :], key=lambda i: self.sequences[i][agree])]
        if going_on and (agree - start) * (len(going_on) - 1) <= _CARRY * len(going_on):
            for group in going_on:
                self.build(group, start, parent)
            segment = self.last[going_on[0][0]]
        else:
            segment = len(self.segments)
            self.segments.append(Segment(first, start, agree, parent))
            for group in going_on:
                self.build(group, agree, segment)
        for i in ended:
            self.last[i] = segment


def _agreement(a: Tokens, b: Tokens, start: int) -> int:
    """How many first tokens two sequences share, knowing that they share ``start``."""
    end = min(len(a), len(b))
    while start < end and a[start] == b[start]:
        start += 1
    return start
