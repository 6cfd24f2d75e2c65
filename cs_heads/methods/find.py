"""From a model and a task to a ranking, by any method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from cs_heads.arguments import MAX_BUDGET, check_seed
from cs_heads.cluster import ModelLike, local_model
from cs_heads.experiment.baseline import check_baseline, fitting_k
from cs_heads.experiment.controls import (
    check_ranked,
    defaults_of,
    experiments_on,
    found_on,
    kin_of,
    left_out_note,
    unseen_parts,
)
from cs_heads.experiment.cost import BudgetTooSmallError, check_budget
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.heads_off import WithHeadsOff
from cs_heads.methods.registry import Method, method_named
from cs_heads.progress import expect, name_call, one_bar
from cs_heads.ranking import HeadRanking, SearchCall
from cs_heads.settings import Settings, check_method_options
from cs_heads.tasks import Task, check_controls, finding_side, search_control, without_kin
from cs_heads.tasks.controls import AUTO, MIN_DEFAULTS, NO_CONTROLS
from cs_heads.tasks.splits import check_size, distinct
from cs_heads.units import HeadLike, as_heads


@one_bar("find heads")
def find_heads(
    model: ModelLike,
    task: Task,
    *,
    k: int | None = None,
    method: str = "annealed",
    controls: Sequence[Task] | str | None = "auto",
    budget: int | None = None,
    seed: int = 0,
    off: HeadRanking | Sequence[HeadLike] = (),
    **options: Any,
) -> HeadRanking:
    """Rank the heads of ``model`` by how much ``task`` rests on them.

    Measures on the finding side of a task that is split (``load_task``, ``Task.split``), so that ``confirm`` has unseen
    examples: on one example of each question, which the ranking names (``HeadRanking.examples``). The intact model runs
    before any mask. With a ``store`` an interrupted call resumes when it is repeated, and ends with the same ranking,
    ``spent`` included. For methods that use the model itself the store has the intact run and what takes long (gates,
    gradients, effects), saved every few seconds.

    Methods that ablate by mask run a large float32 model in bfloat16 where that is faster and decides alike
    (``Experiment.in_faster_dtype``), unless ``compute_dtype`` says otherwise; the provenance says which it was.

    Args:
        model: A TransformerLens model, the name or folder of one, or a ``Cluster``. Methods that use the model itself
            run here, on a model of this process.
        task: The task, whole or split.
        k: Number of heads wanted (None: 5, or half of a grid of fewer than 10 heads).
        method: One of ``methods.METHODS``.
        controls: Other tasks, by which a method distinguishes heads of the task from heads that every task needs: all
            of them, on the finding side of a task that is split, on one half of a whole one, the other half being left
            for ``confirm`` with the same ``seed``. ``"auto"`` are everyday skills that come with the library
            (``tasks.default_controls``; on the demo model its own skills), for ``annealed`` and ``group-testing``: the
            other methods stand as in their papers unless controls are given. None is none. A default control that
            shares a question with the task, or is the same skill in another form, is left out, and a note says so.
        budget: Example-evaluations at most, with the intact run, the controls, and what the ablation runs beforehand
            (None: what the method takes by default).
        seed: Seeds all draws.
        off: Heads that are off under every mask: give the heads found, to search again for what carries the task
            without them (backups). The intact model of the ranking is the model without them; they come last. For
            methods that ablate by mask.
        options: Settings (``SettingsArguments``), and the options of the method, as in ``find_heads(model, task,
            method="css", n_masks=200, store="run.sqlite")``. Methods that use the model itself know zero ablation
            alone.

    Returns:
        The ranking, with its cost, provenance and notes.

    Raises:
        ValueError: Before the model runs: an unknown method, a wrong option, a budget below the least the method needs,
            a ``k`` that leaves no random heads to compare with, controls of one name, or a control that shares a
            question with the task.
        BaselineTooLowError: The intact model does not beat chance, or answers fewer than 20 examples right; no mask is
            spent.
    """
    check_seed(seed)
    with prepared_search(
        model, task, k=k, method=method, controls=controls, budget=budget, seed=seed, off=off, **options
    ) as search:
        name_call(method)
        expect(search.most)
        return search.run()


@contextmanager
def prepared_search(
    model: ModelLike,
    task: Task,
    *,
    k: int | None,
    method: str,
    controls: Sequence[Task] | str | None,
    budget: int | None,
    seed: int,
    off: HeadRanking | Sequence[HeadLike] = (),
    **options: Any,
) -> Iterator[PreparedSearch]:
    """Check and make all that ``find_heads`` needs, with the same arguments, and give what runs it, once.

    A budget below the least of the method raises ``ValueError``.
    """
    given = {name: options.pop(name) for name in Settings.kinds() if name in options}
    settings, ranked, off, seen = Settings.of(given), off, as_heads("off", off), found_on(off)
    chosen = _chosen(method, options, settings, off)
    asked, kin = without_kin(check_controls(controls, task), task)
    if (asked or kin) and not chosen.takes_controls:
        raise ValueError(f"method {method!r} takes no controls; give them to confirm")
    if chosen.uses == "model":
        if settings.workers is not None or settings.address is not None:
            warnings.warn(f"method {method!r} uses the model itself: it runs here, not on workers", stacklevel=5)
        model, given = local_model(model), {**given, "workers": None, "address": None}
    side, repeated = distinct(finding_side(task))
    check_size(side, repeated)
    with Experiment(model, side, **given) as made:
        check_ranked("off", ranked, made)
        [once], same = unseen_parts([made], ())
        experiment, side = cast(Experiment, once), cast(Task, once.task)
        check_size(side, same)
        if (repeated or same) and "forget" in options:
            twice = f"task must ask no question twice, for each has its pair in forget; {(*repeated, *same)[0]}"
            raise ValueError(twice)
        if chosen.uses == "masks":
            experiment = experiment.in_faster_dtype()
        k, fitted = fitting_k(k, experiment.grid, n_off=int(experiment.grid.mask(off).sum()))
        _check_unseen(experiment)
        automatic = controls == AUTO and chosen.default_controls
        others = defaults_of(experiment, side, seed) if automatic else [search_control(each, seed) for each in asked]
        kin = [*kin_of(experiment, side, seed)] if automatic else kin
        beside = experiments_on(experiment, others, chosen=not automatic)
        put = {**options, "seed": seed} | ({"k": k} if chosen.takes_k else {})
        put |= {"controls": beside} if beside else {}
        used, notes = [other.task.name for other in beside], [*repeated, *same, *fitted]
        left_out = (*experiment.notes, *left_out_note(experiment, kin, automatic))
        left, most = _allotted(experiment, chosen, budget, put)

        def search() -> HeadRanking:
            ranking = _found(experiment, chosen, left, put, off)
            told = _controls_told(ranking, method, controls, [other.name for other in others], used)
            # A method that leaves a control out says itself which it used.
            provenance = {"controls": used, **ranking.provenance}
            origin: Literal["auto", "given"] | None = "auto" if automatic else "given" if used else None
            found = replace(
                ranking,
                k=k,
                search=SearchCall(seed, budget, tuple(provenance["controls"]), origin, _kept(options)),
                off=tuple(dict.fromkeys(ranking.grid.resolve(head) for head in off)),
                provenance=provenance,
                notes=(*notes, *told, *left_out),
                examples=tuple(sorted({*ranking.examples, *seen})),
            )
            few = f"k is {found.k}, not {k}: the controls need all other {found.grid.word}s, too"
            return found if found.k == k else replace(found, notes=(*found.notes, few))

        yield PreparedSearch(search, most, k, experiment)


def _check_unseen(experiment: Experiment) -> None:
    """Read the unseen side now, so that what cannot be confirmed is refused before the search and not after it."""
    if experiment.task.held_out is not None:
        check_size(experiment.task.held_out)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ = experiment.held_out


def _allotted(
    experiment: Experiment, method: Method, budget: int | None, given: dict[str, Any]
) -> tuple[int | None, int]:
    """What a budget leaves a method that does not count its intact run, and the most that both take."""
    intact = 0 if method.uses == "model" or method.measures_intact else experiment.n_examples
    # The method knows the least.
    check_budget(budget, -MAX_BUDGET, "")
    left = None if budget is None else budget - intact
    try:
        most = method.bound(experiment, budget=left, **given)
    except BudgetTooSmallError as error:
        raise error.beside(intact) from None
    return left, intact + most


@dataclass(frozen=True)
class PreparedSearch:
    """A search whose arguments are checked.

    Attributes:
        run: Runs it.
        most: The most example-evaluations that it takes.
        k: Heads wanted.
        experiment: The finding examples of its task.
    """

    run: Callable[[], HeadRanking]
    most: int
    k: int
    experiment: Experiment


def _controls_told(
    ranking: HeadRanking, name: str, controls: object, others: Sequence[str], used: Sequence[str]
) -> list[str]:
    """The notes of a ranking, and what is to be said of its controls: those asked for and those used, by name."""
    method = method_named(name)
    automatic = controls == AUTO and method.default_controls
    # One note says why there are none.
    notes = [note for note in ranking.notes if others or not automatic or note != NO_CONTROLS]
    # Methods with default controls say of themselves where they had none.
    if not used and not method.default_controls:
        chose_none = controls is None and method.takes_controls
        notes.append(NO_CONTROLS if chose_none else f"method {name!r} had {NO_CONTROLS}")
    if unread := [name for name in others if name not in used]:
        notes.append(f"default controls that the model cannot read: {', '.join(unread)}")
    n = len(ranking.provenance.get("controls", used))
    if automatic and others and n < MIN_DEFAULTS:
        few = f"the model can do {n} of the default controls, fewer than {MIN_DEFAULTS}: they do not speak for other "
        notes.append(f"{few}tasks; give controls of your own (controls=[...])")
    return notes


def _chosen(name: str, options: dict[str, Any], settings: Settings, off: Sequence[HeadLike]) -> Method:
    """The method of this name; options, settings and heads off that it does not have raise ``ValueError``."""
    method = method_named(name)
    check_method_options(name, method.options, options)
    if method.uses == "model":
        by_mask = f"method {name!r}, which does not ablate by mask; got"
        for each, value in (("ablation", "zero"), ("compute_dtype", None)):
            if (got := getattr(settings, each)) != value:
                raise ValueError(f"{each} must be {value!r} for {by_mask} {got!r}")
        if off:
            raise ValueError(f"off must be left out for {by_mask} {', '.join(map(str, off))}")
    return method


def _kept(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a ranking keeps them: None for what is no plain value, such as a task."""
    plain = bool | int | float | str
    return {name: value if isinstance(value, plain) else None for name, value in options.items() if value is not None}


def _found(
    experiment: Experiment, method: Method, left: int | None, given: dict[str, Any], off: Sequence[HeadLike]
) -> HeadRanking:
    """Run a method within the budget ``left``; one that ablates by mask after the intact run, which counts once."""
    if method.uses == "model":
        return method.run(experiment, budget=left, **given)
    controls, without = given.get("controls", ()), WithHeadsOff(experiment, off)
    notes = check_baseline(without)
    if controls:
        given = {**given, "controls": [WithHeadsOff(control, off) for control in controls]}
    ranking = method.run(without, budget=left, **given)
    # Their own count: what methods ask twice, or of the intact model again, is measured once.
    cost = sum((control.cost for control in controls), experiment.cost)
    return replace(
        ranking,
        spent=cost.spent,
        backwards=cost.backwards,
        provenance={**ranking.provenance, "baseline": float(without.baseline().mean())},
        notes=tuple(dict.fromkeys((*notes, *ranking.notes))),
    )
