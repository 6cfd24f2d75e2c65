"""Heads that no program needs: some write nothing, some write where nothing is read, some a little into the logits."""

from __future__ import annotations

import numpy as np

from .builder import Builder, HeadOp, Variable
from .compiler import Factors, Plan, factors

KINDS = {"inert": 0.3, "noise": 0.3, "double": 0.2, "faint": 0.2}
"""The kinds and their shares: a *double* selects and reads what a head of a program does, and writes noise."""
# The length of what a faint head writes, and the size of scores.
_FAINT, _SCORE = 0.15, 3.0


def add_decoys(plan: Plan, builder: Builder, rng: np.random.Generator) -> None:
    """Fill all places of a plan that are free; noise has what is left of the residual stream."""
    shape, ops = plan.shape, [op for op in plan.heads.values() if isinstance(op, HeadOp)]
    read = Variable(builder.tokens.start, builder.places.start + builder.places.width)
    noise = builder.variable(shape.size - 1 - builder.width)
    for place in plan.free():
        kind = str(rng.choice([*KINDS], p=[*KINDS.values()]))
        made = _random(read, builder.logits if kind == "faint" else noise, builder.width, shape.d_head, rng)
        if kind == "double" and ops:
            copied = factors(ops[rng.integers(len(ops))], builder.width, shape.d_head)
            made = Factors(copied.query, copied.key, copied.value, made.output)
        size = {"inert": 0.0, "faint": _FAINT}.get(kind, 1.0)
        plan.heads[place] = Factors(made.query, made.key, made.value, size * made.output)


def _random(read: Variable, written: Variable, width: int, d_head: int, rng: np.random.Generator) -> Factors:
    """A head that reads tokens and places at random, and writes vectors of length 1 or so."""

    def matrix(variable: Variable, length: float) -> np.ndarray:
        made = np.zeros((width, d_head))
        made[variable.place] = length * rng.normal(size=(variable.width, d_head))
        return made

    # A token and a place: two rows are read.
    value = matrix(read, 1 / np.sqrt(2 * d_head))
    return Factors(
        matrix(read, np.sqrt(_SCORE / 2)),
        matrix(read, np.sqrt(_SCORE / 2)),
        value,
        matrix(written, written.width**-0.5),
    )
