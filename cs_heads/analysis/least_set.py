"""The least set: the fewest of some heads that do nine tenths of their harm together, and who are passengers.

Harm is what is lost beyond what as many random heads take: any head takes a little, and fillers are not needed for it.
Where the fewest by that are not known to be beyond random sets by themselves, it is all that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from cs_heads.analysis.random_comparison import (
    MIN_MARGIN,
    N_RANDOM,
    RandomComparison,
    RandomSets,
    compare_with_random,
    most_of_random_sets,
)
from cs_heads.designs import explicit
from cs_heads.experiment.baseline import baseline_too_low
from cs_heads.experiment.protocol import ExperimentLike, measured
from cs_heads.record import Record
from cs_heads.units import Unit

MOST_OF = 0.9
"""The share of the harm of all heads that the least set does."""


@dataclass(frozen=True)
class LeastSet(Record):
    """Which of some heads do their harm, chosen on half of the unseen examples and measured again on all.

    Attributes:
        heads: The fewest that do nine tenths of it on that half and on all examples, in the order given.
        passengers: The others.
        share: The share of the harm that they do, on all examples.
        drop: Of all heads; here and below on that half, and its harm alone.
        others: Drop of the others with each head left on, in the order given.
        order: Heads by that, those first without which the least is lost.
        first: Drop of the first 1, 2, ... of ``order``, up to all.
        rest: Drop of the passengers alone.
        spent: Example-evaluations, those of the set that is proved among them.
    """

    heads: tuple[Unit, ...]
    passengers: tuple[Unit, ...]
    share: float
    drop: float
    others: tuple[float, ...]
    order: tuple[Unit, ...]
    first: tuple[float, ...]
    rest: float
    spent: int

    @property
    def told(self) -> str:
        """Which heads do the harm, in words."""
        n, share = len(self.heads), self.share
        if not self.passengers:
            return f"all {n} heads are needed: the first that are missed most do less than {MOST_OF:.1f} of the harm"
        alone, more = (", ".join(map(str, heads)) for heads in (self.heads, self.passengers))
        does, of_all = "does" if n == 1 else "do", "all" if share >= 0.995 else f"{share:.2f} of"
        rest, without = max(0.0, self.rest / self.drop), f"passengers, left out of the proof: {more}"
        if rest >= 0.5:
            # They are part of the task, too: the score has no more to lose.
            without = f"left out of the proof, as not needed beside {'it' if n == 1 else 'these'}: {more}"
        by_themselves = f" (by themselves they do {rest:.2f} of it)" if rest >= MIN_MARGIN else ""
        return f"{alone} {does} {of_all} the harm of the {len(self.order)} heads given; {without}{by_themselves}"


def most_of_least_set(k: int, n_examples: int) -> int:
    """What ``fewest_beyond`` takes at most to choose, beside what is known of all heads and of none."""
    # Each left on, the first ones, both kinds of passengers and of fewer; and what is measured on the rest, twice.
    return (2 * k + 2) * -(-n_examples // 2) + 2 * k * (n_examples // 2)


def halves(n_examples: int) -> tuple[Int[np.ndarray, " chosen"], Int[np.ndarray, " rest"]]:
    """Examples that choose the least set, and the others: drawn, since answers may take turns, the same each time."""
    order = np.random.default_rng(0).permutation(n_examples)
    half = -(-n_examples // 2)
    return np.sort(order[:half]), np.sort(order[half:])


def fewest_beyond(
    experiment: ExperimentLike,
    heads: Sequence[Unit],
    sets: RandomSets,
    *,
    intact: Float[np.ndarray, " example"],
    by_all: Float[np.ndarray, " example"],
    like: str,
    least: bool,
) -> tuple[RandomComparison, LeastSet | None, Float[np.ndarray, " example"], int]:
    """The fewest heads that are beyond random sets of as many as all of them.

    Those that do nine tenths of all that is lost give way to those that do nine tenths of what is lost beyond as many
    random heads, where these are beyond the random sets, too.

    Args:
        experiment: On unseen examples of the task.
        heads: Those to choose from, the most important first.
        sets: Random sets of as many heads.
        intact: Score of each example with nothing off.
        by_all: The same with all heads off.
        like: In what the sets are like the heads, in words.
        least: Whether fewer than all are looked for.

    Returns:
        How they compare with random sets, which they are, the scores with them off, and what choosing them took.
    """
    known: dict[frozenset[Unit], Float[np.ndarray, " chosen"]] = {}
    fewest, ablated = least_set(experiment, heads, intact, by_all, intact, known=known) if least else (None, by_all)
    spent, said = 0, like
    if fewest is not None:
        spent, said = fewest.spent, f"{like} (as many as the {len(heads)} given)"
    random = compare_with_random(experiment, sets, intact, ablated, like=said, least=spent)
    if fewest is None or not random.is_beyond:
        return random, fewest, ablated, spent
    fewer, by_fewer = least_set(experiment, heads, intact, by_all, sets.mean, known=known)
    if fewer is not None:
        spent += fewer.spent
        if {*fewer.heads} < {*fewest.heads}:
            beside = compare_with_random(experiment, sets, intact, by_fewer, like=said, least=spent)
            if beside.is_beyond:
                return beside, fewer, by_fewer, spent
            random = replace(random, spent=beside.spent)
    return random, fewest, ablated, spent


def least_set(
    experiment: ExperimentLike,
    heads: Sequence[Unit],
    intact: Float[np.ndarray, " example"],
    ablated: Float[np.ndarray, " example"],
    random: Float[np.ndarray, " example"],
    *,
    known: dict[frozenset[Unit], Float[np.ndarray, " chosen"]],
) -> tuple[LeastSet | None, Float[np.ndarray, " example"]]:
    """Leave each head on in turn, then turn off the first 1, 2, ... of those that are missed most.

    Half of the examples choose how many; the set is then measured on the rest, and grows until it does nine tenths of
    the harm on all. Where heads stand in for each other none is missed, and they stay in the order given: those of the
    first that add nothing are then left out, if the rest does as much. None where there is nothing to choose: one head,
    a baseline that is too low, or all together do no more harm than a tenth of what these examples score above chance.

    Args:
        experiment: On unseen examples of the task.
        heads: Those to choose from, the most important first.
        intact: Score of each example with nothing off.
        ablated: The same with all heads off.
        random: The same with as many random heads off, on average, of which fewer take a part; or ``intact``, where all
            that is lost is harm.
        known: Scores of sets on the half that chooses, which are added to it.

    Returns:
        The least set, and the score of each example with it off.
    """
    n_heads, (half, rest) = len(heads), halves(len(intact))
    harm, by_one = random - ablated, (intact - random) / n_heads
    full = float(harm[half].mean())
    if n_heads < 2 or full <= MIN_MARGIN * (intact.mean() - experiment.chance) or baseline_too_low(experiment, intact):
        return None, ablated
    known[frozenset(heads)] = ablated[half]
    spent = 0

    def drops(sets: list[list[Unit]]) -> list[float]:
        nonlocal spent
        new = [frozenset(each) for each in sets if frozenset(each) not in known]
        if new:
            masks = explicit(experiment.grid, list(map(sorted, new)))
            known.update(zip(new, measured(experiment, masks, np.tile(half, (len(new), 1))), strict=True))
            spent += len(new) * len(half)
        return [float((intact - len(each) * by_one)[half].mean() - known[frozenset(each)].mean()) for each in sets]

    others = drops([[each for each in heads if each != head] for head in heads])
    order = [heads[place] for place in np.argsort(others, kind="stable")]
    first = drops([order[:n] for n in range(1, n_heads + 1)])
    enough = [order[:n] for n, drop in enumerate(first, start=1) if drop >= MOST_OF * full - 1e-9]
    adds = dict(zip(order, np.diff(first, prepend=0.0), strict=True))
    fewer = [head for head in enough[0] if adds[head] >= (1 - MOST_OF) * full / n_heads]
    if 0 < len(fewer) < len(enough[0]) and drops([fewer])[0] >= MOST_OF * full - 1e-9:
        enough.insert(0, fewer)
    for chosen in enough:
        off, share = ablated, 1.0
        if len(chosen) < n_heads:
            off = ablated.copy()
            off[half] = known[frozenset(chosen)]
            off[rest] = measured(experiment, explicit(experiment.grid, [chosen]), rest[None])[0]
            spent += len(rest)
            beyond = float((intact - len(chosen) * by_one - off).mean())
            share = beyond / float(harm.mean()) if harm.mean() > 0 else 0.0
        if share >= MOST_OF - 1e-9:
            break
    passengers = [head for head in heads if head not in chosen]
    alone = drops([passengers])[0] if passengers else 0.0
    least = LeastSet(
        heads=tuple(head for head in heads if head in chosen),
        passengers=tuple(passengers),
        share=share,
        drop=full,
        others=tuple(others),
        order=tuple(order),
        first=tuple(first),
        rest=alone,
        spent=spent,
    )
    return least, off


def most_of_proof(k: int, n: int, others: Sequence[int], n_random: int = N_RANDOM, *, least: bool = True) -> int:
    """The most example-evaluations that a proof takes, but for what an ablation runs beforehand.

    Args:
        k: Heads.
        n: Unseen examples of the task.
        others: Examples of each control and each kin.
        n_random: Random sets.
        least: Whether the fewest of the heads are proved.
    """
    # What chooses the least set is taken from random sets, but for what these need at least.
    choice = most_of_least_set(k, n) if least else 0
    sets = max(most_of_random_sets(n_random, n), choice + most_of_random_sets(n_random, n, choice))
    return 2 * (n + sum(others)) + sets
