"""Skills in pictures of an atlas: each has one letter and one color, in the order of the tree of skills."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from jaxtyping import Float

from cs_heads.plot import style

# Tol, "Colour Schemes" (2021), "muted", in the order of its hues.
FEW_SKILLS = ("#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499")
# Once around the hues, light and dark so mixed that each two are told apart by any kind of color vision.
MANY_SKILLS = (
    *("#004C78", "#65D4FD", "#00867A", "#25E790", "#14B36A", "#305300", "#A59300", "#EFB213", "#B75B0A", "#B20D42"),
    *("#FD82BB", "#CB53B5", "#7433B1", "#A69BFF", "#636DED"),
)
# The gray of heads that most skills need.
UNIVERSAL = "0.2"
# The gray of heads that serve no skill.
NOTHING = "0.955"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTVWXYZ"  # U is for universal


@dataclass(frozen=True)
class SkillLook:
    """The letter and the color of one skill."""

    letter: str
    color: str


def skill_looks(skills: Sequence[str], linkage: Float[np.ndarray, "merge 4"]) -> dict[str, SkillLook]:
    """The look of each skill, in the order of the tree: skills that share heads have neighboring letters and hues.

    Args:
        skills: their names, as the tree numbers them.
        linkage: the tree, as ``Atlas.linkage`` gives it.

    >>> looks = skill_looks(["sums", "rhyme", "code"], np.array([[0, 2, 0.3, 2], [1, 3, 0.9, 3]]))
    >>> {name: look.letter for name, look in looks.items()}
    {'rhyme': 'A', 'sums': 'B', 'code': 'C'}
    """
    colors = FEW_SKILLS if len(skills) <= len(FEW_SKILLS) else MANY_SKILLS
    around = len(colors) / max(len(skills), 1) if len(skills) <= len(colors) else 1
    return {
        skills[place]: SkillLook(
            _LETTERS[number] if number < len(_LETTERS) else str(number + 1), colors[int(number * around) % len(colors)]
        )
        for number, place in enumerate(tree_order(linkage))
    }


def tree_order(linkage: Float[np.ndarray, "merge 4"]) -> list[int]:
    """The leaves of a tree from its first to its last.

    >>> tree_order(np.array([[0, 2, 0.3, 2], [1, 3, 0.9, 3]]))
    [1, 0, 2]
    """
    groups = [[leaf] for leaf in range(len(linkage) + 1)]
    for first, second, *_ in linkage:
        groups.append(groups[int(first)] + groups[int(second)])
    return groups[-1]


def common_folder(names: Iterable[str]) -> str:
    """What all of several names begin with, up to their last common stroke; empty for one name.

    >>> common_folder(["everyday/plural", "everyday/past"])
    'everyday/'
    >>> common_folder(["everyday/plural", "rhyming"])
    ''
    """
    folders = [name.split("/")[:-1] for name in dict.fromkeys(names)]
    if len(folders) < 2:
        return ""
    common = takewhile(lambda parts: len({*parts}) == 1, zip(*folders, strict=False))
    return "".join(f"{parts[0]}/" for parts in common)


def tinted(color: str, strength: float) -> np.ndarray:
    """The RGB of a color that is full at 1 and at 0 that of a head that serves no skill."""
    from matplotlib.colors import to_rgb

    none, full = np.array(to_rgb(NOTHING)), np.array(to_rgb(color))
    return none + (full - none) * min(max(strength, 0.0), 1.0)


def letter_look(color: Any | None) -> dict[str, Any]:
    """How letters on a color are written; None: on several colors, where they are black with a white edge."""
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": style.SMALL, "fontweight": "bold"}
    if color is None:
        return {**look, "color": "black", "path_effects": style.edged(1.8)}
    return {**look, "color": style.letter_on(color)}
