"""The proof: ablate the heads found, on examples they were not found with, against random heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import Unpack

from cs_heads.analysis.drops import Found, heads_of
from cs_heads.analysis.proof import Confirmation, prove
from cs_heads.analysis.unseen import check_apart, default_sides
from cs_heads.arguments import check_integer, check_seed
from cs_heads.experiment.baseline import MIN_CORRECT, check_size
from cs_heads.experiment.controls import experiments_on, left_out_note
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.without import Without
from cs_heads.ranking import HeadRanking
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task, check_controls, confirming_side, control_side
from cs_heads.units import HeadLike, as_heads


def confirm(
    model: Any,
    task: Task,
    heads: Found,
    *,
    k: int | None = None,
    controls: Sequence[Task] | str | None = "auto",
    seed: int = 0,
    exclude: Sequence[HeadLike] | None = None,
    off: Sequence[HeadLike] | None = None,
    n: int = 100,
    n_random: int = 8,
    **settings: Unpack[SettingsArguments],
) -> Confirmation:
    """Ablate ``heads`` on up to ``n`` unseen examples, beside ``n_random`` random sets of the same layers.

    Heads are localized (``proof.localized``) when the paired test against the random sets gives p < .01 and the
    relative drop exceeds theirs by .10 or more. Random heads, not the intact model, are what the heads are held
    against: any ablation does some harm. They have none of ``exclude``, which by default are the shared heads of
    a ranking, whose harm says nothing of the task. Of a ranking the top ``k`` heads are meant (None: 5, or half of a
    small grid).

    ``controls`` are other tasks, and tell heads of this task from heads that every task needs. Localized heads are
    *specific* where the controls lose little: of the score above chance at most a third of what the task loses, on
    average, and less by .10 for certain. They are *shared* where the controls lose more than that third. The verdict
    stays *localized* where the difference is not certain, or without a control that can tell: one whose intact score
    beats chance with 20 right answers or more.
    Else it is *not localized*, or *baseline too low* where the intact model cannot do the task itself. It is ``close``
    where the 95 % intervals allow another verdict. ``cs_heads.analysis.verdict`` has the whole rule.

    By default (``"auto"``) they are everyday skills that come with the library (``tasks.default_controls``; the demo
    model's own skills on that), split with ``seed``, up to ``n // 2`` unseen examples of each, but 20 at least. Heads
    do not say how they were found: give the ``seed`` of ``find_heads``, for with another one some of these examples are
    among those that the search has seen, and so are some of a control that is a whole task. A note says which of the
    default ones the model does not do well enough to count; where fewer than three count, *specific* is not said.
    ``controls=None`` measures none.

    Of a control that is a whole task up to ``n`` examples are drawn, from the half that
    ``find_heads`` with the same ``seed`` does not search with. Costs at most ``(2 + n_random) × n``
    example-evaluations and ``2 × n`` for each control given, ``n`` for each default one (14 or 15, on the demo model
    7); mean and resample ablation another run of each task's examples, which they make beforehand.

    ``off`` are heads that are off throughout, as in ``find_heads`` (None: those of the ranking): what is proved is what
    carries the task without them.

    ``settings`` are those of ``Experiment``; ``model`` may be a ``Cluster``. The examples are those the task holds out,
    20 at least; a task without, a control that shares a question with the task, or with the finding side of another
    control, a head outside the grid, one named twice or also ``exclude`` raises ``ValueError``
    before the model runs. A default control that shares one is left out, and a note says so.
    """
    check_seed(seed)
    for name, value, least in (("n", n, MIN_CORRECT), ("n_random", n_random, 1)):
        check_integer(name, value, least)
    given = check_controls(controls, task)
    ranking = heads if isinstance(heads, HeadRanking) else None
    listed = () if isinstance(heads, HeadRanking) else tuple(as_heads("heads", heads))
    exclude = ranking.shared if exclude is None and ranking else as_heads("exclude", () if exclude is None else exclude)
    off = ranking.off if off is None and ranking else as_heads("off", () if off is None else off)
    unseen = confirming_side(task)
    check_size(unseen)
    sides = [unseen.take(n), *(control_side(control, n, seed) for control in given)]
    check_apart([task, *given], sides)
    with Experiment(model, sides[0], **settings) as experiment:
        chosen = listed if ranking is None else heads_of(experiment.grid, ranking, k)
        # Read before anything runs, so that a control that cannot be measured is refused at once.
        automatic = isinstance(controls, str)
        beside = default_sides(task, experiment, n, seed) if automatic else sides[1:]
        others = experiments_on(experiment, beside, chosen=not automatic)
        twice = {experiment.grid.resolve(head) for head in off} & {experiment.grid.resolve(head) for head in chosen}
        if twice:
            raise ValueError(f"heads must be others than those off already, got {', '.join(map(str, sorted(twice)))}")
        proof = prove(
            Without(experiment, off),
            chosen,
            exclude=[*exclude, *off],
            name=experiment.task.name,
            controls=[(other.task.name, Without(other, off)) for other in others],
            defaults=[side.name for side in beside] if automatic else None,
            n_random=n_random,
            seed=seed,
        )
        said = left_out_note(experiment, task, seed) if automatic else ()
        notes = (*proof.notes, *said)
        # Their own count has what the ablation ran beforehand.
        spent = sum(each.spent for each in (experiment, *others))
        return replace(proof, spent=spent, notes=notes)
