"""The proof: ablate the heads found, on examples they were not found with, beside random heads of the same layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, cast

import numpy as np
import pandas as pd
from typing_extensions import Unpack

from cs_heads.analysis.columns import Column, Judged, check_columns, controlled
from cs_heads.analysis.drops import measure_drops
from cs_heads.analysis.found_heads import Found, cast_note, heads_of, model_of
from cs_heads.analysis.intervals import UNKNOWN, Interval
from cs_heads.analysis.least_set import LeastSet, fewest_beyond, most_of_proof
from cs_heads.analysis.losses import TaskDrop, task_drop
from cs_heads.analysis.random_comparison import N_RANDOM, RandomComparison, first_round
from cs_heads.analysis.random_heads import drawn_notes, like_note, random_sets
from cs_heads.analysis.result import Result
from cs_heads.analysis.stability import Stability, search_of
from cs_heads.analysis.verdict import Judgment, judge, next_step
from cs_heads.arguments import check_integer, check_seed, check_type
from cs_heads.cluster import ModelLike
from cs_heads.designs import explicit
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import baseline_too_low, check_k, remedy
from cs_heads.experiment.controls import check_ranked, found_on, unseen_parts
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.experiment.protocol import ExperimentLike, measured, preparation_of
from cs_heads.experiment.shared_forwards import Call, measure_together
from cs_heads.methods.find import find_heads
from cs_heads.progress import expect, one_bar
from cs_heads.ranking import HeadRanking
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task, check_controls
from cs_heads.tasks.controls import alike, alike_in_answers
from cs_heads.units import HeadLike, Unit, as_heads

_UNTOLD = (
    "it is not known which examples these heads were found on, as it is of a ranking: that the unseen examples are "
    "others could not be checked"
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Confirmation(Result, Drawable, Judgment, picture="confirmation"):
    """Whether a capability rests on its heads, shown on unseen examples.

    Attributes:
        heads: The heads ablated.
        result: What they take from their task.
        random: The heads beside random sets of heads from the same layers.
        verdict: *specific*, *template-bound*, *shared*, *localized*, *not localized* or *baseline too low*.
        reasons: What the verdict rests on, in words (``cs_heads.analysis.verdict`` says what each means).
        controls: What the heads take from each control that was measured.
        kin: What they take from tasks that ask for the same in other words.
        spent: Example-evaluations.
        provenance: Model, task, controls and seed.
        specificity: Losses of the task and of the controls that count (None: there are none to compare).
        again: How often the verdict would be the same on other examples (``cs_heads.analysis.verdict``).
        least: Which of the heads given these are, where the fewest of them were sought that do nine tenths of the harm.
        but_for: Controls of the task's form that lose much, where it is *specific* but for these.
        stability: How often heads and verdict come again with other seeds, where ``repeats`` were asked for.
        default_controls: Whether the controls are the default ones.
        close_because: Why another verdict is compatible with the intervals (None: none is, as far as they are asked:
            ``cs_heads.analysis.verdict``).
        notes: What the verdict cannot tell.
        next_step: What to do after such a verdict.
    """

    _written = (
        *("heads", "drop", "result", "random", "p"),
        *("verdict", "headline", "but_for", "localized", "close", "close_because"),
        *("reasons", "notes", "next_step", "controls", "kin", "least", "stability", "again"),
        *("default_controls", "specificity", "spent", "provenance"),
    )

    heads: tuple[Unit, ...]
    result: TaskDrop
    random: RandomComparison
    controls: tuple[TaskDrop, ...]
    kin: tuple[TaskDrop, ...] = ()
    least: LeastSet | None = None
    stability: Stability | None = None
    default_controls: bool = False
    next_step: str = ""

    @property
    def p(self) -> float:
        """The larger of both p-values."""
        return max(self.random.p_sets, self.random.p_examples)

    @property
    def localized(self) -> bool:
        """Whether the heads do more harm than random ones: the verdict is localized, or a kind of it."""
        return self.verdict in ("specific", "template-bound", "shared", "localized")

    @property
    def headline(self) -> str:
        """The verdict, with what it holds but for."""
        return f"{self.verdict} but for {', '.join(self.but_for)}" if self.but_for else self.verdict

    @property
    def passengers(self) -> tuple[Unit, ...]:
        """Heads given that add little to the harm of the others, and are not proved."""
        return () if self.least is None else self.least.passengers

    @property
    def close(self) -> bool:
        """Whether another verdict is compatible with the 95 % intervals (``close_because`` says which are asked)."""
        return self.close_because is not None

    @property
    def likely(self) -> tuple[str, ...]:
        """How likely other examples give the same verdict, in words, where it is known."""
        said = f"losses drawn anew from their intervals give the same verdict in {self.again:.2f} of draws"
        return () if np.isnan(self.again) else (said,)

    @property
    def lines(self) -> tuple[str, ...]:
        """All that is said with the verdict: reasons, how likely it is again, whether it is close, notes, what next."""
        close = () if self.close_because is None else (f"close: {self.close_because}",)
        return (
            *self.reasons,
            *self.likely,
            *close,
            *(f"note: {note}" for note in self.notes),
            f"next: {self.next_step}",
        )

    @property
    def drop(self) -> float:
        """The score lost on unseen examples with the heads off: drop@k."""
        return self.result.drop

    def to_frame(self) -> pd.DataFrame:
        """One row per task, the confirmed one first: baseline, score, drop and loss with their intervals."""
        drops = {"task": [self.result], "kin": self.kin, "control": self.controls}
        return pd.DataFrame({"role": role, **drop.to_dict()} for role, group in drops.items() for drop in group)

    def __str__(self) -> str:
        return f"{self.headline}: " + "\n  ".join(self.lines)

    def __repr__(self) -> str:
        return "\n  ".join([f"Confirmation({', '.join(map(str, self.heads))}: {self.headline})", *self.lines])

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{escape(line)}</li>" for line in self.lines)
        named = escape(", ".join(map(str, self.heads)))
        return f"<div><b>{named}: {escape(self.headline)}</b><ul>{said}</ul>{super()._repr_html_()}</div>"

    def _table(self) -> pd.DataFrame:
        """Five columns, which ``_remarks`` explains; ``to_frame`` has all that was measured."""
        random = self.random.drop / self.result.above_chance
        drops = {"heads found": [self.result], "heads found, kin": self.kin, "heads found, control": self.controls}
        rows = [
            (off, one.task, one.baseline, one.score, _loss(one.loss, one.loss_interval, one.loss > 1))
            for off, several in drops.items()
            for one in several
        ]
        own, baseline = self.result.task, self.result.baseline
        rows.insert(1, ("random heads", own, baseline, baseline - self.random.drop, _loss(random)))
        return pd.DataFrame(rows, columns=["off", "task", "intact", "without", "loss (95 % interval)"])

    def _remarks(self) -> tuple[str, ...]:
        # The notes stand above the table.
        return (
            f"off: what was ablated; random heads: the mean of {len(self.random.drops)} sets like these. "
            "intact, without: the score on unseen examples with nothing off, and with these heads off. "
            "loss: the share of the score above chance that is lost; unknown where a baseline is too low. "
            "to_frame() has all numbers.",
        )


@one_bar("confirm")
def confirm(
    model: ModelLike | None,
    task: Judged,
    heads: Found,
    *,
    k: int | None = None,
    controls: Sequence[Judged] | str | None = "auto",
    seed: int = 0,
    exclude: Found | None = None,
    off: Found | None = None,
    n: int = 100,
    n_random: int = N_RANDOM,
    least: bool = True,
    repeats: int = 0,
    **settings: Unpack[SettingsArguments],
) -> Confirmation:
    """Ablate heads on unseen examples of their task, beside random heads of the same layers, and give a verdict.

    One example of each question counts, however often it is asked; a note says how many are left out for that.
    Random heads, not the intact model, are what the heads are compared with: any ablation does some harm. Controls tell
    heads of this task from heads that every task needs. The verdict, by the rule of ``cs_heads.analysis.verdict``:

    - *baseline too low*: the intact model cannot do the task;
    - *not localized*: the heads do not do clearly more harm than the random sets (p < .01 over sets of heads and over
      examples), or their loss is not larger by .10;
    - *specific*: localized, and the controls lose at most a third of what the task loses on average, less by .10 for
      certain, and none for certain more than half, but for one or two that share a form with the task;
    - *template-bound*: specific or localized, but one of the kin of the task (the same in other words) loses less than
      half of what it loses for certain;
    - *shared*: localized, and the controls lose more than that third, or one of them more than that half;
    - *localized*: the difference is not certain, or no control can tell: one whose intact score beats chance with 20
      right answers or more.

    It is ``close`` where the 95 % intervals allow another verdict. Each random set is measured on a few examples, on
    more only while it may do as much harm as the heads. With ``2 × n`` for the task and some ``5 × n`` for the least
    set of five heads that costs some ``13 × n`` example-evaluations, and up to ``22 × n`` where the heads take little
    more than random ones (with ``n`` below 84 up to ``13 × n + 750``). Each control given adds ``2 × n``, each
    default one ``n`` (14 or 15, on the demo model 7), and so do kin; mean and resample ablation take another run of
    each task's examples beforehand. Each of ``repeats`` takes a search and a proof more.

    Args:
        model: A model, the name of one, or a ``Cluster``; None: ``task`` and ``controls`` are experiments, of which no
            controls are the default (see ``cs_heads.analysis``).
        task: The task that the heads were found on; it holds out 20 examples or more.
        heads: A ranking, or a list of heads. Examples that a ranking was found on, of the task or its controls, are
            left out, and a note says how many; a list does not say which these are.
        k: Heads taken of a ranking (None: as many as it was searched for).
        controls: Other tasks; of one that is a whole task up to ``n`` examples are drawn from the half that
            ``find_heads`` with the same ``seed`` does not search with. ``"auto"``: everyday skills that come with the
            library (``tasks.default_controls``; on the demo model its own skills), up to ``n // 2`` unseen examples of
            each, and of each kin, but 20 at least. A note names those that the model does not do well enough to count;
            where fewer than three count, the verdict is never *specific*. None: none. Controls that are kin of the
            task, which ask for the same in other words (``tasks.default_kin``), are no controls, but measured beside: a
            note says so.
        seed: That of ``find_heads``. With another seed more examples of the controls are among those that the search
            has seen, and are left out; heads of a list do not say which these are.
        exclude: Heads that random sets have none of (None: the shared heads of a ranking, whose harm says nothing of
            the task).
        off: Heads that are off throughout, as in ``find_heads`` (None: those of the ranking): what is proved is what
            carries the task without them.
        n: Unseen examples at most.
        n_random: Random sets of heads, or all there are. With fewer than 105 no p over sets may be below .01, and
            *localized* means that none of them does as much harm, by luck alone once in ``1 + n_random`` cases; so the
            verdict is ``close``.
        least: Prove the fewest of the heads that do nine tenths of their harm, and name the others, passengers; False
            proves all.
        repeats: Search and prove again so often, as ``find_heads`` made the ranking but with the seeds after its own:
            ``Confirmation.stability`` says how often each head and the verdict come again. The controls that were given
            to the search must be among those given here.
        settings: As of ``Experiment``.

    Returns:
        The verdict and its reasons, what the heads take from the task, beside random sets, and from each control, with
        cost, provenance and notes.

    Raises:
        ValueError: A task without unseen examples; a control that shares a question with the task, or with the finding
            side of another control; a head outside the grid, one named twice or also in ``exclude``; a ranking of other
            weights than the model's; ``repeats`` of a search that is not known. Raised before the model runs.
    """
    check_seed(seed)
    check_integer("n_random", n_random, 1)
    check_type("least", least, bool)
    check_integer("repeats", repeats, 0)
    if repeats and model is None:
        raise ValueError(f"repeats must be 0 for an experiment, which has no search to repeat, got {repeats}")
    search = search_of(heads, check_controls(controls, cast(Task, task))) if repeats else None
    again: dict[str, Any] = {"k": k, "controls": controls, "exclude": exclude, "n": n, "n_random": n_random}
    if isinstance(heads, HeadRanking):
        off = heads.off if off is None else off
    else:
        as_heads("heads", heads)
    with controlled(model, task, controls, heads, n=n, seed=seed, settings=settings, with_kin=True) as judged:
        grid = judged.own.grid
        chosen = heads_of(grid, heads, k, model=model_of(judged.own), beside_off=True)
        if exclude is None and isinstance(heads, HeadRanking):
            exclude = [head for head in heads.shared if head not in chosen]
        for option, each in (("exclude", exclude), ("off", off)):
            check_ranked(option, each, judged.own)
        without = as_heads("off", () if off is None else off)
        if twice := {*map(grid.resolve, without)} & {*chosen}:
            raise ValueError(f"heads must be others than those off already, got {', '.join(map(str, sorted(twice)))}")
        own, *beside = (WithHeadsOff(each, without) for each in judged.experiments)
        n_controls = len(judged.controls)
        proof = prove(
            own,
            chosen,
            exclude=[*as_heads("exclude", () if exclude is None else exclude), *without],
            controls=beside[:n_controls],
            defaults=judged.defaults,
            kin=beside[n_controls:],
            n_random=n_random,
            seed=seed,
            least=least,
        )
        notes, spent = [*judged.notes], proof.spent
        if model is not None:
            # Their own count has what the ablation ran beforehand.
            spent = sum(each.spent for each in judged.experiments)
            notes = [*notes, *cast_note(heads, judged.own), *([] if found_on(heads) else [_UNTOLD])]
        proof = replace(proof, spent=spent, notes=(*proof.notes, *notes))
    if search is None:
        return proof
    again |= {"off": without, "least": least}
    stability = _stability(cast(ModelLike, model), cast(Task, task), search, repeats, again=again, settings=settings)
    reasons = (*proof.reasons, stability.told)
    return replace(proof, stability=stability, reasons=reasons, spent=proof.spent + stability.spent)


def _stability(
    model: ModelLike, task: Task, search: dict[str, Any], repeats: int, *, again: dict[str, Any], settings: Any
) -> Stability:
    """What is proved where the search and ``confirm``, with these arguments, are repeated with the next seeds."""
    proofs, spent = [], 0
    for seed in range(search["seed"] + 1, search["seed"] + repeats + 1):
        found = find_heads(model, task, off=again["off"], **{**search, "seed": seed}, **settings)
        proofs.append(confirm(model, task, found, seed=seed, **again, **settings))
        spent += found.spent + proofs[-1].spent
    return Stability(tuple(each.heads for each in proofs), tuple(each.headline for each in proofs), spent)


@one_bar("confirm", outermost=True)
def prove(
    experiment: ExperimentLike,
    heads: Found,
    *,
    k: int | None = None,
    exclude: Sequence[HeadLike] = (),
    controls: Sequence[ExperimentLike] = (),
    defaults: Sequence[str] | None = None,
    kin: Sequence[ExperimentLike] = (),
    n_random: int = N_RANDOM,
    seed: int = 0,
    least: bool = True,
) -> Confirmation:
    """``confirm`` on all examples of experiments: of several that ask one question the first, and none found on.

    A layer that random sets would use up gives way to others, and the notes say so. Random sets are as large as all
    heads given also where the least set is proved, since which are the fewest is chosen by their harm.

    Args:
        experiment: On the task of the heads.
        heads: The heads, or a ranking.
        k: Heads taken of a ranking (None: as many as it was searched for).
        exclude: Heads that random sets have none of.
        controls: Of other tasks; all that can tell count in the verdict.
        defaults: Names of the default controls, also of those that could not be measured; None where ``controls`` were
            chosen by the caller.
        kin: Of tasks that ask for the same in other words.
        n_random: Random sets of heads, or all there are.
        seed: Draws the random sets, the examples that each has first, and intervals.
        least: Prove the fewest of the heads that do nine tenths of their harm (``cs_heads.analysis.least_set``).

    Raises:
        ValueError: Heads outside the grid, named twice, also in ``exclude``, or too many to leave as many others;
            controls of one name. Raised before anything is measured.
    """
    (experiment, *parts), left_out = unseen_parts([experiment, *controls, *kin], found_on(heads))
    controls, kin = parts[: len(controls)], parts[len(controls) :]
    grid = experiment.grid
    beside_off = bool(experiment.off.any())
    heads = heads_of(grid, heads, k, model=model_of(experiment), beside_off=beside_off)
    exclude = [grid.resolve(head) for head in exclude]
    found, apart = grid.mask(heads), grid.mask(exclude)
    if (found & apart).any():
        both = [str(head) for head in heads if head in exclude]
        raise ValueError(f"exclude must have none of heads, got {', '.join(both)}")
    check_k(len(heads), grid)
    drawn = random_sets(grid, found, apart, n_random, check_seed(seed))
    others = [Column(each.name, "control", (each,)) for each in parts]
    check_columns(others)
    if any(each.grid != grid for each in parts):
        raise ValueError("tasks must all be measured on one grid")
    sizes = [each.n_examples for each in (experiment, *parts)]
    expect(preparation_of(experiment, *parts) + most_of_proof(len(heads), sizes[0], sizes[1:], len(drawn), least=least))
    own = explicit(grid, [[], heads])
    baseline, ablated = measured(experiment, own)
    sets = first_round(experiment, drawn, baseline, seed)
    given = {"intact": baseline, "by_all": ablated, "like": like_note(found, drawn)}
    random, fewest, ablated, choice = fewest_beyond(experiment, heads, sets, least=least, **given)
    if fewest is not None:
        heads = fewest.heads
    own = explicit(grid, [[], heads])
    measure_together([Call(each, own) for each in parts])
    low = baseline_too_low(experiment, baseline)
    result = task_drop(experiment.name, experiment.chance, [(baseline, ablated)], seed, [low])
    beside = measure_drops(others, {"heads": heads}, {}, seed) if others else None
    drops = () if beside is None else tuple(beside.drops["heads"].values())
    taken, carried = drops[: len(controls)], drops[len(controls) :]
    # What has no task shares no form with another.
    tasks = {control.name: control.task for control in controls if control.task is not None}
    task = experiment.task
    of_form, of_answers = ([], []) if task is None else (alike(task, tasks), alike_in_answers(task, tasks))
    names = {"alike": of_form, "matched": [name for name in tasks if tasks[name].matched], "doubtful": of_answers}
    said = judge(result, random, taken, defaults, kin=carried, **names, seed=seed)
    spent = 2 * sizes[0] + experiment.preparation + random.spent
    told = () if fewest is None else (fewest.told,)
    if fewest is not None and said.verdict == "not localized":
        # Where they do no more harm than random heads there is none to share out.
        without = ", ".join(map(str, fewest.passengers))
        told = (f"measured without passengers: {without}",) if without else ()
    reasons = (*told, *said.reasons)
    notes = (*said.notes, *drawn_notes(grid, found, apart, drawn), *left_out)
    return Confirmation(
        **vars(replace(said, reasons=reasons, notes=notes)),
        heads=heads,
        result=result,
        random=random,
        least=fewest,
        controls=taken,
        kin=carried,
        spent=spent + choice + (0 if beside is None else beside.spent),
        provenance=experiment.provenance() | {"n_random": n_random, "apart": list(map(str, exclude)), "seed": seed},
        default_controls=defaults is not None,
        next_step=remedy(experiment)
        if said.verdict == "baseline too low"
        else next_step(said.verdict, len(heads), random),
    )


def _loss(loss: float, interval: Interval = UNKNOWN, below_chance: bool = False) -> str:
    bounds = "" if np.isnan(interval).any() else f" ({interval[0]:+.2f} to {interval[1]:+.2f})"
    return "unknown" if np.isnan(loss) else f"{loss:.2f}{bounds}{', below chance' if below_chance else ''}"
