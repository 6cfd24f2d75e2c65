"""The least set: the fewest of some heads that do nine tenths of their harm together, and who are passengers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cs_heads.analysis.random_comparison import MIN_MARGIN
from cs_heads.designs import explicit
from cs_heads.experiment.baseline import baseline_too_low
from cs_heads.experiment.protocol import ExperimentLike, measured
from cs_heads.record import Record
from cs_heads.units import Unit

MOST_OF = 0.9
"""The share of the harm of all heads that the least set does."""


@dataclass(frozen=True)
class LeastSet(Record):
    """Which of some heads do their harm, on half of the unseen examples.

    Attributes:
        heads: The fewest that do nine tenths of it, in the order given.
        passengers: The others.
        drop: Of all.
        others: Drop of the others with each head left on, in the order given.
        order: Heads by that, those first without which the least is lost.
        first: Drop of the first 1, 2, ... of ``order``, up to all.
        rest: Drop of the passengers alone.
        spent: Example-evaluations, those of the set that is proved among them.
    """

    heads: tuple[Unit, ...]
    passengers: tuple[Unit, ...]
    drop: float
    others: tuple[float, ...]
    order: tuple[Unit, ...]
    first: tuple[float, ...]
    rest: float
    spent: int

    @property
    def told(self) -> str:
        """Which heads do the harm, in words."""
        n, share = len(self.heads), self.first[len(self.heads) - 1] / self.drop
        if not self.passengers:
            return f"each of the {n} heads is needed: without any one they do less than {MOST_OF:.1f} of the harm"
        alone, more = (", ".join(map(str, heads)) for heads in (self.heads, self.passengers))
        does, of_all = "does" if n == 1 else "do", "all" if share >= 0.995 else f"{share:.2f} of"
        by_themselves = f" (by themselves they do {max(0.0, self.rest / self.drop):.2f} of it)"
        return (
            f"{alone} {does} {of_all} the harm of the {len(self.order)} heads given; "
            f"passengers, left out of the proof: {more}{by_themselves if self.rest >= MIN_MARGIN * self.drop else ''}"
        )


def most_of_least_set(k: int, n_examples: int) -> int:
    """What ``least_set`` and the set that it names take at most, beside what is known of all heads and of none."""
    return (2 * k - 1) * -(-n_examples // 2) + n_examples


def least_set(
    experiment: ExperimentLike,
    heads: Sequence[Unit],
    intact: Float[np.ndarray, " example"],
    ablated: Float[np.ndarray, " example"],
) -> LeastSet | None:
    """Leave each head on in turn, then turn off the first 1, 2, ... of those that are missed most.

    Where heads stand in for each other none is missed, and they stay in the order given. None where there is nothing to
    choose: one head, a baseline that is too low, or all together take a tenth of the score of these examples or less.

    Args:
        experiment: On unseen examples of the task, of which every other one is measured.
        heads: Those to choose from, the most important first.
        intact: Score of each example with nothing off.
        ablated: The same with all heads off.
    """
    half = np.arange(0, len(intact), 2)
    full = float((intact - ablated)[half].mean())
    if len(heads) < 2 or full <= MIN_MARGIN * intact.mean() or baseline_too_low(experiment, intact):
        return None
    known = {frozenset(heads): full}

    def drops(sets: list[list[Unit]]) -> list[float]:
        new = [frozenset(each) for each in sets if frozenset(each) not in known]
        if new:
            masks = explicit(experiment.grid, list(map(sorted, new)))
            scores = measured(experiment, masks, np.tile(half, (len(new), 1)))
            known.update(zip(new, (intact[half] - scores).mean(axis=1).tolist(), strict=True))
        return [known[frozenset(each)] for each in sets]

    others = drops([[each for each in heads if each != head] for head in heads])
    order = [heads[place] for place in np.argsort(others, kind="stable")]
    first = drops([order[:n] for n in range(1, len(order) + 1)])
    n = next(n for n, drop in enumerate(first, start=1) if drop >= MOST_OF * full - 1e-9)
    passengers = [head for head in heads if head not in order[:n]]
    rest = drops([passengers])[0] if passengers else 0.0
    return LeastSet(
        heads=tuple(head for head in heads if head in order[:n]),
        passengers=tuple(passengers),
        drop=full,
        others=tuple(others),
        order=tuple(order),
        first=tuple(first),
        rest=rest,
        spent=(len(known) - 1) * len(half) + len(intact) * bool(passengers),
    )
