"""First-order importance: how the loss answers to a small turn of every head's gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from typing_extensions import Unpack

from cs_heads.cluster import ModelLike
from cs_heads.experiment.baseline import check_baseline
from cs_heads.experiment.cost import check_budget
from cs_heads.experiment.experiment import Experiment
from cs_heads.methods.controls import Controls, contrasted, controls_notes
from cs_heads.methods.patching import patching
from cs_heads.methods.ranking_method import check_differentiable, ranking_method
from cs_heads.ranking import HeadRanking
from cs_heads.settings import SettingsArguments
from cs_heads.tasks.pairs import PromptPair


def bound(experiment: Experiment, *, controls: Sequence[Experiment], budget: int | None, **_: object) -> int:
    """The most example-evaluations of ``gradient_importance``; a budget below the least raises ``ValueError``."""
    intact = experiment.n_examples + Controls.cost(controls)
    need = "one example of each control, and as many of the task," if controls else "one example"
    least = 4 * len(controls) or 2
    check_budget(budget, intact + least, f"the intact model: {intact}; {need} forward and back: {least}")
    most = intact + experiment.n_examples * (4 if controls else 2)
    return most if budget is None else min(most, budget)


@ranking_method("gradient", bound)
def gradient_importance(
    experiment: Experiment,
    *,
    controls: Sequence[Experiment] = (),
    budget: int | None = None,
    seed: int = 0,
    signed: bool = False,
) -> HeadRanking:
    """Rank heads by the gradient of the target's loss in their gates, all gates at 1: one backward pass.

    The loss is the mean negative log-probability of the target (nats per token). The interval is the 95 % normal one
    over examples. Costs one forward and one backward pass an example, and the intact run. With a store the gradients
    are saved every few seconds, for both rankings, and the same call resumes.

    With ``controls`` the importance is the contrast: the mean of the task's examples less the mean over controls of
    theirs, each first divided by its own standard deviation over heads, as nats of different tasks are no common unit.
    The controls give as many examples in all as the task, balanced (fewer where they have fewer), of those that the
    intact model answers right; it runs on up to 100 of each. One that it cannot do is left out, and the notes say so. A
    ``budget`` covers that too, and is split evenly.

    Args:
        experiment: The task.
        controls: Experiments on other tasks, which the heads should not serve.
        budget: Example-evaluations in all; one that does not cover all examples takes as many as it does.
        seed: Seeds the draw of these examples.
        signed: False for the mean over examples of ``|d loss / d gate|`` (Michel et al., *Are Sixteen Heads Really
            Better than One?*, arXiv 1905.10650, section 4.1), which does not distinguish help from harm. True for the
            mean of ``-d loss / d gate``, the attribution patching of zero ablation: a first-order estimate of the nats
            lost with the head off.

    Returns:
        The ranking in nats, absolute ones unless ``signed``, or with ``controls`` in standard deviations over heads.

    Raises:
        ValueError: A budget below the intact run and one example (with controls one of each and as many of the task).
        BaselineTooLowError: The intact model cannot do the task, or none of the controls.
    """
    check_differentiable(experiment, controls)
    intact, n, notes = (
        experiment.n_examples + Controls.cost(controls),
        experiment.n_examples,
        check_baseline(experiment),
    )
    if budget is not None:
        n = min(n, (budget - intact) // (4 if controls else 2))
    examples = np.sort(np.random.default_rng(seed).permutation(experiment.n_examples)[:n])
    chosen = [(experiment, examples)]
    used: dict[str, Any] = {}
    if controls:
        drawn = Controls.able(controls, seed)
        notes = (*notes, *controls_notes(drawn.left_out, drawn.names, required=True))
        chosen += drawn.examples_of(drawn.sample(n))
        used = {"controls": drawn.names, "control_examples": sum(len(some) for _, some in chosen[1:])}
    sides = [_gradients(side, some, signed) for side, some in chosen]
    own, *rest = map(_in_deviations, sides) if controls else sides
    importance, interval = contrasted(own, rest)
    run = sum(len(side) for side in sides)
    unit = "nats" if signed else "nats, absolute"
    return HeadRanking(
        method="attribution" if signed else "gradient",
        importance=importance,
        grid=experiment.grid,
        spent=intact + 2 * run,
        backwards=run,
        interval=interval,
        provenance={"baseline": float(experiment.baseline().mean()), "examples": n, "seed": seed, **used},
        notes=notes,
        unit="standard deviations over heads, less those of the controls" if controls else unit,
    )


def _gradients(
    experiment: Experiment, examples: Int[np.ndarray, " n"], signed: bool
) -> Float[np.ndarray, "n layer head"]:
    """What each example says of each head, in nats: minus the gradient, or its size."""
    gates = np.ones((len(examples), *experiment.grid.shape), dtype=np.float32)
    gradient = experiment.gradients(gates, examples, keep="gradient")[1].astype(float)
    # 0.0 - x and not -x: a head without effect has importance 0.0, not -0.0.
    return 0.0 - gradient if signed else np.abs(gradient)


def _in_deviations(each: Float[np.ndarray, "n layer head"]) -> Float[np.ndarray, "n layer head"]:
    """In standard deviations over heads of the mean; nothing where all heads are alike."""
    deviation = each.mean(axis=0).std()
    return each / deviation if deviation > 0 else np.zeros_like(each)


def attribution_patching(
    model: ModelLike, pairs: Sequence[PromptPair], **settings: Unpack[SettingsArguments]
) -> Float[np.ndarray, "pair layer head"]:
    """First-order estimate of every head's indirect effect: ``(z_clean - z_corrupted) · d measure / d z_corrupted``.

    Two forwards and one backward pass a pair, whatever the number of heads (Nanda, *Attribution Patching*, 2023).
    TransformerLens's ``attribution_patch`` does the same one pair at a time.

    Args:
        model: A TransformerLens model.
        pairs: Clean and corrupted prompts.
        settings: See ``SettingsArguments``.

    Returns:
        ``[pair, layer, head]``, in the measure of the pair: probability of its target, or nats between target and
        ``instead``.

    Raises:
        ValueError: No pairs, pairs of two kinds, or something else than a TransformerLens model.
    """
    with patching(model, pairs, least=1, **settings) as experiment:
        return experiment.gradients()
