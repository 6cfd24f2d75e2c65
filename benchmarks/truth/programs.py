"""The programs: what follows a list of digits, as a rule in Python and as operations of heads and ReLUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .builder import BOS, CUES, DIGITS, SHARP, Builder, Form, Variable

Digits = Sequence[int]
Draw = Callable[[np.random.Generator, int], Any]
"""Draws digits, for which a rule may say nothing."""
_NUMBERS = np.arange(1.0, DIGITS + 1)
# Above all preferences among places together.
_MATCH = 120.0


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: What it answers.
        answer: The digit, or True or False, that follows; None where the rule says nothing of these digits.
        write: Records its operations and gives what it finds: ten directions of a digit, or those of yes and no.
        draw: Draws digits, for which the rule may say nothing.
        choice: Whether it answers yes or no.
        heads: Whether it has any.
        previous: Whether a head of it copies the digit before every place.
        doubles: Whether twice what a head writes does no harm: nothing counts.
    """

    name: str
    answer: Callable[[Digits], int | bool | None]
    write: Callable[[Builder], Variable]
    draw: Draw
    choice: bool = False
    heads: bool = True
    previous: bool = False
    doubles: bool = False

    def prompt(self, digits: Digits, cue: int) -> tuple[int, ...]:
        """The token ids of digits, and the cue that ends them."""
        return (BOS, *(1 + digit for digit in digits), *([CUES + cue] if self.heads else []))

    def prompts(self, n: int, length: int, cue: int, seed: int) -> tuple[list[list[int]], list[int]]:
        """``n`` different prompts of so many digits, and their answers, as token ids; yes and no as often.

        Args:
            n: How many.
            length: Digits of each.
            cue: The program's cue, which ends the prompt.
            seed: Draws them.
        """
        rng = np.random.default_rng(seed)
        found: dict[tuple[int, ...], int] = {}
        while len(found) < n:
            digits = [int(digit) for digit in self.draw(rng, length)]
            answer = self.answer(digits)
            if answer is None or (self.choice and answer != (len(found) % 2 == 0)):
                continue
            found[self.prompt(digits, cue)] = int(not answer) if self.choice else 1 + answer
        return [list(prompt) for prompt in found], list(found.values())


# Draws


def _any(rng: np.random.Generator, n: int) -> Any:
    return rng.integers(DIGITS, size=n)


def _few(rng: np.random.Generator, n: int) -> Any:
    """Of four digits, so that some come often."""
    return rng.integers(4, size=n)


def _distinct(rng: np.random.Generator, n: int) -> Any:
    return rng.permutation(DIGITS)[:n]


def _repeating(rng: np.random.Generator, n: int) -> Any:
    """Distinct digits, and one of the first half again."""
    digits = rng.permutation(DIGITS)[: n - 1]
    return [*digits, digits[rng.integers((n - 1) // 2)]]


def _indexed(top: int) -> Draw:
    """The last digit is a place from 1 on."""
    return lambda rng, n: [*rng.integers(DIGITS, size=n - 1), rng.integers(1, top + 1)]


# Rules


def _after(x: Digits, key: int) -> int | None:
    """The digit after the only place of a key."""
    places = [i for i, digit in enumerate(x[:-1]) if digit == key]
    return x[places[0] + 1] if len(places) == 1 else None


def _followers(x: Digits) -> list[int]:
    """What followed the last digit before; empty unless it came twice, and not the same followed."""
    found = [x[i + 1] for i in range(len(x) - 1) if x[i] == x[-1]]
    return found if len(found) > 1 and found[0] != found[-1] else []


def _hops(x: Digits, n: int) -> int | None:
    key: int | None = x[-1]
    for _ in range(n):
        key = None if key is None else _after(x, key)
    return key


def _only(places: Sequence[int]) -> int | None:
    return places[0] if len(places) == 1 else None


# Parts of programs


def _chain(b: Builder, n: int) -> Variable:
    found = b.digits
    for _ in range(n):
        found = b.head(b.back(1), found)
    return found


def _marked(b: Builder, key: Variable, digit: int) -> list[Form]:
    """Places where a key is one digit, BOS where there is none."""
    return [*b.having(key[digit : digit + 1]), *b.at([0], SHARP / 8), *b.having(b.cues, -2 * SHARP)]


def _follow(b: Builder, key: Variable, n: int) -> Variable:
    previous = b.previous()
    for _ in range(n):
        key = b.head(b.equal(key, previous))
    return key


def _neighbors(b: Builder) -> Variable:
    """Marks digits that equal the one before, and BOS."""
    before = b.head(b.back(1), matrix=_NUMBERS[:, None])
    equal = np.array([[level == 0] for level in range(-DIGITS, DIGITS + 1)])
    return b.table([(b.digits, _NUMBERS), (before, -1.0)], range(-DIGITS, DIGITS + 1), equal)


def _ascending(b: Builder, n: int, smallest: bool = True) -> Variable:
    """The n-th smallest digit: each head looks past those found."""
    found: list[Variable] = []
    for _ in range(n):
        passed = [form for each in found for form in b.equal(each, b.digits, -_MATCH)]
        found.append(b.head([*b.largest(smallest), *passed]))
    return found[-1]


def _count(b: Builder, digit: int, parts: int) -> Variable:
    """Heads that each count in some of the places."""
    groups = np.array_split(np.arange(1, b.n + 1), parts)
    one_hot = np.eye(DIGITS)[:, digit : digit + 1]
    counts = [(b.head(b.at(group.tolist()), matrix=len(group) * one_hot), 1.0) for group in groups]
    return b.table(counts, range(b.n + 1), np.eye(DIGITS)[: b.n + 1])


def _frequency(b: Builder) -> Variable:
    """How often the last digit came: of c equal ones and BOS each has 1 / (c + 1) of the attention."""
    last = b.head(b.back(1))
    scores = [Form(last, SHARP * np.eye(DIGITS), b.digits), *b.at([0])]
    share = b.head(scores, b.places[:1], np.full((1, 1), 10.0))
    counts = range(b.n, 0, -1)
    return b.table([(share, 1.0)], [10 / (count + 1) for count in counts], np.eye(DIGITS)[list(counts)])


def _switch(b: Builder, n: int) -> Variable:
    """One head for each place, and one for which is asked for."""
    return b.both(b.head(b.back(1))[1 : n + 1], [b.head(b.at([place])) for place in range(1, n + 1)])


def _at_index(b: Builder, mirrored: bool) -> Variable:
    matrix = np.zeros((DIGITS, b.places.width))
    for digit in range(1, b.n):
        matrix[digit, b.n - digit if mirrored else digit] = SHARP
    return b.head([Form(b.head(b.back(1)), matrix, b.places)])


def _sum(b: Builder, places: Sequence[int]) -> Variable:
    numbers = [(b.number(b.at([place])), 1.0) for place in places]
    levels = np.arange(len(places), DIGITS * len(places) + 1)
    return b.table(numbers, levels, np.eye(DIGITS)[(levels - len(places)) % DIGITS])


def _spread(b: Builder) -> Variable:
    levels = np.arange(DIGITS)
    return b.table([(b.number(b.largest()), 1.0), (b.number(b.largest(True)), -1.0)], levels, np.eye(DIGITS))


def _reverse_lookup(b: Builder) -> Variable:
    value, key = b.head(b.back(1)), b.previous()
    return b.head([*b.equal(value, b.digits), *b.at([b.n], -2 * SHARP)], key)


def _repeated(b: Builder) -> Variable:
    found = b.head([*b.having(_neighbors(b)), *b.at([0], -SHARP / 2)], matrix=np.ones((DIGITS, 1)))
    return b.yes_no([(found, 1.0)], lambda level: level == 1)


# The programs


def back(steps: int) -> Program:
    """The digit so many places before, by one head."""
    return Program(f"{steps} back", lambda x: x[-steps], lambda b: b.head(b.back(steps)), _any, doubles=True)


def chain(steps: int) -> Program:
    """The same by a chain of heads, each of which looks at the place before."""
    return Program(f"chain of {steps}", lambda x: x[-steps], lambda b: _chain(b, steps), _any, doubles=True)


def place(number: int) -> Program:
    """The digit at a place."""
    return Program(f"place {number}", lambda x: x[number - 1], lambda b: b.head(b.at([number])), _any, doubles=True)


def induction() -> Program:
    """What followed the last digit when it came before, once."""
    return Program(
        "induction",
        lambda x: _after(x, x[-1]),
        lambda b: _follow(b, b.previous(), 1),
        _repeating,
        previous=True,
        doubles=True,
    )


def occurrence(first: bool) -> Program:
    """What followed the last digit when it came first, or last, before."""

    def write(b: Builder) -> Variable:
        before = b.previous()
        return b.head([*b.equal(before, before, _MATCH), *b.latest(first)])

    def answer(x: Digits) -> int | None:
        return found[0 if first else -1] if (found := _followers(x)) else None

    return Program(f"{'first' if first else 'last'} occurrence", answer, write, _few, previous=True, doubles=True)


def _about_a_mark(name: str, answer: Callable[[Digits], int | None], write: Callable[[Builder], Variable]) -> Program:
    """A program about one digit, which is marked."""
    return Program(name, answer, write, _any, previous=True, doubles=True)


def after(digit: int) -> Program:
    """What follows one digit, which is marked."""
    return _about_a_mark(
        f"after {digit}", lambda x: _after(x, digit), lambda b: b.head(_marked(b, b.previous(), digit))
    )


def before(digit: int) -> Program:
    """What precedes a marked digit."""

    def answer(x: Digits) -> int | None:
        return _only([x[i - 1] for i in range(1, len(x)) if x[i] == digit]) if x[0] != digit else None

    return _about_a_mark(f"before {digit}", answer, lambda b: b.head(_marked(b, b.digits, digit), b.previous()))


def two_after(digit: int) -> Program:
    """What comes two places after a marked digit."""

    def answer(x: Digits) -> int | None:
        return _only([x[i + 2] for i in range(len(x) - 2) if x[i] == digit]) if digit not in x[-2:] else None

    return _about_a_mark(
        f"two after {digit}", answer, lambda b: b.head(_marked(b, b.head(b.back(1), b.previous()), digit))
    )


def lookup() -> Program:
    """The value of a key, which a head of its own reads."""
    return Program(
        "lookup",
        lambda x: _after(x, x[-1]),
        lambda b: _follow(b, b.head(b.back(1)), 1),
        _repeating,
        previous=True,
        doubles=True,
    )


def reverse_lookup() -> Program:
    """The key of a value: what preceded the last digit before."""
    return Program(
        "reverse lookup",
        lambda x: _only([x[i - 1] for i in range(1, len(x) - 1) if x[i] == x[-1]]) if x[0] != x[-1] else None,
        _reverse_lookup,
        _repeating,
        previous=True,
        doubles=True,
    )


def hops(n: int) -> Program:
    """The value of the value of the last digit, and so on."""
    return Program(
        f"{n} hops",
        lambda x: _hops(x, n),
        lambda b: _follow(b, b.head(b.back(1)), n),
        _repeating,
        previous=True,
        doubles=True,
    )


def at_index(mirrored: bool) -> Program:
    """The digit at the place that the last digit names, from the start or mirrored."""
    return Program(
        "mirrored index" if mirrored else "index",
        lambda x: x[len(x) - x[-1] - 1 if mirrored else x[-1] - 1],
        lambda b: _at_index(b, mirrored),
        _indexed(8),
        doubles=True,
    )


def extreme(smallest: bool) -> Program:
    """The largest, or smallest, digit."""
    name = "minimum" if smallest else "maximum"
    return Program(name, min if smallest else max, lambda b: b.head(b.largest(smallest)), _any, doubles=True)


def ordered(n: int, smallest: bool) -> Program:
    """The n-th smallest, or largest, of different digits."""
    return Program(
        f"number {n} {'up' if smallest else 'down'}",
        lambda x: sorted(x, reverse=not smallest)[n - 1],
        lambda b: _ascending(b, n, smallest),
        _distinct,
    )


def spread() -> Program:
    """The largest digit less the smallest."""
    return Program("spread", lambda x: max(x) - min(x), _spread, _any)


def total(places: Sequence[int]) -> Program:
    """The last figure of the sum of the digits at some places, a head each."""
    return Program(
        f"sum of {len(places)}",
        lambda x: sum(x[place - 1] for place in places) % DIGITS,
        lambda b: _sum(b, places),
        _any,
    )


def larger(one: int, other: int) -> Program:
    """Whether the digit at one place is larger than that at another."""
    return Program(
        "larger",
        lambda x: x[one - 1] > x[other - 1],
        lambda b: b.yes_no([(b.number(b.at([one])), 1.0), (b.number(b.at([other])), -1.0)], lambda d: d > 0),
        _any,
        choice=True,
    )


def same(one: int, other: int) -> Program:
    """Whether the digits at two places are the same."""
    return Program(
        "same",
        lambda x: x[one - 1] == x[other - 1],
        lambda b: b.yes_no([(b.number(b.at([one])), 1.0), (b.number(b.at([other])), -1.0)], lambda d: d == 0),
        _few,
        choice=True,
    )


def count(digit: int, parts: int) -> Program:
    """How often a digit comes, each head counting in some places."""
    return Program(f"count by {parts}", lambda x: list(x).count(digit), lambda b: _count(b, digit, parts), _few)


def majority(one: int, other: int) -> Program:
    """Whether one digit comes more often than another."""

    def write(b: Builder) -> Variable:
        everywhere = b.at(range(1, b.n + 1))
        counts = [b.head(everywhere, matrix=b.n * np.eye(DIGITS)[:, digit : digit + 1]) for digit in (one, other)]
        return b.yes_no([(counts[0], 1.0), (counts[1], -1.0)], lambda d: d > 0)

    def answer(x: Digits) -> bool | None:
        counts = [list(x).count(digit) for digit in (one, other)]
        return None if counts[0] == counts[1] else counts[0] > counts[1]

    return Program("majority", answer, write, _few, choice=True)


def contains(digit: int) -> Program:
    """Whether a digit comes at all."""

    def write(b: Builder) -> Variable:
        found = b.head(_marked(b, b.digits, digit), matrix=np.eye(DIGITS)[:, digit : digit + 1])
        return b.yes_no([(found, 1.0)], lambda level: level == 1)

    return Program("contains", lambda x: digit in x, write, _any, choice=True)


def repeated() -> Program:
    """Whether two neighbors are the same."""
    return Program(
        "repeated",
        lambda x: any(a == b for a, b in pairwise(x)),
        _repeated,
        _any,
        choice=True,
    )


def doubled() -> Program:
    """The digit that comes twice in a row."""
    return Program(
        "doubled",
        lambda x: _only([a for a, b in pairwise(x) if a == b]),
        lambda b: b.head([*b.having(_neighbors(b)), *b.at([0], -SHARP / 2)]),
        _any,
    )


def frequency() -> Program:
    """How often the last digit comes."""
    return Program("frequency", lambda x: list(x).count(x[-1]), _frequency, _few)


def switch(n: int) -> Program:
    """The digit at the place that the last digit names, by a head for each place."""
    return Program(f"switch of {n}", lambda x: x[x[-1] - 1], lambda b: _switch(b, n), _indexed(n), doubles=True)


def successor(low: bool, step: int = 1) -> Program:
    """The digit after the last one, of the low or the high half of the digits, by the embedding and one MLP alone."""
    half = range(DIGITS // 2) if low else range(DIGITS // 2, DIGITS)

    def write(b: Builder) -> Variable:
        table = np.roll(np.eye(DIGITS), step, axis=1)
        return b.units([(b.digits[half.start : half.stop], np.eye(len(half)))], np.zeros(len(half)), table[list(half)])

    def answer(x: Digits) -> int | None:
        return (x[-1] + step) % DIGITS if x[-1] in half else None

    return Program(f"successor of {'low' if low else 'high'} digits", answer, write, _any, heads=False)


def mapped(program: Program) -> Program:
    """The answer of another program and one more, found by the same heads."""
    return Program(
        f"{program.name}, plus 1",
        lambda x: None if (found := program.answer(x)) is None else (found + 1) % DIGITS,
        lambda b: b.units(
            [(b.found(program.name, program.write), np.eye(DIGITS))],
            np.zeros(DIGITS),
            np.roll(np.eye(DIGITS), 1, axis=1),
        ),
        program.draw,
    )


def kinds(rng: np.random.Generator) -> list[Program]:
    """A program of every kind, with what it leaves open drawn."""
    digit, few = int(rng.integers(DIGITS)), rng.permutation(4).tolist()
    places, smallest = (1 + rng.permutation(8)).tolist(), bool(rng.integers(2))
    return [
        *(back(int(rng.integers(1, 5))), chain(int(rng.integers(2, 5))), place(places[0])),
        *(induction(), occurrence(True), occurrence(False), after(digit), before(digit), two_after(digit)),
        *(lookup(), reverse_lookup(), hops(2), hops(3), at_index(False), at_index(True)),
        *(extreme(False), extreme(True), ordered(2, smallest), ordered(int(rng.integers(3, 5)), smallest), spread()),
        *(total(places[:2]), total(places[: int(rng.integers(3, 6))]), larger(*places[:2]), same(*places[:2])),
        *(count(few[0], int(rng.integers(1, 4))), majority(*few[:2]), contains(digit), repeated(), doubled()),
        *(frequency(), switch(int(rng.integers(3, 6)))),
    ]
