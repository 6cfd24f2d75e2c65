"""Causal mediation: carry one head's z from a clean run into a corrupted one, and watch the answer.

The average indirect effect of each head, for any clean and corrupted prompts: with those of ``cs_heads.tasks.pairs``
the function-vector protocol (Todd et al., arXiv 2310.15213) and the three-stage screening of identity rules (Yang et
al., *Emergent Symbolic Mechanisms Support Abstract Reasoning in Large Language Models*, arXiv 2502.20332).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from typing_extensions import Unpack

from cs_heads.arguments import check_integer, check_seed
from cs_heads.cluster import ModelLike, local_model
from cs_heads.experiment.baseline import check_baseline
from cs_heads.experiment.cost import Cost, check_budget
from cs_heads.experiment.experiment import Experiment
from cs_heads.experiment.inputs import as_shown
from cs_heads.lens import encode_example
from cs_heads.lens.model import HookedModel, tokenizer_of
from cs_heads.methods.patching import PatchingExperiment, patching
from cs_heads.methods.ranking_method import check_differentiable, ranking_method
from cs_heads.progress import one_bar
from cs_heads.ranking import HeadRanking, normal_interval
from cs_heads.settings import SettingsArguments
from cs_heads.tasks import Task
from cs_heads.tasks.pairs import PromptPair, counterparts
from cs_heads.units import Unit

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Mediation:
    """Indirect effect of each head on each pair: the measure with the head patched, less ``corrupted`` without.

    The measure is the probability of the target, or, where pairs name what is said ``instead``, the nats
    between the two. ``p`` is the one-sided t-test that a head's mean effect is above zero.

    Attributes:
        effects: By how much each head moves the measure, in ``unit``.
        corrupted: The measure of each pair with no head patched, in ``unit``.
        cost: Forward passes of single prompts.
        unit: ``"probability"`` or ``"nats"``.
        provenance: The model, and the number of pairs.
    """

    effects: Float[np.ndarray, "pair layer head"]
    corrupted: Float[np.ndarray, " pair"]
    cost: Cost
    unit: str
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def average(self) -> Float[np.ndarray, "layer head"]:
        """The average indirect effect."""
        return self.effects.mean(axis=0)

    @property
    def p(self) -> Float[np.ndarray, "layer head"]:
        """P of each head by itself; 1 for a head without any effect."""
        from scipy.stats import ttest_1samp

        moved = self.effects.std(axis=0) > 0
        p = np.where(self.average > 0, 0.0, 1.0)
        p[moved] = ttest_1samp(self.effects[:, moved], 0.0, alternative="greater").pvalue
        return p

    def significant(self, level: float = 0.05) -> Bool[np.ndarray, "layer head"]:
        """Heads with an effect above zero, at a false discovery rate (Benjamini-Hochberg).

        Args:
            level: That rate, in (0, 1).
        """
        from scipy.stats import false_discovery_control

        return false_discovery_control(self.p.ravel()).reshape(self.p.shape) <= level

    def heads(self, level: float = 0.05) -> list[Unit]:
        """The significant heads, the largest effect first.

        Args:
            level: The false discovery rate, in (0, 1).
        """
        chosen = self.significant(level)
        return [head for head in self.ranking().order if chosen[head.layer, head.index]]

    def to_frame(self) -> pd.DataFrame:
        """One row a head, the largest effect first: effect, its interval, p and whether it is significant."""
        frame = self.ranking().to_frame().rename(columns={"importance": "effect"})
        frame["p"] = self.p.ravel()[frame["index"]]
        frame["significant"] = self.significant().ravel()[frame["index"]]
        return frame

    def ranking(self, notes: tuple[str, ...] = ()) -> HeadRanking:
        """Heads by average indirect effect, with its 95 % normal interval over pairs.

        Args:
            notes: What the reader of the ranking should know.
        """
        return HeadRanking(
            method="mediation",
            importance=self.average,
            spent=self.cost.spent,
            interval=normal_interval(self.effects),
            provenance=self.provenance,
            notes=notes,
            unit=self.unit,
        )


def bound(experiment: Experiment, *, budget: int | None, n_pairs: int) -> int:
    """The most example-evaluations of ``mediation``; a budget below two pairs raises ``ValueError``."""
    check_integer("n_pairs", n_pairs, 2)
    intact, each = experiment.n_examples, experiment.grid.size + 2
    check_budget(budget, intact + 2 * each, f"the intact model: {intact}; two pairs: {2 * each:,}")
    return intact + each * (n_pairs if budget is None else min(n_pairs, (budget - intact) // each))


@ranking_method("mediation", bound)
def mediation(experiment: Experiment, *, budget: int | None = None, seed: int = 0, n_pairs: int = 50) -> HeadRanking:
    """Rank heads by how much their z at the last token brings an example's answer into another example's prompt.

    Pairs are ``task_pairs``, drawn with ``seed``; importance is the average rise of the first answer over the second,
    in nats. It finds heads that carry *which* answer, at the last token alone: heads that work at earlier tokens, or
    alike in every example, have no effect here.

    Costs the intact run, and for each pair the clean and the corrupted run and one run a head. With a store the effects
    are saved every few seconds, and the same call resumes: only the clean runs are run again.

    Args:
        experiment: The task.
        budget: Example-evaluations in all; a smaller one takes as many pairs as it covers, at least two.
        seed: Seeds the draw of the pairs.
        n_pairs: Pairs of examples, 2 or more.

    Returns:
        The ranking, in nats, with a 95 % normal interval over pairs for each head.

    Raises:
        ValueError: Fewer than two pairs, or a budget below two pairs.
        BaselineTooLowError: The intact model cannot do the task.
    """
    check_differentiable(experiment)
    intact, each = experiment.n_examples, experiment.grid.size + 2
    n_pairs = (bound(experiment, budget=budget, n_pairs=n_pairs) - intact) // each
    pairs = task_pairs(local_model(experiment.source), experiment.task, n_pairs, seed)
    patched = PatchingExperiment(experiment.setup, pairs)
    notes = check_baseline(experiment)
    found = _mediation(patched)
    baseline = float(experiment.baseline().mean())
    provenance = {"baseline": baseline, "pairs": len(found.effects), "seed": seed}
    cost, n_heads = found.cost + Cost(forwards=intact), int(found.significant().sum())
    few = () if n_heads >= 5 else (f"only {n_heads} heads have an effect above zero at a false discovery rate of .05",)
    return replace(found, cost=cost, provenance=provenance).ranking((*notes, *few))


def task_pairs(model: HookedModel, task: Task, n: int, seed: int = 0) -> tuple[PromptPair, ...]:
    """Up to ``n`` ``counterparts`` of a task as the model is shown it, whose answers begin with different tokens."""
    check_seed(seed)
    drawn = counterparts(as_shown(model, task), len(task), seed)
    differing = []
    for pair in drawn:
        encoded = encode_example(tokenizer_of(model), pair.corrupted, [pair.target, pair.instead or ""])
        if len({continuation[0] for continuation in encoded.continuations}) == 2:
            differing.append(pair)
    return tuple(differing[:n])


@one_bar("indirect effects")
def indirect_effects(
    model: ModelLike,
    pairs: Sequence[PromptPair],
    *,
    budget: int | None = None,
    average_source: bool = False,
    **settings: Unpack[SettingsArguments],
) -> Mediation:
    """The indirect effect of every head on every pair, many (pair, head) runs in one forward.

    Costs ``n_heads + 2`` example-evaluations a pair.

    Args:
        model: Your own TransformerLens model, the name of one, or a ``Cluster``: its model in this process is run.
        pairs: Clean and corrupted prompts, two or more.
        average_source: False patches each pair's own clean z; True the mean z of all clean prompts, as the
            function-vector protocol does with ``shuffled_labels`` pairs.
        budget: Example-evaluations in all; takes the first pairs that it covers.
        settings: See ``SettingsArguments``.

    Returns:
        Effects ``[pair, layer, head]``, in probability or, where pairs have ``instead``, in nats, with ``p`` of each
        head.

    Raises:
        ValueError: Fewer than two pairs, pairs with and without ``instead`` together, or different numbers of places,
            before the model runs.
    """
    with patching(model, pairs, budget=budget, **settings) as experiment:
        return _mediation(experiment, average_source)


def _mediation(experiment: PatchingExperiment, average_source: bool = False) -> Mediation:
    effects, corrupted = experiment.effects(average_source)
    return Mediation(
        effects=effects,
        corrupted=corrupted,
        cost=Cost(forwards=effects.size + 2 * len(effects)),
        unit=experiment.unit,
        provenance={**experiment.provenance(), "average_source": average_source},
    )
