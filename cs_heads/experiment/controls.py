"""What heads are judged on: the unseen side of a task, and its controls, given or by default."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from cs_heads.arguments import check_integer
from cs_heads.engine.encoding import encode_task
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.heads_off import on_model
from cs_heads.experiment.inputs import tokens_of
from cs_heads.experiment.protocol import ExperimentLike
from cs_heads.lens import check_weights
from cs_heads.lens.model import tokenizer_of
from cs_heads.ranking import HeadRanking
from cs_heads.store.store import BrokenStoreError
from cs_heads.tasks import Task, confirming_side, default_controls, default_kin
from cs_heads.tasks.splits import MIN_CORRECT, check_size, distinct


def found_on(*sources: Any) -> tuple[str, ...]:
    """Hashes of the questions that heads were found on, or that a search is about to see (``HeadRanking.examples``).

    Args:
        sources: Rankings, tasks, experiments, and lists and mappings of these; of anything else nothing is known.

    >>> from cs_heads.simulate import planted_world
    >>> found_on(planted_world("one_head", seed=0).task, ["L0H1"])
    ()
    """
    known: set[str] = set()
    for source in sources:
        if isinstance(source, HeadRanking):
            known.update(source.examples)
        elif isinstance(source, Task):
            known.update(*source.known)
        elif isinstance(source, ExperimentLike):
            known.update(*(() if source.task is None else source.task.known), *(_tokens(source) or ()))
        elif isinstance(source, Mapping | list | tuple):
            known.update(found_on(*(source.values() if isinstance(source, Mapping) else source)))
    return tuple(sorted(known))


def check_ranked(name: str, heads: Any, experiment: ExperimentLike) -> None:
    """Raise ``ValueError`` where heads are a ranking of other weights than those of an experiment."""
    if isinstance(heads, HeadRanking):
        check_weights(f"{name} and the model", heads.provenance.get("model"), experiment.provenance().get("model"))


def unseen_parts(
    experiments: Sequence[ExperimentLike], seen: Collection[str]
) -> tuple[list[ExperimentLike], tuple[str, ...]]:
    """Experiments on one example of each question that is not ``seen``, and notes on what was left out.

    Texts that are the same tokens are one question. One that has no task, as on a planted truth, stays as it is.
    """
    parts: list[ExperimentLike] = []
    said: list[str] = []
    for experiment in experiments:
        given: Any = experiment
        if experiment.task is not None:
            side, notes = distinct(experiment.task, seen, _tokens(experiment))
            with warnings.catch_warnings():
                # Said of all the examples before.
                warnings.simplefilter("ignore")
                given = given.on(side) if notes else given
            said += notes
        parts.append(given)
    return parts, tuple(said)


def unseen_tokens(
    experiments: Sequence[Experiment], task: Task, seen: Collection[str]
) -> tuple[list[Any], tuple[str, ...]]:
    """``unseen_parts`` of an experiment on the unseen side of ``task``, without its finding side, and of its controls.

    Notes say, too, which hooks stood on the model.

    Raises:
        ValueError: Fewer examples are left than a proof needs.
    """
    own, model = {*seen}, experiments[0].model
    if task.role == "finding":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            encoded = encode_task(model, task, experiments[0].settings.prepend_bos)
        own.update(*tokens_of(model, task, encoded))
    parts, notes = unseen_parts(experiments[:1], own)
    others, more = unseen_parts(experiments[1:], seen)
    check_size(cast(Task, parts[0].task), notes)
    return [*parts, *others], (*experiments[0].notes, *notes, *more)


def _tokens(experiment: ExperimentLike) -> list[list[str]] | None:
    """Hashes of the tokens of an experiment's examples; None where it has none."""
    made = on_model(experiment)
    return None if made is None else tokens_of(made.model, made.task, made.encoded)


def defaults_of(experiment: Experiment, task: Task, seed: int) -> tuple[Task, ...]:
    """The default controls of a task on the model of an experiment: none for one that reads no text."""
    if tokenizer_of(experiment.model) is None:
        return ()
    return default_controls(task, str(experiment.model.cfg.model_name), seed)


def kin_of(experiment: Experiment, task: Task, seed: int) -> tuple[Task, ...]:
    """The kin of a task among the skills of which the others are its default controls."""
    return default_kin(task, str(experiment.model.cfg.model_name), seed) if tokenizer_of(experiment.model) else ()


def left_out_note(
    experiment: Experiment, kin: Sequence[Task], automatic: bool, beside: Sequence[Experiment] | None = None
) -> tuple[str, ...]:
    """A note where ``kin`` are left out of the controls, or all default ones are: the model has no tokenizer.

    Where they are measured ``beside``, another says which are not.
    """
    if automatic and tokenizer_of(experiment.model) is None:
        return (
            "no default controls: they are texts, and the model has no tokenizer. Heads of this task cannot be "
            "distinguished from task-general (universal) heads: give controls of your own (controls=[...]; --control)",
        )
    names = ", ".join(each.name for each in kin)
    notes = (f"not used as controls, since they ask for the same as the task: {names}",) if names else ()
    measured = {each.task.name for each in beside or ()}
    missing = [each.name for each in kin if each.name not in measured]
    if beside is None or not missing:
        return notes
    return (*notes, f"not measured beside, with too few examples that the task does not ask: {', '.join(missing)}")


def experiments_on(experiment: Experiment, tasks: Sequence[Task], *, chosen: bool) -> list[Experiment]:
    """An experiment like another on each task. Of those that the caller has not ``chosen`` some may be left out.

    Left out, without a warning, are those whose texts the model's tokenizer or context does not take.
    """
    if chosen:
        return [experiment.on(task) for task in tasks]
    made = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in tasks:
            try:
                made.append(experiment.on(task))
            except BrokenStoreError:
                raise
            except ValueError:
                continue
    return made


def unseen_side(task: Task, n: int, seen: Collection[str] = ()) -> tuple[Task, tuple[str, ...]]:
    """Up to ``n`` examples of different questions that heads were not found with, and notes on what was left out.

    Args:
        task: Either side of a task.
        n: Examples at most.
        seen: What heads were found on (``found_on``).

    Raises:
        ValueError: They are too few, or ``n`` is.
    """
    check_integer("n", n, MIN_CORRECT)
    unseen, notes = distinct(confirming_side(task), seen)
    check_size(unseen, notes)
    return unseen.take(n), notes
