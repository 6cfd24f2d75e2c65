"""Greedy search: ablate every head alone, and keep what hurts most.

The usual first attempt; both forms are baselines of Bair et al. (arXiv 2603.03335).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from cs_heads import designs
from cs_heads.experiment.baseline import fitting_k
from cs_heads.experiment.cost import check_budget
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.methods.controls import Contrast
from cs_heads.methods.ranking_method import RankingSteps, ranking_method
from cs_heads.progress import step
from cs_heads.ranking import HeadRanking
from cs_heads.units import Grid, Unit

# Share of the drop of a head alone that is added to its importance: too small to pass any measured difference, so
# that it orders ties and nothing else.
TIE = 1e-6
# Entries of the masks built at once, 32 MiB of bools.
_MAX_ENTRIES = 2**25


@ranking_method("greedy")
def greedy(
    experiment: ExperimentLike,
    *,
    k: int | None = None,
    controls: Sequence[ExperimentLike] = (),
    budget: int | None = None,
    seed: int = 0,
    one_shot: bool = False,
) -> RankingSteps:
    """Rank heads by sweeps over all of them; each round adds the head whose ablation lowers the mean score most.

    ``one_shot=True`` is a single round: importance is the drop of each head alone, with a 95 % normal
    interval over examples (of each head by itself, not corrected for selecting the largest). Otherwise up to ``k``
    rounds, each with the heads chosen so far off. The importance of a chosen head is what the search still gained from
    its round on, so the first chosen has the whole drop; that of any other head is its drop on top of the chosen ones,
    in the last round.

    *Ties* go to the head that hurts more alone (first round), then to the lower flat index.
    *Stopping*: after ``k`` heads, or before a round's best head would not lower the score; a note says so.

    Costs ``n_examples`` example-evaluations a mask: the intact model, and in each round every head not yet chosen; and
    what the ablation runs before. With a ``budget`` that does not cover ``k`` full rounds, every mask runs on the same
    examples, drawn with ``seed``, as many as it does cover.

    With ``controls`` heads are chosen and ranked by the contrast: the share of the score above chance that the task
    loses, less the mean share that its controls lose. Every mask then runs on as many examples of the controls as of
    the task, the same for all masks, balanced over the controls (fewer where they have fewer); a ``budget`` is split
    evenly. The intact model first runs on all examples of the task and up to 100 of each control; those it answers
    right are used. A control that it cannot do is left out, and the notes say so.

    Args:
        experiment: The task.
        k: Rounds at most (None: 5, or half of a small grid).
        controls: Experiments on other tasks, which the heads should not serve.
        budget: Example-evaluations in all; None for no limit.
        seed: Seeds all draws.
        one_shot: Whether there is a single round.

    Returns:
        The ranking by importance; ``provenance["chosen"]`` has for each round the head, and the score with it off, too
        (with ``controls`` the contrast).

    Raises:
        ValueError: A ``k`` outside the grid, or a budget below one example a mask (with controls one of each control
            and as many of the task), before anything is measured.
        BaselineTooLowError: With controls, a task that the intact model cannot do, or no control that it can.
    """
    grid = experiment.grid
    k, fitted = fitting_k(k, grid, beside=False)
    # Without controls the intact model is one of the masks.
    n_masks = sum(grid.size - done for done in range(1 if one_shot else k)) + (not controls)
    before, sides, least, need = experiment.preparation, 1, 1, "one example"
    if controls:
        before, sides, least = Contrast.cost(experiment, controls), 2, 2 * len(controls)
        need = f"intact runs of {before:,}, then one example of each control and as many of the task"
    limit = check_budget(budget, before + least * n_masks, f"{need} under each of {n_masks:,} masks")
    n = min(experiment.n_examples, (limit - before) // (n_masks * sides))
    yield before + n_masks * n * sides
    examples = np.sort(np.random.default_rng(seed).permutation(experiment.n_examples)[:n])
    measure = Contrast(experiment, controls, examples, seed)

    # Drops are means of paired differences, exact for scores of 0 and 1: what ties, ties exactly.
    current, chosen, n_measured = measure.intact(), list[Unit](), int(not controls)
    levels, gains, single = measure.mean(current[None]).tolist(), np.zeros(grid.size), np.zeros(grid.size)
    for number in range(1 if one_shot else k):
        step("every head alone" if one_shot else f"head {number + 1}/{k}")
        others = [head for head in grid if head not in chosen]
        lost = current - _sweep(measure, grid, [[*chosen, head] for head in others])
        gains = np.full(grid.size, -np.inf)
        gains[[grid.index(head) for head in others]] = measure.mean(lost)
        n_measured += len(others)
        single = single if number else gains
        best = int(np.argmax(gains + TIE * single))
        if one_shot or gains[best] <= 0:
            break
        chosen.append(grid.unit(best))
        current = current - lost[others.index(chosen[-1])]
        levels.append(levels[-1] - float(gains[best]))
    importance = single if one_shot else gains + TIE * single
    for index, level in zip(map(grid.index, chosen), levels, strict=False):
        importance[index] = level - levels[-1] + TIE * single[index]
    interval = measure.interval(lost) if one_shot else None
    # With controls a level is less what is lost.
    word, sign = ("contrast", -1.0) if controls else ("score", 1.0)
    told = _notes(0 if one_shot else k, len(chosen), n, experiment.n_examples, bool(controls))
    yield HeadRanking(
        method="one-shot" if one_shot else "greedy",
        importance=importance.reshape(grid.shape),
        grid=grid,
        spent=before + n_measured * measure.a_mask,
        interval=interval if interval is None else interval.reshape(*grid.shape, 2),
        provenance={
            "examples_a_mask": n,
            "chosen": [
                {"head": str(head), word: sign * score + 0.0} for head, score in zip(chosen, levels[1:], strict=True)
            ],
            "seed": seed,
            **measure.provenance,
        },
        notes=(*fitted, *measure.notes, *told),
        unit=measure.unit,
        chosen=tuple(chosen),
        k=k,
    )


def _sweep(measure: Contrast, grid: Grid, groups: list[list[Unit]]) -> Float[np.ndarray, "group example"]:
    """Scores of every group of heads; the masks of a big grid do not fit into memory all at once."""
    step = max(1, _MAX_ENTRIES // grid.size)
    starts = range(0, len(groups), step)
    return np.concatenate([measure(designs.explicit(grid, groups[start : start + step])) for start in starts])


def _notes(wanted: int, n_chosen: int, n: int, n_examples: int, contrast: bool) -> tuple[str, ...]:
    notes = []
    if n < n_examples:
        notes.append(f"the budget covers {n} of {n_examples} examples a mask: drops are coarser")
    if n_chosen < wanted:
        score = f"the score{', beyond what the controls lose' if contrast else ''}"
        stopped = f"greedy stopped after {n_chosen} of {wanted} heads: no further head lowers {score}"
        notes.append(f"{stopped}; the others are ordered by their drop alone where they tie")
    return tuple(notes)
