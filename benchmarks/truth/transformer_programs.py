"""Transformer Programs (Friedman et al., arXiv 2306.01128) as operations: Python that a transformer was trained to be.

A prompt has all tokens once more than there are layers, so every place sees all that the layer before found, under a
causal mask. The answer is that of one position, at which the last copy ends. Programs that sum other numbers than ones
are refused.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from .builder import BOS, SHARP, STEP, Builder, Form, UnitsOp, Variable
from .programs import Digits, Program
from .putting import put
from .suite import Spec, TrueModel

# What matches, above all preferences among places, and what an answer is above that nothing is said.
_MATCH, _ABOVE = 1200.0, 30.0
_PAIRS = {"(": ")", "{": "}"}


@dataclass(frozen=True)
class Values:
    """What a program knows at every position.

    Attributes:
        variable: Where it is.
        matrix: From there to one direction for each name.
        names: What each direction stands for; empty of a number.
        first: What it is at position 0, where it is always the same.
    """

    variable: Variable
    matrix: np.ndarray
    names: tuple[Any, ...] = ()
    first: Any = None


@dataclass(frozen=True)
class Copied(Program):
    """What a program says at one position.

    Attributes:
        copies: Of all tokens, before the last that ends at the position.
        position: The position.
    """

    copies: int = 0
    position: int = 0

    def prompt(self, digits: Digits, cue: int) -> tuple[int, ...]:
        """All tokens, once more than there are layers, and the last time up to the position."""
        del cue  # The position is what is asked.
        tokens = [1 + digit for digit in digits]
        return (BOS, *tokens * self.copies, *tokens[: self.position + 1])


class Python:
    """A program in Python, operation by operation.

    Args:
        file: Where it is, beside its linear weights.
    """

    def __init__(self, file: Path) -> None:
        text = file.read_text()
        body = [each for each in ast.parse(text).body if isinstance(each, ast.Import | ast.FunctionDef)]
        self.functions: dict[str, Any] = {}
        self.define(*body)
        table = pd.read_csv(file.with_name(f"{file.stem}_weights.csv"), index_col=[0, 1], dtype={"feature": str})
        # It asks for its weights at every call.
        self.functions["pd"] = SimpleNamespace(read_csv=lambda *_, **__: table, concat=pd.concat)
        self.weights, self.classes = table[~table.index.duplicated()], [*table.columns]
        self.n = len(self.weights.loc["positions"])
        self.steps = next(each.body for each in body if isinstance(each, ast.FunctionDef) and each.name == "run")
        self.tokens = [each for each in self.weights.loc["tokens"].index if each not in ("_", "<pad>")]
        self.causal = "[: i + 1]" in text
        layers = [int(each.split("_")[1]) for each, _ in self.weights.index if each.startswith("attn")]
        self.copies = 0 if self.causal else 1 + max(layers)
        self.builder = Builder(self.n * (self.copies + 1) - 1)
        places = np.zeros((self.builder.places.width, self.n))
        places[1:] = np.tile(np.eye(self.n), (self.copies + 1, 1))
        tokens = np.eye(self.builder.tokens.width)[:, 1 : 1 + len(self.tokens)]
        self.values = {
            "tokens": Values(self.builder.tokens, tokens, tuple(self.tokens), "<s>"),
            "positions": Values(self.builder.places, places, tuple(range(self.n)), 0),
            "ones": Values(self.builder.places, places.sum(axis=1, keepdims=True)),
        }

    def define(self, *functions: ast.stmt) -> None:
        """Make functions known."""
        exec(compile(ast.Module([*functions], []), "published", "exec"), self.functions)

    def written(self) -> UnitsOp:
        """Record all operations and the answer."""
        patterns: dict[str, tuple[str, str, str]] = {}
        for step in self.steps:
            match step:
                case ast.FunctionDef():
                    self.define(step)
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Name(id="select" | "select_closest"), args=args),
                ):
                    keys, queries, predicate = map(ast.unparse, args)
                    patterns[name] = keys, queries, predicate
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(
                        func=ast.Name(id="aggregate" | "aggregate_sum" as how),
                        args=[ast.Name(id=pattern), ast.Name(id=values)],
                    ),
                ):
                    write = self.closest if how == "aggregate" else self.number
                    self.values[name] = write(*patterns[pattern], values)
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.ListComp(elt=ast.Call(func=ast.Name(id=function)), generators=[over]),
                ):
                    read = over.iter.args if isinstance(over.iter, ast.Call) else [over.iter]
                    self.values[name] = self.table(function, [self.values[ast.unparse(each)] for each in read])
        return self.answer()

    def matches(self, keys: str, queries: str, predicate: str) -> np.ndarray:
        """Which key each query selects, by name."""
        test = self.functions[predicate]
        return np.array([[bool(test(q, k)) for k in self.values[keys].names] for q in self.values[queries].names])

    def before(self, score: float) -> np.ndarray:
        """A score of all places of the copy before, or where it is causal of this one."""
        copy = (np.arange(self.builder.places.width) - 1) // self.n
        seen = copy if self.causal else np.maximum(copy - 1, 0)
        made = score * (seen[:, None] == copy)
        made[0], made[:, 0] = 0, 0
        return made

    def closest(self, keys: str, queries: str, predicate: str, values: str) -> Values:
        """A head that selects the nearest match, of two the left one, itself last; position 0 if nothing matches."""
        key, query, value, places = *(self.values[each] for each in (keys, queries, values)), self.values["positions"]
        table = self.matches(keys, queries, predicate)
        ahead = np.arange(self.n) - np.arange(self.n)[:, None]
        steps = 2 * np.abs(ahead) + (ahead > 0) + 2 * self.n * (ahead == 0)
        near = self.before(2 * _MATCH) - STEP * places.matrix @ steps @ places.matrix.T
        # Position 0 is preferred to what does not match, but not twice where it does.
        first = np.array(
            [_MATCH / 2 * (key.first not in key.names or not row[key.names.index(key.first)]) for row in table]
        )
        scores = [
            Form(query.variable, query.matrix @ (_MATCH * table) @ key.matrix.T, key.variable),
            Form(query.variable, query.matrix @ np.outer(first, places.matrix[:, 0]), places.variable),
            Form(places.variable, near, places.variable),
        ]
        found = self.builder.head(scores, value.variable, value.matrix)
        return Values(found, np.eye(found.width), value.names, value.first if self.causal else None)

    def number(self, keys: str, queries: str, predicate: str, values: str) -> Values:
        """A head that counts matches: of c and BOS each has 1 / (c + 1) of the attention.

        Raises:
            ValueError: The program sums other numbers.
        """
        if values != "ones":
            raise ValueError(f"programs must sum ones alone, got {values}")
        key, query, builder = self.values[keys], self.values[queries], self.builder
        table = SHARP * self.matches(keys, queries, predicate)
        scores = [
            Form(query.variable, query.matrix @ table @ key.matrix.T, key.variable),
            Form(builder.places, self.before(SHARP), builder.places),
            *builder.at([0], 2 * SHARP),
        ]
        share = builder.head(scores, builder.places[:1], np.full((1, 1), 10.0))
        counts = np.arange(self.n, -1, -1.0)
        return Values(builder.table([(share, 1.0)], 10 / (counts + 1), counts[:, None]), np.eye(1))

    def table(self, function: str, read: Sequence[Values]) -> Values:
        """Hidden units for a function of what is known here."""
        test, counts = self.functions[function], range(self.n + 1)
        said = {each: test(*each) for each in product(*(values.names or counts for values in read))}
        names = tuple(sorted({*said.values()}))
        one_hot = dict(zip(names, np.eye(len(names)), strict=True))
        if not read[0].names:
            weights = [float(len(counts) ** i) for i in reversed(range(len(read)))]
            levels = list(zip((values.variable for values in read), weights, strict=True))
            found = self.builder.table(levels, range(len(said)), np.array([one_hot[each] for each in said.values()]))
            return Values(found, np.eye(len(names)), names)
        # The most usual value needs no unit: it is written wherever there is a position, and what differs replaces it.
        usual = Counter(said.values()).most_common(1)[0][0]
        other = [each for each in said if said[each] != usual]
        here = np.zeros((self.builder.places.width, len(other) + 1))
        here[1:, -1] = 1
        inputs = [(self.builder.places, here)]
        for i, values in enumerate(read):
            chosen = [values.names.index(each[i]) for each in other]
            inputs.append((values.variable, np.pad(values.matrix[:, np.array(chosen, dtype=int)], [(0, 0), (0, 1)])))
        bias = np.append(np.full(len(other), 1.0 - len(read)), 0)
        to = np.array([one_hot[said[each]] - one_hot[usual] for each in other] + [one_hot[usual]])
        first = said.get(tuple(values.first for values in read))
        return Values(self.builder.units(inputs, bias, to), np.eye(len(names)), names, first)

    def answer(self) -> UnitsOp:
        """The logits, a linear function of all that is known, high above that nothing is said."""
        widths = [values.matrix.shape[1] for values in self.values.values()]
        rows = np.zeros((sum(widths), self.builder.logits.width))
        inputs, start, said = [], 0, slice(self.said(0), self.said(len(self.classes)))
        for (name, values), width in zip(self.values.items(), widths, strict=True):
            part = slice(start, start := start + width)
            inputs.append((values.variable, values.matrix @ np.eye(len(rows))[part]))
            rows[part, said] = self.weights.loc[[(name, str(each)) for each in values.names or ["_"]]].to_numpy()
            if name == "ones":
                rows[part, said] += _ABOVE
        made = UnitsOp(tuple(inputs), np.zeros(len(rows)), rows, self.builder.logits)
        self.builder.ops.append(made)
        return made

    def said(self, number: int) -> int:
        """The token of an answer."""
        return 1 + len(self.tokens) + number

    def asked(self, position: int) -> Copied:
        """What the program says at a position, as Python runs it."""
        run = self.functions["run"]
        cached = cache(lambda digits: self.classes.index(run([self.tokens[each] for each in digits])[position]))
        return Copied(
            f"position {position}",
            lambda x: self.said(cached(tuple(x))) - 1,
            lambda builder: builder.logits,
            lambda rng, _: self.draw(rng),
            copies=self.copies,
            position=position,
        )

    def draw(self, rng: np.random.Generator) -> list[int]:
        """Tokens between those of start and end; every second time brackets that never close what is not open."""
        start, end = self.tokens.index("<s>"), [self.tokens.index(each) for each in ("</s>",) if each in self.tokens]
        usual = [each for each in range(len(self.tokens)) if each not in (start, *end)]
        drawn = [int(each) for each in rng.choice(usual, size=self.n - 1 - len(end))]
        if "(" in self.tokens and rng.random() < 0.5:
            waiting: list[str] = []
            for i, each in enumerate(drawn):
                token = self.tokens[each]
                if token in _PAIRS:
                    waiting.append(_PAIRS[token])
                else:
                    drawn[i] = self.tokens.index(waiting.pop() if waiting else "(")
                    waiting += [")"] * (self.tokens[drawn[i]] == "(")
        return [start, *drawn, *end]


def turned(file: Path, positions: Sequence[int], seed: int = 0) -> TrueModel:
    """A program as a GPT-2: its answer at the first of some positions is the task, those at the others are controls."""
    program = Python(file)
    program.written()
    spec = Spec("published", 8, 12, seed, f"{file.parents[1].name}-{file.stem}")
    return put(spec, program.builder, tuple(program.asked(each) for each in positions), program.n)
