"""How the score falls as heads are ablated one after another, on the own task and on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from typing_extensions import Unpack

from cs_heads.analysis.columns import Column, Judged, Role, in_role, unseen_columns, with_others
from cs_heads.analysis.drops import measure_drops
from cs_heads.analysis.found_heads import Found, heads_of, model_of
from cs_heads.analysis.losses import TaskDrop
from cs_heads.analysis.random_heads import random_orders
from cs_heads.analysis.result import Result
from cs_heads.arguments import check_integer, check_seed
from cs_heads.cluster import ModelLike
from cs_heads.designs import different, explicit
from cs_heads.drawable import Drawable
from cs_heads.experiment.baseline import fitting_k
from cs_heads.experiment.protocol import measured
from cs_heads.progress import expect, one_bar, step
from cs_heads.ranking import HeadRanking
from cs_heads.settings import SettingsArguments
from cs_heads.units import HeadLike, Unit


@dataclass(frozen=True, eq=False, repr=False)
class SparsityCurve(Result, Drawable, picture="sparsity"):
    """Scores with the first 0, 1, ..., most heads off, on unseen examples of every task.

    Attributes:
        heads: The heads, in the order in which they are ablated.
        drops: By task, its own first; entry k has the first k of ``heads`` off.
        roles: What each task is to the heads, as in ``TaskDrops``.
        spent: Example-evaluations.
        provenance: Model, tasks, random sets and seed.
        random_drops: Drops of the own task with 0, 1, ..., most random heads off, none of the found ones,
            the first of each set from the layer of the first head, and so on (None: not measured).
        notes: What a small grid made otherwise.
    """

    heads: tuple[Unit, ...]
    drops: dict[str, tuple[TaskDrop, ...]]
    roles: dict[str, Role]
    random_drops: Float[np.ndarray, "set k"] | None = None

    @property
    def own(self) -> str:
        """The task that the heads belong to."""
        return next(iter(self.drops))

    def heads_for(self, share: float = 0.5) -> int | None:
        """The least number of heads that takes this share of what the own task has above chance.

        Args:
            share: Of the score above chance, in (0, 1].

        Returns:
            None where the curve ends before, or the baseline is too low to tell.

        Raises:
            ValueError: A share outside (0, 1].
        """
        if not 0 < share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {share}")
        return next((k for k, drop in enumerate(self.drops[self.own]) if drop.loss >= share), None)

    def to_frame(self) -> pd.DataFrame:
        """One row per (task, k): role, the head that is off from here on, score and drops with intervals."""
        return pd.DataFrame(
            {"role": self.roles[name], "k": k, "head": str(self.heads[k - 1]) if k else "", **drop.to_dict()}
            for name, curve in self.drops.items()
            for k, drop in enumerate(curve)
        )

    def _table(self) -> pd.DataFrame:
        return self.to_frame().pivot_table(index="k", columns="task", values="score", sort=False)


@one_bar("sparsity curve", outermost=True)
def measure_sparsity(
    columns: Sequence[Column],
    heads: Sequence[HeadLike],
    seed: int = 0,
    n_random: int = 0,
    exclude: Sequence[HeadLike] = (),
) -> SparsityCurve:
    """``sparsity_curve`` of all ``heads``, in order, on columns of which the first is their own task.

    Random sets, of which none has a head of ``exclude``, grow head by head through the layers of ``heads``.
    """
    grid = columns[0].parts[0].grid
    named = tuple(map(grid.resolve, heads))
    nested = {str(k): named[:k] for k in range(len(named) + 1)}
    sizes = [sum(part.n_examples for part in column.parts) for column in columns]
    expect(len(nested) * sum(sizes) + n_random * len(named) * sizes[0])
    found = measure_drops(columns, nested, dict.fromkeys(nested, columns[0].name), seed)
    orders, notes = random_orders(grid, named, exclude, n_random, np.random.default_rng(seed))
    step("random heads")
    random, spent = random_drops(columns[0], orders) if orders else (None, 0)
    return SparsityCurve(
        heads=named,
        drops={c.name: tuple(found.drops[k][c.name] for k in nested) for c in columns},
        roles=found.roles,
        spent=found.spent + spent,
        provenance={**found.provenance, "n_random": n_random},
        random_drops=random,
        notes=(*notes, *found.notes),
    )


def random_drops(column: Column, orders: Sequence[Sequence[Unit]]) -> tuple[Float[np.ndarray, "set k"], int]:
    """Drops of random heads in these orders, one more with each k, and the example-evaluations they take."""
    nested = [order[:k] for order in orders for k in range(len(order) + 1)]
    once, place = different(explicit(column.parts[0].grid, nested))
    means = [measured(part, once).mean(axis=1) for part in column.parts]
    scores = np.mean(means, axis=0)[place].reshape(len(orders), -1)
    # The intact run is that of the curve.
    spent = (len(once) - 1) * sum(part.n_examples for part in column.parts)
    return scores[:, :1] - scores, spent


@one_bar("sparsity curve")
def sparsity_curve(
    model: ModelLike | None,
    task: Judged,
    heads: Found,
    *,
    max_heads: int | None = None,
    controls: Sequence[Judged] | None = None,
    seed: int = 0,
    siblings: Sequence[Judged] = (),
    suites: Mapping[str, Sequence[Judged]] | None = None,
    n: int = 100,
    n_random: int = 0,
    **settings: Unpack[SettingsArguments],
) -> SparsityCurve:
    """Ablate the first 0, 1, ..., ``max_heads`` heads of a ranking (or list) on their own task and on others.

    All the nested sets of a task share the engine's batches; each task costs at most ``n × (max_heads + 1)``
    example-evaluations, and each random set up to ``n × max_heads``. Bair et al. (arXiv 2603.03335) draw this for 0 to
    10 heads.

    Args:
        model: A model, the name of one, or a ``Cluster``; None: tasks are experiments (see ``cs_heads.analysis``).
        task: The task that the heads were found on.
        heads: A ranking, or a list of heads.
        max_heads: Heads ablated at most, half of the grid or fewer (None: 10, or what fits a small grid, with a note).
        controls: Tasks of other capabilities (None: none).
        seed: As in ``specificity``; it draws the random sets, too.
        siblings: Other sets of examples of the same capability.
        suites: Several tasks by one name, whose score is their mean.
        n: Examples of every task at most.
        n_random: Sets of random heads of the same layers, none of them shared by the ranking, that are ablated on the
            own task for comparison.
        settings: As of ``Experiment``.

    Returns:
        By task the drop with the first 0, 1, ..., ``max_heads`` heads off, and with ``n_random`` the drops of random
        heads on the own task.

    Raises:
        ValueError: What ``specificity`` refuses, or a ``max_heads`` beyond half of the grid. Raised before the model
            runs.
    """
    check_seed(seed)
    check_integer("n_random", n_random, 0)
    asked = with_others(in_role("own", [task]), siblings, controls, suites)
    exclude = heads.shared if isinstance(heads, HeadRanking) else ()
    with unseen_columns(model, asked, heads, n=n, seed=seed, settings=settings) as columns:
        judged = columns[0].parts[0]
        max_heads, notes = fitting_k(max_heads, judged.grid, 10, "max_heads")
        chosen = heads_of(judged.grid, heads, max_heads, model=model_of(judged))[:max_heads]
        curve = measure_sparsity(columns, chosen, seed, n_random, exclude)
    return replace(curve, notes=(*notes, *curve.notes))
