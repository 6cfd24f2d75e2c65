"""The look of heads in pictures: each has one color and marker, and no two of a picture have the same marker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain, count
from types import MappingProxyType

from cs_heads.units import Unit

# Okabe and Ito, "Color Universal Design" (2008), for any kind of color vision; yellow is too light on white.
HEAD_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Colors of heads; no line or bar of a method, task or model has one of these. Roles share two of them."""
_OWN = "osD^vP*X<>"
MARKERS = _OWN + "dph"
"""The shapes of markers, in order; a head alone has one of the first ten. Beyond the last, markers are letters."""
# Without those that look like a shape or have a meaning on maps.
_LETTERS = "ABCDEFGHJKLMNPQRTWYZ"


@dataclass(frozen=True)
class HeadLook:
    """The color and marker of one head.

    >>> from cs_heads.units import Head
    >>> head_look(Head(2, 6))
    HeadLook(color='#D55E00', marker='<')
    """

    color: str
    marker: str


def head_look(head: Unit) -> HeadLook:
    """What a head looks like by itself: a function of its layer and number alone.

    There are seventy looks, and neighboring heads differ. Heads of one picture come from ``head_looks``.
    """
    color, marker = 2 * head.layer + 3 * head.index, head.layer + head.index
    return HeadLook(HEAD_COLORS[color % len(HEAD_COLORS)], _OWN[marker % len(_OWN)])


def marker_at(place: int) -> str:
    r"""The marker of the first, second, ... line of a picture: a shape, then a letter, then twice a letter, ...

    Args:
        place: from 0.

    >>> [marker_at(place) for place in (0, 12, 13, 33)]
    ['o', 'h', '$\\mathbf{A}$', '$\\mathbf{AA}$']
    """
    if place < len(MARKERS):
        return MARKERS[place]
    times, letter = divmod(place - len(MARKERS), len(_LETTERS))
    return rf"$\mathbf{{{_LETTERS[letter] * (times + 1)}}}$"


def is_letter(marker: str) -> bool:
    """Whether a marker is a letter, of which an edge would leave little."""
    return marker.startswith("$")


_LOOKS: ContextVar[Mapping[Unit, HeadLook]] = ContextVar("looks", default=MappingProxyType({}))


@contextmanager
def same_looks(*pictures: Iterable[Unit]) -> Iterator[None]:
    """Inside the ``with`` block heads have one look in all pictures, and those of one picture have different markers.

    Args:
        pictures: the heads of each picture.
    """
    token = _LOOKS.set(head_looks(*pictures))
    try:
        yield
    finally:
        _LOOKS.reset(token)


def head_looks(*pictures: Iterable[Unit]) -> dict[Unit, HeadLook]:
    """The look of every head; of two in one picture that want the same marker, the later has the next that is free.

    It depends on the heads before it alone: the first heads of one ranking look the same however many are drawn.
    Beyond thirteen heads in a picture markers are letters; none comes again.

    Args:
        pictures: the heads of each picture, in order.

    >>> from cs_heads.units import Head
    >>> [look.marker for look in head_looks([Head(2, 6), Head(3, 5)]).values()]
    ['<', '>']
    """
    shown = [list(heads) for heads in pictures]
    looks: dict[Unit, HeadLook] = {}
    for head in dict.fromkeys(head for heads in shown for head in heads):
        own = _LOOKS.get().get(head, head_look(head))
        first = _OWN.find(own.marker) + 1
        wanted = chain([own.marker], _OWN[first:], _OWN[:first], map(marker_at, count(len(_OWN))))
        taken = {looks[other].marker for heads in shown if head in heads for other in heads if other in looks}
        looks[head] = HeadLook(own.color, next(marker for marker in wanted if marker not in taken))
    return looks
