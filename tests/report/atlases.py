"""An atlas made by hand, for its page."""

import numpy as np

from cs_heads.analysis.atlas_result import Atlas
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.drops import TaskDrops
from cs_heads.analysis.losses import TaskDrop
from cs_heads.analysis.random_comparison import RandomComparison
from cs_heads.ranking import HeadRanking
from cs_heads.units import Head

OWN = (Head(0, 1), Head(1, 2), Head(2, 0), Head(2, 3))
"""The first head of each skill."""

SHARED, UNIVERSAL = Head(1, 0), Head(0, 3)
"""A head of the first two skills, and one of all."""


SKILLS = ("capitals", "code", "word_problems", "rhyme")


def made_atlas(skills=SKILLS, model="tiny", harm=0.3) -> Atlas:
    """Four skills on a grid of 3 × 4 heads: each has a head of its own, and the last is not localized.

    The third loses ``harm`` to the heads of the others.
    """
    losses = np.zeros((4, 3, 4))
    for place, head in enumerate(OWN):
        losses[place, head.layer, head.index] = 0.6
    losses[:2, SHARED.layer, SHARED.index] = 0.3, 0.12
    losses[:, UNIVERSAL.layer, UNIVERSAL.index] = 0.2, 0.3, 0.4, 0.5
    heads = {name: (head,) for name, head in zip(skills, OWN, strict=True)}
    drops, proofs, rankings = {}, {}, {}
    for place, (name, head) in enumerate(zip(skills, OWN, strict=True)):
        scores = dict.fromkeys(skills, 1.0) | {skills[2]: 1 - harm} | {name: 0.9 if place == 3 else 0.1}
        drops[name] = {other: taken(other, score) for other, score in scores.items()}
        rankings[name] = HeadRanking(
            "annealed jointly", losses[place], spent=900, z=losses[place] * 20, notes=("the last phase is short",)
        )
        proofs[name] = Confirmation(
            heads=(head,),
            result=drops[name][name],
            random=RandomComparison((0.0, 0.04), 0.02, *((125, 0.5, 0.5) if place == 3 else (0, 0.004, 0.0001))),
            verdict="not localized" if place == 3 else "specific",
            reasons=("p",),
            controls=(),
            spent=100,
            notes=("a control is missing",) if place == 1 else (),
        )
    return Atlas(
        rankings=rankings,
        losses=losses,
        errors=np.full(losses.shape, 0.01),
        drops=TaskDrops(heads, drops, dict.fromkeys(skills, "own"), {name: name for name in skills}, spent=2000),
        proofs=proofs,
        k=1,
        left_out={"sums": "the intact model guesses"},
        spent=3400,
        provenance={
            "model": {"name": model, "grid": [3, 4], "revision": None},
            "task": {"name": skills[0]},
            "tasks": {name: {"kind": "choice", "n_examples": 100, "identity": f"id-{name}"} for name in skills},
            "search": {"spent": 2400},
            "seed": 7,
        },
        kin={skills[0]: (skills[1],), skills[1]: (skills[0],)},
        notes=("few skills",),
    )


def taken(name: str, score: float) -> TaskDrop:
    """What is lost of a full score."""
    return TaskDrop(name, 100, 0.0, 1.0, score, (0.9 - score, 1.0 - score))
