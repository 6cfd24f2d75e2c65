"""What a call costs and may cost, in example-evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cs_heads.arguments import MAX_BUDGET, in_line


@dataclass(frozen=True)
class Cost:
    """Forward and backward passes of single examples.

    A backward pass counts as one more example-evaluation: the weights are frozen, so it computes the
    gradients of the activations alone, which takes as many multiplications as the forward pass.

    >>> Cost(forwards=100, backwards=100).spent
    200
    """

    forwards: int
    backwards: int = 0

    @property
    def spent(self) -> int:
        """The cost in example-evaluations."""
        return self.forwards + self.backwards

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forwards + other.forwards, self.backwards + other.backwards)


@dataclass
class Budget:
    """Example-evaluations, paid before they are measured."""

    total: int
    spent: int = 0

    @property
    def left(self) -> int:
        """What may still be spent."""
        return self.total - self.spent

    def pay(self, cost: int) -> None:
        """Take ``cost`` out; more than there is would be an error of the method."""
        assert cost <= self.left, f"{cost} example-evaluations are more than the {self.left} left"
        self.spent += cost


class BudgetTooSmallError(ValueError):
    """A budget does not cover the least that a call needs; ``least`` is what would."""

    def __init__(self, budget: int, least: int, why: str) -> None:
        super().__init__(f"budget must be {least:,} or more example-evaluations ({why}), got {budget:,}")
        self.budget, self.least, self.why = budget, least, why

    def beside(self, spent: int) -> BudgetTooSmallError:
        """The same refusal where ``spent`` example-evaluations of the budget go to the intact model."""
        if not spent:
            return self
        return BudgetTooSmallError(self.budget + spent, self.least + spent, f"{self.why}; the intact model: {spent:,}")


def check_budget(budget: Any, least: int, why: str) -> int:
    """The budget, ``MAX_BUDGET`` for None.

    Raises ``BudgetTooSmallError`` where it is below ``least``, ``ValueError`` for a fraction.

    >>> check_budget(100, least=128, why="128 heads, one example each")
    Traceback (most recent call last):
    ...
    cs_heads.experiment.cost.BudgetTooSmallError: budget must be 128 or more example-evaluations (128 ...), got 100
    """
    if budget is None:
        return MAX_BUDGET
    if not isinstance(budget, int | np.integer):
        raise ValueError(f"budget must be a whole number of example-evaluations, got {budget!r}")
    if budget > MAX_BUDGET:
        raise ValueError(f"budget must be {MAX_BUDGET:,} example-evaluations or fewer, got {in_line(budget)}")
    if budget < least:
        raise BudgetTooSmallError(int(budget), least, why)
    return int(budget)
