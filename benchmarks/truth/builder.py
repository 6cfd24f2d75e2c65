"""Programs of selections and aggregations (RASP) as operations on variables, each some directions of a residual stream.

A selection is a bilinear form of the variables at the query and at the key; the softmax makes it hard. An aggregation
moves a variable from the places selected. Tables are piecewise constant functions of a sum of variables, by ReLUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

DIGITS = 10
BOS, YES, NO, NONE, CUES, N_CUES = 0, 11, 12, 13, 14, 3
"""Token ids; that of digit d is 1 + d, and the last token of a prompt is the cue of its program."""
N_TOKENS = CUES + N_CUES
SHARP = 32.0
"""Score of what is selected, above that of all else."""
STEP = 9.0
"""Score between one value and the next, where the largest is selected."""
_GATE = 4.0
"""What the cue of a program adds to its answers, above all that they are."""
_VALUES = np.arange(1.0, DIGITS + 1)


@dataclass(frozen=True, eq=False)
class Variable:
    """Neighboring directions of the residual stream, before it is rotated."""

    start: int
    width: int

    def __getitem__(self, part: slice) -> Variable:
        """Some of its directions."""
        start, stop, _ = part.indices(self.width)
        return Variable(self.start + start, stop - start)

    @property
    def place(self) -> slice:
        """Where it lies."""
        return slice(self.start, self.start + self.width)


@dataclass(frozen=True)
class Form:
    """A bilinear form of two variables: ``x[left] @ matrix @ y[right]``."""

    left: Variable
    matrix: np.ndarray
    right: Variable


@dataclass(frozen=True, eq=False)
class HeadOp:
    """An attention head: the sum of ``scores`` selects, what is selected moves by ``moves``."""

    scores: tuple[Form, ...]
    moves: tuple[Form, ...]

    @property
    def reads(self) -> list[Variable]:
        """What must be known before."""
        return [each for form in self.scores for each in (form.left, form.right)] + [form.left for form in self.moves]

    @property
    def writes(self) -> Variable:
        """What is known after."""
        return self.moves[0].right


@dataclass(frozen=True, eq=False)
class UnitsOp:
    """Hidden units of an MLP: ``relu(sum of inputs + bias) @ output``."""

    inputs: tuple[tuple[Variable, np.ndarray], ...]
    bias: np.ndarray
    output: np.ndarray
    writes: Variable

    @property
    def reads(self) -> list[Variable]:
        """What must be known before."""
        return [each for each, _ in self.inputs]


Op = HeadOp | UnitsOp


@dataclass
class Builder:
    """Records the operations of programs over prompts of BOS, ``n`` digits and a cue.

    Attributes:
        n: Digits of a prompt.
        share: Whether programs share the head that copies the digit before.
        ops: The operations, in an order in which they can run.
        width: Directions taken so far.
    """

    n: int
    share: bool = False
    ops: list[Op] = field(default_factory=list)
    width: int = 0

    def __post_init__(self) -> None:
        self.tokens, self.places = self.variable(N_TOKENS), self.variable(self.n + 2)
        self.one, self.norm, self.logits = self.variable(1), self.variable(1), self.variable(N_TOKENS)
        self.digits, self.cues = self.tokens[1 : 1 + DIGITS], self.tokens[CUES:]
        self._found: dict[str, Variable] = {}

    def variable(self, width: int) -> Variable:
        """New directions."""
        self.width += width
        return Variable(self.width - width, width)

    # Selections

    def back(self, steps: int) -> list[Form]:
        """The place so many before; BOS where there is none."""
        matrix = np.zeros((self.places.width,) * 2)
        for place in range(len(matrix)):
            matrix[place, max(place - steps, 0)] = SHARP
        return [Form(self.places, matrix, self.places)]

    def at(self, places: Sequence[int], score: float = SHARP) -> list[Form]:
        """Places, the same from everywhere: digits are at 1 to n."""
        return [Form(self.one, score * np.isin(range(self.places.width), places)[None], self.places)]

    def equal(self, query: Variable, key: Variable, score: float = SHARP) -> list[Form]:
        """Places where ``key`` is what ``query`` is here, but for cues; BOS where there is none."""
        rest = [*self.at([0], abs(score) / 8), *self.having(self.cues, -2 * abs(score))] if score > 0 else []
        return [Form(query, score * np.eye(query.width), key), *rest]

    def having(self, key: Variable, score: float | np.ndarray = SHARP) -> list[Form]:
        """Places where ``key`` is set, each of its directions by its score."""
        return [Form(self.one, np.broadcast_to(score, (1, key.width)), key)]

    def largest(self, smallest: bool = False) -> list[Form]:
        """The place of the largest digit."""
        return self.having(self.digits, STEP * (_VALUES[::-1] if smallest else _VALUES))

    def latest(self, first: bool = False) -> list[Form]:
        """Prefers later places to earlier ones, or earlier ones; a match must weigh more than all of them."""
        return self.having(self.places, STEP * np.arange(self.places.width) * (-1 if first else 1))

    # Operations

    def head(self, scores: Sequence[Form], value: Variable | None = None, matrix: np.ndarray | None = None) -> Variable:
        """Move ``value`` (None: the digit), mapped by ``matrix``, from what ``scores`` select."""
        value = self.digits if value is None else value
        matrix = np.eye(value.width) if matrix is None else np.asarray(matrix, dtype=float)
        written = self.variable(matrix.shape[1])
        self.ops.append(HeadOp(tuple(scores), (Form(value, matrix, written),)))
        return written

    def number(self, scores: Sequence[Form]) -> Variable:
        """The digit of what ``scores`` select, and one more, as a number."""
        return self.head(scores, matrix=_VALUES[:, None])

    def found(self, name: str, write: Callable[[Builder], Variable]) -> Variable:
        """What operations of this name find; where programs share, they are recorded once."""
        if name not in self._found or not self.share:
            self._found[name] = write(self)
        return self._found[name]

    def previous(self) -> Variable:
        """The digit before every place."""
        return self.found("previous", lambda b: b.head(b.back(1)))

    def units(self, inputs: Sequence[tuple[Variable, np.ndarray]], bias: np.ndarray, output: np.ndarray) -> Variable:
        """Hidden units with their weights ``[width, unit]`` and ``[unit, width]``."""
        written = self.variable(output.shape[1])
        self.ops.append(UnitsOp(tuple(inputs), bias, output, written))
        return written

    def table(
        self,
        inputs: Sequence[tuple[Variable, float | np.ndarray]],
        levels: Sequence[float] | np.ndarray,
        values: np.ndarray,
    ) -> Variable:
        """``values[i]`` where the weighted sum of ``inputs`` is nearest to ``levels[i]``, which ascend."""
        at, values = np.asarray(levels, dtype=float), np.asarray(values, dtype=float)
        slope = 4 / np.diff(at)
        middle = (at[1:] + at[:-1]) / 2
        # Two ReLUs make a step, steep and a quarter of the gap wide; one more is always 1.
        slopes, offsets = np.concatenate([slope, slope, [0]]), np.concatenate([0.5 - slope * middle] * 2 + [[1.0]])
        offsets[len(slope) : -1] -= 1
        steps = np.diff(values, axis=0)
        read = [(each, np.broadcast_to(weight, each.width)[:, None] * slopes) for each, weight in inputs]
        return self.units(read, offsets, np.concatenate([steps, -steps, values[:1]]))

    def both(self, chosen: Variable, options: Sequence[Variable]) -> Variable:
        """The option that ``chosen`` names, by one direction for each."""
        width = options[0].width
        inputs = [(chosen, np.repeat(np.eye(len(options)), width, axis=1))]
        for i, option in enumerate(options):
            place = np.zeros((width, len(options) * width))
            place[:, i * width : (i + 1) * width] = np.eye(width)
            inputs.append((option, place))
        return self.units(inputs, -np.ones(len(options) * width), np.tile(np.eye(width), (len(options), 1)))

    def yes_no(self, inputs: Sequence[tuple[Variable, float | np.ndarray]], test: Callable[[float], bool]) -> Variable:
        """Yes or no by a test of the sum of ``inputs``, an integer of at most ten either way."""
        levels = range(-DIGITS, DIGITS + 1)
        return self.table(inputs, levels, np.array([[test(level), not test(level)] for level in levels]))

    def answer(self, found: Variable, cue: int | None) -> UnitsOp:
        """Say what was found, where the cue is the last token; without a cue whatever the last token."""
        first = 1 if found.width == DIGITS else YES
        output = np.zeros((found.width, N_TOKENS))
        output[:, first : first + found.width] = np.eye(found.width)
        inputs = [(found, np.eye(found.width))]
        if cue is not None:
            inputs.append((self.cues[cue : cue + 1], _GATE * np.ones((1, found.width))))
        bias = np.full(found.width, 0.0 if cue is None else -_GATE)
        said = UnitsOp(tuple(inputs), bias, output, self.logits)
        self.ops.append(said)
        return said


def variables(
    builder: Builder, prompts: np.ndarray, sources: np.ndarray | None = None, swapped: np.ndarray | None = None
) -> np.ndarray:
    """Run operations as they stand: every variable at every place, ``[prompt, place, direction]``.

    Args:
        builder: Has the operations.
        prompts: Token ids.
        sources: Variables of as many other prompts (None: all are 0).
        swapped: Operations that give what they give in the source, ``[prompt, operation]``.
    """
    state = np.zeros((*prompts.shape, builder.width), dtype=np.float32)
    sources = np.zeros_like(state) if sources is None else sources
    state[..., builder.tokens.place] = np.eye(N_TOKENS)[prompts]
    state[..., builder.places.place] = np.eye(prompts.shape[1], builder.places.width)
    state[..., builder.one.place] = 1
    for number, op in enumerate(builder.ops):
        found = _attended(op, state) if isinstance(op, HeadOp) else _activated(op, state)
        if swapped is not None:
            found = np.where(swapped[:, number, None, None], sources[..., op.writes.place], found)
        state[..., op.writes.place] += found
    return state


def _attended(op: HeadOp, state: np.ndarray) -> np.ndarray:
    scores = np.triu(np.full((state.shape[1],) * 2, -np.inf), 1)
    for form in op.scores:
        read = state[..., form.left.place] @ form.matrix.astype(state.dtype)
        scores = scores + read @ state[..., form.right.place].swapaxes(-1, -2)
    attention = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attention /= attention.sum(axis=-1, keepdims=True)
    return attention @ np.sum([state[..., form.left.place] @ form.matrix for form in op.moves], axis=0)


def _activated(op: UnitsOp, state: np.ndarray) -> np.ndarray:
    read = np.sum([state[..., each.place] @ weights for each, weights in op.inputs], axis=0)
    return np.asarray(np.maximum(read + op.bias, 0) @ op.output)
