"""Greedy search: ablate every head alone, and keep what hurts most.

The usual first attempt; both forms are baselines of Bair et al. (arXiv 2603.03335).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from cs_heads import masks
from cs_heads.heads import Head
from cs_heads.integers import check_integer
from cs_heads.measure.cost import Cost, check_budget
from cs_heads.measure.protocol import ExperimentLike, measured, preparation_of, provenance_of
from cs_heads.ranking import HeadRanking, normal_interval

# Points that the drop of a head alone adds to its importance: too few to pass any measured difference, so that
# they order ties and nothing else.
TIE = 1e-6
# Entries of the masks built at once, 32 MiB of bools.
_MAX_ENTRIES = 2**25


def greedy(
    experiment: ExperimentLike,
    *,
    k: int = 5,
    one_shot: bool = False,
    budget: int | None = None,
    seed: int = 0,
) -> HeadRanking:
    """Rank heads by sweeps over all of them; each round adds the head whose ablation lowers the mean score most.

    ``one_shot=True`` is a single round: importance = the drop of each head alone, in points, with a 95 %
    normal interval over examples (of each head by itself, not corrected for picking the largest).
    Otherwise up to ``k`` rounds, each with the heads chosen so far off. The importance of a chosen head is
    what the search still gained from its round on, so the first chosen has the whole drop; that of any
    other head is its drop on top of the chosen ones, in the last round.

    *Ties* go to the head that hurts more alone (first round), then to the lower flat index.
    *Stopping*: after ``k`` heads, or before a round's best head would not lower the score; a note says so.

    Costs ``n_examples`` example-evaluations a mask: the intact model, and in each round every head not yet chosen; and
    what the ablation runs before. With a ``budget`` that does not cover ``k`` full rounds, every mask runs on the same
    examples, drawn with ``seed``, as many as it does cover. A ``k`` outside the grid or a budget below one example a
    mask raises ``ValueError`` before anything is measured.
    """
    check_integer("seed", seed, 0)
    grid = experiment.grid
    check_integer("k", k, 1, grid.size, "the heads of the grid")
    rounds = 1 if one_shot else k
    n_masks = 1 + sum(grid.size - done for done in range(rounds))
    before = preparation_of(experiment)
    check_budget(budget, before + n_masks, f"one example under each of {n_masks:,} masks")
    n = experiment.n_examples if budget is None else min(experiment.n_examples, (budget - before) // n_masks)
    examples = np.sort(np.random.default_rng(seed).permutation(experiment.n_examples)[:n])

    # Drops are means of paired differences, exact for scores of 0 and 1: what ties, ties exactly.
    current = _sweep(experiment, [[]], examples)[0]
    swept = _sweep(experiment, [[head] for head in grid], examples)
    alone = current - swept
    single = alone.mean(axis=1)
    chosen: list[Head] = []
    others = list(grid)
    levels = [float(current.mean())]
    gains = single
    n_measured = 1 + grid.size
    while not one_shot:
        best = int(np.argmax(gains + TIE * single))
        if gains[best] <= 0:
            break
        chosen.append(grid.head(best))
        current = swept[others.index(chosen[-1])]
        levels.append(levels[-1] - float(gains[best]))
        if len(chosen) == k:
            break
        others = [head for head in grid if head not in chosen]
        swept = _sweep(experiment, [[*chosen, head] for head in others], examples)
        gains = np.full(grid.size, -np.inf)
        gains[[grid.index(head) for head in others]] = (current - swept).mean(axis=1)
        n_measured += len(others)

    importance = single if one_shot else gains + TIE * single
    for head, level in zip(chosen, levels, strict=False):
        index = grid.index(head)
        importance[index] = level - levels[-1] + TIE * single[index]
    origin = provenance_of(experiment)
    cost = Cost(forwards=before + n_measured * n)
    return HeadRanking(
        method="one-shot" if one_shot else "greedy",
        importance=importance.reshape(grid.shape),
        spent=cost.spent,
        interval=normal_interval(alone.T).reshape(*grid.shape, 2) if one_shot and n > 1 else None,
        provenance={
            **origin,
            "examples_a_mask": n,
            "chosen": [{"head": str(head), "score": score} for head, score in zip(chosen, levels[1:], strict=True)],
            "seed": seed,
            "cost": cost.to_dict(),
        },
        notes=_notes(one_shot, k, len(chosen), n, experiment.n_examples),
    )


def _sweep(
    experiment: ExperimentLike, groups: list[list[Head]], examples: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "group n"]:
    """Scores of every group of heads; the masks of a big grid do not fit into memory all at once."""
    step = max(1, _MAX_ENTRIES // experiment.grid.size)
    scores = []
    for start in range(0, len(groups), step):
        design = masks.explicit(experiment.grid, groups[start : start + step])
        scores.append(measured(experiment, design, np.tile(examples, (len(design), 1))))
    return np.concatenate(scores)


def _notes(one_shot: bool, k: int, n_chosen: int, n: int, n_examples: int) -> tuple[str, ...]:
    notes = []
    if n < n_examples:
        notes.append(f"the budget covers {n} of {n_examples} examples a mask: drops are coarser")
    if not one_shot and n_chosen < k:
        notes.append(
            f"greedy stopped after {n_chosen} of {k} heads: no further head lowers the score; "
            "the others are ordered by their drop alone where they tie"
        )
    return tuple(notes)
