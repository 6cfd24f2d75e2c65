"""Operations of published models compiled with decoys; the heads that matter are measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cs_heads.units import Head

from .builder import NO, YES, Builder, HeadOp, variables
from .compiler import Shape, compile_model, schedule, whole
from .decoys import add_decoys
from .programs import Program
from .suite import Spec, TrueModel

# Random halves of the other heads, beside which a head may matter.
_SETS = 4


def placed(spec: Spec, builder: Builder) -> tuple[dict[Head, int], Any]:
    """Draw where operations are, add decoys and compile them: the number of the operation by head, and the model."""
    rng = np.random.default_rng(spec.seed)
    ops = [op for op in builder.ops if isinstance(op, HeadOp)]
    rank = max(np.linalg.matrix_rank(whole(each, builder.width)) for op in ops for each in (op.scores, op.moves))
    plan = schedule(builder, Shape.fitting(spec.layers, spec.heads, builder.width, int(rank)), rng, early=False)
    numbers = {Head(*each): i for i, op in enumerate(builder.ops) for each, done in plan.heads.items() if done is op}
    add_decoys(plan, builder, rng)
    return numbers, compile_model(plan, builder, rng)


def put(spec: Spec, builder: Builder, programs: tuple[Program, ...], length: int) -> TrueModel:
    """Compile operations with decoys, and measure which heads each program needs, by its operations.

    A head is needed if a twentieth of the answers is wrong without it.
    """
    numbers, model = placed(spec, builder)
    made, rng = TrueModel(spec, programs, (), (), model, (), length), np.random.default_rng(spec.seed)
    heads: list[tuple[Head, ...]] = []
    slight: set[Head] = set()
    for number, program in enumerate(programs):
        asked = made.prompts(number, 100, seed=1)
        without = {head: wrong(builder, program, asked, [each]) for head, each in numbers.items()}
        heads.append(tuple(sorted(head for head in numbers if without[head].mean() >= 0.05)))
        rest = [head for head in numbers if head not in heads[-1]]
        slight |= {head for head in rest if without[head].any()}
        for _ in range(_SETS):
            off = [numbers[head] for head in rest if rng.random() < 0.5]
            before = wrong(builder, program, asked, off)
            slight |= {h for h in rest if (wrong(builder, program, asked, [*{*off} ^ {numbers[h]}]) != before).any()}
    return replace(made, heads=tuple(heads), slight=tuple(sorted(slight)))


def wrong(builder: Builder, program: Program, asked: tuple[list[list[int]], list[int]], off: list[int]) -> np.ndarray:
    """Which answers are wrong without some operations."""
    prompts, answers = map(np.array, asked)
    swapped = np.zeros((len(prompts), len(builder.ops)), dtype=bool)
    swapped[:, off] = True
    logits = variables(builder, prompts, swapped=swapped)[:, -1, builder.logits.place]
    said = logits[:, [YES, NO]] if program.choice else logits
    return np.asarray(said.argmax(axis=-1) != answers)
