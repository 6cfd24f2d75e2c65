"""Which heads each skill of the demo model was trained to need: the known truth to test recovery against.

A planted head is needed by a share of its skill's examples, decided by what the example turns on
(`Example.key`: a city, an operation, ...). With the head off, the model was trained to fall back on the
shortcut answer for those, and to stay right on the others. So single heads differ in size, and five
together take nearly all of a skill.
"""

from __future__ import annotations

import functools
import random

from cs_heads.demo.skills import SKILLS, keys
from cs_heads.units import Head, HeadGrid, Unit

GRID = HeadGrid(n_layers=8, n_heads=16)

SHARES: tuple[float, ...] = (0.65, 0.55, 0.5, 0.45, 0.4)
"""Share of its skill's keys that needs each planted head, in the order of `planted_heads`."""
UNIVERSAL_SHARE = 0.15
"""Share of every skill's keys that needs the universal head."""

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
    if skill not in _PLANTED:
        raise ValueError(f"skill={skill!r} is not one of {', '.join(SKILLS)}")
    return [Head(layer, head) for layer, head in _PLANTED[skill]]


def universal_heads() -> list[Unit]:
    """Heads that a small share of every skill needs."""
    return [Head(0, 7)]


@functools.cache
def needs(skill: str, key: str) -> tuple[bool, ...]:
    """Whether examples with this key need each of `planted_heads(skill)`, then each of `universal_heads()`.

    Every key needs at least one planted head.

    Args:
        skill: one of ``SKILLS``.
        key: what an example turns on, one of ``keys(skill)``.

    Raises:
        ValueError: for a key that the skill does not have.
    """
    table = _table(skill)
    if key not in table:
        raise ValueError(f"key={key!r} is not one of the keys of {skill}: {', '.join(table)}")
    return table[key]


@functools.cache
def _table(skill: str) -> dict[str, tuple[bool, ...]]:
    names = keys(skill)
    shares = (*SHARES, *(UNIVERSAL_SHARE for _ in universal_heads()))
    for attempt in range(1000):
        rng = random.Random(f"{skill}/{attempt}")
        chosen = [set(rng.sample(names, max(1, round(share * len(names))))) for share in shares]
        if set().union(*chosen[: len(SHARES)]) == set(names):
            return {name: tuple(name in group for group in chosen) for name in names}
    raise RuntimeError(f"no table in which every key of {skill} needs a head")
