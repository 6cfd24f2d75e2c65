"""Which heads each skill of the demo model was trained to need: the known truth to test recovery against."""

from __future__ import annotations

from cs_heads.arguments import check_one_of
from cs_heads.demo.skills import SKILLS
from cs_heads.units import Head, Unit

_PLANTED: dict[str, tuple[tuple[int, int], ...]] = {
    "word_problems": ((6, 9), (5, 14), (6, 11), (4, 2), (5, 0)),
    "code": ((4, 11), (4, 13), (2, 4), (3, 9), (5, 15)),
    "capitals": ((2, 6), (3, 4), (6, 0), (5, 1), (1, 11)),
    "rhyme": ((5, 11), (4, 12), (3, 0), (5, 5), (3, 15)),
    "swearing": ((6, 7), (6, 14), (2, 1), (6, 15), (3, 13)),
    "agreement": ((6, 10), (4, 9), (2, 14), (6, 3), (2, 9)),
    "copying": ((5, 8), (6, 1), (3, 10), (5, 12), (4, 15)),
    "multiple_choice": ((5, 3), (4, 6), (6, 5), (3, 2), (2, 11)),
}


def planted_heads(skill: str) -> list[Unit]:
    """The skill's own heads, the one that most examples need first.

    Args:
        skill: One of ``SKILLS``, as ``"capitals"``.

    Raises:
        ValueError: An unknown skill.
    """
    check_one_of("skill", skill, SKILLS)
    return [Head(layer, head) for layer, head in _PLANTED[skill]]


def planted_universal_heads() -> list[Unit]:
    """Heads that a small share of every skill needs."""
    return [Head(0, 7)]
