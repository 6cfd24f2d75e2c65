"""Operations to weights: heads and hidden units of a GPT-2, in a rotated residual stream that layer norm leaves alone.

Every token has a large constant in one direction, and no variable has a mean. So the length of what is normalized is
that of the constant, to one in a thousand, and the gain of the layer norm undoes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from .builder import N_TOKENS, NONE, Builder, Form, HeadOp, Op, UnitsOp, Variable

_NORM = 300.0
"""The constant that layer norms divide by."""
LEAST_NOISE, _LEAST_HEAD = 16, 16
"""Directions that noise has, and that a head has, at least."""
LOGIT, SAID_NONE = 10.0, 0.3
"""What the logits are multiplied by, and what NONE has of it, which is said where no program answers."""


@dataclass(frozen=True)
class Shape:
    """Layers, heads of a layer, and the size of the residual stream, which the heads of a layer share out."""

    layers: int
    heads: int
    size: int

    @classmethod
    def fitting(cls, layers: int, heads: int, width: int, d_head: int = _LEAST_HEAD) -> Shape:
        """The least shape with room for so many directions of variables, and for noise."""
        return cls(layers, heads, heads * max(d_head, -(-(width + 1 + LEAST_NOISE) // heads)))

    @property
    def d_head(self) -> int:
        """Directions of a head."""
        return self.size // self.heads


@dataclass(frozen=True)
class Factors:
    """A head as ``scores = x query (y key)ᵀ`` and ``moved = y value output``, with rows of variables."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray


@dataclass
class Plan:
    """Which operation runs where.

    Attributes:
        shape: Of the model.
        heads: The operation, or the factors of a decoy, at a layer and head.
        units: Hidden units by layer.
    """

    shape: Shape
    heads: dict[tuple[int, int], HeadOp | Factors] = field(default_factory=dict)
    units: dict[int, list[UnitsOp]] = field(default_factory=dict)

    def free(self) -> list[tuple[int, int]]:
        """Places of no head yet."""
        places = [(layer, head) for layer in range(self.shape.layers) for head in range(self.shape.heads)]
        return [place for place in places if place not in self.heads]


def schedule(builder: Builder, shape: Shape, rng: np.random.Generator, *, early: bool) -> Plan:
    """Each operation at a layer after all that it reads, drawn, or the first possible; heads in any order in a layer.

    Raises:
        ValueError: Too few layers.
    """
    plan, latest = Plan(shape), _latest(builder.ops, shape.layers)
    layers: dict[Op, int] = {}
    for op in builder.ops:
        # A head reads what layers before it wrote; hidden units also what heads of their own layer did.
        before = [
            layers[each] + (isinstance(op, HeadOp) or isinstance(each, UnitsOp)) for each in _sources(op, builder.ops)
        ]
        first, last = max(before, default=0), latest[op]
        if first > last:
            raise ValueError(f"shape must have more layers for these programs, got {shape}")
        if isinstance(op, HeadOp):
            places = [place for place in plan.free() if first <= place[0] <= last]
            layer = places[0][0] if early else int(rng.choice(sorted({layer for layer, _ in places})))
            head = int(rng.choice([head for at, head in places if at == layer]))
            plan.heads[layer, head] = op
        else:
            layer = last if op.writes is builder.logits else first if early else int(rng.integers(first, last + 1))
            plan.units.setdefault(layer, []).append(op)
        layers[op] = layer
    return plan


def _sources(op: Op, ops: Iterable[Op]) -> list[Op]:
    """The operations that write what one reads."""
    return [each for each in ops if any(_within(read, each.writes) for read in op.reads)]


def _within(part: Variable, whole: Variable) -> bool:
    return whole.start <= part.start < whole.start + whole.width


def _latest(ops: Sequence[Op], n_layers: int) -> dict[Op, int]:
    """The last layer of each operation that leaves room for those after it."""
    latest: dict[Op, int] = dict.fromkeys(ops, n_layers - 1)
    for op in reversed(ops):
        for each in _sources(op, ops):
            latest[each] = min(latest[each], latest[op] - (isinstance(op, HeadOp) or isinstance(each, UnitsOp)))
    return latest


def needs(ops: Sequence[Op], op: Op) -> list[HeadOp]:
    """The heads that an operation rests on, however far before."""
    found: list[Op] = []
    waiting = [op]
    while waiting:
        new = [each for each in _sources(waiting.pop(), ops) if each not in found]
        found += new
        waiting += new
    return [each for each in found if isinstance(each, HeadOp)]


def factors(op: HeadOp, width: int, d_head: int) -> Factors:
    """A head's operation as factors of at most ``d_head`` directions.

    Raises:
        ValueError: It needs more.
    """
    query, key = _split(op.scores, width, d_head)
    value, output = _split(op.moves, width, d_head)
    return Factors(query * np.sqrt(d_head), key, value, output)


def whole(forms: Iterable[Form], width: int) -> np.ndarray:
    """The sum of forms, as one matrix of all variables."""
    made = np.zeros((width, width))
    for form in forms:
        made[form.left.place, form.right.place] += form.matrix
    return made


def _split(forms: Iterable[Form], width: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    made = whole(forms, width)
    left, sizes, right = np.linalg.svd(made)
    if len(sizes) > rank and sizes[rank] > 1e-9 * sizes[0]:
        raise ValueError(f"d_head must be at least {np.linalg.matrix_rank(made)} for this head, got {rank}")
    roots = np.sqrt(sizes[:rank])
    return left[:, :rank] * roots, (right[:rank].T * roots)


def compile_model(plan: Plan, builder: Builder, rng: np.random.Generator) -> GPT2LMHeadModel:
    """A GPT-2 that runs a plan; heads without an operation write nothing.

    Raises:
        ValueError: The residual stream is too small for all variables.
    """
    shape, width = plan.shape, builder.width
    if width > shape.size - 1:
        raise ValueError(f"size must be above {width} for these programs, got {shape.size}")
    n_inner = max([1, *(sum(len(op.bias) for op in ops) for ops in plan.units.values())])
    config = GPT2Config(
        vocab_size=N_TOKENS,
        n_positions=builder.n + 2,
        n_embd=shape.size,
        n_inner=n_inner,
        n_layer=shape.layers,
        n_head=shape.heads,
        activation_function="relu",
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    # Directions of no mean, one for each of a variable.
    drawn = np.concatenate([np.ones((shape.size, 1)), rng.normal(size=(shape.size, width))], axis=1)
    turn = np.linalg.qr(drawn)[0][:, 1:]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(_NORM / np.sqrt(shape.size) if ".ln_" in name and name.endswith("weight") else 0.0)
        _set(model.transformer.wte.weight, _embedded(builder) @ turn.T)
        _set(model.transformer.wpe.weight, np.eye(builder.n + 2, width, builder.places.start) @ turn.T)
        _set(model.lm_head.weight, LOGIT * np.eye(N_TOKENS, width, builder.logits.start) @ turn.T)
        for (layer, head), op in plan.heads.items():
            made = op if isinstance(op, Factors) else factors(op, width, shape.d_head)
            _set_head(model.transformer.h[layer].attn, head, made, turn, rng)
        for layer, ops in plan.units.items():
            _set_units(model.transformer.h[layer].mlp, ops, turn)
    return model


def _embedded(builder: Builder) -> np.ndarray:
    rows = np.eye(N_TOKENS, builder.width, builder.tokens.start)
    rows[:, builder.one.place], rows[:, builder.norm.place] = 1.0, _NORM
    rows[:, builder.logits.start + NONE] = SAID_NONE
    return rows


def _set(parameter: torch.Tensor, values: np.ndarray) -> None:
    parameter.copy_(torch.from_numpy(values))


def _set_head(attention: Any, head: int, made: Factors, turn: np.ndarray, rng: np.random.Generator) -> None:
    """Write a head, each of its two spaces rotated."""
    size, d_head = turn.shape[0], made.query.shape[1]
    place = slice(head * d_head, (head + 1) * d_head)
    inner, outer = (np.linalg.qr(rng.normal(size=(d_head, d_head)))[0] for _ in range(2))
    for number, part in enumerate((made.query @ inner, made.key @ inner, made.value @ outer)):
        columns = slice(number * size + place.start, number * size + place.stop)
        _set(attention.c_attn.weight[:, columns], turn @ part)
    _set(attention.c_proj.weight[place], (turn @ made.output @ outer).T)


def _set_units(mlp: Any, ops: Sequence[UnitsOp], turn: np.ndarray) -> None:
    start = 0
    for op in ops:
        unit = slice(start, start + len(op.bias))
        read = sum(turn[:, each.place] @ weights for each, weights in op.inputs)
        _set(mlp.c_fc.weight[:, unit], np.asarray(read))
        _set(mlp.c_fc.bias[unit], op.bias)
        _set(mlp.c_proj.weight[unit], op.output @ turn[:, op.writes.place].T)
        start = unit.stop
