"""The suite: over a hundred models from seeds, each with the heads that its programs rest on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

import cs_heads as cs
from cs_heads.units import Head

from .builder import N_CUES, NO, YES, Builder, HeadOp, Op
from .compiler import Plan, Shape, compile_model, needs, schedule
from .decoys import add_decoys
from .programs import Program, kinds, mapped, successor

LENGTH = 9
"""Digits of a prompt."""
SMALL, LARGE = ((8, 8), (6, 12)), ((16, 8), (8, 16), (12, 12))
"""Layers and heads of a layer, of models of 64 heads or more, and of 128 or more."""
KINDS = {"separate": 42, "shared": 12, "same": 9, "redundant": 15, "early": 12, "none": 9, "decoys": 9}
"""Classes of models, and how many there are of each; every third has 128 heads or more.

- *separate*: two programs or three, each by heads of its own;
- *shared*: two programs share the head that copies the digit before;
- *same*: all heads of the task also serve its control;
- *redundant*: a head of the task has a twin, and either is enough;
- *early*: heads of programs are in the first layers possible, all layers after them are decoys;
- *none*: the task needs no head, its control does;
- *decoys*: neither needs one.
"""


@dataclass(frozen=True)
class Spec:
    """What a model is made from.

    Attributes:
        kind: One of ``KINDS``, *demo*, *trained* or *published*.
        layers: Of the model.
        heads: Of a layer.
        seed: Draws its programs, their heads and its decoys.
        source: What it was made of, where that is published.
    """

    kind: str
    layers: int
    heads: int
    seed: int
    source: str = ""

    @property
    def name(self) -> str:
        """Names the model."""
        return self.source or f"{self.kind}-{self.seed}"


def specs() -> list[Spec]:
    """All models of the suite."""
    made = []
    for kind, n in KINDS.items():
        small, large = cycle(SMALL), cycle(LARGE)
        made += [Spec(kind, *next(large if i % 3 == 2 else small), i) for i in range(n)]
    return made


@dataclass(frozen=True)
class TrueModel:
    """A model and what is true of it.

    Attributes:
        spec: What it was made from.
        programs: Its programs by cue; the first is the task, the others its controls.
        heads: The heads that each needs, in the order of programs.
        twins: Two heads of the task of which one is enough, or none.
        model: The Hugging Face model.
        slight: Heads whose removal changes a few answers, or some where others are off: neither right nor wrong.
        length: Digits of a prompt.
    """

    spec: Spec
    programs: tuple[Program, ...]
    heads: tuple[tuple[Head, ...], ...]
    twins: tuple[Head, ...]
    model: Any
    slight: tuple[Head, ...] = ()
    length: int = LENGTH

    @property
    def known(self) -> tuple[Head, ...]:
        """The heads that the task needs."""
        return self.heads[0]

    @property
    def shared(self) -> tuple[Head, ...]:
        """Those of them that a control needs as well."""
        return tuple(head for head in self.known if any(head in others for others in self.heads[1:]))

    @cached_property
    def decoys(self) -> tuple[Head, ...]:
        """All heads that no program needs."""
        needed = {head for heads in (*self.heads, self.slight) for head in heads}
        every = (Head(layer, head) for layer in range(self.spec.layers) for head in range(self.spec.heads))
        return tuple(head for head in every if head not in needed)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The right verdicts on the task: *specific* where a head is its own.

        Where all are shared a search sets them aside, and what is left is *not localized*.
        """
        if not self.known:
            return ("not localized",)
        return ("shared", "not localized") if len(self.shared) == len(self.known) else ("specific",)

    def prompts(self, program: int, n: int, seed: int) -> tuple[list[list[int]], list[int]]:
        """Prompts of a program, and the token ids of their answers (of yes and no: 0 and 1)."""
        return self.programs[program].prompts(n, self.length, program, seed)

    def task(self, program: int = 0, n: int = 100, more: int = 0) -> cs.Task:
        """A program as a task: so many examples that find heads, as many that prove them, and more that find heads."""
        made, name = self.programs[program], f"{self.spec.name}/{program}: {self.programs[program].name}"
        prompts, answers = self.prompts(program, 2 * n + more, self.spec.seed)
        choices = {"choices": [[YES], [NO]]}
        records = [
            {"prompt": prompt, **(choices | {"answer": answer} if made.choice else {"target": [answer]})}
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        finding, proving = records[:n] + records[2 * n :], records[n : 2 * n]
        return cs.Task.from_records(finding, name).with_holdout(cs.Task.from_records(proving, name))

    def save(self, folder: Path) -> Path:
        """Write the model in Hugging Face form, and beside it ``truth.json``: the heads that each program needs."""
        self.model.save_pretrained(folder)
        told = {"programs": [program.name for program in self.programs], "twins": self.twins, "heads": self.heads}
        (folder / "truth.json").write_text(json.dumps(told, default=str))
        return folder


@dataclass(frozen=True)
class Draft:
    """Programs and where their heads are, before there is a model.

    Attributes:
        spec: What it is made from.
        programs: The programs by cue.
        builder: Their operations.
        plan: Which of them runs where.
        heads: The heads that each program needs.
        twins: Two heads of the task of which one is enough, or none.
    """

    spec: Spec
    programs: tuple[Program, ...]
    builder: Builder
    plan: Plan
    heads: tuple[tuple[Head, ...], ...]
    twins: tuple[Head, ...] = ()

    def model(self, model: Any) -> TrueModel:
        """What is true of a model of these programs."""
        return TrueModel(self.spec, self.programs, self.heads, self.twins, model)


def draft(spec: Spec, programs: tuple[Program, ...], rng: np.random.Generator) -> Draft:
    """Draw where the heads of programs are."""
    builder = Builder(LENGTH, share=spec.kind in ("shared", "same", "trained"))
    said = [
        builder.answer(builder.found(program.name, program.write), i if program.heads else None)
        for i, program in enumerate(programs)
    ]
    pair = _twins(builder, said[0], rng) if spec.kind == "redundant" else ()
    shape = Shape.fitting(spec.layers, spec.heads, builder.width)
    plan = schedule(builder, shape, rng, early=spec.kind == "early")
    placed = {op: Head(*place) for place, op in plan.heads.items() if isinstance(op, HeadOp)}
    heads = tuple(tuple(sorted(placed[op] for op in needs(builder.ops, each))) for each in said)
    return Draft(spec, programs, builder, plan, heads, tuple(placed[op] for op in pair))


def build(spec: Spec) -> TrueModel:
    """Draw the programs of a model and compile them."""
    rng = np.random.default_rng([list(KINDS).index(spec.kind), spec.seed])
    made = draft(spec, tuple(_programs(spec.kind, rng)), rng)
    add_decoys(made.plan, made.builder, rng)
    return made.model(compile_model(made.plan, made.builder, rng))


def _programs(kind: str, rng: np.random.Generator) -> list[Program]:
    """The task and its controls."""
    programs = kinds(rng)
    drawn = [programs[i] for i in rng.permutation(len(programs))]
    if kind == "shared":
        return [program for program in drawn if program.previous][:2]
    if kind == "same":
        first = next(program for program in drawn if not program.choice)
        return [first, mapped(first)]
    if kind == "redundant":
        first = next(program for program in drawn if program.doubles)
        return [first, next(program for program in drawn if program is not first)]
    if kind == "none":
        return [successor(bool(rng.integers(2))), drawn[0]]
    if kind == "decoys":
        return [successor(True), successor(False, step=3)]
    return drawn[: int(rng.integers(2, N_CUES + 1))]


def _twins(builder: Builder, said: Op, rng: np.random.Generator) -> tuple[HeadOp, HeadOp]:
    """Make two heads of one that an answer needs."""
    needed = needs(builder.ops, said)
    op = needed[rng.integers(len(needed))]
    twin = HeadOp(op.scores, op.moves)
    builder.ops.insert(builder.ops.index(op), twin)
    return op, twin
